package sandboxtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guest"
	"github.com/sandboxd/sandboxd/sandbox/signals"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func init() {
	if os.Args[0] == guest.Name {
		os.Exit(guest.Main(os.Args))
	}
}

// Backend is an in-memory sandbox.Backend, Finder and Lifecycle.
type Backend struct {
	opt    Options
	tmp    string
	builds atomic.Int64 // of all images

	mu        sync.Mutex
	instances map[string]*instance // guarded by mu; by ID
}

// instance is one sandbox.
type instance struct {
	inst   sandbox.Instance
	home   string
	env    []string
	name   string
	client ssh.Signer
	host   ssh.PublicKey

	// guarded by Backend.mu
	guest   *guest.Guest // nil while stopped
	freezer *freezer
	conns   *sync.WaitGroup
	ends    []net.Conn // of the guest, since its start
}

var (
	_ sandbox.Finder    = (*Backend)(nil)
	_ sandbox.Lifecycle = (*Backend)(nil)
)

// New returns a Backend without sandboxes. It removes all of them when t ends.
func New(t testing.TB, opt Options) *Backend {
	t.Helper()
	signals.DefaultForChildren() // as a separate process the guest handles all signals
	b := &Backend{opt: opt, tmp: t.TempDir(), instances: make(map[string]*instance)}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		list, _ := b.List(ctx) // never fails
		for _, inst := range list {
			if err := b.Destroy(ctx, inst); err != nil {
				t.Errorf("destroy %s: %v", inst.ID, err)
			}
		}
	})
	return b
}

// stage fails a step of a boot if ctx has ended or Options.Fail says so.
func (b *Backend) stage(ctx context.Context, name sandbox.Stage) error {
	err := ctx.Err()
	if err != nil {
		err = context.Cause(ctx)
	} else if b.opt.Fail != nil {
		err = b.opt.Fail(name)
	}
	if err != nil {
		return &sandbox.BootError{Stage: name, Err: err}
	}
	return nil
}

// Boot makes a sandbox.
func (b *Backend) Boot(ctx context.Context, spec sandbox.Spec) (sandbox.Instance, error) {
	in, err := b.prepare(ctx, spec)
	if err != nil {
		return sandbox.Instance{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.instances[spec.ID] != nil {
		return sandbox.Instance{}, &sandbox.BootError{Stage: sandbox.StageCreate,
			Err: fmt.Errorf("instance %s exists", spec.ID)}
	}
	if err := os.Mkdir(in.home, 0o700); err != nil {
		return sandbox.Instance{}, &sandbox.BootError{Stage: sandbox.StageCreate, Err: err}
	}
	err = b.stage(ctx, sandbox.StageCreate)
	if err == nil {
		err = b.startLocked(ctx, in)
	}
	if err != nil {
		return sandbox.Instance{}, errors.Join(err, os.RemoveAll(in.home))
	}
	b.instances[spec.ID] = in
	return in.inst, nil
}

// prepare checks spec and makes an instance that is not visible yet.
func (b *Backend) prepare(ctx context.Context, spec sandbox.Spec) (*instance, error) {
	if err := b.stage(ctx, sandbox.StageValidate); err != nil {
		return nil, err
	}
	if _, err := wire.ParseLabel("instance", spec.ID); err != nil {
		return nil, &sandbox.BootError{Stage: sandbox.StageValidate, Err: err}
	}
	network := spec.Network
	if network == "" {
		network = sandbox.NetworkNone
	}
	if network != sandbox.NetworkNone {
		return nil, &sandbox.BootError{Stage: sandbox.StageValidate,
			Err: fmt.Errorf("network %q: %w", network, sandbox.ErrUnsupported)}
	}
	if len(spec.Options) > 0 {
		return nil, &sandbox.BootError{Stage: sandbox.StageValidate,
			Err: fmt.Errorf("option %s: %w", spec.Options[0], sandbox.ErrUnsupported)}
	}
	if spec.Volume != (sandbox.Volume{}) {
		return nil, &sandbox.BootError{Stage: sandbox.StageValidate,
			Err: fmt.Errorf("volume: %w", sandbox.ErrUnsupported)}
	}
	if len(spec.Authorities) > 0 {
		return nil, &sandbox.BootError{Stage: sandbox.StageValidate,
			Err: fmt.Errorf("certificate authorities: %w", sandbox.ErrUnsupported)}
	}
	if err := b.stage(ctx, sandbox.StageImage); err != nil {
		return nil, err
	}
	image := spec.Image
	if image == "" {
		image = sandbox.DefaultImage
	}
	if image == NoImage {
		return nil, &sandbox.BootError{Stage: sandbox.StageImage,
			Err: fmt.Errorf("%s: %w", image, sandbox.ErrNoImage), Hint: "name another image"}
	}
	if err := spec.Await(ctx); err != nil {
		return nil, &sandbox.BootError{Stage: sandbox.StageImage, Err: err}
	}
	if spec.Progress != nil {
		spec.Progress("starting a sandbox in memory")
	}
	return &instance{
		freezer: new(freezer),
		home:    b.tmp + "/" + spec.ID, env: slices.Concat(b.opt.Env, spec.Env), name: spec.Name,
		inst: sandbox.Instance{Backend: Name, ID: spec.ID, Ref: spec.ID, Image: image,
			Digest: b.digest(image), Created: time.Now(),
			User: account("").Name, Runtime: "host", Network: network,
			Notes: []string{"runs in the test's own process"}},
	}, nil
}

// Rebuild makes new images under all names.
func (b *Backend) Rebuild() { b.builds.Add(1) }

func (b *Backend) digest(image string) string {
	return fmt.Sprintf("memory:%d:%s", b.builds.Load(), image)
}

// Resolve returns the Digest of sandboxes that are made now.
func (b *Backend) Resolve(_ context.Context, image string) (string, error) {
	if image == NoImage {
		return "", fmt.Errorf("%s: %w", image, sandbox.ErrNoImage)
	}
	return b.digest(cmp.Or(image, sandbox.DefaultImage)), nil
}

// Revision is always empty: the guest is part of the test.
func (b *Backend) Revision(context.Context, sandbox.Spec) (string, error) { return "", nil }

// Sweep has nothing to remove.
func (b *Backend) Sweep(context.Context) error { return nil }

// account returns the user of this program, with the given home.
func account(home string) guest.Account {
	name := "root"
	if os.Getuid() != 0 {
		if name = os.Getenv("USER"); name == "" {
			name = fmt.Sprint(os.Getuid())
		}
	}
	return guest.Account{Name: name, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Home: home,
		Shell: "/bin/bash"}
}

// startLocked starts a guest for in, with new keys. b.mu is held.
func (b *Backend) startLocked(ctx context.Context, in *instance) error {
	if err := b.stage(ctx, sandbox.StageKeys); err != nil {
		return err
	}
	hostPEM, host, err := newKey()
	if err != nil {
		return &sandbox.BootError{Stage: sandbox.StageKeys, Err: err}
	}
	_, client, err := newKey()
	if err != nil {
		return &sandbox.BootError{Stage: sandbox.StageKeys, Err: err}
	}
	a := account(in.home)
	g, err := guest.New(wire.GuestConfig{Version: wire.Version, HostKey: hostPEM, Name: in.name,
		Env: in.env, Workdir: in.home,
		ClientKey: string(ssh.MarshalAuthorizedKey(client.PublicKey()))},
		guest.Options{Account: &a, Log: b.opt.Log})
	if err != nil {
		return &sandbox.BootError{Stage: sandbox.StageGuest, Err: err}
	}
	if err := b.stage(ctx, sandbox.StageGuest); err != nil {
		return errors.Join(err, g.Close(context.WithoutCancel(ctx)))
	}
	in.guest, in.client, in.host, in.conns = g, client, host.PublicKey(), new(sync.WaitGroup)
	return nil
}

// lookupLocked returns the instance of inst. b.mu is held.
func (b *Backend) lookupLocked(inst sandbox.Instance) (*instance, error) {
	in := b.instances[inst.ID]
	if in == nil {
		return nil, fmt.Errorf("instance %s: %w", inst.ID, sandbox.ErrGone)
	}
	return in, nil
}

// Dial connects to the sandbox's guest.
func (b *Backend) Dial(ctx context.Context, inst sandbox.Instance) (sandbox.Peer, error) {
	if ctx.Err() != nil {
		return sandbox.Peer{}, context.Cause(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	in, err := b.lookupLocked(inst)
	if err != nil {
		return sandbox.Peer{}, err
	}
	if in.guest == nil {
		return sandbox.Peer{}, fmt.Errorf("instance %s: %w", inst.ID, sandbox.ErrStopped)
	}
	near, far, err := Pipe()
	if err != nil {
		return sandbox.Peer{}, err
	}
	if b.opt.Freezes {
		near = in.freezer.over(near)
	}
	g := in.guest
	in.ends = append(in.ends, far)
	// Ends with the connection, at the latest when the guest closes; end waits for it.
	in.conns.Go(func() {
		if err := g.ServeConn(context.Background(), far); err != nil && b.opt.Log != nil {
			b.opt.Log.Info("connection", "instance", inst.ID, "err", err)
		}
	})
	return sandbox.Peer{Conn: near, User: "sandbox", HostKeys: []ssh.PublicKey{in.host},
		Auth: []ssh.AuthMethod{ssh.PublicKeys(in.client)}}, nil
}

// Destroy ends a sandbox and removes its home.
func (b *Backend) Destroy(ctx context.Context, inst sandbox.Instance) error {
	b.mu.Lock()
	in := b.instances[inst.ID]
	delete(b.instances, inst.ID)
	b.mu.Unlock()
	if in == nil {
		return nil
	}
	return errors.Join(in.end(ctx), os.RemoveAll(in.home))
}

// end closes the guest and waits for its connections.
func (in *instance) end(ctx context.Context) error {
	if in.guest == nil {
		return nil
	}
	err := in.guest.Close(ctx)
	in.conns.Wait()
	return err
}

// List returns all sandboxes, ordered by ID.
func (b *Backend) List(ctx context.Context) ([]sandbox.Instance, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]sandbox.Instance, 0, len(b.instances))
	for _, in := range b.instances {
		list = append(list, in.inst)
	}
	slices.SortFunc(list, func(x, y sandbox.Instance) int { return strings.Compare(x.ID, y.ID) })
	return list, nil
}

// Inspect reports whether a sandbox runs.
func (b *Backend) Inspect(ctx context.Context, inst sandbox.Instance) (sandbox.Status, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	in, err := b.lookupLocked(inst)
	if err != nil {
		return sandbox.Status{}, err
	}
	status := in.freezer.status()
	status.Running = in.guest != nil
	return status, nil
}

// CanStop is true for all.
func (*Backend) CanStop(sandbox.Spec) bool { return true }

// Stop ends a sandbox's processes and keeps its home.
func (b *Backend) Stop(ctx context.Context, inst sandbox.Instance, grace time.Duration) error {
	b.mu.Lock()
	in, err := b.lookupLocked(inst)
	var stopping instance
	if err == nil {
		stopping = *in
		in.guest = nil
	}
	b.mu.Unlock()
	if err != nil || stopping.guest == nil {
		return err
	}
	stopping.guest.Control(ctx, wire.Control{Do: "stop", GraceMS: grace.Milliseconds()},
		func(wire.ControlReply) {})
	select {
	case <-stopping.guest.Stopped():
	case <-ctx.Done():
	}
	return stopping.end(ctx)
}

// Cut ends the connections to a sandbox, which keeps running.
func (b *Backend) Cut(inst sandbox.Instance) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	in, err := b.lookupLocked(inst)
	if err != nil {
		return err
	}
	for _, c := range in.ends {
		c.Close()
	}
	in.ends = nil
	return nil
}

// Kill ends a sandbox's processes without the guest's orderly stop, like the kill of a container,
// and keeps its home.
func (b *Backend) Kill(ctx context.Context, inst sandbox.Instance) error {
	b.mu.Lock()
	in, err := b.lookupLocked(inst)
	var killed instance
	if err == nil {
		killed = *in
		in.guest, in.ends = nil, nil
		for _, c := range killed.ends {
			c.Close()
		}
	}
	b.mu.Unlock()
	if err != nil || killed.guest == nil {
		return err
	}
	return killed.end(ctx)
}

// Start starts a stopped sandbox.
func (b *Backend) Start(ctx context.Context, inst sandbox.Instance) (sandbox.Instance, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	in, err := b.lookupLocked(inst)
	if err != nil {
		return sandbox.Instance{}, err
	}
	if in.guest == nil {
		if err := b.startLocked(ctx, in); err != nil {
			return sandbox.Instance{}, err
		}
	}
	return in.inst, nil
}

// Pipe returns two connected sockets of this process. Not net.Pipe: both SSH peers write before
// they read.
func Pipe() (near, far net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
		0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pipe")
		c, cerr := net.FileConn(f) // a duplicate
		f.Close()
		conns[i], err = c, errors.Join(err, cerr)
	}
	if err != nil {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
		return nil, nil, err
	}
	return conns[0], conns[1], nil
}
