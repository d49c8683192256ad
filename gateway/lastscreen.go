package gateway

import (
	"context"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Screen returns what a session's terminal shows. It starts nothing: of a sandbox that is stopped it is what the terminal showed last,
// by its record, with Stopped set.
func (h *Hub) Screen(ctx context.Context, p Principal, t wire.Target) (wire.Screen, error) {
	b, _, err := h.reachable(p, t.Sandbox, wire.RightWatch, "")
	if err != nil {
		return wire.Screen{}, err
	}
	if t.Session == "" {
		t.Session = wire.DefaultSession
	}
	switch b.get().state {
	case Paused: // whoever looks does not resume it
		return wire.Screen{}, b.notRunning(t.Session)
	case Stopped:
		r, err := h.OpenRecord(ctx, p, t, 0)
		if err != nil {
			return wire.Screen{}, err
		}
		defer r.Close()
		return lastScreen(r)
	}
	party, err := h.Standing(ctx, p, t, JoinOptions{})
	if err != nil {
		return wire.Screen{}, err
	}
	reply, err := party.Request(ctx, wire.Request{Verb: wire.VerbScreen})
	if err != nil {
		return wire.Screen{}, err
	}
	if reply.Screen == nil { // a guest's answer may be anything
		return wire.Screen{}, wire.Errorf(wire.CodeUnavailable, "sandbox %s answers without its screen", b.title())
	}
	return *reply.Screen, nil
}

// lastScreen is what the terminal of a record showed at its end.
func lastScreen(r *record.Reader) (wire.Screen, error) {
	begin, end, sizes := r.Begin(), r.End(), r.Sizes()
	s := screen.New(screen.Options{Cols: begin.Cols, Rows: begin.Rows})
	at := uint64(0)
	if end > feedAtMost {
		at = end - feedAnew
	}
	if p, off, ok := r.Keyframe(end); ok && off >= at {
		if restored, err := screen.Restore(p, 0); err == nil {
			s, at = restored, off
		}
	}
	if err := show(r, s, sizes, at, end); err != nil {
		return wire.Screen{}, err
	}
	cols, rows := s.Size()
	cur, modes := s.Cursor(), s.Modes()
	return wire.Screen{Text: s.Text(), Cols: cols, Rows: rows, CursorX: cur.X, CursorY: cur.Y, Visible: cur.Visible,
		AltScreen: modes.AltScreen, Title: s.Title(), Offset: end, Stopped: true}, nil
}
