package session

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/marks"
	"github.com/sandboxd/sandboxd/sandbox/session/track"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// markPatience is how long the start of a possible mark is held back before the parser checks
	// it again.
	markPatience = 5 * time.Millisecond
	// drainGrace is how long output is read after the shell has ended, if other processes keep the
	// terminal open.
	drainGrace = 50 * time.Millisecond
	// drainMost is the maximum of that time, if the keeper of the log is slow.
	drainMost = keeperPatience + time.Second
	// maxPast limits the terminals without a shell that stay open for remaining processes.
	maxPast = 4
)

// console is one terminal of a session with its shell or program.
type console struct {
	s     *session
	term  Terminal
	local Local // term, if it is a Local; else nil

	*shell        // guarded by s.mu; the shell in front, the last of stack
	stack  shells // the session's own shell, and those in it that were entered

	incarnation string // random

	taking  atomic.Bool   // output is being read or is not in the log yet
	drained chan struct{} // closed when all output was read
	exited  chan struct{} // closed when the process has ended
	exit    Exit          // valid after exited

	holding bool // guarded by s.mu; a timer to check the parsers again is running
	struck  bool // guarded by s.mu; ^C was typed before the first prompt
	entered bool // guarded by s.mu; a line was typed before the first prompt
	// guarded by s.mu; directory of start-up files, until the shell has read them
	dotDir string
	// guarded by s.mu; reported end, possibly before exited
	end Exit
}

// defaults is the environment of every session that is not bare, unless the sandbox or the caller
// overrides it: no pagers, and UTF-8 text.
var defaults = []string{
	"PAGER=cat",
	"GIT_PAGER=cat",
	"MANPAGER=cat",
	"SYSTEMD_PAGER=",
	"GH_PAGER=cat",
	"LANG=C.UTF-8",
	"HISTCONTROL=ignoreboth",
}

// launch starts a terminal as s.start says.
func (s *session) launch(ctx context.Context) (*console, error) {
	c := &console{
		s:           s,
		shell:       &shell{},
		incarnation: rand.Text(),
		drained:     make(chan struct{}),
		exited:      make(chan struct{}),
	}
	c.stack.c = c
	s.mu.Lock()
	start := Start{Session: s.name, Start: s.start}
	start.Cols, start.Rows = s.size.Cols, s.size.Rows
	s.mu.Unlock()
	var sh Shell
	if s.set.opt.Shell != nil {
		sh = s.set.opt.Shell()
	}
	start.Env = []string{"TERM=" + s.start.Term}
	if !s.start.Bare {
		for _, e := range defaults {
			if !slices.ContainsFunc(
				sh.Env,
				func(have string) bool { return sameVariable(have, e) },
			) {
				start.Env = append(start.Env, e)
			}
		}
	}
	start.Env = append(start.Env, s.start.Env...)

	if s.isShell() && s.set.opt.Shell != nil {
		if err := c.integrate(sh, &start); err != nil {
			c.release()
			return nil, err
		}
	}
	term, err := s.set.opt.Start(ctx, start)
	for _, f := range start.Files {
		if c.commands == nil || f.File != c.commands.r {
			f.File.Close()
		}
	}
	if err != nil {
		c.release()
		return nil, err
	}
	c.term = term
	c.local, _ = term.(Local)
	return c, nil
}

// known returns the options of the tracker of c.
func (c *console) known() track.Options {
	opt := &c.s.set.opt
	return track.Options{
		Depth:      depthOf(c.process),
		Process:    c.process,
		Program:    !c.s.isShell(),
		Relayed:    c.relayed,
		Marked:     c.marked,
		TypedMarks: c.marks.Typed,
		ReadsLines: c.kind == "bash",
		Probed:     opt.Prober != nil,
		NoScreen:   c.s.without(wire.BasisScreen),
		Prompt:     opt.Prompt,
	}
}

func sameVariable(a, b string) bool {
	name, _, _ := strings.Cut(a, "=")
	other, _, _ := strings.Cut(b, "=")
	return name == other
}

// integrate sets up start for the shell, with marks if the shell supports them.
func (c *console) integrate(sh Shell, start *Start) error {
	if sh.Path == "" {
		return &wire.Error{Code: wire.CodeUnavailable, Message: "there is no shell in this sandbox",
			Hint: "start the session with a program of the image"}
	}
	c.kind = filepath.Base(sh.Path)
	start.Argv = []string{sh.Path}
	if sh.Login {
		start.Argv = append(start.Argv, "-l")
	}
	if c.s.start.Bare || sh.FDDir == "" || c.s.without(wire.BasisMark) {
		return nil
	}
	nonce := marks.NewNonce()
	in, ok := marks.For(sh.Path, nonce, marks.Options{
		Hostname: c.s.set.sandboxName(), Login: sh.Login,
		Env: append(slices.Clone(sh.Env), c.s.start.Env...), FDDir: sh.FDDir})
	if !ok {
		return nil
	}
	c.marks = in
	if in.DotDir != "" {
		if err := c.makeDotDir(); err != nil {
			c.s.set.log.Warn("no marks", "session", c.s.name, "error", err)
			return nil
		}
		start.Env = append(start.Env, in.DotDir+"="+c.dotDir)
	}
	script, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start shell: %w", err)
	}
	start.Files = append(start.Files, File{FD: marks.ScriptFD, File: script})
	_, err = w.Write(in.Script) // fits into a pipe
	w.Close()
	if err == nil {
		// A shell that runs as another user reopens it by the name of its descriptor. Other
		// programs cannot: that needs permission to trace the shell. With a kernel that denies it
		// (gVisor), those shells have no marks.
		if err = script.Chmod(0o444); errors.Is(err, syscall.EPERM) {
			err = nil
		}
	}
	if err == nil && in.CommandFD {
		if c.commands, err = inheritedFile(); err == nil {
			start.Files = append(start.Files, File{FD: marks.CommandFD, File: c.commands.r})
		}
	}
	if err != nil {
		script.Close()
		return fmt.Errorf("start shell: %w", err)
	}
	start.Argv = in.Args
	start.Env = append(start.Env, in.Env...)
	c.marked, c.parser = true, marks.NewParser(nonce)
	return nil
}

// makeDotDir creates the directory with which a shell finds its script. It has no secret and is
// readable by all users, because the shell may run as another user.
func (c *console) makeDotDir() error {
	dir := os.TempDir() + "/sandboxd-" + marks.NewNonce().String()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	c.dotDir = dir
	return errors.Join(
		os.Chmod(dir, 0o755),
		os.Symlink(c.marks.Target, dir+"/"+c.marks.Link),
	) //nolint:gosec // see above
}

// dropDotDir removes that directory.
func (c *console) dropDotDir(dir string) {
	if err := os.RemoveAll(dir); err != nil {
		c.s.set.log.Warn("remove directory", "session", c.s.name, "error", err)
	}
}

// takeBack takes the command back that the shell in front has not read.
func (c *console) takeBack() {
	if c.commands == nil {
		return
	}
	if err := c.commands.takeBack(); err != nil {
		c.s.set.log.Warn("empty the command", "session", c.s.name, "error", err)
	}
}

func (c *console) release() {
	c.s.mu.Lock()
	dir, own := c.dotDir, c.stack.own()
	c.dotDir = ""
	c.s.mu.Unlock()
	if dir != "" {
		c.dropDotDir(dir)
	}
	if own.commands != nil { // those of other shells were closed when these were left
		own.commands.close()
	}
}

// close ends the terminal and its processes. It returns when they have ended and all output was
// read.
func (c *console) close() {
	if err := c.term.Close(); err != nil {
		c.s.set.log.Warn("close terminal", "session", c.s.name, "error", err)
	}
	<-c.exited
	<-c.drained
}

// restart starts a terminal if the session has none. restarted reports that it is not the first.
func (s *session) restart(ctx context.Context) (restarted bool, err error) {
	select {
	case s.starting <- struct{}{}:
		defer func() { <-s.starting }()
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	s.mu.Lock()
	alive, closed, old := s.aliveLocked(), s.closed, s.console
	s.mu.Unlock()
	switch {
	case closed:
		return false, s.goneError()
	case alive:
		return false, nil
	}
	c, err := s.launch(ctx)
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		_ = c.term.Close()
		c.term.Wait()
		c.release()
		return false, s.goneError()
	}
	var drop *console
	if old != nil {
		select {
		case <-old.drained:
		default:
			// Processes of the old shell still use its terminal: their output goes to the log, too.
			s.past = append(s.past, old)
			if len(s.past) > maxPast {
				drop, s.past = s.past[0], s.past[1:]
			}
		}
	}
	c.stack.all = []*shell{c.shell}
	next, news := s.track.Restart(c.known(), s.momentLocked(c))
	s.console, s.track, c.track = c, next, next
	s.reportLocked(c, news)
	if old == nil {
		s.spawn(s.display.run)
	}
	s.spawn(c.pump)
	s.spawn(c.reap)
	if drop != nil {
		s.spawn(drop.close)
	}
	s.mu.Unlock()
	return old != nil, nil
}

func (s *session) goneError() error {
	return &wire.Error{
		Code:    wire.CodeNotFound,
		Message: "session " + s.name + " was closed",
		Hint:    "attach with create to start it again",
	}
}

// pump reads the terminal until it ends. It waits for no reader of the log except the keeper.
func (c *console) pump() {
	defer close(c.drained)
	read := c.term.Read
	if c.local != nil {
		if r, ok := masterReader(c.local.TTY().Master, &c.taking); ok {
			read = r
		}
	}
	buf := make([]byte, 8<<10)
	for {
		n, err := read(buf)
		if n > 0 {
			c.taking.Store(true)
			c.printed(buf[:n])
			c.s.log.await(c.s.ctx.Done())
		}
		c.taking.Store(false)
		if err != nil {
			c.s.mu.Lock()
			c.flushLocked()
			c.s.mu.Unlock()
			return
		}
	}
}

// reap waits for the process, and sets the state dead when its last output has been read.
func (c *console) reap() {
	c.exit = c.term.Wait()
	close(c.exited)
	for until := time.Now().Add(drainMost); ; {
		select {
		case <-c.drained:
		case <-time.After(drainGrace):
			if c.taking.Load() && time.Now().Before(until) {
				continue // its output waits for the keeper of the log
			}
		}
		break
	}
	c.died(c.exit)
	// Remaining processes may use the terminal for any length of time.
	<-c.drained
	c.s.mu.Lock()
	past := slices.Index(c.s.past, c)
	if past >= 0 {
		c.s.past = slices.Delete(c.s.past, past, past+1)
	}
	c.s.mu.Unlock()
	if err := c.term.Close(); err != nil {
		c.s.set.log.Warn("close terminal", "session", c.s.name, "error", err)
	}
	c.release()
}

// printed handles output of a terminal: marks change the state, the rest goes to the log.
func (c *console) printed(p []byte) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.track.Printed(time.Now())
	if s.sealed {
		return
	}
	if c != s.console {
		c.emitLocked(p)
		return
	}
	c.stack.feedLocked(0, p)
	c.askLaterLocked()
}

// askLaterLocked starts a timer, so that bytes held back by the parser do not wait for further
// output.
func (c *console) askLaterLocked() {
	if !c.stack.pendingLocked() || c.holding {
		return
	}
	c.holding = true
	time.AfterFunc(markPatience, func() {
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		c.holding = false
		if c.local == nil || !c.unread() { // otherwise the rest is on its way
			c.stack.flushParsersLocked(0)
		}
		c.askLaterLocked()
	})
}

// flushLocked handles all bytes that the parser holds back, at the end of the output.
func (c *console) flushLocked() {
	if c.s.sealed {
		return
	}
	for c.stack.pendingLocked() {
		c.stack.flushParsersLocked(0)
	}
	if c.echo != nil {
		c.s.log.append(c.endEchoLocked().bytes)
	}
}

// emitLocked appends output to the log, or to the echo that is being dropped.
func (c *console) emitLocked(p []byte) {
	if len(p) == 0 {
		return
	}
	if c.echo != nil {
		if c.echo.add(p) {
			return
		}
		p = append(c.endEchoLocked().bytes, p...)
	}
	end := c.s.log.append(p)
	if end/catchUp != (end-uint64(len(p)))/catchUp {
		c.s.fireLocked()
	}
}
