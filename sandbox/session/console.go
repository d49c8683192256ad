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
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/marks"
	"github.com/sandboxd/sandboxd/sandbox/session/track"
	"github.com/sandboxd/sandboxd/sandbox/wire"
	"golang.org/x/sys/unix"
)

const (
	// markPatience is how long the beginning of a mark is held back before it is asked again
	// whether it is one.
	markPatience = 5 * time.Millisecond
	// drainGrace is how long output is waited for after the shell's end, when other processes keep
	// the terminal open.
	drainGrace = 50 * time.Millisecond
	// drainMost is how long it is waited for at most, when it is read but who reads the log takes
	// his time.
	drainMost = keeperPatience + time.Second
	// maxPast is how many terminals whose shell has ended may stay open for what was left running
	// on them.
	maxPast = 4
)

// console is one terminal of a session, with the shell or program that was started on it.
type console struct {
	s     *session
	term  Terminal
	local Local // term, if it is one
	shell string

	incarnation string // random

	marks   marks.Integration
	marked  bool     // the shell prints marks
	handoff *os.File // what the shell reads commands from, for writing
	reread  *os.File // the same for reading, sharing its offset with the shell

	taking  atomic.Bool   // output is being read, or was and is not in the log yet
	drained chan struct{} // closed when nothing more will be read
	exited  chan struct{} // closed when the process has ended
	exit    Exit          // valid after exited

	parser     *marks.Parser // guarded by s.mu; nil unless marked
	holding    bool          // guarded by s.mu; a timer to ask parser again is running
	forged     bool          // guarded by s.mu; some other program prints marks, too, and that is logged
	dotDir     string        // guarded by s.mu; where the shell looks for its start-up files, until it has
	editAt     uint64        // guarded by s.mu; where in the log the present prompt ends, also when it was drawn again; 0 when it has been typed at
	promptFrom uint64        // guarded by s.mu; where in the log the present prompt begins
	promptTo   uint64        // guarded by s.mu; and where it ended when it was drawn first
	typist     *party        // guarded by s.mu; who typed last at the present prompt
	ahead      ahead         // guarded by s.mu; what may come to stand at a prompt, typed before it
	handed     bool          // guarded by s.mu; what runs is the newest command of the hand-over
	end        Exit          // guarded by s.mu; how its end was reported, which may be before exited
	echo       *echo         // guarded by s.mu; output that is being dropped

	track *track.Tracker // guarded by s.mu; what it does; set when it becomes the session's
	due   time.Time      // guarded by s.mu; when track is asked again
	timer *time.Timer    // guarded by s.mu; does that; nil unless it runs
}

// defaults is the environment of every session that is not bare, unless the sandbox or the caller
// says otherwise: no pager stops an agent, and text is UTF-8.
var defaults = []string{"PAGER=cat", "GIT_PAGER=cat", "MANPAGER=cat", "SYSTEMD_PAGER=", "GH_PAGER=cat", "LANG=C.UTF-8",
	"HISTCONTROL=ignoreboth"}

// launch starts a terminal as the session's start says.
func (s *session) launch(ctx context.Context) (*console, error) {
	c := &console{s: s, incarnation: rand.Text(), drained: make(chan struct{}), exited: make(chan struct{})}
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
			if !slices.ContainsFunc(sh.Env, func(have string) bool { return sameVariable(have, e) }) {
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
		if f.File != c.reread {
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

// known is what the tracker of c has to know of it.
func (c *console) known() track.Options {
	opt := &c.s.set.opt
	return track.Options{Program: !c.s.isShell(), Marked: c.marked, TypedMarks: c.marks.Typed, ReadsLines: c.shell == "bash",
		Probed: opt.Prober != nil, NoScreen: c.s.without(wire.BasisScreen), Prompt: opt.Prompt}
}

func sameVariable(a, b string) bool {
	name, _, _ := strings.Cut(a, "=")
	other, _, _ := strings.Cut(b, "=")
	return name == other
}

// integrate makes start one of the shell, with marks if it can print them.
func (c *console) integrate(sh Shell, start *Start) error {
	if sh.Path == "" {
		return &wire.Error{Code: wire.CodeUnavailable, Message: "there is no shell in this sandbox",
			Hint: "start the session with a program of the image"}
	}
	c.shell = filepath.Base(sh.Path)
	start.Argv = []string{sh.Path}
	if sh.Login {
		start.Argv = append(start.Argv, "-l")
	}
	if c.s.start.Bare || sh.FDDir == "" || c.s.without(wire.BasisMark) {
		return nil
	}
	nonce := marks.NewNonce()
	in, ok := marks.For(sh.Path, nonce, marks.Options{Hostname: c.s.set.title(), Login: sh.Login,
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
		// A shell that runs as another user opens it anew, by its descriptor's name. Nobody else
		// can: that takes the right to trace the shell. A kernel that refuses it (gVisor's) leaves
		// those shells without marks.
		if err = script.Chmod(0o444); errors.Is(err, unix.EPERM) {
			err = nil
		}
	}
	if err == nil && in.CommandFD {
		err = c.openCommand()
		start.Files = append(start.Files, File{FD: marks.CommandFD, File: c.reread})
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

// makeDotDir makes the directory in which a shell finds the way to its script: no secret, and for
// everybody to read, since the shell may run as another user.
func (c *console) makeDotDir() error {
	dir := os.TempDir() + "/sandboxd-" + marks.NewNonce().String()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	c.dotDir = dir
	return errors.Join(os.Chmod(dir, 0o755), os.Symlink(c.marks.Target, dir+"/"+c.marks.Link)) //nolint:gosec // see above
}

// dropDotDir removes that directory.
func (c *console) dropDotDir(dir string) {
	if err := errors.Join(os.Remove(dir+"/"+c.marks.Link), os.Remove(dir)); err != nil {
		c.s.set.log.Warn("remove directory", "session", c.s.name, "error", err)
	}
}

// openCommand makes the file through which the shell gets its commands: in memory, writable only
// here. The descriptor that the shell inherits and ours are one open file, so that rewinding ours
// rewinds the shell's.
func (c *console) openCommand() error {
	fd, err := unix.MemfdCreate("command", unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	c.handoff = os.NewFile(uintptr(fd), "command")
	// Whoever inherits the descriptor can open it anew: a program that has given up its rights must
	// not write what the shell runs.
	if err := c.handoff.Chmod(0o444); err != nil {
		return err
	}
	c.reread, err = os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	return err
}

// hand makes payload what the shell reads next from its command descriptor.
func (c *console) hand(payload []byte) error {
	if err := c.handoff.Truncate(0); err != nil {
		return err
	}
	if _, err := c.handoff.WriteAt(payload, 0); err != nil {
		return err
	}
	_, err := c.reread.Seek(0, 0)
	return err
}

// takeBack empties the command descriptor, so that a person who happens on the key runs nothing.
func (c *console) takeBack() {
	if err := c.handoff.Truncate(0); err != nil {
		c.s.set.log.Warn("empty the command", "session", c.s.name, "error", err)
	}
}

func (c *console) release() {
	c.s.mu.Lock()
	dir := c.dotDir
	c.dotDir = ""
	c.s.mu.Unlock()
	if dir != "" {
		c.dropDotDir(dir)
	}
	if c.handoff != nil {
		c.handoff.Close()
	}
	if c.reread != nil {
		c.reread.Close()
	}
}

// close ends the terminal and its processes, and returns when they are gone and all output was
// read.
func (c *console) close() {
	if err := c.term.Close(); err != nil {
		c.s.set.log.Warn("close terminal", "session", c.s.name, "error", err)
	}
	<-c.exited
	<-c.drained
}

// restart gives the session a terminal, if it has none that lives. restarted says that this is not
// its first.
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
			// Something that the old shell left behind still has its terminal: its output stays
			// part of the log.
			s.past = append(s.past, old)
			if len(s.past) > maxPast {
				drop, s.past = s.past[0], s.past[1:]
			}
		}
	}
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
	return &wire.Error{Code: wire.CodeNotFound, Message: "session " + s.name + " was closed", Hint: "attach with create to start it again"}
}

// pump reads the terminal until it ends. Nothing that it does waits for anybody who reads the log.
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

// reap waits for the process, and declares the session dead when its last output has been read.
func (c *console) reap() {
	c.exit = c.term.Wait()
	close(c.exited)
	for until := time.Now().Add(drainMost); ; {
		select {
		case <-c.drained:
		case <-time.After(drainGrace):
			if c.taking.Load() && time.Now().Before(until) {
				continue // what it printed waits for who reads the log
			}
		}
		break
	}
	c.died(c.exit)
	// What was left behind may hold the terminal for as long as it likes.
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

// printed takes output of a terminal: marks go to the state, the rest to the log.
func (c *console) printed(p []byte) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.track.Printed(time.Now())
	if s.sealed {
		return
	}
	if !c.marked || c != s.console {
		c.emitLocked(p)
		return
	}
	out, ms := c.parser.Parse(p)
	if c.parser.Forged() && !c.forged {
		c.forged = true
		c.track.Forge()
		s.set.log.Warn("the shell's marks contradict each other: a program forges them", "session", s.name)
		s.fireLocked()
	}
	c.takeLocked(out, ms)
	c.askLaterLocked()
}

func (c *console) takeLocked(out []byte, ms []marks.Mark) {
	at := 0
	for _, m := range ms {
		c.emitLocked(out[at:m.At])
		at = m.At
		c.markedLocked(m)
	}
	c.emitLocked(out[at:])
}

// askLaterLocked sees to it that bytes which the parser holds back do not wait for output that may
// never come.
func (c *console) askLaterLocked() {
	if !c.parser.Pending() || c.holding {
		return
	}
	c.holding = true
	time.AfterFunc(markPatience, func() {
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		c.holding = false
		c.emitLocked(c.parser.Flush())
		c.askLaterLocked()
	})
}

// flushLocked takes everything that the parser holds back: nothing follows.
func (c *console) flushLocked() {
	if c.s.sealed {
		return
	}
	for c.parser != nil && c.parser.Pending() {
		c.emitLocked(c.parser.Flush())
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
