package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/track"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// startTime is how long a call waits for a shell that reads its start-up files.
	startTime = 30 * time.Second
	// settleTime is how long a call waits for a shell with input at its prompt.
	settleTime = 200 * time.Millisecond
	// editorTime is how long a call waits for the line editor of a shell at its prompt.
	editorTime = 2 * time.Second
	// maxCommand limits a command in bytes; it must fit a frame.
	maxCommand = 900 << 10
)

// run runs a command in the shell and waits until it ends or asks for input.
func (s *session) run(ctx context.Context, o *op, p *party, r wire.Request) *wire.Result {
	f := s.newCall(r)
	f.key = p.Key
	cmd := &track.Command{Op: r.Op, By: p.String()}
	f.command = cmd
	calls, cancel := bound(ctx, r.TimeoutMS)
	defer cancel()

	undo, err := f.prepare(calls, p, r)
	if err != nil {
		return f.refused(err)
	}
	f.noteJobs()
	hand := f.handOver
	if s.byScreen() {
		hand = f.typeCommand
	}
	if err := hand(calls, o, p, r.Text); err != nil {
		undo()
		if why, ok := errors.AsType[*wire.Error](err); ok && why.Reason == wire.LostPartly {
			return f.partly(why)
		}
		return f.refused(err)
	}
	ended := f.wait(calls)
	if ended == wire.Deadline && r.Kill {
		f.stop(
			ctx,
		) // the call reached its timeout; receipt and phase describe the interrupt
	}
	if ended == wire.Done && cmd.Exit != nil && f.c.stack.withMarks() && !f.vouched(
		s.ctx, f.c, f.before) {
		f.notes = append(f.notes, wire.NoteAdvisory)
	}
	res := f.result(ended)
	if ended == wire.Refused {
		s.mu.Lock()
		res.Error = f.whyRefusedLocked()
		if cmd.Unsure {
			res.Ended = wire.Lost
			res.Notes = append(res.Notes, res.Error.Reason)
		}
		s.mu.Unlock()
	}
	return res
}

// whyRefusedLocked returns the error of a command that the shell has not started. Except for a lost
// command, it did not run.
func (f *call) whyRefusedLocked() *wire.Error {
	s, cmd := f.s, f.command
	switch {
	case cmd.Unfinished:
		return &wire.Error{
			Code: wire.CodeSyntax,
			Message: "the command is not complete, or not the shell's language: " +
				s.console.kind + " does not parse it",
			Hint: "complete the command",
		}
	case cmd.Unread:
		return &wire.Error{
			Code: wire.CodeUnavailable,
			Message: "the shell could not read the command, and ran nothing: a command has " +
				"closed or replaced " + s.console.stack.sourceLocked() +
				", disabled a builtin, or left the terminal so that none can open it",
			Hint: "end the shell with exit: the next run starts a new one",
		}
	case cmd.Unsure:
		return wire.LostError(wire.LostPartly, "the shell did not confirm the command")
	}
	return &wire.Error{
		Code: wire.CodeUnavailable,
		Message: "the shell did not take the command: another program, or a question of the line " +
			"editor's, read what was typed",
		Hint: "run it again, or type it",
	}
}

// bound returns ctx with the timeout of a call.
func bound(ctx context.Context, ms int64) (context.Context, context.CancelFunc) {
	if d, ok := timeout(ms); ok {
		return context.WithTimeout(ctx, d)
	}
	return context.WithCancel(ctx)
}

// prepare meets the conditions of a run: a shell at its prompt, and the keyboard. The daemon checks
// the syntax for shells that package syntax supports, because a parser would make the guest a tenth
// larger. Such a shell reads a command as a file, so that an incomplete one is a syntax error and
// not a second prompt. Other shells check the syntax themselves; see marks.Refused.
func (f *call) prepare(ctx context.Context, p *party, r wire.Request) (undo func(), err error) {
	s := f.s
	switch {
	case !s.isShell():
		return nil, &wire.Error{
			Code:    wire.CodeNotPrompt,
			Message: fmt.Sprintf("session %s runs %s and has no prompt", s.name, s.start.Argv[0]),
			Hint:    "type to it, or run in another session",
		}
	case len(r.Text) > maxCommand:
		return nil, &wire.Error{
			Code:    wire.CodeUsage,
			Message: fmt.Sprintf("the command has %d bytes, limit %d", len(r.Text), maxCommand),
			Hint:    "write it to a file and run the file",
		}
	case strings.IndexByte(r.Text, 0) >= 0:
		return nil, wire.Errorf(wire.CodeUsage, "a command cannot contain a NUL byte")
	}
	if err := f.revive(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	c := s.console
	s.mu.Unlock()
	if s.byScreen() {
		if strings.ContainsAny(r.Text, "\r\n") {
			return nil, &wire.Error{
				Code:    wire.CodeUsage,
				Message: "this shell accepts only a command of one line, which is typed",
				Hint:    "run the lines one by one",
			}
		}
		if err := f.awaitScreenPrompt(ctx); err != nil {
			return nil, err
		}
		if undo, err = f.await(ctx, p, r.Hold); err == nil && !s.shows(c) {
			undo()
			err = deadError(s.name)
		}
		return undo, err
	}
	if in, marked := c.stack.integration(); !marked || !in.CommandFD {
		return nil, &wire.Error{
			Code: wire.CodeUnavailable,
			Message: "the shell of session " + s.name +
				" prints no marks, so the end of a command would be a guess",
			Hint: "type the command, or run it in a session with bash, zsh, fish or sh",
		}
	}
	if undo, err = f.await(ctx, p, r.Hold); err != nil {
		return nil, err
	}
	e := &entering{f, p, c}
	if r.Adopt {
		err = e.adopt(ctx)
	}
	if err == nil {
		err = e.atPrompt(ctx)
	}
	if err == nil && !s.shows(c) { // the shell of the command has ended
		err = deadError(s.name)
	}
	if in, _ := c.stack.integration(); err == nil && in.Key {
		err = f.awaitEditor(ctx, c)
	}
	if err != nil {
		undo()
		return nil, err
	}
	f.awaitAhead(ctx, c)
	return undo, nil
}

// shows reports whether c is still the terminal of the session.
func (s *session) shows(c *console) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c == s.console
}

// awaitEditor waits for the line editor of a shell that reads commands by a key: the prompt may be
// reported before it has started.
func (f *call) awaitEditor(ctx context.Context, c *console) error {
	s := f.s
	ctx, cancel := context.WithTimeout(ctx, editorTime)
	defer cancel()
	err := s.until(
		ctx,
		func() bool { return c.track.Editing() || s.track.Phase() != wire.PhasePrompt },
	)
	if err != nil && !errors.Is(err, errClosed) {
		return &wire.Error{
			Code:    wire.CodeUnavailable,
			Message: "the shell of session " + s.name + " has its line editor switched off",
			Hint:    "type the command",
		}
	}
	return err
}

// revive restarts a shell that has ended, and waits until a new shell is at its first prompt.
func (f *call) revive(ctx context.Context) error {
	s := f.s
	if err := s.set.roomFor(s); err != nil {
		return err
	}
	restarted, err := s.restart(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.revived = s.revived || restarted
	s.mu.Unlock()
	return f.begun(ctx)
}

// begun waits until a new shell is at its first prompt. It starts none.
func (f *call) begun(ctx context.Context) error {
	s := f.s
	s.mu.Lock()
	if s.revived {
		f.notes = append(f.notes, wire.NoteShellRestarted)
		s.revived = false
	}
	c := s.console
	begun := !c.marked || c.track.Counts().Prompted > 0
	if begun {
		s.mu.Unlock()
		return nil
	}
	release := s.waiters.addLocked() // start-up files may ask for input
	s.mu.Unlock()
	defer release()
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	err := s.until(ctx, func() bool {
		return c.track.Counts().Prompted > 0 && s.track.Phase() == wire.PhasePrompt ||
			s.track.Phase() == wire.PhaseWaiting ||
			s.track.Phase() == wire.PhaseDead ||
			c != s.console
	})
	if err != nil && ctx.Err() == nil {
		return err
	}
	if c.skipped() {
		if err := c.local.Signal(c.local.TTY().SessionPID, syscall.SIGKILL); err != nil {
			return err
		}
		if err := s.until(ctx, func() bool { return !s.aliveLocked() }); err != nil {
			return err
		}
		return f.revive(ctx)
	}
	return nil // the caller checks the state
}

// skipped reports whether the shell edits a line at a prompt without marks: ^C has ended its
// start-up files before it has read the script of the marks. Nobody has given it a command: a shell
// that is in use stays.
func (c *console) skipped() bool {
	s := c.s
	s.mu.Lock()
	skipped := c == s.console && c.struck && !c.entered && c.track.Counts().Prompted == 0 &&
		s.track.Phase() == wire.PhaseWaiting
	s.mu.Unlock()
	if !skipped || c.local == nil || inputModes(c.local.TTY().Master).Lines {
		return false
	}
	facts, err := s.probe(s.ctx, c)
	return err == nil && facts.Blocked && facts.ShellIsForeground
}

// awaitPrompt waits briefly for the prompt. If the shell is not at it, the error names the running
// program.
func (f *call) awaitPrompt(ctx context.Context, c *console) error {
	s := f.s
	s.mu.Lock()
	if s.track.Phase() == wire.PhasePrompt {
		s.mu.Unlock()
		return nil
	}
	// A shell that was entered may have ended without a mark.
	typed := s.track.Phase() == wire.PhaseRunning &&
		(c.track.Marked() == wire.PhasePrompt || c.process != nil)
	release := s.waiters.addLocked()
	s.mu.Unlock()
	defer release()
	if typed {
		settle, cancel := context.WithTimeout(ctx, settleTime)
		defer cancel()
		err := s.until(
			settle,
			func() bool {
				return s.track.Phase() != wire.PhaseRunning ||
					c.track.Marked() != wire.PhasePrompt && c.process == nil
			},
		)
		if errors.Is(err, errClosed) {
			return err
		}
	}
	facts, _ := s.probe(s.ctx, c)
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.track.Last()
	switch st.Phase {
	case wire.PhasePrompt:
		return nil
	case wire.PhaseDead:
		return deadError(s.name)
	case wire.PhaseContinuation:
		return &wire.Error{
			Code:    wire.CodeNotPrompt,
			Message: "the shell waits for the rest of a command that was typed",
			Hint:    "type the rest, or interrupt",
		}
	}
	what := f.occupantLocked(facts)
	e := wire.Errorf(wire.CodeNotPrompt, "%s runs in session %s", what, s.name)
	e.Hint = "wait for it, type to it, or interrupt it"
	if st.Phase == wire.PhaseWaiting {
		e.Message = fmt.Sprintf("%s waits for input in session %s", what, s.name)
		e.Hint = "type the answer, or interrupt it"
	}
	return e
}

// occupantLocked returns the name of the foreground program.
func (f *call) occupantLocked(facts Facts) string {
	s := f.s
	switch {
	case len(facts.Argv) > 0 && !facts.ShellIsForeground:
		return fmt.Sprintf("%q (process %d)", clip(strings.Join(facts.Argv, " ")), facts.Pid)
	case s.track.Command() != nil:
		return "a command"
	case s.console.marked && s.console.track.Counts().Prompted == 0:
		return "the start of the shell"
	}
	return "a program"
}

// handOver types the constant line that makes the shell read the command, and prints the command
// instead of its echo.
func (f *call) handOver(ctx context.Context, o *op, p *party, command string) error {
	s := f.s
	if err := s.writer.lock(ctx); err != nil {
		return err
	}
	defer s.writer.unlock()
	s.mu.Lock()
	c := s.console
	if sh := c.shell; sh.relayed {
		s.mu.Unlock()
		if _, err := s.checkRelay(ctx, c, sh); err != nil {
			return err
		}
		s.mu.Lock()
	}
	if s.track.Phase() == wire.PhasePrompt && s.keyboard.Free() {
		_ = s.keyboard.callsLocked(p) // the prompt in prepare has freed the keyboard
	}
	inside := s.track.Last().Shell != nil // a shell without marks, which has just been started
	if s.track.Phase() != wire.PhasePrompt || inside || !s.keyboard.Holds(&p.Party) {
		// Another party was faster between the checks and the lock.
		err := s.keyboard.Refusal()
		if s.keyboard.Holds(&p.Party) || s.keyboard.Free() {
			err = &wire.Error{
				Code:    wire.CodeNotPrompt,
				Message: "the shell has left its prompt",
				Hint:    "wait for it",
			}
		}
		s.mu.Unlock()
		return err
	}
	if ctx.Err() != nil {
		s.mu.Unlock()
		return context.Cause(ctx)
	}
	o.typed = true
	s.commands++
	typed, payload := c.marks.Command(command, s.commands)
	f.command.Number, f.command.Line, f.before = s.commands, typed, c.offspring(c.stack.pidLocked())
	if !c.relayed {
		if err := c.commands.hand(payload); err != nil {
			s.mu.Unlock()
			return err
		}
	}
	f.beginLocked()
	event := wire.Event{
		Kind: wire.EventCommand,
		Text: clipCommand(command),
		By:   f.command.By,
		Op:   f.command.Op,
	}
	unsent, whose := c.clearLineLocked()
	if whose != nil {
		event.ID = whose.ID
	}
	s.log.append(shown(command))
	// After the printed command: readers of a command's output begin at this event.
	s.events.emitLocked(event)
	c.beginEchoLocked(typed, unsent)
	c.echo.own = c.relayed // the form of what it prints is not known
	s.reportLocked(c, c.track.Give(f.command, wire.BasisMark, s.momentLocked(c)))
	s.mu.Unlock()

	_, err := s.writer.put(ctx, p, c, typed, func() { c.track.Types(f.command) })
	if err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.taken != "" {
		return nil // the take ends the call
	}
	delete(s.calls, f)
	c.takeBack() // otherwise a later line or key could run it
	c.track.Withdraw(f.command)
	if c.echo != nil {
		s.log.append(c.endEchoLocked().bytes)
	}
	return err
}

// shown returns a command as the screen shows it after a prompt, as if it had been typed.
func shown(command string) []byte {
	command = strings.TrimRight(command, "\n")
	b := make([]byte, 0, len(command)+2)
	for i := range len(command) {
		switch c := command[i]; {
		case c == '\n':
			b = append(b, "\r\n"...)
		case c < 0x20 && c != '\t' || c == 0x7f:
			// As a terminal echoes a control character, without its effect.
			b = append(b, '^', c^0x40)
		default:
			b = append(b, c)
		}
	}
	return append(b, "\r\n"...)
}

// clipCommand limits the text of a command in an event. The log has all of it.
func clipCommand(command string) string {
	const most = 4 << 10
	if len(command) <= most {
		return command
	}
	return strings.ToValidUTF8(command[:most], "") + "…"
}
