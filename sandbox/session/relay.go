package session

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox/session/marks"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// adopt gives marks to the shell behind the relay in front, such as ssh, if there is one. Only the
// screen shows that shell. It is asked by a line of shell code, and its answer, a mark with a new
// secret, proves that it is a shell; then it is sent the script of the marks. Nothing is typed to
// what does not look like a shell at its prompt.
func (e *entering) adopt(ctx context.Context) error {
	s, c := e.s, e.c
	found, err := e.relayInFront(ctx)
	if found == nil {
		return err
	}
	nonce := marks.NewNonce()
	sh := &shell{process: found, relayed: true, marked: true, parser: marks.NewParser(nonce),
		entering: true, learned: true}
	if err := e.ask(ctx, sh, nonce); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, enterTime)
	defer cancel()
	err = s.until(wait, func() bool {
		return sh.answered != "" || s.console != c || c.shell != sh
	})
	if err == nil {
		err = e.feed(wait, sh, nonce)
	}
	if err == nil {
		err = s.until(wait, func() bool {
			return s.track.Phase() == wire.PhasePrompt && !sh.entering || s.console != c ||
				c.shell != sh
		})
	}
	s.mu.Lock()
	ours := c.shell == sh && c == s.console
	if err == nil && ours && s.track.Phase() == wire.PhasePrompt {
		e.notes = append(e.notes, wire.NoteShellEntered)
		s.mu.Unlock()
		return nil
	}
	if ours {
		c.stack.leaveLocked(c.stack.around(), nil, wire.Refused)
	}
	s.mu.Unlock()
	e.abandon()
	if _, refused := errors.AsType[*wire.Error](err); refused || errors.Is(err, errClosed) {
		return err
	}
	none := wire.Errorf(wire.CodeNotPrompt, "what %q (process %d) shows has not answered as a shell",
		clip(strings.Join(found.Argv, " ")), found.Pid)
	none.Hint = "look at the screen, and type to it; tmux, screen and mosh pass no marks on"
	return none
}

// abandon ends the reading of a shell that has run the question, so that it echoes input again,
// unless another party has the keyboard. That shell may be one around the relay, which has ended.
// The empty line ends the reading also where ^C does not: bash ignores one while a program of its
// own ends by itself, and in raw mode it is a character.
func (e *entering) abandon() {
	s := e.s
	if s.writer.lock(s.ctx) != nil {
		return
	}
	s.mu.Lock()
	shown, prompts := s.track.Last().Offset, s.track.Counts().Prompted
	s.mu.Unlock()
	_, err := s.writer.put(s.ctx, e.p, e.c, []byte("\x03\n"), nil)
	s.writer.unlock()
	if err == nil {
		s.awaitChange(s.ctx, staleTime, func() bool {
			last := s.track.Last()
			return last.LooksLikeShell && last.Offset > shown ||
				s.track.Phase() == wire.PhasePrompt && s.track.Counts().Prompted > prompts
		})
	}
}

// relayInFront returns the relay in front, as what the shell behind it is known by; nil without an
// error if the terminal shows a prompt already.
func (e *entering) relayInFront(ctx context.Context) (*wire.Shell, error) {
	s, c := e.s, e.c
	if c.local == nil || s.without(wire.BasisProcess) {
		return nil, &wire.Error{Code: wire.CodeUnavailable,
			Message: "which program is in front is not known: sessions here have no guest",
			Hint:    "type to it"}
	}
	s.awaitChange(ctx, enterTime, func() bool {
		st := s.track.Last() // the relay may still be connecting, and has shown nothing
		asks := st.Phase == wire.PhaseOpaque && st.Prompt != "" && st.Attention == "likely"
		return st.LooksLikeShell || asks || st.Phase == wire.PhasePrompt ||
			st.Phase == wire.PhaseWaiting || st.Phase == wire.PhaseDead
	})
	facts, err := s.probe(ctx, c)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.track.Phase() == wire.PhasePrompt:
		return nil, nil
	case s.track.Last().LooksLikeShell && facts.Opaque && len(facts.Argv) > 0 &&
		!inputModes(c.local.TTY().Master).Lines: // it passes keys on, such as ^C
		return &wire.Shell{Pid: facts.Pid, Name: filepath.Base(facts.Argv[0]), Argv: facts.Argv,
			Depth: depthOf(c.process) + 1}, nil
	}
	none := wire.Errorf(wire.CodeNotPrompt, "%s shows no prompt of a shell in session %s",
		e.occupantLocked(facts), s.name)
	none.Hint = "answer it, or wait for it"
	return nil, none
}

// ask clears the line at the prompt behind the relay, types the question, and puts sh in front.
func (e *entering) ask(ctx context.Context, sh *shell, n marks.Nonce) error {
	s, c := e.s, e.c
	if err := s.writer.lock(ctx); err != nil {
		return err
	}
	defer s.writer.unlock()
	if err := c.stack.room(); err != nil {
		return err
	}
	err := e.clear(ctx, func(st wire.State) bool {
		return st.LooksLikeShell || st.Phase == wire.PhasePrompt // the relay has ended
	})
	if err != nil {
		return err
	}
	facts, err := s.checkRelay(ctx, c, sh)
	if err != nil {
		return err
	}
	question := marks.Ask(n)
	s.mu.Lock()
	switch {
	case !s.track.Last().LooksLikeShell, c != s.console:
		err = errStale
	case !s.keyboard.Holds(&e.p.Party):
		err = s.keyboard.Refusal()
	}
	if err != nil {
		s.mu.Unlock()
		return err
	}
	sh.group = facts.Foreground
	e.since = c.track.Counts()
	c.stack.enterLocked(sh)
	c.beginEchoLocked(question, "")
	c.echo.own = true
	s.mu.Unlock()
	_, err = s.writer.put(ctx, e.p, c, question, nil)
	return err
}

// checkRelay returns an error unless the relay of sh is in front, and passes the keyboard on.
func (s *session) checkRelay(ctx context.Context, c *console, sh *shell) (Facts, error) {
	facts, err := s.probe(ctx, c)
	if err == nil && (facts.Pid != sh.process.Pid || facts.Blocked && !facts.Opaque) {
		err = errStale
	}
	return facts, err
}

// feed types the script of the marks to sh, which has answered.
func (e *entering) feed(ctx context.Context, sh *shell, n marks.Nonce) error {
	s, c := e.s, e.c
	if err := s.writer.lock(ctx); err != nil {
		return err
	}
	defer s.writer.unlock()
	// If the relay has ended, the shell around it may have read the question, and have answered.
	if _, err := s.checkRelay(ctx, c, sh); err != nil {
		return err
	}
	s.mu.Lock()
	in, ok := marks.For("/bin/"+sh.answered, n, marks.Options{Relay: true})
	if c.shell != sh || c != s.console {
		s.mu.Unlock()
		return errStale
	}
	script := in.Script
	if ok {
		process := *sh.process
		process.Name = sh.answered
		sh.marks, sh.kind, sh.process = in, sh.answered, &process
		next, news := sh.track.Restart(c.known(), s.momentLocked(c))
		sh.stopTicks()
		s.track, sh.track = next, next
		s.reportLocked(c, news)
	}
	s.mu.Unlock()
	_, err := s.writer.put(ctx, e.p, c, marks.Feed(script), nil) // an empty one ends the reading
	if err == nil && !ok {
		refused := wire.Errorf(wire.CodeUnavailable, "%s behind a relay takes no commands",
			sh.answered)
		refused.Hint = "start bash or sh in it, or type to it"
		return refused
	}
	return err
}
