package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/guestsock"
	"github.com/sandboxd/sandboxd/sandbox/machine"
)

const (
	defaultGrace = 10 * time.Second

	// How long a guest may take to accept an order to stop, and to exit once its processes have
	// ended.
	stopOrder       = 3 * time.Second
	stopOrderRemote = 10 * time.Second // through a remote engine, which may be far away
	stopMargin      = 5 * time.Second

	// How long a dial waits for the engine to report the guest's process.
	admission = time.Second

	// How long Dial waits for a guest before it asks the engine.
	firstDoubt = 300 * time.Millisecond
	nextDoubt  = 2 * time.Second
)

// Dial returns the connection that the guest keeps waiting, or one through a remote engine. See
// sandbox.Backend.
func (b *Backend) Dial(ctx context.Context, inst sandbox.Instance) (sandbox.Peer, error) {
	peer, err := b.dial(ctx, inst)
	if err != nil {
		return sandbox.Peer{}, fmt.Errorf("dial %s: %w", inst.ID, err)
	}
	return peer, nil
}

func (b *Backend) dial(ctx context.Context, inst sandbox.Instance) (sandbox.Peer, error) {
	if !guestconfig.ValidID.MatchString(inst.ID) {
		return sandbox.Peer{}, fmt.Errorf("id %q is not a DNS label", inst.ID)
	}
	k, err := b.state.ReadKeys(inst.ID)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := b.engine.running(ctx, inst); err != nil {
			return sandbox.Peer{}, err
		}
		return sandbox.Peer{}, fmt.Errorf("keys are missing: %w", err)
	}
	if err != nil {
		return sandbox.Peer{}, err
	}
	peer, err := k.Peer()
	if err != nil {
		return sandbox.Peer{}, err
	}
	if k.Listens() {
		if peer.Conn, err = b.engine.relay(ctx, refOf(inst)); err != nil {
			if _, now := b.engine.running(ctx, inst); now != nil {
				err = now
			}
			return sandbox.Peer{}, err
		}
		return peer, nil
	}
	if peer.Conn, err = b.caller(ctx, inst, guestsock.SSH); err != nil {
		return sandbox.Peer{}, err
	}
	return peer, nil
}

// caller returns the connection that the guest keeps waiting on a socket.
func (b *Backend) caller(ctx context.Context, inst sandbox.Instance, socket string) (*net.UnixConn,
	error) {
	d, err := b.sockets.Open(inst.ID, socket)
	if errors.Is(err, fs.ErrNotExist) {
		if _, gone := b.engine.running(ctx, inst); gone != nil {
			return nil, gone
		}
	}
	if err != nil {
		return nil, err
	}
	if !d.Admitted() {
		// This call opened the socket: the daemon is new and the guest is older. An unreachable or
		// hanging engine must not block the dial: the pinned key still identifies the guest.
		soon, cancel := context.WithTimeoutCause(ctx, admission, sandbox.ErrEngine)
		pid, err := b.engine.running(soon, inst)
		cancel()
		if err == nil {
			d.Admit(pid)
		} else if !errors.Is(err, sandbox.ErrEngine) {
			return nil, err
		}
	}
	for doubt := firstDoubt; ; doubt = nextDoubt {
		patience, cancel := context.WithTimeout(ctx, doubt)
		conn, err := d.Take(patience)
		cancel()
		if err == nil {
			return conn, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("guest does not call: %w", context.Cause(ctx))
		}
		if errors.Is(err, guestsock.ErrClosed) {
			return nil, err
		}
		if pid, err := b.engine.running(ctx, inst); err == nil {
			d.Admit(pid) // the container may have been restarted outside the daemon
		} else if !errors.Is(err, sandbox.ErrEngine) {
			return nil, err
		}
	}
}

// Tunnel receives the network device from the guest; it may be called repeatedly. See
// sandbox.Networker.
func (b *Backend) Tunnel(ctx context.Context, inst sandbox.Instance) (sandbox.Tunnel, error) {
	return machine.Tunnel(ctx, inst, b.caller)
}

// refOf returns the container of inst: its ID, or its name if a daemon ended before it stored the
// ID.
func refOf(inst sandbox.Instance) string {
	if inst.Ref != "" {
		return inst.Ref
	}
	return containerName(inst.ID)
}

// Destroy removes the container, its volumes and its directory. See sandbox.Backend.
func (b *Backend) Destroy(ctx context.Context, inst sandbox.Instance) error {
	if !guestconfig.ValidID.MatchString(inst.ID) {
		return fmt.Errorf("destroy: id %q is not a DNS label", inst.ID)
	}
	unlock, err := b.instances.Lock(ctx, inst.ID)
	if err != nil {
		return fmt.Errorf("destroy %s: %w", inst.ID, err)
	}
	defer unlock()
	b.sockets.Shut(inst.ID)
	if err := b.engine.remove(ctx, inst.ID, inst.Ref); err != nil {
		return fmt.Errorf("destroy %s: %w", inst.ID, err)
	}
	b.meter.forget(inst.ID)
	b.engine.silence.forget(refOf(inst))
	if err := b.engine.removeImage(ctx, machine.ForkImage(inst.ID)); err != nil {
		return fmt.Errorf("destroy %s: %w", inst.ID, err)
	}
	// Last: the keys must exist as long as the container may.
	if err := os.RemoveAll(b.state.Dir(inst.ID)); err != nil {
		return fmt.Errorf("destroy %s: %w", inst.ID, err)
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
	unlock, err := b.instances.Lock(ctx, inst.ID)
	if err != nil {
		return fmt.Errorf("stop %s: %w", inst.ID, err)
	}
	defer unlock()
	if err := b.stop(ctx, inst, grace); err != nil {
		return fmt.Errorf("stop %s: %w", inst.ID, err)
	}
	b.sockets.Shut(inst.ID) // drops waiting connections, too
	return nil
}

func (b *Backend) stop(ctx context.Context, inst sandbox.Instance, grace time.Duration) error {
	c, err := b.engine.container(ctx, refOf(inst))
	if err != nil {
		return err
	}
	if !c.State.Running {
		return nil
	}
	if c.State.Paused { // paused processes cannot obey, and some engines cannot kill them
		if err := b.engine.unpause(ctx, c.ID); err != nil {
			return err
		}
	}
	if err := b.orderStop(ctx, inst, grace); err == nil {
		err = b.engine.waitEnded(ctx, c.ID, grace+stopMargin)
		if err == nil || ctx.Err() != nil {
			return err
		}
	} else if ctx.Err() != nil {
		return context.Cause(ctx)
	} else {
		b.log(inst.ID).Warn("guest does not take the order to stop", "err", err)
	}
	return b.engine.kill(ctx, c.ID)
}

// orderStop orders the guest to stop, over SSH. PID 1 ignores signals, because root in the sandbox
// could send them.
func (b *Backend) orderStop(ctx context.Context, inst sandbox.Instance, grace time.Duration) error {
	within := stopOrder
	if b.state.listens(inst.ID) {
		within = stopOrderRemote
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	peer, err := b.dial(ctx, inst)
	if err != nil {
		return err
	}
	return connect.OrderStop(ctx, peer, grace)
}

// Start starts a stopped container and gives its guest the same keys again. See sandbox.Lifecycle.
func (b *Backend) Start(ctx context.Context, inst sandbox.Instance) (sandbox.Instance, error) {
	s := &booting{b: b, ref: refOf(inst),
		Stages: machine.Stages{Stage: sandbox.StageValidate, Entered: b.at}}
	if err := s.start(ctx, inst); err != nil {
		return sandbox.Instance{}, s.Error(err)
	}
	return inst, nil
}

func (s *booting) start(ctx context.Context, inst sandbox.Instance) error {
	if !guestconfig.ValidID.MatchString(inst.ID) {
		return fmt.Errorf("id %q is not a DNS label", inst.ID)
	}
	unlock, err := s.b.instances.Lock(ctx, inst.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.Enter(ctx, sandbox.StageEngine); err != nil {
		return err
	}
	c, err := s.b.engine.container(ctx, s.ref)
	if err != nil || c.State.Running {
		return err
	}
	if err := s.Enter(ctx, sandbox.StageKeys); err != nil {
		return err
	}
	k, err := s.b.state.ReadKeys(inst.ID)
	if err != nil {
		return err
	}
	if err := machine.BindAgain(s.b.opts.Dirs, &k.Guest); err != nil {
		s.Stage = sandbox.StageValidate
		return err
	}
	s.b.sockets.Shut(inst.ID) // waiting connections belong to an earlier run
	d, err := s.b.listen(inst.ID, k)
	if err != nil {
		return err
	}
	_, err = s.run(ctx, inst.ID, inst.Runtime, k, d)
	if err != nil && s.exit == exitNoLine && ctx.Err() == nil {
		// An earlier attempt attached and failed: the guest read the end of that input.
		_, err = s.run(ctx, inst.ID, inst.Runtime, k, d)
	}
	if err == nil {
		return nil
	}
	s.b.sockets.Shut(inst.ID)
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.b.engine.limits.remove)
	defer cancel()
	if left := s.b.engine.kill(undo, s.ref); left != nil {
		err = fmt.Errorf("%w; it may run: %w", err, left)
	}
	return err
}
