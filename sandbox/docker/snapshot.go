package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
	"github.com/moby/moby/api/types/container"
	engineimage "github.com/moby/moby/api/types/image"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/machine"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// labelImage holds the configuration of the sandbox's own image. The container's configuration
// names the guest as its program, and the engine copies every field that a commit leaves empty.
const labelImage = "sandboxd.image"

// Snapshot saves the files of inst as an image. See sandbox.Imager.
func (im *images) Snapshot(ctx context.Context, inst sandbox.Instance, owner, name,
	tag string) (string, error) {
	for what, label := range map[string]string{"snapshot": name, "tag": tag} {
		if _, err := wire.ParseLabel(what, label); err != nil {
			return "", fmt.Errorf("snapshot %s: %w", inst.ID, err)
		}
	}
	ref := im.names.Snapshots(owner) + name + ":" + tag
	switch _, err := im.engine.inspectImage(ctx, ref); {
	case err == nil:
		return "", fmt.Errorf("snapshot %s: %s: %w", inst.ID, ref, fs.ErrExist)
	case !errors.Is(err, sandbox.ErrNoImage):
		return "", fmt.Errorf("snapshot %s: %w", inst.ID, err)
	}
	return ref, im.commit(ctx, inst, ref, nil)
}

// Fork saves the files of inst for another instance. See sandbox.Imager.
func (im *images) Fork(ctx context.Context, inst sandbox.Instance, id string) (string, error) {
	if !guestconfig.ValidID.MatchString(id) {
		return "", fmt.Errorf("fork: id %q is not a DNS label", id)
	}
	ref := machine.ForkImage(id)
	return ref, im.commit(ctx, inst, ref, nil)
}

// commit makes an image of the container of inst. l is nil unless it can be made again. The engine
// freezes the container meanwhile. The image does not include mounts: the guest, its
// sockets, /dev/shm. No file contains keys.
func (im *images) commit(ctx context.Context, inst sandbox.Instance, ref string,
	l *sandbox.Layer) error {
	im.committing.RLock()
	defer im.committing.RUnlock()
	return im.instances.change(ctx, "save files of", inst, func(id string, _, _ bool) error {
		c, err := im.engine.container(ctx, id)
		if err != nil {
			return err
		}
		if dirs := volumesOf(c); len(dirs) > 0 && (l == nil || !l.Dockerfile) {
			return fmt.Errorf("%w: %s is a volume, and an image cannot contain files of volumes: "+
				"copy them with sandboxd cp",
				sandbox.ErrUnsupported, strings.Join(dirs, ", "))
		}
		img, err := im.engine.inspectImage(ctx, c.Image)
		if err != nil {
			return err
		}
		made := ""
		if l != nil {
			made = im.engine.daemon
			if l.Config != nil {
				img.config = *l.Config
			}
		}
		original, err := json.Marshal(img.config)
		if err != nil {
			return err
		}
		// No time limit: the time depends on how many files are copied. An abandoned commit may
		// still complete.
		_, err = im.engine.api.ContainerCommit(
			ctx, id, client.ContainerCommitOptions{Reference: ref,
				Config: &container.Config{
					User: img.config.User, Env: img.config.Env, WorkingDir: img.config.WorkingDir,
					Entrypoint: img.config.Entrypoint, Cmd: img.config.Cmd,
					Labels: map[string]string{labelImage: string(original),
						labelDaemon: "", labelID: "", labelCreated: "", labelMade: made},
				}})
		if err != nil {
			if left := im.engine.removeImage(context.WithoutCancel(ctx), ref); left != nil {
				im.engine.log.Warn("image was not removed", "image", ref, "err", left)
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("commit container: %w", err)
		}
		return nil
	})
}

// volumesOf returns the directories of a container that are volumes.
func volumesOf(c container.InspectResponse) []string {
	var dirs []string
	for _, m := range c.Mounts {
		if m.Type == mount.TypeVolume && m.Destination != machine.GuestBin {
			dirs = append(dirs, m.Destination)
		}
	}
	slices.Sort(dirs)
	return dirs
}

// Weight gets the size from the engine, which adds up the lengths of files. See sandbox.Imager.
func (im *images) Weight(ctx context.Context, inst sandbox.Instance) (int64, error) {
	n, err := im.engine.size(ctx, refOf(inst))
	if err != nil {
		return 0, fmt.Errorf("image size of %s: %w", inst.ID, err)
	}
	return n, nil
}

// Kept selects images by name. See sandbox.Imager.
func (im *images) Kept(ctx context.Context, owner string, ids []string) (int64, error) {
	images, err := im.engine.listImages(ctx, client.ImageListOptions{All: true})
	if err != nil {
		return 0, fmt.Errorf("kept images: %w", err)
	}
	snapshots, forks := im.names.Snapshots(owner), make(map[string]bool)
	for _, id := range ids {
		forks[machine.ForkImage(id)] = true
	}
	return keptOf(images, func(tag string) bool {
		return strings.HasPrefix(tag, snapshots) || forks[tag] || im.names.MadeFor(owner, tag)
	},
		func(i engineimage.Summary) bool { return i.Labels[labelMade] == im.engine.daemon }), nil
}

// keptOf adds up the sizes of images with such a tag, without the first image below each that was
// not made with them. A shared layer counts once.
func keptOf(images []engineimage.Summary, ours func(tag string) bool,
	made func(engineimage.Summary) bool) (sum int64) {
	byID := make(map[string]engineimage.Summary)
	for _, i := range images {
		byID[i.ID] = i
	}
	seen := make(map[string]bool)
	for _, i := range images {
		if !slices.ContainsFunc(i.RepoTags, ours) {
			continue
		}
		for at, known := i, true; known && !seen[at.ID]; {
			seen[at.ID] = true
			// None if the engine does not report it: then the whole image counts.
			parent := byID[at.ParentID]
			sum += max(at.Size-parent.Size, 0)
			at, known = parent, parent.ID != "" && made(parent)
		}
	}
	return sum
}

// originalConfig replaces config by the configuration in labelImage, if there is one.
func originalConfig(config *dockerspec.DockerOCIImageConfig) error {
	kept := config.Labels[labelImage]
	if kept == "" {
		return nil
	}
	var original dockerspec.DockerOCIImageConfig
	if err := json.Unmarshal([]byte(kept), &original); err != nil {
		return fmt.Errorf("label %s: %w", labelImage, err)
	}
	*config = original
	return nil
}
