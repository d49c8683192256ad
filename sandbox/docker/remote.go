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
	// remoteGuest is the guest program, in a volume.
	remoteGuest = guestBin + "/guest"

	// fillWithin bounds the copy of the guest to an engine that may be far away: 7 MB.
	fillWithin = 5 * time.Minute
)

// isRemote reports whether the engine is remote, or why an engine with a socket on this machine
// does not say so. It tries: an engine that sees a file of this machine, and has its kernel, is not
// remote. Docker's engine checks the mounts of a container before it looks for the image, so that
// it makes none here.
func (e *engine) isRemote(ctx context.Context, info system.Info, compatible bool) (remote bool,
	odd, err error) {
	release := kernelRelease()
	switch {
	case e.socket == "", release == "", info.KernelVersion != release:
		return true, nil, nil
	case compatible: // it checks mounts last
		return false, nil, nil
	}
	file, err := os.CreateTemp(e.dir, ".seen-*")
	if err != nil {
		return false, err, nil
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
		return false, nil, nil
	case err == nil:
		odd = errors.New("ask engine: it made a container without an image")
		if made.ID != "" {
			odd = errors.Join(odd, e.remove(ctx, "", made.ID))
		}
		return false, odd, nil
	case strings.Contains(err.Error(), "source path does not exist"):
		return true, nil, nil
	case errors.Is(err, sandbox.ErrRefused):
		return false, err, nil
	}
	return false, nil, err
}

// planRemote decides how a sandbox of a remote engine is made, and rejects what it cannot have.
func (p *plan) planRemote(f facts, spec sandbox.Spec) error {
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

// remoteConfig is config for the guest of a remote engine: it listens, and writes the file with the
// certificate authorities itself. bundle is a file of this machine; empty means none.
func remoteConfig(config wire.GuestConfig, bundle string) (wire.GuestConfig, error) {
	config.Socket, config.Listen = "", []string{guestAddress}
	var err error
	if bundle != "" {
		config.Authorities, err = guestconfig.ReadBundle(bundle)
	}
	return config, err
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
			DestinationPath: guestBin, Content: &archive})
		return err
	})
}

// listens reports whether the guest of an instance listens: the engine is remote.
func (d stateDir) listens(id string) bool {
	k, err := d.ReadKeys(id)
	return err == nil && k.Listens()
}

// relay connects to the guest of a running container.
func (e *engine) relay(ctx context.Context, ref string) (net.Conn, error) {
	if err := e.silence.check(ref); err != nil {
		return nil, err
	}
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
		if errors.Is(err, sandbox.ErrEngine) || ctx.Err() != nil {
			e.silence.add(ref)
		}
		return nil, err
	}
	return &relayed{Conn: conn.Conn, frames: conn.Reader, ref: ref, silence: &e.silence}, nil
}

// relayed is a connection by a program in a container: its standard input and output. Closing it
// ends the program. An expired deadline closes it, because not every connection to an engine has
// deadlines.
type relayed struct {
	net.Conn

	frames *bufio.Reader
	left   int   // bytes of the current frame
	begun  bool  // the guest has spoken
	failed error // of the frames, for good

	ref     string
	silence *silence

	mu    sync.Mutex
	heard bool        // guarded by mu; the engine has sent something, or has ended the connection
	over  bool        // guarded by mu; Close was called
	timer *time.Timer // guarded by mu
}

// Read returns what the program wrote. The error of its end is what it wrote to its standard error,
// or what the engine says of a program that it could not start. The engine sends frames of either
// (Docker Engine API, "Attach to a container").
func (c *relayed) Read(p []byte) (int, error) {
	for c.left == 0 && c.failed == nil {
		c.next()
	}
	if c.failed != nil {
		return 0, c.failed
	}
	n, err := c.frames.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// next reads the header of the next frame.
func (c *relayed) next() {
	var header [8]byte
	_, c.failed = io.ReadFull(c.frames, header[:])
	c.mu.Lock()
	if !c.heard && !c.over {
		c.heard = true
		c.silence.forget(c.ref)
	}
	c.mu.Unlock()
	if c.failed != nil {
		return
	}
	size := int(binary.BigEndian.Uint32(header[4:]))
	if stdcopy.StdType(header[0]) == stdcopy.Stdout {
		// A server of SSH says so first (RFC 4253, section 4.2); this one says nothing else.
		begin, err := c.frames.Peek(min(size, 4))
		if c.begun || string(begin) == "SSH-"[:len(begin)] {
			c.left, c.begun, c.failed = size, true, err
			return
		}
	}
	text, err := io.ReadAll(io.LimitReader(c.frames, int64(min(size, maxWords))))
	if c.failed = err; err == nil {
		c.failed = fmt.Errorf("relay: %s", strings.TrimSpace(printable(string(text))))
	}
}

// SetDeadline closes the connection at t, unless it is called again. The zero time means never.
func (c *relayed) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	if !t.IsZero() {
		c.timer = time.AfterFunc(time.Until(t), func() { c.Close() })
	}
	return nil
}

// Close ends the connection.
func (c *relayed) Close() error {
	c.mu.Lock()
	if !c.heard && !c.over {
		c.silence.add(c.ref)
	}
	c.over = true
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	return c.Conn.Close()
}

// silence counts the relays of containers that were given up before the engine had sent anything.
// Root in a sandbox can make the engine wait indefinitely, and keep a thread for it, when it starts
// a program: it reads the /etc/passwd of the container, which may be a FIFO. So it is not asked to
// start any number of them.
type silence struct {
	mu sync.Mutex
	of map[string]*silent // guarded by mu; by container
}

type silent struct {
	relays int
	last   time.Time // when one was allowed
}

const (
	maxSilent   = 8
	silentPause = 10 * time.Minute // then one more is tried
)

// check returns an error if no further relay may be started now.
func (s *silence) check(ref string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.of[ref]
	switch {
	case c == nil:
		return nil
	case c.relays < maxSilent || time.Since(c.last) > silentPause:
		c.last = time.Now()
		return nil
	}
	return fmt.Errorf("the engine did not start the last %d connections to the sandbox: stop it and "+
		"start it again", c.relays)
}

func (s *silence) add(ref string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = make(map[string]*silent)
	}
	if s.of[ref] == nil {
		s.of[ref] = &silent{last: time.Now()}
	}
	s.of[ref].relays++
}

// forget is called when a relay answers, and when the container starts or is removed.
func (s *silence) forget(ref string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, ref)
}

// awaitAnswer logs in to the guest of a remote engine when it answers, and gives it the
// authorities. It returns errGuestEnded if the container has ended.
func (s *booting) awaitAnswer(ctx context.Context, id string, k guestconfig.Keys) error {
	ctx, cancel := context.WithTimeoutCause(ctx, guestTimeout,
		fmt.Errorf("guest did not answer within %v", guestTimeout))
	defer cancel()
	authorities, err := s.b.state.authorities(id) // no call of Trust changes them meanwhile
	if err != nil {
		return err
	}
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		err := s.b.instruct(ctx, s.ref, k, authorities)
		if err == nil || errors.Is(err, connect.ErrLogin) || errors.Is(err, connect.ErrIdentity) {
			return err
		}
		c, gone := s.b.engine.container(ctx, s.ref)
		switch {
		case errors.Is(gone, sandbox.ErrGone):
			return gone
		case gone == nil && !c.State.Running:
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
	unlock, err := b.instances.Lock(ctx, inst.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if err := b.state.writeAuthorities(inst.ID, authorities); err != nil {
		return err
	}
	err = b.instruct(ctx, refOf(inst), k, append([]byte{}, authorities...))
	if err != nil {
		if _, now := b.engine.running(ctx, inst); errors.Is(now, sandbox.ErrStopped) {
			return nil
		} else if now != nil {
			return now
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
