package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/docker/guestsock"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	defaultGrace = 10 * time.Second

	// How long a guest may take to answer that it will stop, and to stop when its processes are gone.
	stopOrder  = 3 * time.Second
	stopMargin = 5 * time.Second

	// How long a dial waits for the engine to say which process the guest is.
	admission = time.Second

	// Dial asks the engine when no guest has called for so long.
	firstDoubt = 300 * time.Millisecond
	nextDoubt  = 2 * time.Second
)

// lock makes what changes an instance go one at a time.
func (b *Backend) lock(ctx context.Context, id string) (unlock func(), err error) {
	b.mu.Lock()
	for b.busy[id] != nil {
		free := b.busy[id]
		b.mu.Unlock()
		select {
		case <-free:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		b.mu.Lock()
	}
	free := make(chan struct{})
	b.busy[id] = free
	b.mu.Unlock()
	return func() {
		b.mu.Lock()
		delete(b.busy, id)
		b.mu.Unlock()
		close(free)
	}, nil
}

// Dial takes the connection that the guest keeps waiting. See sandbox.Backend.
func (b *Backend) Dial(ctx context.Context, inst sandbox.Instance) (sandbox.Peer, error) {
	peer, err := b.dial(ctx, inst)
	if err != nil {
		return sandbox.Peer{}, fmt.Errorf("dial %s: %w", inst.ID, err)
	}
	return peer, nil
}

func (b *Backend) dial(ctx context.Context, inst sandbox.Instance) (sandbox.Peer, error) {
	if !validID.MatchString(inst.ID) {
		return sandbox.Peer{}, fmt.Errorf("id %q is not a DNS label", inst.ID)
	}
	k, err := b.readKeys(inst.ID)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := b.running(ctx, inst); err != nil {
			return sandbox.Peer{}, err
		}
		return sandbox.Peer{}, fmt.Errorf("keys are missing: %w", err)
	}
	if err != nil {
		return sandbox.Peer{}, err
	}
	peer, err := k.peer()
	if err != nil {
		return sandbox.Peer{}, err
	}
	if peer.Conn, err = b.caller(ctx, inst, guestsock.SSH); err != nil {
		return sandbox.Peer{}, err
	}
	return peer, nil
}

// caller takes the connection that the guest keeps waiting on a socket.
func (b *Backend) caller(ctx context.Context, inst sandbox.Instance, socket string) (*net.UnixConn, error) {
	d, err := b.sockets.Open(inst.ID, socket)
	if errors.Is(err, fs.ErrNotExist) {
		if _, gone := b.running(ctx, inst); gone != nil {
			return nil, gone
		}
	}
	if err != nil {
		return nil, err
	}
	if !d.Admitted() {
		// Opened by this call: a new daemon, an old guest. An engine that is away keeps nobody from his sandbox: the pinned
		// key still says who answers. Nor does one that hangs: asking again is for who gets no call.
		soon, cancel := context.WithTimeoutCause(ctx, admission, sandbox.ErrEngine)
		pid, err := b.running(soon, inst)
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
		if pid, err := b.running(ctx, inst); err == nil {
			d.Admit(pid) // somebody may have restarted it
		} else if !errors.Is(err, sandbox.ErrEngine) {
			return nil, err
		}
	}
}

// running returns the first process of an instance that runs, else ErrGone or ErrStopped.
func (b *Backend) running(ctx context.Context, inst sandbox.Instance) (int, error) {
	c, err := b.container(ctx, refOf(inst))
	if err != nil {
		return 0, err
	}
	if !c.State.Running {
		return 0, sandbox.ErrStopped
	}
	return visiblePid(inst.Runtime, c.State), nil
}

// refOf is the container of inst: by its ID, or by its name where a daemon died before it stored the ID.
func refOf(inst sandbox.Instance) string {
	if inst.Ref != "" {
		return inst.Ref
	}
	return containerName(inst.ID)
}

// container asks the engine; ErrGone when there is none.
func (b *Backend) container(ctx context.Context, ref string) (container.InspectResponse, error) {
	var c container.InspectResponse
	err := b.call(ctx, b.limits.quick, "look up container", func(ctx context.Context) error {
		r, err := b.api.ContainerInspect(ctx, ref, client.ContainerInspectOptions{})
		c = r.Container
		return err
	})
	if cerrdefs.IsNotFound(err) {
		err = sandbox.ErrGone
	}
	if err == nil && (c.State == nil || c.Config == nil) {
		err = errors.New("look up container: engine sent no state")
	}
	return c, err
}

// Destroy removes the container, its volumes and its directory. See sandbox.Backend.
func (b *Backend) Destroy(ctx context.Context, inst sandbox.Instance) error {
	if !validID.MatchString(inst.ID) {
		return fmt.Errorf("destroy: id %q is not a DNS label", inst.ID)
	}
	unlock, err := b.lock(ctx, inst.ID)
	if err != nil {
		return fmt.Errorf("destroy %s: %w", inst.ID, err)
	}
	defer unlock()
	b.sockets.Shut(inst.ID)
	if err := b.remove(ctx, inst.ID, inst.Ref); err != nil {
		return fmt.Errorf("destroy %s: %w", inst.ID, err)
	}
	b.mu.Lock()
	delete(b.places, inst.ID)
	b.mu.Unlock()
	b.removeImage(ctx, forkImage(inst.ID))
	// Last: as long as the container may be there, its keys are.
	if err := os.RemoveAll(b.dir(inst.ID)); err != nil {
		return fmt.Errorf("destroy %s: %w", inst.ID, err)
	}
	return nil
}

// remove removes the container of id, if there is one and it is ours. ref may be empty.
func (b *Backend) remove(ctx context.Context, id, ref string) error {
	if ref == "" {
		c, err := b.container(ctx, containerName(id))
		if errors.Is(err, sandbox.ErrGone) {
			return nil
		}
		if err != nil {
			return err
		}
		if c.Config.Labels[labelDaemon] != b.opts.DaemonID || c.Config.Labels[labelID] != id {
			return nil // another daemon's, or no sandbox at all
		}
		ref = c.ID
	}
	pause := 10 * time.Millisecond
	for {
		err := b.call(ctx, b.limits.remove, "remove container", func(ctx context.Context) error {
			_, err := b.api.ContainerRemove(ctx, ref, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
			return err
		})
		if err == nil || cerrdefs.IsNotFound(err) {
			return nil
		}
		// One that was killed and whose runtime was not waited for yet is a zombie to some engines, which soon do that.
		if !cerrdefs.IsConflict(err) && !strings.Contains(err.Error(), "is zombie") {
			return err
		}
		// Somebody removes it already, or it is just being started. Until that has ended it is not gone.
		select {
		case <-time.After(pause):
			pause = min(2*pause, time.Second)
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// Stop orders the guest to end everything, and kills what is left after grace. See sandbox.Lifecycle.
func (b *Backend) Stop(ctx context.Context, inst sandbox.Instance, grace time.Duration) error {
	if grace <= 0 {
		grace = defaultGrace
	}
	unlock, err := b.lock(ctx, inst.ID)
	if err != nil {
		return fmt.Errorf("stop %s: %w", inst.ID, err)
	}
	defer unlock()
	if err := b.stop(ctx, inst, grace); err != nil {
		return fmt.Errorf("stop %s: %w", inst.ID, err)
	}
	b.sockets.Shut(inst.ID) // with who waited there
	return nil
}

func (b *Backend) stop(ctx context.Context, inst sandbox.Instance, grace time.Duration) error {
	c, err := b.container(ctx, refOf(inst))
	if err != nil {
		return err
	}
	if !c.State.Running {
		return nil
	}
	if c.State.Paused { // nobody in there could obey, nor be killed by every engine
		if err := b.unpause(ctx, c.ID); err != nil {
			return err
		}
	}
	if err := b.orderStop(ctx, inst, grace); err == nil {
		err = b.waitEnded(ctx, c.ID, grace+stopMargin)
		if err == nil || ctx.Err() != nil {
			return err
		}
	} else if ctx.Err() != nil {
		return context.Cause(ctx)
	} else {
		b.log(inst.ID).Warn("guest does not take the order to stop", "err", err)
	}
	return b.kill(ctx, c.ID)
}

// orderStop tells the guest. PID 1 obeys no signal: it would be root in the sandbox who sends it.
func (b *Backend) orderStop(ctx context.Context, inst sandbox.Instance, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, stopOrder)
	defer cancel()
	peer, err := b.dial(ctx, inst)
	if err != nil {
		return err
	}
	control, err := connect.OpenControl(ctx, peer)
	if err != nil {
		return err
	}
	defer control.Close()
	_, err = control.Do(ctx, wire.Control{Do: "stop", GraceMS: grace.Milliseconds()})
	return err
}

// waitEnded returns when the container does not run any more, or an error after d.
func (b *Backend) waitEnded(ctx context.Context, ref string, d time.Duration) error {
	return b.call(ctx, d, "wait for the end of the container", func(ctx context.Context) error {
		wait := b.api.ContainerWait(ctx, ref, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
		// The client's goroutine ends when one of the two is received; ctx ends it with an error.
		select {
		case <-wait.Result:
			return nil
		case err := <-wait.Error:
			if cerrdefs.IsNotFound(err) {
				return nil
			}
			return err
		}
	})
}

// Start starts a stopped container and gives its guest the same keys again. See sandbox.Lifecycle.
func (b *Backend) Start(ctx context.Context, inst sandbox.Instance) (sandbox.Instance, error) {
	s := &booting{b: b, stage: stageValidate, ref: refOf(inst)}
	if err := s.start(ctx, inst); err != nil {
		return sandbox.Instance{}, s.error(err)
	}
	return inst, nil
}

func (s *booting) start(ctx context.Context, inst sandbox.Instance) error {
	if !validID.MatchString(inst.ID) {
		return fmt.Errorf("id %q is not a DNS label", inst.ID)
	}
	unlock, err := s.b.lock(ctx, inst.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.enter(ctx, stageEngine); err != nil {
		return err
	}
	c, err := s.b.container(ctx, s.ref)
	if err != nil || c.State.Running {
		return err
	}
	if err := s.enter(ctx, stageKeys); err != nil {
		return err
	}
	k, err := s.b.readKeys(inst.ID)
	if err != nil {
		return err
	}
	if err := s.b.bindAgain(&k.Guest); err != nil {
		s.stage = stageValidate
		return err
	}
	s.b.sockets.Shut(inst.ID) // who waits there belongs to a life that has ended
	d, err := s.b.listen(inst.ID, k)
	if err != nil {
		return err
	}
	select {
	case s.b.starts <- struct{}{}:
		defer func() { <-s.b.starts }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	_, err = s.run(ctx, inst.Runtime, k, d)
	if err != nil && s.exit == exitNoLine && ctx.Err() == nil {
		// Somebody attached before and gave up: the end of their input was read in place of ours.
		_, err = s.run(ctx, inst.Runtime, k, d)
	}
	if err == nil {
		return nil
	}
	s.b.sockets.Shut(inst.ID)
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.b.limits.remove)
	defer cancel()
	if left := s.b.kill(undo, s.ref); left != nil {
		err = fmt.Errorf("%w; it may run: %w", err, left)
	}
	return err
}

// kill ends a container at once, if it runs.
func (b *Backend) kill(ctx context.Context, ref string) error {
	err := b.call(ctx, b.limits.quick, "kill container", func(ctx context.Context) error {
		_, err := b.api.ContainerKill(ctx, ref, client.ContainerKillOptions{Signal: "KILL"})
		return err
	})
	switch {
	case cerrdefs.IsConflict(err), cerrdefs.IsNotFound(err): // it does not run
		return nil
	case err != nil:
		return err
	}
	return b.waitEnded(ctx, ref, stopMargin)
}
