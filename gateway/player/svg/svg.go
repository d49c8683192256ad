// Package svg writes the record of a session as an animated SVG: one file without scripts, fonts or
// links, for a README or a web page. Below the terminal a bar shows who has the keyboard and what
// the program waits for.
//
// A record is untrusted. What it printed passes through a screen model, and only cells are drawn:
// their text is escaped, and their colors and attributes are numbers. Package svg knows nothing of
// people, servers and files.
package svg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Limits of one SVG. They bound the memory that a record takes.
const (
	maxFrames = 3000
	maxBytes  = 16 << 20
)

// ErrTooLong is returned for a record that exceeds the limits of one SVG.
var ErrTooLong = fmt.Errorf("record too long for an SVG: more than %d frames or %d MiB; "+
	"choose a part with --from and --to", maxFrames, maxBytes>>20)

const (
	// minFrame is the shortest time that a frame is shown. It bounds the size of busy records.
	minFrame = 100 * time.Millisecond
	// hold is how long the last frame is shown before the animation begins again.
	hold = 4 * time.Second
	// defaultIdle is the longest pause when Options.Idle is 0.
	defaultIdle = 2 * time.Second
)

// Options choose the part of a record and its pace. The zero value is the whole record at its own
// speed, with pauses of at most two seconds.
type Options struct {
	From, To uint64        // offsets in the log; To 0 is the end
	Speed    float64       // how many times as fast; 0 is 1
	Idle     time.Duration // the longest pause, before Speed; 0 is two seconds
}

// Write writes r to w as an animated SVG. It writes nothing when it returns ErrTooLong, another
// error of the record, or the cause of ctx.
func Write(ctx context.Context, w io.Writer, r *record.Reader, o Options) error {
	begin := r.Begin()
	t := &tape{
		r: r, o: o,
		screen: screen.New(screen.Options{Cols: begin.Cols, Rows: begin.Rows}),
		bar:    bar{title: begin.Text},
		film:   newFilm(begin.Text),
		last:   begin.TimeUnix,
	}
	t.o.To = cmp.Or(o.To, r.End())
	t.o.Speed = cmp.Or(o.Speed, 1)
	t.o.Idle = cmp.Or(o.Idle, defaultIdle)
	if err := t.play(ctx); err != nil {
		return err
	}
	return t.film.write(w, t.clock+hold)
}

// tape plays a record into a film.
type tape struct {
	r      *record.Reader
	o      Options
	screen *screen.Screen
	bar    bar
	film   *film

	at      uint64        // bytes of the log that the screen has
	last    int64         // record time in milliseconds, never decreasing
	rolling bool          // at is behind Options.From: frames are taken
	clock   time.Duration // time in the film
	changed time.Duration // when the change happened that no frame shows yet; negative for none
	seen    look
}

// look identifies what a frame shows, without drawing it.
type look struct {
	generation uint64
	cursor     screen.Cursor
	bar        bar
}

// errEnd stops play behind Options.To.
var errEnd = errors.New("end of the part")

// play feeds the record to the screen, event by event, and takes frames.
func (t *tape) play(ctx context.Context) error {
	t.changed = -1
	for e, err := range t.r.Events() {
		if err == nil {
			err = t.event(ctx, e)
		}
		if errors.Is(err, errEnd) {
			break
		}
		if err != nil {
			return err
		}
	}
	if err := t.feed(ctx, t.o.To); err != nil {
		return err
	}
	t.rolling = true
	t.look()
	return t.shoot()
}

// event applies one event at its time: first the bytes before it, then what it says.
func (t *tape) event(ctx context.Context, e wire.Event) error {
	if e.Offset > t.o.To {
		return errEnd
	}
	if err := t.pass(e.TimeUnix); err != nil {
		return err
	}
	if err := t.feed(ctx, e.Offset); err != nil {
		return err
	}
	if e.Kind == wire.EventResize {
		t.screen.Resize(e.Cols, e.Rows)
	}
	t.bar.event(e)
	if !t.rolling && t.at >= t.o.From {
		t.rolling = true
	}
	t.look()
	return nil
}

// pass moves the clock to record time unix. A change that has been shown for long enough becomes a
// frame first.
func (t *tape) pass(unix int64) error {
	elapsed := time.Duration(max(0, unix-t.last)) * time.Millisecond
	t.last = max(t.last, unix)
	if !t.rolling {
		return nil
	}
	now := t.clock + time.Duration(float64(min(elapsed, t.o.Idle))/t.o.Speed)
	if t.changed >= 0 && now-t.changed >= minFrame {
		if err := t.shoot(); err != nil {
			return err
		}
	}
	t.clock = now
	return nil
}

// feed gives the screen the bytes up to offset to.
func (t *tape) feed(ctx context.Context, to uint64) error {
	if to <= t.at {
		return nil
	}
	err := record.Copy(ctx, t.screen, t.r, t.at, to, nil)
	t.at = to
	return err
}

// look notes that there is something new to show.
func (t *tape) look() {
	now := look{t.screen.Generation(), t.screen.Cursor(), t.bar}
	if !t.rolling || now == t.seen {
		return
	}
	t.seen = now
	if t.changed < 0 {
		t.changed = t.clock
	}
}

// shoot takes the frame of the change that was noted.
func (t *tape) shoot() error {
	if t.changed < 0 {
		return nil
	}
	at := t.changed
	t.changed = -1
	return t.film.add(at, t.screen, t.bar)
}
