package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
	"github.com/moby/moby/api/types/container"
	engineimage "github.com/moby/moby/api/types/image"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/machine"
)

// labelImage holds the configuration of the sandbox's own image. The container's configuration
// names the guest as its program, and the engine copies every field that a commit leaves empty.
const labelImage = "sandboxd.image"

// Save makes an image of the container of inst. The engine freezes the container meanwhile. The
// image does not include mounts: the guest, its sockets, /dev/shm. No file contains keys. See
// machine.ImageStore.
func (s *imageStore) Save(ctx context.Context, inst sandbox.Instance, ref string,
	l *sandbox.Layer) error {
	s.committing.RLock()
	defer s.committing.RUnlock()
	return s.instances.change(ctx, "save files of", inst, func(id string, _, _ bool) error {
		c, err := s.container(ctx, id)
		if err != nil {
			return err
		}
		if dirs := volumesOf(c); len(dirs) > 0 && (l == nil || !l.Dockerfile) {
			return fmt.Errorf("%w: %s is a volume, and an image cannot contain files of volumes: "+
				"copy them with sandboxd cp",
				sandbox.ErrUnsupported, strings.Join(dirs, ", "))
		}
		img, err := s.inspectImage(ctx, c.Image)
		if err != nil {
			return err
		}
		made := ""
		if l != nil {
			made = s.daemon
			if l.Config != nil {
				img.Config = *l.Config
			}
		}
		original, err := json.Marshal(img.Config)
		if err != nil {
			return err
		}
		// No time limit: the time depends on how many files are copied. An abandoned commit may
		// still complete.
		_, err = s.api.ContainerCommit(
			ctx, id, client.ContainerCommitOptions{Reference: ref,
				Config: &container.Config{
					User: img.Config.User, Env: img.Config.Env, WorkingDir: img.Config.WorkingDir,
					Entrypoint: img.Config.Entrypoint, Cmd: img.Config.Cmd,
					Labels: map[string]string{labelImage: string(original),
						labelDaemon: "", labelID: "", labelCreated: "", labelMade: made},
				}})
		if err != nil {
			if left := s.removeImage(context.WithoutCancel(ctx), ref); left != nil {
				s.log.Warn("image was not removed", "image", ref, "err", left)
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
	n, err := im.engineStore.size(ctx, refOf(inst))
	if err != nil {
		return 0, fmt.Errorf("image size of %s: %w", inst.ID, err)
	}
	return n, nil
}

// Kept selects images by name. See sandbox.Imager.
func (im *images) Kept(ctx context.Context, owner string, ids []string) (int64, error) {
	images, err := im.engineStore.listImages(ctx, client.ImageListOptions{All: true})
	if err != nil {
		return 0, fmt.Errorf("kept images: %w", err)
	}
	return keptOf(images, im.Names.Keeps(owner, ids), func(i engineimage.Summary) bool {
		return i.Labels[labelMade] == im.engineStore.daemon
	}), nil
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
