package session

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Where the shell prints no marks and nobody can look at its processes – network gear, a restricted account – its prompt is
// known by what stands before the cursor ([Options.Prompt]). Then a command can be run by typing it: it is over when the
// next prompt stands there. Its exit code is not known, and a program that prints such a line is taken for the shell.

// promptQuiet is how long what looks like a prompt must stand: it may be the beginning of a line.
const promptQuiet = 150 * time.Millisecond

// byScreen reports whether the prompt of c is known by the screen alone.
func (c *console) byScreen() bool { return !c.marked && c.s.isShell() && c.s.set.opt.Prompt != nil }

func (s *session) byScreen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.console != nil && s.console.byScreen()
}

// screenPromptLocked makes prompt the state, or running, by what stands before the cursor. It reports whether that is all
// there is to say.
func (s *session) screenPromptLocked(c *console, alt bool, before string) bool {
	if !c.byScreen() || s.without(wire.BasisScreen) || s.reads == c.reads {
		return false // what is on the screen is not this terminal's
	}
	if s.command != nil && !s.command.started {
		return true // it is being typed
	}
	stands := !alt && before != "" && s.set.opt.Prompt(before)
	// What has been typed since is not answered yet, not even by its echo.
	answered := s.reads > c.answered
	switch {
	case stands && answered && s.state.Phase == wire.PhasePrompt:
		return true
	case stands && answered && s.quietLocked() >= promptQuiet:
		c.phase = wire.PhasePrompt
		c.prompted++
		_, end := s.log.bounds()
		c.over, c.overAt = c.prompted, s.lineStart(end)
		if cmd := s.command; cmd != nil && !cmd.ended {
			s.overLocked(cmd, max(cmd.from, c.overAt))
		}
		s.readyLocked([]wire.Basis{wire.BasisScreen})
		s.verdicts++
		s.fireLocked()
		return true
	case !stands && s.state.Phase == wire.PhasePrompt:
		c.phase = wire.PhaseRunning
		s.setStateLocked(wire.State{Phase: wire.PhaseRunning, Basis: []wire.Basis{wire.BasisScreen}})
	}
	return false
}

// maxTail bounds how far back the log is looked at.
const maxTail = 4 << 10

// tail is what the log has for everybody from an offset on up to another, about maxTail of it at most. It ends where something
// is private, or gone.
func (s *session) tail(from, end uint64) []byte {
	var all []byte
	for from < end && len(all) < maxTail {
		p, err := s.log.at(from)
		if err != nil || len(p) == 0 {
			break
		}
		p = p[:min(uint64(len(p)), end-from)]
		all = append(all, p...)
		from += uint64(len(p))
	}
	return all
}

// lineStart is where the line begins that ends at the offset end.
func (s *session) lineStart(end uint64) uint64 {
	from := end - min(end, maxTail)
	return from + uint64(bytes.LastIndexByte(s.tail(from, end), '\n')+1)
}

// behindEcho waits for the line that shows a command typed at the offset from, and returns where its output begins: behind
// that line. A terminal that shows nothing has its output from the beginning.
func (s *session) behindEcho(ctx context.Context, from uint64, typed string) uint64 {
	ctx, cancel := context.WithTimeout(ctx, echoTime)
	defer cancel()
	for {
		_, end := s.log.bounds()
		p := s.tail(from, end)
		if at := bytes.IndexByte(p, '\n'); at >= 0 {
			if bytes.Contains(p[:at], []byte(typed)) {
				return from + uint64(at) + 1
			}
			return from
		}
		select {
		case <-s.log.changed(end):
		case <-ctx.Done():
			return from
		case <-s.ctx.Done():
			return from
		}
	}
}

// awaitScreenPrompt waits a while for a prompt on the screen: nobody may have looked for it yet.
func (s *session) awaitScreenPrompt(ctx context.Context) error {
	s.mu.Lock()
	release := s.waitLocked()
	s.mu.Unlock()
	defer release()
	ctx, cancel := context.WithTimeout(ctx, editorTime)
	defer cancel()
	err := s.until(ctx, func() bool { return s.state.Phase == wire.PhasePrompt || s.state.Phase == wire.PhaseDead })
	if errors.Is(err, errClosed) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.state.Phase {
	case wire.PhasePrompt:
		return nil
	case wire.PhaseDead:
		return deadError(s.name)
	}
	return &wire.Error{Code: wire.CodeNotPrompt, Message: "no prompt stands on the screen of session " + s.name,
		Hint: "wait for it, or say with --prompt, when the host is added, what it looks like"}
}

// typeCommand types a command at a prompt that only the screen tells of, and takes what comes next for its output.
func (s *session) typeCommand(ctx context.Context, o *op, p *party, f *follow, command string) error {
	if err := s.lockWriting(ctx); err != nil {
		return err
	}
	defer s.unlockWriting()
	s.mu.Lock()
	if s.state.Phase != wire.PhasePrompt || !s.keyboard.Holds(&p.Party) || ctx.Err() != nil {
		s.mu.Unlock()
		return &wire.Error{Code: wire.CodeNotPrompt, Message: "the shell has left its prompt, or somebody took the keyboard", Hint: "wait for it"}
	}
	o.typed = true
	c := s.console
	s.beginLocked(f)
	_, end := s.log.bounds()
	s.command = f.command
	s.emitLocked(wire.Event{Kind: wire.EventCommand, Text: clipCommand(command), By: f.command.by, Op: f.command.op})
	s.setStateLocked(wire.State{Phase: wire.PhaseRunning, Basis: []wire.Basis{wire.BasisScreen}})
	s.mu.Unlock()
	n, err := s.put(ctx, p, c, []byte(command+"\r"), func() { f.command.typed = true })
	from := s.behindEcho(ctx, end, command)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && f.taken == "" {
		delete(s.follows, f)
		if s.command == f.command {
			s.command = nil
		}
		if n > 0 {
			return s.partlyError(err, n, len(command)+1)
		}
		return err
	}
	f.command.started, f.command.from = true, from
	s.emitLocked(wire.Event{Kind: wire.EventBegun, Offset: from, Op: f.command.op, By: f.command.by})
	return nil
}
