package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/marks"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// enterTime is how long a shell may take to read the script of the marks.
	enterTime = 5 * time.Second
	// staleTime is how long the end of a shell may take to be noticed.
	staleTime = time.Second
	// enterTries bounds how often the shell in front may prove to be another one.
	enterTries = 3
	// maxShells bounds how many shells inside each other are entered: each reads all output.
	maxShells = 16
)

// entering gives marks to the shell in front, for a call that runs a command in it. The caller
// holds the keyboard.
type entering struct {
	*call
	p *party
	c *console
}

// errStale is returned if another program reads the terminal than the last look has found.
var errStale = &wire.Error{Code: wire.CodeNotPrompt, Message: "the shell has left its prompt",
	Hint: "wait for it"}

// atPrompt waits briefly for the prompt, as awaitPrompt does, and gives marks to the shell that is
// at it.
func (e *entering) atPrompt(ctx context.Context) error {
	s, c := e.s, e.c
	s.mu.Lock()
	left := c.process != nil && !c.relayed && s.track.Phase() == wire.PhasePrompt &&
		c.commands.isGone()
	if left {
		c.stack.leaveLocked(c.stack.around(), nil, wire.Done) // it is entered again
	}
	s.mu.Unlock()
	if left {
		s.awaitChange(ctx, staleTime, func() bool {
			return s.track.Phase() != wire.PhaseRunning
		})
	}
	for range enterTries {
		if err := e.awaitPrompt(ctx, c); err != nil {
			return err
		}
		s.mu.Lock()
		found := s.track.Last().Shell
		s.mu.Unlock()
		if found == nil {
			return nil
		}
		err := e.enter(ctx, found)
		if !errors.Is(err, errStale) {
			return err
		}
		s.awaitChange(ctx, staleTime, func() bool {
			return !isInFront(s.track.Last(), found)
		})
	}
	return errStale
}

// awaitChange waits until changed, for at most d. The caller looks at the state again afterwards.
func (s *session) awaitChange(ctx context.Context, d time.Duration, changed func() bool) {
	s.mu.Lock()
	release := s.waiters.addLocked()
	s.mu.Unlock()
	defer release()
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	_ = s.until(ctx, changed)
}

// enter gives marks to the shell found, which is at its prompt in front of c and has none: one that
// was started in the session's own shell, such as by su. The shell reads the script of the marks
// from the file from which it reads commands later. Its prompt with marks proves that it is a
// shell.
func (e *entering) enter(ctx context.Context, found *wire.Shell) error {
	s, c := e.s, e.c
	sh, err := e.giveMarks(ctx, found)
	if err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, enterTime)
	defer cancel()
	since := e.since.Prompted
	err = s.until(wait, func() bool {
		return s.track.Phase() == wire.PhasePrompt && sh.track.Counts().Prompted > since ||
			c.shell != sh || c != s.console || s.track.Phase() == wire.PhaseDead
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.shell == sh {
		c.takeBack()
	}
	front, gone := c.local.InFront(found.Pid)
	if err == nil && c.shell == sh && s.track.Phase() == wire.PhasePrompt && front && gone == nil {
		e.notes = append(e.notes, wire.NoteShellEntered)
		return nil
	}
	if c.shell == sh && c == s.console {
		c.stack.leaveLocked(c.stack.around(), nil, wire.Refused)
	}
	if errors.Is(err, errClosed) {
		return err
	}
	refused := wire.Errorf(wire.CodeNotPrompt, "%q (process %d) does not take commands",
		clip(strings.Join(found.Argv, " ")), found.Pid)
	refused.Hint = "type to it, or leave it with exit"
	return refused
}

// readsLine reports whether found is at its prompt.
func readsLine(facts Facts, found *wire.Shell) bool {
	return facts.Blocked && facts.Shell != nil && facts.Pid == found.Pid
}

// isInFront reports whether found is at its prompt in the state st.
func isInFront(st wire.State, found *wire.Shell) bool {
	return st.Phase == wire.PhasePrompt && st.Shell != nil && st.Shell.Pid == found.Pid
}

// clear types ^C at a prompt, and waits until shown reports the next one. A line that is half
// typed, the rest of an incomplete command, and the command mode of vi are gone. None of them can
// be seen. The caller holds the writer.
func (e *entering) clear(ctx context.Context, shown func(wire.State) bool) error {
	s := e.s
	s.mu.Lock()
	e.keepKeyboardLocked()
	_, before := s.log.bounds()
	release := s.waiters.addLocked()
	s.mu.Unlock()
	defer release()
	if _, err := s.writer.put(ctx, e.p, e.c, []byte{3}, nil); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, enterTime)
	defer cancel()
	// A new prompt is on a new line. Without one, ^C was a key, or an input, like others.
	err := s.until(wait, func() bool {
		_, end := s.log.bounds()
		return shown(s.track.Last()) && bytes.IndexByte(s.log.tail(before, end), '\n') >= 0
	})
	if err != nil && s.ctx.Err() == nil {
		return &wire.Error{Code: wire.CodeNotPrompt,
			Message: "the shell in front has not shown a new prompt after ^C",
			Hint:    "look at the screen, and type to it, or leave it with exit"}
	}
	return err
}

// keepKeyboardLocked takes the keyboard again that the prompt has freed.
func (e *entering) keepKeyboardLocked() {
	s := e.s
	if s.track.Phase() == wire.PhasePrompt && s.keyboard.Free() {
		_ = s.keyboard.callsLocked(e.p)
	}
}

// newShell prepares to give marks to found, which the facts are about.
func newShell(facts Facts, found *wire.Shell) (*shell, error) {
	file, err := namedFile(facts.Shell.UID)
	if err != nil {
		return nil, err
	}
	nonce := marks.NewNonce()
	in, ok := marks.For("/bin/"+facts.Shell.Name, nonce,
		marks.Options{File: file.w.Name(), PID: facts.Shell.PID})
	if err = file.seenBy(found.Pid); err == nil && !ok {
		err = fmt.Errorf("no marks for %s", facts.Shell.Name)
	}
	if err != nil {
		file.close()
		return nil, err
	}
	return &shell{kind: facts.Shell.Name, group: facts.Foreground, process: found, commands: file,
		marks: in, marked: true, parser: marks.NewParser(nonce), entering: true,
		learned: true, image: facts.Shell.Image}, nil
}

// room returns an error if no further shell can be entered.
func (st *shells) room() error {
	s := st.c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(st.all) < maxShells {
		return nil
	}
	err := wire.Errorf(wire.CodeUnavailable, "%d shells run inside each other", maxShells)
	err.Hint = "leave some with exit, or run in another session"
	return err
}

// giveMarks types the line that makes a shell read the script of the marks, and puts the shell in
// front.
func (e *entering) giveMarks(ctx context.Context, found *wire.Shell) (*shell, error) {
	s, c := e.s, e.c
	if err := s.writer.lock(ctx); err != nil {
		return nil, err
	}
	defer s.writer.unlock()
	// Look again: what reads now is typed to.
	facts, err := s.probe(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := c.stack.room(); err != nil {
		return nil, err
	}
	if !readsLine(facts, found) {
		return nil, errStale
	}
	sh, err := newShell(facts, found)
	if err != nil {
		return nil, err
	}
	err = e.clear(ctx, func(st wire.State) bool { return isInFront(st, found) })
	if err == nil {
		facts, err = s.probe(s.ctx, c)
	}
	if err == nil && !readsLine(facts, found) {
		err = errStale
	}
	if err != nil {
		sh.commands.close()
		return nil, err
	}
	line := sh.marks.Enter()
	s.mu.Lock()
	e.keepKeyboardLocked()
	switch {
	case !isInFront(s.track.Last(), found), c != s.console:
		err = errStale
	case !s.keyboard.Holds(&e.p.Party):
		err = s.keyboard.Refusal()
	default:
		err = sh.commands.hand(sh.marks.Script)
	}
	if err != nil {
		s.mu.Unlock()
		sh.commands.close()
		return nil, err
	}
	e.since = c.track.Counts()
	c.stack.enterLocked(sh)
	c.beginEchoLocked(line, "")
	c.echo.own = sh.marks.Key
	s.mu.Unlock()
	if _, err := s.writer.put(ctx, e.p, c, line, nil); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if c.shell == sh && c == s.console {
			c.takeBack()
			c.stack.leaveLocked(c.stack.around(), nil, wire.Refused)
		}
		return nil, err
	}
	return sh, nil
}
