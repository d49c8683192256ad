package live

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	scrollback    = 1000             // lines that a person who joins or falls behind gets as lines
	feedHistory   = 256 << 10        // bytes before the end from which a new screen has all lines
	feedAtMost    = 64 << 20         // bytes that a screen catches up with; beyond, it begins anew
	feedAnew      = 4 << 20          // so far before the end, unless the record has a key frame
	forgetDisplay = 10 * time.Minute // of a screen that nobody looks at
)

// display is the screen model of a session, fed when a reader asks for it.
type display struct {
	mu      sync.Mutex // held while the screen is fed and looked at; taken before Session.mu
	screen  *screen.Screen
	fed     uint64      // guarded by mu
	used    time.Time   // guarded by mu
	watched func() bool // guarded by mu; a person is attached, even if nothing changes

	smu   sync.Mutex
	sizes []record.Size // guarded by smu; changes that the screen has not been fed up to
}

// Screen calls f with the session's screen, fed up to offset. The screen is valid during the call
// and f must not change it; f must be quick, for others wait for it.
func (s *Session) Screen(f func(sc *screen.Screen, offset uint64)) error {
	d := &s.display
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.feed(s); err != nil {
		return err
	}
	d.used = time.Now()
	f(d.screen, d.fed)
	return nil
}

// resized notes that the terminal has this size from offset off on. It is called with Session.mu
// held.
func (d *display) resized(off uint64, cols, rows int) {
	d.smu.Lock()
	defer d.smu.Unlock()
	if n := len(d.sizes); n > 0 && d.sizes[n-1].Offset == off {
		d.sizes = d.sizes[:n-1]
	}
	if len(d.sizes) >= 1000 {
		d.sizes = slices.Clone(d.sizes[len(d.sizes)/2:])
	}
	d.sizes = append(d.sizes, record.Size{Offset: off, Cols: cols, Rows: rows})
}

// next returns the size that the terminal has at off, if it changed there or before, and where it
// changes next.
func (d *display) next(off, end uint64) (now *record.Size, until uint64) {
	d.smu.Lock()
	defer d.smu.Unlock()
	for len(d.sizes) > 0 && d.sizes[0].Offset <= off {
		now = &record.Size{Offset: d.sizes[0].Offset, Cols: d.sizes[0].Cols, Rows: d.sizes[0].Rows}
		d.sizes = d.sizes[1:]
	}
	if len(d.sizes) > 0 && d.sizes[0].Offset < end {
		return now, d.sizes[0].Offset
	}
	return now, end
}

// expire releases a screen that nobody has looked at for long.
func (d *display) expire() {
	if !d.mu.TryLock() {
		return
	}
	defer d.mu.Unlock()
	if d.screen != nil && time.Since(d.used) > forgetDisplay && !d.watched() {
		d.screen = nil
	}
}

// feed brings the screen up to the end of the log. d.mu is held.
func (d *display) feed(s *Session) error {
	end := s.Len()
	if d.screen == nil || end-d.fed > feedAtMost {
		d.begin(s, end)
	}
	var buf []byte // an echo is short, and there are many
	if d.fed < end {
		buf = make([]byte, min(end-d.fed, 64<<10))
	}
	for d.fed < end {
		now, until := d.next(d.fed, end)
		if now != nil {
			d.screen.Resize(now.Cols, now.Rows)
		}
		n, wait, err := s.ReadNow(d.fed, buf[:min(uint64(len(buf)), until-d.fed)])
		var lagged *LaggedError
		switch {
		case errors.As(err, &lagged):
			d.fed = lagged.To
		case err != nil:
			return err
		case wait != nil:
			return errors.New("the log is shorter than it was") // never: logs grow
		default:
			if _, err := d.screen.Write(buf[:n]); err != nil {
				return err
			}
			d.fed += uint64(n)
		}
	}
	if now, _ := d.next(d.fed, d.fed); now != nil {
		d.screen.Resize(now.Cols, now.Rows)
	}
	return nil
}

// begin makes a new screen: from a key frame of the record not long ago, else from the beginning of
// the log or, of a long one, near its end. A key frame has no lines that left the screen before it,
// so one far enough back is preferred to the last. d.mu is held.
func (d *display) begin(s *Session, end uint64) {
	s.mu.Lock()
	cols, rows, rec := s.cols, s.rows, s.rec
	s.mu.Unlock()
	d.watched = func() bool {
		return slices.ContainsFunc(s.Members(),
			func(m Member) bool { return m.Party().Kind == wire.Person })
	}
	d.fed = 0
	if end > feedAtMost {
		d.fed = end - feedAnew
	}
	if rec != nil {
		d.smu.Lock() // before, for a size that comes between would be lost
		d.sizes = rec.Sizes()
		if len(d.sizes) > 0 {
			cols, rows = d.sizes[0].Cols, d.sizes[0].Rows
		}
		d.smu.Unlock()
		for _, before := range []uint64{end - min(end, feedHistory), end} {
			p, off, ok := rec.Keyframe(before)
			if !ok || end-off > feedAtMost {
				continue
			}
			if restored, err := screen.Restore(p, scrollback); err == nil {
				d.screen, d.fed = restored, off
				return
			}
		}
	}
	d.screen = screen.New(screen.Options{Cols: cols, Rows: rows, Scrollback: scrollback})
}
