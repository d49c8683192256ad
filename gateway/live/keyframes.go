package live

import (
	"errors"
	"sort"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// framesAtOnce bounds how much of a log is drawn at one time for key frames: other sessions wait
// for it.
const framesAtOnce = 16 << 20

// addKeyframes keeps snapshots of the screen of s beside its record, of recorded bytes alone, so
// that a player need not begin at the beginning. A player makes those that are missing.
func addKeyframes(s *Session, rec *record.Writer) {
	end := rec.End()
	if end < s.framed+record.KeyframeEvery {
		return
	}
	sizes := rec.Sizes()
	at := uint64(0)
	sc := screen.New(screen.Options{Cols: sizes[0].Cols, Rows: sizes[0].Rows})
	if p, off, ok := rec.Keyframe(end); ok {
		if restored, err := screen.Restore(p, 0); err == nil {
			sc, at = restored, off
		}
	}
	for to := min(end-record.KeyframeEvery, at+framesAtOnce); at <= to; {
		stop := (at/record.KeyframeEvery + 1) * record.KeyframeEvery
		if err := draw(rec, sc, sizes, at, stop); err != nil {
			s.log.Warn("key frames are not kept", "err", err)
			return
		}
		at = stop
		if err := rec.AddKeyframe(at, sc.Snapshot()); err != nil {
			return // the disk is full, which is reported elsewhere
		}
	}
	s.framed = at
}

// LastScreen is what the terminal of a record showed at its end.
func LastScreen(r *record.Reader) (wire.Screen, error) {
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
	if err := draw(r, s, sizes, at, end); err != nil {
		return wire.Screen{}, err
	}
	cols, rows := s.Size()
	cur, modes := s.Cursor(), s.Modes()
	return wire.Screen{Text: s.Text(), Cols: cols, Rows: rows, CursorX: cur.X, CursorY: cur.Y,
		Visible:   cur.Visible,
		AltScreen: modes.AltScreen, Title: s.Title(), Offset: end, Stopped: true}, nil
}

// recorded is a record that is read: one that is being written, or a finished one.
type recorded interface {
	ReadAt(p []byte, off uint64) (int, error)
}

// draw feeds s with bytes [at, to) of the record.
func draw(rec recorded, s *screen.Screen, sizes []record.Size, at, to uint64) error {
	buf := make([]byte, 64<<10)
	for {
		i := sort.Search(len(sizes), func(i int) bool { return sizes[i].Offset > at })
		if i > 0 {
			s.Resize(sizes[i-1].Cols, sizes[i-1].Rows)
		}
		if at == to {
			return nil
		}
		stop := to
		if i < len(sizes) {
			stop = min(stop, sizes[i].Offset)
		}
		n, err := rec.ReadAt(buf[:min(uint64(len(buf)), stop-at)], at)
		var gap *record.GapError
		switch {
		case errors.As(err, &gap):
			at = min(gap.To, stop)
		case err != nil:
			return err
		default:
			_, _ = s.Write(buf[:n]) // never fails
			at += uint64(n)
		}
	}
}
