package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
)

// container returns a container's state. It returns ErrGone if there is none.
func (e *engine) container(ctx context.Context, ref string) (container.InspectResponse, error) {
	var c container.InspectResponse
	err := e.call(ctx, e.limits.quick, "look up container", func(ctx context.Context) error {
		r, err := e.api.ContainerInspect(ctx, ref, client.ContainerInspectOptions{})
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

// listContainers lists all containers with a label, running or not, for at most d.
func (e *engine) listContainers(ctx context.Context, d time.Duration,
	label string) (list []container.Summary, err error) {
	err = e.call(ctx, d, "list containers", func(ctx context.Context) error {
		r, err := e.api.ContainerList(ctx, client.ContainerListOptions{All: true,
			Filters: make(client.Filters).Add("label", label)})
		list = r.Items
		return err
	})
	return list, err
}

// remove removes the container of id, if there is one and it is ours. ref may be empty.
func (e *engine) remove(ctx context.Context, id, ref string) error {
	if ref == "" {
		c, err := e.container(ctx, containerName(id))
		if errors.Is(err, sandbox.ErrGone) {
			return nil
		}
		if err != nil {
			return err
		}
		if c.Config.Labels[labelDaemon] != e.daemon || c.Config.Labels[labelID] != id {
			return nil // another daemon's, or no sandbox at all
		}
		ref = c.ID
	}
	pause := 10 * time.Millisecond
	for {
		err := e.call(ctx, e.limits.remove, "remove container", func(ctx context.Context) error {
			_, err := e.api.ContainerRemove(
				ctx, ref, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
			return err
		})
		if err == nil || cerrdefs.IsNotFound(err) {
			return nil
		}
		// Some engines report a killed container as a zombie until its runtime has been waited for.
		if !cerrdefs.IsConflict(err) && !strings.Contains(err.Error(), "is zombie") {
			return err
		}
		// Another request is removing or starting it; it is gone only when that has ended.
		select {
		case <-time.After(pause):
			pause = min(2*pause, time.Second)
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// waitEnded waits until the container has stopped. It returns an error after d.
func (e *engine) waitEnded(ctx context.Context, ref string, d time.Duration) error {
	return e.call(ctx, d, "wait for the end of the container", func(ctx context.Context) error {
		wait := e.api.ContainerWait(ctx, ref,
			client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
		// The client's goroutine ends when either channel is received; ctx ends it with an error.
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

// kill ends a container immediately, if it runs.
func (e *engine) kill(ctx context.Context, ref string) error {
	err := e.call(ctx, e.limits.quick, "kill container", func(ctx context.Context) error {
		_, err := e.api.ContainerKill(ctx, ref, client.ContainerKillOptions{Signal: "KILL"})
		return err
	})
	switch {
	case cerrdefs.IsConflict(err), cerrdefs.IsNotFound(err): // already stopped
		return nil
	case err != nil:
		return err
	}
	return e.waitEnded(ctx, ref, stopMargin)
}

// running returns the first process of an instance. It returns ErrGone or ErrStopped if the
// instance does not run.
func (e *engine) running(ctx context.Context, inst sandbox.Instance) (int, error) {
	c, err := e.container(ctx, refOf(inst))
	if err != nil {
		return 0, err
	}
	if !c.State.Running {
		return 0, sandbox.ErrStopped
	}
	return visiblePid(inst.Runtime, c.State), nil
}

// listens returns an error if the engine accepts no connections. An engine that is shutting down
// closes its socket and ends its containers, and still answers on open connections.
func (e *engine) listens(ctx context.Context) error {
	if e.socket == "" {
		return e.call(ctx, e.limits.quick, "ask engine", func(ctx context.Context) error {
			_, err := e.api.Ping(ctx, client.PingOptions{})
			return err
		})
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", e.socket)
	if err != nil {
		return fmt.Errorf("%w: it is ending: %w", sandbox.ErrEngine, err)
	}
	return conn.Close()
}

// endedByEngine reports whether a restart of the engine ended a stopped container: the container
// started before the current engine process, and ended shortly before that or later. It cannot tell
// if another process, such as systemd, holds the engine's socket.
func (e *engine) endedByEngine(ctx context.Context, s *container.State) bool {
	engine := engineStart(ctx, e.socket)
	started, err1 := time.Parse(time.RFC3339Nano, s.StartedAt)
	finished, err2 := time.Parse(time.RFC3339Nano, s.FinishedAt)
	const shutdown = time.Minute // an engine stops its containers first, then restarts
	return err1 == nil && err2 == nil && !engine.IsZero() && started.Before(engine) &&
		finished.After(engine.Add(-shutdown))
}

// usage returns the counters of a running container that the engine reports. It returns ErrGone or
// ErrStopped.
func (e *engine) usage(ctx context.Context, ref string) (sandbox.Usage, error) {
	var u sandbox.Usage
	err := e.call(ctx, e.limits.quick, "read counters", func(ctx context.Context) error {
		r, err := e.api.ContainerStats(ctx, ref, client.ContainerStatsOptions{})
		if err != nil {
			return err
		}
		defer r.Body.Close()
		var s container.StatsResponse
		if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&s); err != nil {
			return err
		}
		u = sandbox.Usage{Memory: int64(s.MemoryStats.Usage), PIDs: int64(s.PidsStats.Current),
			CPU: time.Duration(s.CPUStats.CPUUsage.TotalUsage)}
		return nil
	})
	if cerrdefs.IsNotFound(err) {
		err = sandbox.ErrGone
	}
	if err == nil && u.PIDs == 0 {
		err = sandbox.ErrStopped
	}
	return u, err
}

// attachment is the standard input of a container that is about to start. Output is not attached:
// the engine would keep that connection for the container's whole life.
type attachment struct {
	conn    client.HijackedResponse
	written chan error // result of writing the line; nil before send
}

// attach connects to the input of a container before its start.
func (e *engine) attach(ctx context.Context, ref string) (*attachment, error) {
	a := new(attachment)
	err := e.call(ctx, e.limits.quick, "attach to container", func(ctx context.Context) error {
		r, err := e.api.ContainerAttach(
			ctx, ref, client.ContainerAttachOptions{Stream: true, Stdin: true})
		a.conn = r.HijackedResponse
		return err
	})
	if err != nil {
		// Podman prepares a container for that, and the client drops why it cannot. A start fails
		// for the same reason.
		if strings.Contains(err.Error(), "received 409") {
			if why := e.start(ctx, ref); why != nil {
				return nil, why
			}
			err = errors.Join(err, e.kill(context.WithoutCancel(ctx), ref))
		}
		return nil, err
	}
	return a, nil
}

func (e *engine) start(ctx context.Context, ref string) error {
	return e.call(ctx, e.limits.start, "start container", func(ctx context.Context) error {
		_, err := e.api.ContainerStart(ctx, ref, client.ContainerStartOptions{})
		return err
	})
}

// send sends line and the end of input. It is called at most once. Nothing reads before the start
// of the container, so a goroutine writes.
func (a *attachment) send(line []byte) {
	a.written = make(chan error, 1)
	go func() { // ends with close
		_, err := a.conn.Conn.Write(line)
		if err == nil {
			err = a.conn.CloseWrite()
		}
		a.written <- err
	}()
}

// close ends the attachment; the guest loses input that it has not read. It returns the error of
// writing the line.
func (a *attachment) close() error {
	a.conn.Close()
	if a.written == nil {
		return nil
	}
	return <-a.written
}

// lastWords returns the end of a container's output as the suffix of an error: ": text", or
// nothing.
func (e *engine) lastWords(ctx context.Context, ref string) string {
	var text bytes.Buffer
	err := e.call(ctx, e.limits.quick, "read log", func(ctx context.Context) error {
		r, err := e.api.ContainerLogs(ctx, ref,
			client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Tail: "10"})
		if err != nil {
			return err
		}
		defer r.Close()
		_, err = stdcopy.StdCopy(&text, &text, io.LimitReader(r, maxWords))
		return err
	})
	// Programs of the image may have written it, so it is untrusted.
	var lines []string
	for line := range strings.Lines(printable(text.String())) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 && err != nil {
		return ": " + err.Error()
	}
	if len(lines) == 0 {
		return ""
	}
	return ": " + strings.Join(lines, "; ")
}

// printable removes from untrusted text everything that acts on a terminal. Line ends stay.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r < ' ' || r >= 0x7f && r < 0xa0 || r == 0xfffd {
			return '?'
		}
		return r
	}, text)
}

// size returns the total length of the files that a container wrote, as the engine measures it.
func (e *engine) size(ctx context.Context, ref string) (int64, error) {
	var c container.InspectResponse
	err := e.call(ctx, e.limits.remove, "measure container", func(ctx context.Context) error {
		r, err := e.api.ContainerInspect(ctx, ref, client.ContainerInspectOptions{Size: true})
		c = r.Container
		return err
	})
	if err == nil && (c.SizeRw == nil || *c.SizeRw < 0) {
		err = errors.New("measure container: the engine reported no size")
	}
	if cerrdefs.IsNotFound(err) {
		err = sandbox.ErrGone
	}
	if err != nil {
		return 0, err
	}
	return *c.SizeRw, nil
}

func (e *engine) unpause(ctx context.Context, ref string) error {
	return e.call(ctx, e.limits.start, "unpause container", func(ctx context.Context) error {
		_, err := e.api.ContainerUnpause(ctx, ref, client.ContainerUnpauseOptions{})
		return e.unlessSo(ctx, ref, false, err)
	})
}

// unlessSo returns the error of a pause or a resume, or nil if the container has the wanted state:
// the engine may have completed an earlier call that was abandoned or whose answer was lost.
func (e *engine) unlessSo(ctx context.Context, ref string, paused bool, err error) error {
	if err == nil {
		return nil
	}
	r, inspectErr := e.api.ContainerInspect(ctx, ref, client.ContainerInspectOptions{})
	if inspectErr == nil && r.Container.State != nil && r.Container.State.Running &&
		r.Container.State.Paused == paused {
		return nil
	}
	return err
}

const maxWords = 4 << 10
