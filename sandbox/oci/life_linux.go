package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/guestsock"
	"github.com/sandboxd/sandboxd/sandbox/machine"
	"github.com/sandboxd/sandboxd/sandbox/usage"
)

const (
	defaultGrace = 10 * time.Second

	// How long a guest may take to accept an order to stop, and to exit once its processes have
	// ended.
	stopOrder  = 3 * time.Second
	stopMargin = 5 * time.Second

	// killTime is how long a killed container may take to end.
	killTime = 10 * time.Second

	// How long a dial waits for a guest before it looks whether the container runs.
	doubt = 300 * time.Millisecond
)

// first returns the first process of an instance that runs. It returns ErrGone or ErrStopped
// otherwise.
func (l *instances) first(inst sandbox.Instance) (process, error) {
	if !guestconfig.ValidID.MatchString(inst.ID) {
		return process{}, fmt.Errorf("id %q is not a DNS label", inst.ID)
	}
	if _, err := os.Stat(l.state.KeysPath(inst.ID)); errors.Is(err, fs.ErrNotExist) {
		return process{}, sandbox.ErrGone
	}
	p := readProcess(l.in(inst.ID, pidFile))
	if !p.runs() {
		return process{}, sandbox.ErrStopped
	}
	return p, nil
}

// Dial returns the connection that the guest keeps waiting. See sandbox.Backend.
func (b *Backend) Dial(ctx context.Context, inst sandbox.Instance) (sandbox.Peer, error) {
	peer, err := b.dial(ctx, inst)
	if err != nil {
		return sandbox.Peer{}, fmt.Errorf("dial %s: %w", inst.ID, err)
	}
	return peer, nil
}

func (b *Backend) dial(ctx context.Context, inst sandbox.Instance) (peer sandbox.Peer, err error) {
	conn, err := b.caller(ctx, inst, guestsock.SSH)
	if err != nil {
		return peer, err
	}
	k, err := b.state.ReadKeys(inst.ID)
	if err == nil {
		peer, err = k.Peer()
	}
	if err != nil {
		conn.Close()
		return peer, err
	}
	peer.Conn = conn
	return peer, nil
}

// caller returns the connection that the guest keeps waiting on a socket.
func (b *Backend) caller(ctx context.Context, inst sandbox.Instance, socket string) (*net.UnixConn,
	error) {
	p, err := b.first(inst)
	if err != nil {
		return nil, err
	}
	d, err := b.sockets.Open(inst.ID, socket)
	if err != nil {
		return nil, err
	}
	for {
		if d.PID() != p.pid {
			d.Admit(p.pid)
		}
		patience, cancel := context.WithTimeout(ctx, doubt)
		conn, err := d.Take(patience)
		cancel()
		switch {
		case err == nil:
			return conn, nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("guest does not call: %w", context.Cause(ctx))
		case errors.Is(err, guestsock.ErrClosed):
			return nil, err
		}
		if p, err = b.first(inst); err != nil {
			return nil, err
		}
	}
}

// Tunnel receives the network device from the guest; it may be called repeatedly. See
// sandbox.Networker.
func (b *Backend) Tunnel(ctx context.Context, inst sandbox.Instance) (sandbox.Tunnel, error) {
	return machine.Tunnel(ctx, inst, b.caller)
}

// SetHostname sets the host name of a running instance. See sandbox.Namer.
func (b *Backend) SetHostname(_ context.Context, inst sandbox.Instance, name string) error {
	p, err := b.first(inst)
	if err == nil {
		err = machine.SetHostname(p.pid, inst.Ref, name)
	}
	if err != nil {
		return fmt.Errorf("host name of %s: %w", inst.ID, err)
	}
	return nil
}

// Trust replaces the authorities besides those of this machine. See sandbox.Truster.
func (b *Backend) Trust(_ context.Context, inst sandbox.Instance, authorities []byte) error {
	var err error
	if !guestconfig.ValidID.MatchString(inst.ID) {
		err = fmt.Errorf("id %q is not a DNS label", inst.ID)
	} else {
		err = b.files.Trust(b.state.TrustDir(inst.ID), authorities)
	}
	if err != nil {
		return fmt.Errorf("certificate authorities of %s: %w", inst.ID, err)
	}
	return nil
}

// change locks an instance and passes its first process to do.
func (l *instances) change(ctx context.Context, what string, inst sandbox.Instance,
	do func(process) error) error {
	unlock, err := l.Lock(ctx, inst.ID)
	if err == nil {
		defer unlock()
		var p process
		if p, err = l.first(inst); err == nil || errors.Is(err, sandbox.ErrStopped) {
			err = do(p)
		}
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, inst.ID, err)
	}
	return nil
}

// CanStop is true for all. See sandbox.Lifecycle.
func (*Backend) CanStop(sandbox.Spec) bool { return true }

// Stop orders the guest to end all processes, and kills the rest after grace. See
// sandbox.Lifecycle.
func (b *Backend) Stop(ctx context.Context, inst sandbox.Instance, grace time.Duration) error {
	if grace <= 0 {
		grace = defaultGrace
	}
	return b.change(ctx, "stop", inst, func(p process) error {
		var err error
		if p.runs() {
			err = b.stop(ctx, inst, p, grace)
		} else { // or it is not known, because a daemon was killed at its start
			err = b.kill(ctx, inst.ID)
		}
		if err != nil {
			return err
		}
		b.sockets.Shut(inst.ID) // drops waiting connections, too
		err = os.Remove(b.in(inst.ID, pidFile))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
}

func (b *Backend) stop(ctx context.Context, inst sandbox.Instance, p process,
	grace time.Duration) error {
	if usage.Frozen(p.pid, inst.Ref) { // paused processes cannot obey
		if err := b.thaw(ctx, inst); err != nil {
			return err
		}
	}
	if err := b.orderStop(ctx, inst, grace); err == nil {
		end, cancel := context.WithTimeout(ctx, grace+stopMargin)
		defer cancel()
		if err = p.wait(end); err == nil || ctx.Err() != nil {
			return err
		}
	} else if ctx.Err() != nil {
		return context.Cause(ctx)
	} else {
		b.log(inst.ID).Warn("guest does not take the order to stop", "err", err)
	}
	return b.kill(ctx, inst.ID)
}

// orderStop orders the guest to stop, over SSH. PID 1 ignores signals, because root in the sandbox
// could send them.
func (b *Backend) orderStop(ctx context.Context, inst sandbox.Instance, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, stopOrder)
	defer cancel()
	peer, err := b.dial(ctx, inst)
	if err != nil {
		return err
	}
	return connect.OrderStop(ctx, peer, grace)
}

// kill ends all processes of an instance's container, if it has any, and removes what the runtime
// knows of it.
func (l *instances) kill(ctx context.Context, id string) error {
	p := readProcess(l.in(id, pidFile))
	ref, runtime, err := l.container(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was started
	}
	if err != nil {
		return err
	}
	l.unmount(id) // of a daemon that was killed
	if _, err := os.Stat(filepath.Join(l.runtime.root, ref)); err == nil {
		if err := l.runtime.call(ctx, runtime, nil, nil, "delete", "--force", ref); err != nil {
			return err
		}
	}
	if !p.runs() {
		return nil
	}
	end, cancel := context.WithTimeoutCause(ctx, killTime,
		fmt.Errorf("process %d has not ended within %v", p.pid, killTime))
	defer cancel()
	return p.wait(end)
}

// Start starts a stopped container and gives its guest the same keys again. See sandbox.Lifecycle.
func (b *Backend) Start(ctx context.Context, inst sandbox.Instance) (sandbox.Instance, error) {
	s := &booting{b: b, Stages: machine.Stages{Stage: sandbox.StageValidate}}
	if err := s.again(ctx, inst); err != nil {
		return sandbox.Instance{}, s.Error(err)
	}
	return inst, nil
}

func (s *booting) again(ctx context.Context, inst sandbox.Instance) error {
	b := s.b
	unlock, err := b.Lock(ctx, inst.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := b.first(inst); !errors.Is(err, sandbox.ErrStopped) {
		return err
	}
	if err := s.Enter(ctx, sandbox.StageKeys); err != nil {
		return err
	}
	k, err := b.state.ReadKeys(inst.ID)
	if err != nil {
		return err
	}
	if err := machine.BindAgain(b.opts.Dirs, &k.Guest); err != nil {
		s.Stage = sandbox.StageValidate
		return err
	}
	img, err := b.images.Held(b.holder(inst.ID))
	if err != nil {
		s.Stage = sandbox.StageImage
		return err
	}
	b.sockets.Shut(inst.ID) // waiting connections belong to an earlier run
	if err := b.kill(ctx, inst.ID); err != nil {
		return err
	}
	if err := b.confineAgain(inst.ID); err != nil {
		return err
	}
	if err = s.run(ctx, inst, img.Layers, k); err == nil {
		return nil
	}
	b.sockets.Shut(inst.ID)
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	if left := b.kill(undo, inst.ID); left != nil {
		err = fmt.Errorf("%w; it may run: %w", err, left)
	}
	return err
}

// Destroy removes the container and its directory. See sandbox.Backend.
func (b *Backend) Destroy(ctx context.Context, inst sandbox.Instance) error {
	if !guestconfig.ValidID.MatchString(inst.ID) {
		return fmt.Errorf("destroy: id %q is not a DNS label", inst.ID)
	}
	unlock, err := b.Lock(ctx, inst.ID)
	if err == nil {
		defer unlock()
		// Also of one that was never booted.
		err = b.images.Remove(machine.ForkImage(inst.ID))
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = b.remove(ctx, inst.ID)
	}
	if err != nil {
		return fmt.Errorf("destroy %s: %w", inst.ID, err)
	}
	b.collect(ctx)
	return nil
}

// Pause freezes the container with its guest. See sandbox.Pauser.
func (b *Backend) Pause(ctx context.Context, inst sandbox.Instance) error {
	return b.change(ctx, "pause", inst, func(p process) error {
		switch {
		case !p.runs():
			return sandbox.ErrStopped
		case usage.Frozen(p.pid, inst.Ref):
			return nil
		}
		return b.freeze(ctx, inst, p)
	})
}

// freeze freezes all processes of an instance that runs, or none.
func (l *instances) freeze(ctx context.Context, inst sandbox.Instance, p process) error {
	err := l.runtime.call(ctx, inst.Runtime, nil, nil, "pause", inst.Ref)
	if err == nil {
		err = awaitFrozen(ctx, p, inst)
	}
	if err != nil {
		_ = l.thaw(context.WithoutCancel(ctx), inst)
	}
	return err
}

func (l *instances) thaw(ctx context.Context, inst sandbox.Instance) error {
	return l.runtime.call(ctx, inst.Runtime, nil, nil, "resume", inst.Ref)
}

// freezeTime bounds the time that the kernel needs to freeze processes.
const freezeTime = 10 * time.Second

// awaitFrozen waits until all processes of an instance are frozen: crun does not.
func awaitFrozen(ctx context.Context, p process, inst sandbox.Instance) error {
	ctx, cancel := context.WithTimeoutCause(ctx, freezeTime,
		fmt.Errorf("pause: some processes are not frozen after %v", freezeTime))
	defer cancel()
	for p.runs() && !usage.Frozen(p.pid, inst.Ref) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(5 * time.Millisecond): // with version 1 of control groups nothing tells
		}
	}
	return nil
}

// Resume lets the container continue. See sandbox.Pauser.
func (b *Backend) Resume(ctx context.Context, inst sandbox.Instance) error {
	return b.change(ctx, "resume", inst, func(p process) error {
		if !p.runs() || !usage.Frozen(p.pid, inst.Ref) {
			return nil
		}
		return b.thaw(ctx, inst)
	})
}
