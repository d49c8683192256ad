package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
	"github.com/moby/moby/api/types/container"
	engineimage "github.com/moby/moby/api/types/image"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Names of images that are made of sandboxes, beside those of setupPrefix. They are never pulled, whoever takes them in a public registry.
const (
	snapshotPrefix = "sandboxd-snapshot/"
	forkPrefix     = "sandboxd-fork/"
)

// labelImage keeps what the image of the sandbox had to say of its programs: the configuration of the container is ours, with the guest
// as its program, and the engine takes over every field of it that would otherwise be empty.
const labelImage = "sandboxd.image"

// snapshotRepo is where an owner's snapshots are. The name tells by itself whose they are, also to a daemon that lost its store.
func (im *images) snapshotRepo(owner string) string {
	return im.ownRepo(snapshotPrefix, owner) + "/"
}

// ownRepo is where an owner's images of one kind are.
func (im *images) ownRepo(prefix, owner string) string {
	sum := sha256.Sum256([]byte(im.engine.daemon + "\x00" + owner))
	return prefix + hex.EncodeToString(sum[:6])
}

func forkImage(id string) string { return forkPrefix + id + ":latest" }

// mayBoot refuses images of sandboxes to those whose they are not; for them there are none.
func (im *images) mayBoot(spec sandbox.Spec) error {
	switch {
	case strings.HasPrefix(spec.Image, "sha256:"): // the engine would take it for an image's ID, whosever that is
		return fmt.Errorf("image %s: images are named, not numbered", spec.Image)
	case strings.HasPrefix(spec.Image, snapshotPrefix) && !strings.HasPrefix(spec.Image, im.snapshotRepo(spec.Owner)),
		strings.HasPrefix(spec.Image, forkPrefix) && spec.Image != forkImage(spec.ID),
		isMade(spec.Image) && !im.madeFor(spec.Owner, spec.Image):
		return fmt.Errorf("%w: %s", sandbox.ErrNoImage, spec.Image)
	}
	return nil
}

// isSnapshot tells images that were made of sandboxes.
func isSnapshot(ref string) bool {
	return strings.HasPrefix(ref, snapshotPrefix) || strings.HasPrefix(ref, forkPrefix) || strings.HasPrefix(ref, setupPrefix)
}

// Snapshot keeps the files of inst as an image. See sandbox.Imager.
func (im *images) Snapshot(ctx context.Context, inst sandbox.Instance, owner, name, tag string) (string, error) {
	for what, label := range map[string]string{"snapshot": name, "tag": tag} {
		if _, err := wire.ParseLabel(what, label); err != nil {
			return "", fmt.Errorf("snapshot %s: %w", inst.ID, err)
		}
	}
	ref := im.snapshotRepo(owner) + name + ":" + tag
	switch _, err := im.engine.inspectImage(ctx, ref); {
	case err == nil:
		return "", fmt.Errorf("snapshot %s: %s: %w", inst.ID, ref, fs.ErrExist)
	case !errors.Is(err, sandbox.ErrNoImage):
		return "", fmt.Errorf("snapshot %s: %w", inst.ID, err)
	}
	return ref, im.commit(ctx, inst, ref, "")
}

// Fork makes the image of another instance. See sandbox.Imager.
func (im *images) Fork(ctx context.Context, inst sandbox.Instance, id string) (string, error) {
	if !validID.MatchString(id) {
		return "", fmt.Errorf("fork: id %q is not a DNS label", id)
	}
	ref := forkImage(id)
	return ref, im.commit(ctx, inst, ref, "")
}

// Prepared looks for what Prepare kept. See sandbox.Imager.
func (im *images) Prepared(ctx context.Context, spec sandbox.Spec, key string) (string, error) {
	ref, err := im.prepared(ctx, spec, key)
	if err != nil {
		return "", &sandbox.BootError{Stage: stageImage, Hint: hintOf(err), Err: err}
	}
	return ref, nil
}

func (im *images) prepared(ctx context.Context, spec sandbox.Spec, key string) (string, error) {
	var err error
	if spec.Image, err = parseImage(spec.Image); err != nil {
		return "", err
	}
	if err := im.mayBoot(spec); err != nil {
		return "", err
	}
	progress := spec.Progress
	if progress == nil {
		progress = func(string) {}
	}
	base, err := im.image(ctx, spec.Image, progress)
	if err != nil {
		return "", err
	}
	ref := im.madeImage(setupPrefix, spec.Owner, "1", base.id, key)
	switch _, err := im.engine.inspectImage(ctx, ref); {
	case errors.Is(err, sandbox.ErrNoImage):
		return "", nil
	case err != nil:
		return "", err
	}
	im.engine.used(ctx, ref)
	return ref, nil
}

// Prepare keeps the files of inst for others of the same owner, image and key. See sandbox.Imager.
func (im *images) Prepare(ctx context.Context, inst sandbox.Instance, owner, key string) (string, error) {
	im.trimMade(ctx)
	ref := im.madeImage(setupPrefix, owner, "1", inst.Digest, key)
	return ref, im.commit(ctx, inst, ref, im.engine.daemon)
}

// commit makes an image of the container of inst; made is the daemon whose set-up it is of, if it is. The engine freezes the container
// meanwhile. What was mounted – the guest, its socket, what programs have in /dev/shm – is no part of it, and the keys never were in a file.
func (im *images) commit(ctx context.Context, inst sandbox.Instance, ref, made string) error {
	return im.instances.change(ctx, "snapshot", inst, func(id string, _, _ bool) error {
		c, err := im.engine.container(ctx, id)
		if err != nil {
			return err
		}
		if dirs := volumesOf(c); len(dirs) > 0 {
			return fmt.Errorf("%w: %s is a volume of its image, and no image keeps the files of volumes: copy them yourself, with sandboxd cp",
				sandbox.ErrUnsupported, strings.Join(dirs, ", "))
		}
		img, err := im.engine.inspectImage(ctx, c.Image)
		if err != nil {
			return err
		}
		original, err := json.Marshal(img.config)
		if err != nil {
			return err
		}
		// Files are copied: how long that takes is the disk's to say. One that was given up may be there all the same.
		_, err = im.engine.api.ContainerCommit(ctx, id, client.ContainerCommitOptions{Reference: ref, Config: &container.Config{
			User: img.config.User, Env: img.config.Env, WorkingDir: img.config.WorkingDir, Entrypoint: img.config.Entrypoint, Cmd: img.config.Cmd,
			Labels: map[string]string{labelImage: string(original), labelDaemon: "", labelID: "", labelCreated: "", labelMade: made}}})
		if err != nil {
			im.engine.removeImage(context.WithoutCancel(ctx), ref)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("commit container: %w", err)
		}
		return nil
	})
}

// volumesOf are the directories of a container that the engine keeps apart from its other files.
func volumesOf(c container.InspectResponse) []string {
	var dirs []string
	for _, m := range c.Mounts {
		if m.Type == mount.TypeVolume {
			dirs = append(dirs, m.Destination)
		}
	}
	slices.Sort(dirs)
	return dirs
}

// Weight asks the engine, which looks at the length of each file. See sandbox.Imager.
func (im *images) Weight(ctx context.Context, inst sandbox.Instance) (int64, error) {
	n, err := im.engine.size(ctx, refOf(inst))
	if err != nil {
		return 0, fmt.Errorf("weight of %s: %w", inst.ID, err)
	}
	return n, nil
}

// Kept goes by the names of images. See sandbox.Imager.
func (im *images) Kept(ctx context.Context, owner string, ids []string) (int64, error) {
	var images []engineimage.Summary
	err := im.engine.call(ctx, im.engine.limits.quick, "list images", func(ctx context.Context) error {
		r, err := im.engine.api.ImageList(ctx, client.ImageListOptions{All: true})
		images = dockersNames(r.Items)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("kept images: %w", err)
	}
	snapshots, forks := im.snapshotRepo(owner), make(map[string]bool)
	for _, id := range ids {
		forks[forkImage(id)] = true
	}
	return keptOf(images, func(tag string) bool {
		return strings.HasPrefix(tag, snapshots) || forks[tag] || im.madeFor(owner, tag)
	},
		func(i engineimage.Summary) bool { return i.Labels[labelMade] == im.engine.daemon }), nil
}

// keptOf sums what the images with such a tag have beyond the first image below them that was not made with them. What several have
// counts once.
func keptOf(images []engineimage.Summary, ours func(tag string) bool, made func(engineimage.Summary) bool) (sum int64) {
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
			parent := byID[at.ParentID] // none where the engine does not say: then it is all of it
			sum += max(at.Size-parent.Size, 0)
			at, known = parent, parent.ID != "" && made(parent)
		}
	}
	return sum
}

// removeImage removes an image of ours, if there is one.
func (e *engine) removeImage(ctx context.Context, ref string) {
	err := e.call(ctx, e.limits.remove, "remove image", func(ctx context.Context) error {
		_, err := e.api.ImageRemove(ctx, ref, client.ImageRemoveOptions{Force: true, PruneChildren: true})
		return err
	})
	if err != nil && !cerrdefs.IsNotFound(err) {
		e.log.Warn("an image is left behind", "image", ref, "err", err)
	}
}

// originalConfig is the configuration that an image of ours keeps of the image below.
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
