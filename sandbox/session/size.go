package session

import (
	"github.com/sandboxd/sandboxd/sandbox/session/keyboard"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// clampSize returns the size within the limits of a terminal.
func clampSize(cols, rows int) (size keyboard.Size) {
	size.Cols, size.Rows = wire.ClampSize(uint32(cols), uint32(rows))
	return size
}

// resize stores the size of p's window, and applies it if that window determines the size of the
// terminal.
func (s *session) resize(p *party, cols, rows int) error {
	if cols < 1 || rows < 1 {
		return wire.Errorf(wire.CodeUsage, "size %dx%d is not one of a terminal", cols, rows)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.Size = clampSize(cols, rows)
	if s.keyboard.Sizes(&p.Party, !s.parties.othersLocked(p)) {
		s.resizeLocked(p.Size, p.String())
	}
	return nil
}

// resizeDead sets the size of a dead session to that of a, which restarts it.
func (s *session) resizeDead(a wire.Attach) {
	if a.Start == nil || a.Start.Cols <= 0 || a.Start.Rows <= 0 {
		return
	}
	by := local
	if a.Party != nil {
		by = *a.Party
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.aliveLocked() {
		size := clampSize(a.Start.Cols, a.Start.Rows)
		s.start.Cols, s.start.Rows = size.Cols, size.Rows
		s.resizeLocked(size, by.String())
	}
}

// resizeLocked sets the size of the terminal. The zero size changes nothing.
func (s *session) resizeLocked(size keyboard.Size, by string) {
	if size == s.size || size == (keyboard.Size{}) {
		return
	}
	s.size = size
	s.private.before = nil // a screen that grows shows hidden lines again
	if s.aliveLocked() {
		if err := s.console.term.Resize(size.Cols, size.Rows); err != nil {
			s.set.log.Warn("resize terminal", "session", s.name, "error", err)
		}
	}
	s.display.resize(size.Cols, size.Rows)
	s.events.emitLocked(
		wire.Event{Kind: wire.EventResize, Cols: size.Cols, Rows: size.Rows, By: by},
	)
}
