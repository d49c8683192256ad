package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox/machine"
)

// fillWithin bounds the copy of the guest, of 7 MB, to an engine that may be far away.
const fillWithin = 5 * time.Minute

// guestVolume is the name of the volume with a guest, whose file has its checksum in its name.
func guestVolume(file string) string { return "sandboxd-" + filepath.Base(file) }

// guestMount mounts the volume with the guest.
func guestMount(volume string, readOnly bool) mount.Mount {
	return mount.Mount{Type: mount.TypeVolume, Source: volume, Target: machine.GuestBin,
		ReadOnly: readOnly, VolumeOptions: &mount.VolumeOptions{NoCopy: true}}
}

// guestVolumes are the volumes of a remote engine that have a guest. They stay: sandboxes of other
// daemons may use them.
type guestVolumes struct {
	engine  *engine
	filling chan struct{} // holds a value while a volume is being filled
}

// provide copies the guest to the volume of p, unless it is there. ref is a container that mounts
// the volume, and has not been started.
func (v *guestVolumes) provide(ctx context.Context, p plan, ref string) error {
	err := v.look(ctx, p, ref)
	if !cerrdefs.IsNotFound(err) {
		return err
	}
	select {
	case v.filling <- struct{}{}:
		defer func() { <-v.filling }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err = v.look(ctx, p, ref); !cerrdefs.IsNotFound(err) {
		return err
	}
	if err = v.fill(ctx, p); err == nil {
		err = v.look(ctx, p, ref) // the image may lead the copy elsewhere, by a link
	}
	return err
}

// look returns nil if the volume has the guest; the error is a NotFound of package errdefs if not.
// A copy that was interrupted counts as missing.
func (v *guestVolumes) look(ctx context.Context, p plan, ref string) error {
	want, err := os.Stat(p.GuestFile)
	if err != nil {
		return fmt.Errorf("guest program: %w", err)
	}
	return v.engine.call(ctx, v.engine.limits.quick, "look for the guest program",
		func(ctx context.Context) error {
			got, err := v.engine.api.ContainerStatPath(ctx, ref,
				client.ContainerStatPathOptions{Path: remoteGuest})
			if err == nil && got.Stat.Size != want.Size() {
				return cerrdefs.ErrNotFound
			}
			return err
		})
}

// fill copies the guest by way of a container that mounts the volume for writing, and never runs.
func (v *guestVolumes) fill(ctx context.Context, p plan) error {
	program, err := os.ReadFile(p.GuestFile)
	if err != nil {
		return fmt.Errorf("guest program: %w", err)
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err = w.WriteHeader(&tar.Header{Name: path.Base(remoteGuest), Mode: 0o555,
		Size: int64(len(program))})
	if err == nil {
		_, err = w.Write(program)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return err
	}
	e := v.engine
	// A fixed name: what a daemon left when it was killed is found.
	name := "sandboxd-fill-" + e.daemon
	clean := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.limits.remove)
		defer cancel()
		if err := e.remove(ctx, "", name); err != nil {
			e.log.Warn("a container that never ran is left behind", "name", name, "err", err)
		}
	}
	clean()
	defer clean()
	// As for a sandbox, the end of ctx does not abandon the creation.
	err = e.call(context.WithoutCancel(ctx), e.limits.create, "create container",
		func(ctx context.Context) error {
			_, err := e.api.ContainerCreate(ctx, client.ContainerCreateOptions{Name: name,
				Config: &container.Config{Image: p.Image, Entrypoint: []string{remoteGuest},
					Labels: map[string]string{labelMade: e.daemon}},
				HostConfig: &container.HostConfig{NetworkMode: network.NetworkNone,
					Mounts: []mount.Mount{guestMount(p.GuestVolume, false)}}})
			return err
		})
	if err != nil {
		return err
	}
	return e.call(ctx, fillWithin, "copy the guest program", func(ctx context.Context) error {
		_, err := e.api.CopyToContainer(ctx, name, client.CopyToContainerOptions{
			DestinationPath: machine.GuestBin, Content: &archive})
		return err
	})
}
