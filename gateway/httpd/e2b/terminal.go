package e2b

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A terminal is a session called pty-N. It is recorded, people can join it over SSH and take it
// over, and it outlives the daemon. For the SDKs its number is firstTerminal+N, which no Linux
// process has.
const (
	terminalName  = "pty-"
	firstTerminal = 1 << 22 // PID_MAX_LIMIT of proc(5)
)

func isTerminal(sel selector) bool { return sel.PID > firstTerminal }

// session returns the name of a terminal's session.
func (sel selector) session() string {
	return terminalName + strconv.FormatUint(uint64(sel.PID-firstTerminal), 10)
}

// pidOf returns the number of a session, if that is such a terminal.
func pidOf(session string) (pid uint32, ok bool) {
	text, ok := strings.CutPrefix(session, terminalName)
	n, err := strconv.ParseUint(text, 10, 20)
	return uint32(firstTerminal + n), ok && err == nil && n > 0
}

// terminals presents the terminals of sandboxes as processes.
type terminals struct {
	hub    *gateway.Hub
	places *places
}

// startTerminal starts a program on a terminal, as startProcess does without one.
func (ts *terminals) startTerminal(ctx context.Context, v *visit, req *startRequest,
	say *sender[said]) error {
	o := attach.JoinOptions{Create: true, Bare: true, Cols: int(req.PTY.Size.Cols),
		Rows: int(req.PTY.Size.Rows), Argv: append([]string{req.Process.Cmd}, req.Process.Args...)}
	env := maps.Clone(req.Process.Env)
	o.Term = env["TERM"]
	delete(env, "TERM")
	for _, key := range slices.Sorted(maps.Keys(env)) {
		o.Env = append(o.Env, key+"="+env[key])
	}
	size := 0
	for _, text := range slices.Concat(o.Argv, o.Env) {
		if size += len(text) + 1; size > maxLine {
			return invalid("command: longer than %d bytes with its variables", maxLine)
		}
		if strings.ContainsRune(text, 0) || !utf8.ValidString(text) {
			return invalid("command or variable: not valid UTF-8, or contains a NUL byte")
		}
	}
	if v.user != "" || req.Process.Cwd != nil {
		lk, a, err := v.asUser(ctx)
		if err != nil {
			return err
		}
		line, err := processConfig{Cmd: req.Process.Cmd, Args: req.Process.Args,
			Cwd: req.Process.Cwd}.line(a, ":")
		if err != nil {
			return err
		}
		if req.Process.Cwd != nil && *req.Process.Cwd != "" {
			if err := lk.isDir(a, *req.Process.Cwd); err != nil {
				return err
			}
		}
		o.Argv = []string{"/bin/sh", "-c", strings.Replace(line, "echo : $$; ", "", 1)}
	}
	sel, at, err := ts.newTerminal(ctx, v, o)
	if err != nil {
		return err
	}
	if when, ok := ctx.Deadline(); ok {
		ts.places.start(func() { ts.expire(v, at.Live(), sel, when) })
	}
	return ts.follow(ctx, at.Live(), 0, sel, say)
}

// expire kills the program of a terminal at the deadline of the call that started it.
func (ts *terminals) expire(v *visit, l *live.Session, sel selector, when time.Time) {
	waiting, stop := context.WithDeadline(context.Background(), when)
	defer stop()
	go func() { // ends with waiting
		select {
		case <-ts.places.ended:
			stop()
		case <-waiting.Done():
		}
	}()
	var gen uint64
	for err := error(nil); !l.Ended(); {
		if gen, err = l.Wait(waiting, gen); err != nil {
			<-waiting.Done() // the session's state is unknown for now
			break
		}
	}
	if !errors.Is(waiting.Err(), context.DeadlineExceeded) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stalled)
	defer cancel()
	_ = ts.endTerminal(ctx, v, sel) // it may have ended already
}

// newTerminal joins a session with a new name. The caller's agent party drives it.
func (ts *terminals) newTerminal(ctx context.Context, v *visit, o attach.JoinOptions) (selector,
	*attach.Attachment, error) {
	infos, err := ts.hub.Sessions.List(ctx, v.who, v.name)
	if err != nil {
		return selector{}, nil, err
	}
	v.mu.Lock()
	for _, i := range infos {
		if pid, ok := pidOf(i.Name); ok {
			v.lastTerminal = max(v.lastTerminal, int(pid-firstTerminal))
		}
	}
	v.lastTerminal++
	sel := selector{PID: firstTerminal + uint32(v.lastTerminal)}
	v.mu.Unlock()
	at, err := ts.hub.Sessions.Shared(ctx, v.who,
		wire.Target{Sandbox: v.name, Session: sel.session()}, o)
	if err == nil {
		err = at.Take(ctx)
	}
	return sel, at, err
}

// terminal returns the caller's party on an existing terminal.
func (ts *terminals) terminal(ctx context.Context, v *visit, sel selector) (*attach.Attachment,
	error) {
	at, err := ts.hub.Sessions.Shared(ctx, v.who,
		wire.Target{Sandbox: v.name, Session: sel.session()}, attach.JoinOptions{})
	if e, ok := errors.AsType[*wire.Error](err); ok && e.Code == wire.CodeNotFound || err == nil &&
		at.Live().Ended() {
		return nil, noProcess(sel)
	}
	return at, err
}

// connectTerminal streams the output of a terminal from now on.
func (ts *terminals) connectTerminal(ctx context.Context, v *visit, sel selector,
	say *sender[said]) error {
	l, err := ts.hub.Sessions.Live(ctx, v.who, wire.Target{Sandbox: v.name, Session: sel.session()})
	if e, ok := errors.AsType[*wire.Error](err); ok && e.Code == wire.CodeNotFound || err == nil &&
		l.Ended() {
		return noProcess(sel)
	}
	if err != nil {
		return err
	}
	return ts.follow(ctx, l, l.Len(), sel, say)
}

// follow streams the output of a session from off on, until its program ends.
func (ts *terminals) follow(ctx context.Context, l *live.Session, off uint64, sel selector,
	say *sender[said]) error {
	if err := say.out.Send(&said{event{Start: &startEvent{sel.PID}}}); err != nil {
		return err
	}
	reading, stop := context.WithCancel(ctx)
	events := make(chan *said)
	done := make(chan struct{})
	go func() { // until stop
		defer close(done)
		for {
			e, next := read(reading, l, off)
			select {
			case events <- e:
			case <-reading.Done():
				return
			}
			if off = next; isEnd(e) {
				return
			}
		}
	}()
	defer func() { stop(); <-done }()
	return say.each(ctx, events, keepalive, isEnd)
}

// read returns the output of a session at off, or its end.
func read(ctx context.Context, l *live.Session, off uint64) (e *said, next uint64) {
	buf := make([]byte, chunk)
	for {
		n, err := l.ReadAt(ctx, off, buf)
		if n > 0 {
			return &said{event{Data: &dataEvent{PTY: buf[:n]}}}, off + uint64(n)
		}
		if lagged, ok := errors.AsType[*live.LaggedError](err); ok {
			off = lagged.To
			continue
		}
		end := endEvent{Code: -1, Status: "lost", Error: "the terminal was lost"}
		if st := l.State(); errors.Is(err, io.EOF) && st.Phase == wire.PhaseDead {
			switch {
			case st.Signal != "":
				end = signaled(st.Signal)
			case st.ExitCode != nil:
				end = exited(*st.ExitCode)
			}
		}
		return &said{event{End: &end}}, off
	}
}

// typeInto sends input to a terminal. It fails while a person has the keyboard.
func (ts *terminals) typeInto(ctx context.Context, v *visit, sel selector, data []byte) error {
	at, err := ts.terminal(ctx, v, sel)
	if err != nil {
		return err
	}
	return at.Input(ctx, data)
}

func (ts *terminals) resize(ctx context.Context, v *visit, sel selector, cols, rows int) error {
	at, err := ts.terminal(ctx, v, sel)
	if err != nil {
		return err
	}
	return at.Resize(ctx, cols, rows)
}

// endTerminal kills the program of a terminal.
func (ts *terminals) endTerminal(ctx context.Context, v *visit, sel selector) error {
	if _, err := ts.terminal(ctx, v, sel); err != nil {
		return err
	}
	return ts.hub.Sessions.Close(ctx, v.who, wire.Target{Sandbox: v.name, Session: sel.session()})
}

// list lists the terminals of a sandbox.
func (ts *terminals) list(ctx context.Context, v *visit) ([]processInfo, error) {
	infos, err := ts.hub.Sessions.List(ctx, v.who, v.name)
	if err != nil {
		return nil, err
	}
	all := []processInfo{}
	for _, i := range infos {
		pid, ok := pidOf(i.Name)
		if !ok || i.State.Phase == wire.PhaseDead {
			continue
		}
		c := processConfig{}
		if len(i.Argv) > 0 {
			c.Cmd, c.Args = i.Argv[0], i.Argv[1:]
		}
		all = append(all, processInfo{Config: c, PID: pid})
	}
	return all, nil
}
