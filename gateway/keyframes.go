package gateway

import (
	"errors"
	"sort"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
)

// framesAtOnce bounds how much of a log is shown to a screen at one time for keyframes: others wait for it.
const framesAtOnce = 16 << 20

// addKeyframes keeps snapshots of the session's screen beside its record, of what is recorded and of nothing else, so that
// a player need not begin at the beginning. What is not there players make, when they pass.
func (l *Live) addKeyframes(rec *record.Writer) {
	end := rec.End()
	if end < l.framed+record.KeyframeEvery {
		return
	}
	sizes := rec.Sizes()
	at := uint64(0)
	s := screen.New(screen.Options{Cols: sizes[0].Cols, Rows: sizes[0].Rows})
	if p, off, ok := rec.Keyframe(end); ok {
		if restored, err := screen.Restore(p, 0); err == nil {
			s, at = restored, off
		}
	}
	for to := min(end-record.KeyframeEvery, at+framesAtOnce); at <= to; {
		stop := (at/record.KeyframeEvery + 1) * record.KeyframeEvery
		if err := show(rec, s, sizes, at, stop); err != nil {
			l.box.hub.log.Warn("keyframes are not kept", "sandbox", l.box.id, "session", l.name, "err", err)
			return
		}
		at = stop
		if err := rec.AddKeyframe(at, s.Snapshot()); err != nil {
			return // the disk is full, which is said elsewhere
		}
	}
	l.framed = at
}

// recorded is a record that is read.
type recorded interface {
	ReadAt(p []byte, off uint64) (int, error)
}

// show feeds s with bytes [at, to) of the record.
func show(rec recorded, s *screen.Screen, sizes []record.Size, at, to uint64) error {
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
