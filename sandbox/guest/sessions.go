//go:build linux

package guest

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/session"
	"github.com/sandboxd/sandboxd/sandbox/session/proc"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// entrypoint is the session in which the image's ENTRYPOINT and CMD run.
const entrypoint = "entrypoint"

func (g *Guest) newSessions() *session.Set {
	return session.NewSet(session.Options{Start: g.startTerminal, Shell: g.shell,
		Prober: proc.Prober{}, Pause: proc.Pause, Name: g.config.Name,
		Counters: counters, MaxSessions: g.config.Sessions, Log: g.log})
}

// Begin starts the configured entrypoint, if there is one, as a session of that name. If it ends,
// the session ends but not the sandbox.
func (g *Guest) Begin(ctx context.Context) {
	if len(g.config.Entrypoint) == 0 {
		return
	}
	if err := g.sessions.Begin(ctx, entrypoint,
		wire.Start{Argv: g.config.Entrypoint, Bare: true}); err != nil {
		g.log.Error("entrypoint", "argv", g.config.Entrypoint, "err", err)
	}
}

// Sessions returns the guest's sessions.
func (g *Guest) Sessions() *session.Set { return g.sessions }

// shell returns the shell that sessions run. It is not a login shell: those replace the image's
// PATH with the distribution's.
func (g *Guest) shell() session.Shell {
	a := g.user()
	sh := session.Shell{Path: shellOf(a), Login: g.login}
	// Also without a shell: package session does not set the image's variables.
	sh.Env = g.environment(a, sh.Path)
	if sh.Path == "" {
		return sh
	}
	for _, dir := range []string{"/dev/fd", "/proc/self/fd"} {
		if st, err := os.Stat(dir); err == nil && st.IsDir() {
			sh.FDDir = dir
			break
		}
	}
	return sh
}

// startTerminal is the session.Starter: it starts a process on a new terminal, with its own keeper
// as parent.
func (g *Guest) startTerminal(ctx context.Context, start session.Start) (session.Terminal, error) {
	a := g.user()
	spec := keeperSpec{Argv: start.Argv, Dir: g.startDir(a, start.Dir), Switch: g.switches,
		UID: a.UID, GID: a.GID, Groups: a.Groups}
	if len(spec.Argv) == 0 {
		shell := shellOf(a)
		if shell == "" {
			return nil, wire.Errorf(wire.CodeUnavailable,
				"this image has no shell; a session needs a program to run")
		}
		spec.Argv = []string{shell}
	}
	env := slices.Concat(g.environment(a, shellOf(a)), start.Env)
	if getenv(env, "TERM") == "" {
		env = append(env, "TERM="+cmp.Or(start.Term, "xterm-256color"))
	}
	p, slave, err := openPty(&g.ptys, a)
	if err != nil {
		return nil, err
	}
	defer slave.Close()
	spec.Env = lastWins(append(env, "SSH_TTY="+p.name))
	if spec.Path = lookPath(spec.Argv[0], spec.Env, spec.Dir); spec.Path == "" {
		p.Close()
		return nil, wire.Errorf(wire.CodeUnavailable, "%s: not found in the sandbox", spec.Argv[0])
	}
	t := &terminal{g: g, pty: p, session: start.Session, done: make(chan struct{}),
		tty: session.TTY{Master: p.File, Name: p.name, Device: p.device}}
	cols, rows := start.Cols, start.Rows
	if cols <= 0 {
		cols = wire.DefaultCols
	}
	if rows <= 0 {
		rows = wire.DefaultRows
	}
	if err := t.Resize(cols, rows); err != nil {
		p.Close()
		return nil, err
	}
	if err := t.launch(ctx, spec, slave, start.Files); err != nil {
		p.Close()
		return nil, err
	}
	return t, nil
}

// launch starts the keeper and waits until it has started the process.
func (t *terminal) launch(ctx context.Context, spec keeperSpec, slave *os.File,
	files []session.File) error {
	specR, specW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer specR.Close()
	defer specW.Close()
	statusR, statusW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer statusW.Close()
	fd := slave.Fd()
	inherit := []uintptr{fd, fd, fd, specR.Fd(), statusW.Fd()}
	for _, f := range files {
		spec.Files = append(spec.Files, f.FD)
		inherit = append(inherit, f.File.Fd())
	}
	// One thread and no collector: a keeper only waits.
	t.keeper, err = t.g.children.start(command{path: t.g.exe, argv: []string{Name, "keep"},
		env: []string{"GOMAXPROCS=1", "GOGC=off"}, dir: "/", files: inherit, ours: true})
	if err != nil {
		statusR.Close()
		return err
	}
	specR.Close() // if a keeper ends early no reader is left, and the write below returns
	statusW.Close()
	err = json.NewEncoder(specW).Encode(spec)
	specW.Close()
	report := keeperReport{bufio.NewReader(statusR)}
	stop := context.AfterFunc(ctx, func() { _ = statusR.SetReadDeadline(unixEpoch) })
	pid, perr := report.pid()
	if !stop() && perr != nil {
		perr = context.Cause(ctx)
	}
	if err := errors.Join(err, perr); err != nil {
		statusR.Close()
		_ = t.g.children.signal(t.keeper, unix.SIGKILL) // the keeper may have failed and ended
		if errors.Is(err, io.EOF) && pidsFull() {
			return &wire.Error{Code: wire.CodeLimitPids,
				Message: "the sandbox is at its limit of processes",
				Hint:    "rescue ends all of them"}
		}
		return fmt.Errorf("session %s: %w", t.session, err)
	}
	_ = statusR.SetReadDeadline(noDeadline)
	t.tty.SessionPID = pid
	t.ooms = counters().OOMKills
	t.g.keep(t)
	t.wg.Go(func() {
		defer statusR.Close()
		t.await(report)
	})
	return nil
}

// keep records a terminal whose session runs.
func (g *Guest) keep(t *terminal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.terminals[t] = true
}

func (g *Guest) forget(t *terminal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.terminals, t)
}

// running returns the terminals whose sessions run.
func (g *Guest) running() []*terminal {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]*terminal, 0, len(g.terminals))
	for t := range g.terminals {
		out = append(out, t)
	}
	return out
}

// signalForStop tells every process of the sandbox to end: the image's signal to the entrypoint,
// HUP to the shells of sessions, TERM to the others.
func (g *Guest) signalForStop(stop syscall.Signal) {
	own := make(map[int]bool) // already signalled, or excluded
	for _, t := range g.running() {
		own[t.keeper.pid] = true
		pid := t.tty.SessionPID
		own[pid] = true
		if t.session != entrypoint {
			_ = unix.Kill(pid, unix.SIGHUP) // ignores those that ended meanwhile, here and below
			continue
		}
		_ = unix.Kill(pid, stop)
		tree, _ := t.Tree()
		for _, pid := range tree {
			own[pid] = true // the entrypoint ends its own processes
		}
	}
	for _, pid := range g.other() {
		if !own[pid] {
			_ = unix.Kill(pid, unix.SIGTERM)
		}
	}
}
