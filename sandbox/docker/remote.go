package docker

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// An engine is remote if its containers cannot use files and sockets of the daemon: it runs on
// another machine, in a virtual machine such as Docker Desktop's, or beside the container in which
// the daemon runs. Its sandboxes get the guest from a volume of the engine, and the daemon reaches
// a guest through the engine, by a program in the container.

const (
	// guestAddress is where the guest of a remote engine listens: an abstract socket, which only
	// the network namespace of the container has.
	guestAddress = "unix:@sandboxd"
	// remoteGuest is the guest program. Its directory is a volume, which never changes once it is
	// complete.
	remoteGuest  = guestBin + "/guest"
	completeFile = "complete" // in that directory; written last
)

// isRemote tries whether the engine sees a file of this machine, and has its kernel. known is false
// if the engine's answer says neither. Docker's engine checks the mounts of a container before it
// looks for the image, so that it makes none here.
func (e *engine) isRemote(ctx context.Context, info system.Info, compatible bool) (remote,
	known bool) {
	if release := kernelRelease(); release == "" || info.KernelVersion != release {
		return true, true
	}
	if compatible { // it checks mounts last
		return e.socket == "", true
	}
	file, err := os.CreateTemp(e.dir, ".seen-*")
	if err != nil {
		e.log.Warn("not known whether the engine shares files with this machine", "err", err)
		return false, false
	}
	defer os.Remove(file.Name())
	defer file.Close()
	var made client.ContainerCreateResult
	err = e.call(ctx, e.limits.create, "ask engine", func(ctx context.Context) (err error) {
		made, err = e.api.ContainerCreate(ctx, client.ContainerCreateOptions{
			Config: &container.Config{Image: "sandboxd/none:" + strings.ToLower(rand.Text())},
			HostConfig: &container.HostConfig{
				Mounts: []mount.Mount{readOnly(file.Name(), guestRun)}},
		})
		return err
	})
	switch {
	case cerrdefs.IsNotFound(err):
		return false, true
	case err != nil && strings.Contains(err.Error(), "source path does not exist"):
		return true, true
	case err == nil && made.ID != "": // not Docker's engine after all
		err = e.remove(ctx, "", made.ID)
	}
	e.log.Warn("not known whether the engine shares files with this machine", "err", err)
	return false, false
}

// remotely decides how a sandbox of a remote engine is made, and rejects what it cannot have.
func (p *plan) remotely(f facts, spec sandbox.Spec) error {
	lacks := func(what, hint string) error {
		return hinted{fmt.Errorf("%s: %w: the engine does not share files with the daemon", what,
			sandbox.ErrUnsupported), hint}
	}
	switch {
	case f.compatible:
		return lacks("an engine other than Docker's", "run the daemon on the engine's machine")
	case len(spec.Mounts) > 0:
		return lacks("mounted directories", "copy the files: sandboxd cp")
	}
	p.GuestVolume = "sandboxd-" + filepath.Base(p.GuestFile)
	p.RunDir, p.TrustDir = "", ""
	return nil
}

// ca is the file in the sandbox with the certificate authorities; empty if it trusts its image's.
// bundle is that of this machine.
func (p plan) ca(bundle string) string {
	switch {
	case bundle == "":
		return ""
	case p.GuestVolume != "":
		return wire.AuthoritiesFile
	}
	return guestCA
}

// guestMount mounts the volume with the guest.
func guestMount(volume string, readOnly bool) mount.Mount {
	return mount.Mount{Type: mount.TypeVolume, Source: volume, Target: guestBin,
		ReadOnly: readOnly, VolumeOptions: &mount.VolumeOptions{NoCopy: true}}
}

// guestVolumes are the volumes of a remote engine that have a guest. They stay: sandboxes of other
// daemons may use them.
type guestVolumes struct {
	engine *engine

	mu       sync.Mutex
	complete map[string]bool // guarded by mu
	filling  sync.Mutex
}

// provide copies the guest to the volume of p, unless that is complete. ref is a container that
// mounts it, and has not been started.
func (v *guestVolumes) provide(ctx context.Context, p plan, ref string) error {
	if v.has(p.GuestVolume) {
		return nil
	}
	v.filling.Lock() // each call of the engine is bounded
	defer v.filling.Unlock()
	if v.has(p.GuestVolume) {
		return nil
	}
	err := v.engine.call(ctx, v.engine.limits.quick, "look for the guest program",
		func(ctx context.Context) error {
			_, err := v.engine.api.ContainerStatPath(ctx, ref,
				client.ContainerStatPathOptions{Path: path.Join(guestBin, completeFile)})
			return err
		})
	if cerrdefs.IsNotFound(err) {
		err = v.fill(ctx, p)
	}
	if err != nil {
		return fmt.Errorf("guest program: %w", err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.complete == nil {
		v.complete = make(map[string]bool)
	}
	v.complete[p.GuestVolume] = true
	return nil
}

func (v *guestVolumes) has(volume string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.complete[volume]
}

// forget has the volume looked at again: the engine's owner may have removed it.
func (v *guestVolumes) forget(volume string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.complete, volume)
}

// fill copies the guest by way of a container that mounts the volume for writing, and never runs.
func (v *guestVolumes) fill(ctx context.Context, p plan) error {
	program, err := os.ReadFile(p.GuestFile)
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, f := range []struct {
		name string
		mode int64
		text []byte
	}{{path.Base(remoteGuest), 0o555, program}, {completeFile, 0o444, nil}} {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode,
			Size: int64(len(f.text))}); err != nil {
			return err
		}
		if _, err := w.Write(f.text); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	e := v.engine
	return e.call(ctx, e.limits.start, "copy to a volume", func(ctx context.Context) error {
		made, err := e.api.ContainerCreate(ctx, client.ContainerCreateOptions{
			Config: &container.Config{Image: p.Image, Entrypoint: []string{remoteGuest},
				Labels: map[string]string{labelMade: e.daemon}},
			HostConfig: &container.HostConfig{NetworkMode: network.NetworkNone,
				Mounts: []mount.Mount{guestMount(p.GuestVolume, false)}}})
		if err != nil {
			return err
		}
		_, err = e.api.CopyToContainer(ctx, made.ID, client.CopyToContainerOptions{
			DestinationPath: guestBin, Content: &archive})
		return errors.Join(err, e.remove(context.WithoutCancel(ctx), "", made.ID))
	})
}

// isRemote reports whether the guest of an instance is reached through the engine.
func (d stateDir) isRemote(id string) bool {
	k, err := d.ReadKeys(id)
	return err == nil && len(k.Guest.Listen) > 0
}

// relay connects to the guest of a running container.
func (e *engine) relay(ctx context.Context, ref string) (net.Conn, error) {
	var conn client.HijackedResponse
	err := e.call(ctx, e.limits.quick, "connect to the guest", func(ctx context.Context) error {
		made, err := e.api.ExecCreate(ctx, ref, client.ExecCreateOptions{User: "0:0",
			WorkingDir: "/", AttachStdin: true, AttachStdout: true, AttachStderr: true,
			Cmd: []string{remoteGuest, "relay", guestAddress}})
		if err != nil {
			return err
		}
		r, err := e.api.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
		conn = r.HijackedResponse
		return err
	})
	if err != nil {
		return nil, err
	}
	return &relayed{Conn: conn.Conn, from: conn.Reader}, nil
}

// relayed is a connection by a program in a container: its standard input and output. Closing it
// ends the program.
type relayed struct {
	net.Conn

	from *bufio.Reader
	left int // bytes of the current frame
}

// Read returns what the program wrote. The error of its end is what it wrote to its standard error.
// The engine sends frames of either (Docker Engine API, "Attach to a container").
func (c *relayed) Read(p []byte) (int, error) {
	for c.left == 0 {
		var header [8]byte
		if _, err := io.ReadFull(c.from, header[:]); err != nil {
			return 0, err
		}
		size := int(binary.BigEndian.Uint32(header[4:]))
		if stdcopy.StdType(header[0]) == stdcopy.Stdout {
			c.left = size
			continue
		}
		text, err := io.ReadAll(io.LimitReader(c.from, int64(min(size, maxWords))))
		if err != nil {
			return 0, err
		}
		return 0, fmt.Errorf("relay: %s", strings.TrimSpace(printable(string(text))))
	}
	n, err := c.from.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// answers logs in to the guest of a remote engine when it answers, and gives it the authorities. It
// returns errGuestEnded if the container has ended.
func (s *booting) answers(ctx context.Context, id string, k guestconfig.Keys) error {
	ctx, cancel := context.WithTimeoutCause(ctx, guestTimeout,
		fmt.Errorf("guest did not answer within %v", guestTimeout))
	defer cancel()
	authorities, err := s.b.state.authorities(id)
	if err != nil {
		return err
	}
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		err := s.b.instruct(ctx, s.ref, k, authorities)
		if err == nil {
			return nil
		}
		c, gone := s.b.engine.container(ctx, s.ref)
		if gone == nil && !c.State.Running {
			return errGuestEnded
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// instruct logs in to a guest of a remote engine, and replaces the certificate authorities besides
// this machine's; nil leaves them.
func (b *Backend) instruct(ctx context.Context, ref string, k guestconfig.Keys,
	authorities []byte) error {
	peer, err := k.Peer()
	if err != nil {
		return err
	}
	if peer.Conn, err = b.engine.relay(ctx, ref); err != nil {
		return err
	}
	conn, err := connect.SSH(ctx, peer)
	if err != nil {
		return err
	}
	defer conn.Client().Close()
	if authorities == nil {
		return nil
	}
	return conn.SetAuthorities(ctx, authorities)
}

// trustRemote is trust for a remote engine: the guest writes the file. It gets the authorities now
// if it runs, and at each start.
func (b *Backend) trustRemote(ctx context.Context, inst sandbox.Instance, k guestconfig.Keys,
	authorities []byte) error {
	if k.Guest.Authorities == "" {
		return sandbox.ErrUnsupported
	}
	if err := b.state.writeAuthorities(inst.ID, authorities); err != nil {
		return err
	}
	err := b.instruct(ctx, refOf(inst), k, append([]byte{}, authorities...))
	if err != nil {
		if _, now := b.engine.running(ctx, inst); errors.Is(now, sandbox.ErrStopped) {
			return nil
		}
	}
	if denied, ok := errors.AsType[*wire.Error](err); ok && denied.Code == wire.CodeDenied {
		return fmt.Errorf("%w: %w", sandbox.ErrUnsupported, err)
	}
	return err
}

// authorities returns those that a sandbox of a remote engine trusts besides this machine's; nil if
// none were ever set.
func (d stateDir) authorities(id string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(d.Dir(id), authoritiesFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

const authoritiesFile = "authorities.pem"

func (d stateDir) writeAuthorities(id string, text []byte) error {
	at := filepath.Join(d.Dir(id), authoritiesFile)
	if err := os.WriteFile(at+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(at+".new", at)
}
