package session

import (
	"bytes"
	"context"
	"errors"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// byScreen reports whether only the screen shows the prompt of the shell.
func (s *session) byScreen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.console != nil && s.track.ByScreen()
}

// maxTail limits the searched part of the log, in bytes.
const maxTail = 4 << 10

// tail returns public bytes of the log between two offsets, at most about maxTail. It ends at
// private or dropped bytes.
func (l *log) tail(from, end uint64) []byte {
	var all []byte
	for from < end && len(all) < maxTail {
		p, err := l.at(from)
		if err != nil || len(p) == 0 {
			break
		}
		p = p[:min(uint64(len(p)), end-from)]
		all = append(all, p...)
		from += uint64(len(p))
	}
	return all
}

// lineStart returns the offset of the start of the line that ends at end.
func (l *log) lineStart(end uint64) uint64 {
	from := end - min(end, maxTail)
	return from + uint64(bytes.LastIndexByte(l.tail(from, end), '\n')+1)
}

// behindEcho waits for the echo of a command typed at offset from, and returns the offset after it,
// where the output begins. Without an echo, the output begins at from.
func (f *call) behindEcho(ctx context.Context, from uint64, typed string) uint64 {
	s := f.s
	ctx, cancel := context.WithTimeout(ctx, echoTime)
	defer cancel()
	for {
		_, end := s.log.bounds()
		p := s.log.tail(from, end)
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

// awaitScreenPrompt waits briefly for a prompt on the screen, which may not have been checked yet.
func (f *call) awaitScreenPrompt(ctx context.Context) error {
	s := f.s
	s.mu.Lock()
	release := s.waiters.addLocked()
	s.mu.Unlock()
	defer release()
	ctx, cancel := context.WithTimeout(ctx, editorTime)
	defer cancel()
	err := s.until(ctx, func() bool { return s.track.Rests() })
	if errors.Is(err, errClosed) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.track.Phase() {
	case wire.PhasePrompt:
		return nil
	case wire.PhaseDead:
		return deadError(s.name)
	}
	return &wire.Error{
		Code:    wire.CodeNotPrompt,
		Message: "no prompt stands on the screen of session " + s.name,
		Hint:    "wait for it, or say with --prompt, when the host is added, what it looks like",
	}
}

// typeCommand types a command at a prompt that only the screen shows. The following bytes are its
// output.
func (f *call) typeCommand(ctx context.Context, o *op, p *party, command string) error {
	s := f.s
	if err := s.writer.lock(ctx); err != nil {
		return err
	}
	defer s.writer.unlock()
	s.mu.Lock()
	if s.track.Phase() != wire.PhasePrompt || !s.keyboard.Holds(&p.Party) || ctx.Err() != nil {
		s.mu.Unlock()
		return &wire.Error{
			Code:    wire.CodeNotPrompt,
			Message: "the shell has left its prompt, or another party took the keyboard",
			Hint:    "wait for it",
		}
	}
	o.typed = true
	c := s.console
	f.beginLocked()
	_, end := s.log.bounds()
	s.events.emitLocked(
		wire.Event{
			Kind: wire.EventCommand,
			Text: clipCommand(command),
			By:   f.command.By,
			Op:   f.command.Op,
		},
	)
	s.reportLocked(c, c.track.Give(f.command, wire.BasisScreen, s.momentLocked(c)))
	s.mu.Unlock()
	n, err := s.writer.put(ctx, p, c, []byte(command+"\r"), func() { c.track.Types(f.command) })
	from := f.behindEcho(ctx, end, command)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && f.taken == "" {
		delete(s.calls, f)
		c.track.Withdraw(f.command)
		if n > 0 {
			return f.partlyError(err, n, len(command)+1)
		}
		return err
	}
	s.reportLocked(c, c.track.Start(f.command, from))
	return nil
}
