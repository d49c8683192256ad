package docker

import (
	"context"
	"fmt"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	engineimage "github.com/moby/moby/api/types/image"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/machine"
)

// How long a registry may be silent before a pull fails.
const pullSilence = 10 * time.Second

// rawImage returns the engine's description of an image. The error for a missing image is
// cerrdefs.IsNotFound.
func (e *engine) rawImage(ctx context.Context, ref string) (got client.ImageInspectResult,
	err error) {
	err = e.call(ctx, e.limits.quick, "look up image", func(ctx context.Context) (err error) {
		got, err = e.api.ImageInspect(ctx, ref)
		return err
	})
	return got, err
}

// inspectImage returns what an image contributes to a sandbox. It returns ErrNoImage if there is
// none by that name.
func (e *engine) inspectImage(ctx context.Context, ref string) (sandbox.Image, error) {
	got, err := e.rawImage(ctx, ref)
	switch {
	case cerrdefs.IsNotFound(err):
		return sandbox.Image{}, fmt.Errorf("%w: %s", sandbox.ErrNoImage, ref)
	case err != nil:
		return sandbox.Image{}, err
	case got.Os != "" && got.Os != "linux":
		return sandbox.Image{}, fmt.Errorf("image %s: %w: it is for %s", ref,
			sandbox.ErrUnsupported, got.Os)
	}
	i := sandbox.Image{ID: got.ID, Arch: got.Architecture}
	if got.Config != nil {
		i.Config = *got.Config
		if machine.IsSnapshot(ref) || len(got.RepoTags) > 0 &&
			machine.IsSnapshot(dockersName(got.RepoTags[0])) {
			if err := originalConfig(&i.Config); err != nil {
				return sandbox.Image{}, fmt.Errorf("image %s: %w", ref, err)
			}
		}
	}
	return i, nil
}

// listImages lists images by the names that Docker's engine uses for them.
func (e *engine) listImages(ctx context.Context,
	o client.ImageListOptions) (list []engineimage.Summary, err error) {
	err = e.call(ctx, e.limits.quick, "list images", func(ctx context.Context) error {
		r, err := e.api.ImageList(ctx, o)
		list = dockersNames(r.Items)
		return err
	})
	return list, err
}

// made is the label of everything that builds and setups of this daemon make.
func (e *engine) made() string { return labelMade + "=" + e.daemon }

// pull fetches ref and reports progress. It fails when the registry is silent for pullSilence, but
// has no limit in total.
func (e *engine) pull(ctx context.Context, ref string, progress func(string)) error {
	noImage := func(err error) error {
		return sandbox.Hint(fmt.Errorf("%w: %s is not present and could not be pulled: %w",
			sandbox.ErrNoImage, ref, err),
			"check the name and try docker pull "+ref+", or omit --image to use "+
				sandbox.DefaultImage)
	}
	progress("pulling " + ref)
	silent := fmt.Errorf("registry did not answer within %v", pullSilence)
	pulling, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(pullSilence, func() { cancel(silent) })
	defer watchdog.Stop()
	fail := func(err error) error {
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("pull %s: %w", ref, context.Cause(ctx))
		case pulling.Err() != nil:
			return noImage(context.Cause(pulling))
		case isUnreachable(err) && client.IsErrConnectionFailed(err):
			return sandbox.Hint(fmt.Errorf("pull %s: %w: %w", ref, sandbox.ErrEngine, err),
				unreachableHint(err))
		}
		return noImage(err)
	}
	stream, err := e.api.ImagePull(pulling, ref, client.ImagePullOptions{})
	if err != nil {
		return fail(err)
	}
	defer stream.Close()
	meter := newPullMeter(time.Now())
	last := make(map[string]string) // status by layer, to report each change once
	for message, err := range stream.JSONMessages(pulling) {
		if err != nil {
			return fail(err)
		}
		watchdog.Reset(pullSilence)
		if message.Error != nil {
			return fail(message.Error)
		}
		if message.Status != "" && last[message.ID] != message.Status {
			last[message.ID] = message.Status
			progress(strings.TrimPrefix(message.ID+": "+message.Status, ": "))
		}
		if line := meter.add(message.ID, message.Status, message.Progress, time.Now()); line != "" {
			progress(line)
		}
	}
	return nil
}

// removeImage removes an image of ours, if there is one.
func (e *engine) removeImage(ctx context.Context, ref string) error {
	err := e.call(ctx, e.limits.remove, "remove image", func(ctx context.Context) error {
		_, err := e.api.ImageRemove(ctx, ref,
			client.ImageRemoveOptions{Force: true, PruneChildren: true})
		return err
	})
	if cerrdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// removeUnused removes an image unless a sandbox uses it, and reports whether it did.
func (e *engine) removeUnused(ctx context.Context, ref string) bool {
	err := e.call(ctx, e.limits.remove, "remove image", func(ctx context.Context) error {
		_, err := e.api.ImageRemove(ctx, ref, client.ImageRemoveOptions{PruneChildren: true})
		return err
	})
	if err != nil {
		e.log.Debug("image is in use", "image", ref, "err", err)
	}
	return err == nil
}

// used updates the time at which the engine last tagged an image, by which trimMade selects.
func (e *engine) used(ctx context.Context, ref string) {
	err := e.call(ctx, e.limits.quick, "tag image", func(ctx context.Context) error {
		_, err := e.api.ImageTag(ctx, client.ImageTagOptions{Source: ref, Target: ref})
		return err
	})
	if err != nil {
		e.log.Debug("use of an image was not recorded", "image", ref, "err", err)
	}
}

// prune removes images of this daemon without a name that are no base of another image.
func (e *engine) prune(ctx context.Context) error {
	which := make(client.Filters).Add("dangling", "true").Add("label", e.made())
	return e.call(ctx, e.limits.remove, "prune images", func(ctx context.Context) error {
		_, err := e.api.ImagePrune(ctx, client.ImagePruneOptions{Filters: which})
		return err
	})
}
