// Package player plays the record of a session, as it happened or faster: its text, or what its terminal showed, drawn by the renderer that
// draws live sessions. It knows records and terminals, and no door.
package player

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/sandboxd/sandboxd/gateway/record"
)

// Screen is a terminal on which a record is played: raw bytes go in, safe ones come out. A Canvas is one.
type Screen interface {
	io.Writer
	Resize(cols, rows int)
	// Status is the line below. It is drawn with what is written next, or by itself in time.
	Status(line string)
	// Jump begins anew with the screen of a snapshot, or, without one, with an empty one of that size, and holds. It fails,
	// and changes nothing, when the snapshot is none.
	Jump(snapshot []byte, cols, rows int) error
	// Hold keeps what is written from being drawn until Show draws it at once.
	Hold()
	Show() error
	// Snapshot is the screen for Jump.
	Snapshot() []byte
	Close() error
}

// Options say how a record is played.
type Options struct {
	Speed float64       // how many times as fast; 0 is without pauses
	Idle  time.Duration // the longest pause, before Speed
	End   uint64        // where it ends; 0 is the end of the record
	Stay  bool          // at the end it waits for orders, paused
	Keys  string        // what to press for what, for the status line; empty where a door says so in its own way
	// Shown is told where the player is, after every step. nil is not told.
	Shown func(Place)
}

// Place is what a player shows.
type Place struct {
	At, Long time.Duration // since the record's beginning; the whole record
	Paused   bool
	Speed    float64
	Command  int // the one that is shown, counted from 1; 0 is before the first
	Commands int
}

// Order is what somebody wants of a player: a key, one of space (pause), + - (speed), left right (or , and .: 5 s), [ ] (commands), q (end);
// seek, with a time since the beginning; or speed, with a number.
type Order struct {
	Key   string
	At    time.Duration
	Speed float64
}

// Keys are the keys of Order in what a terminal sent: characters, and the arrows to the sides. Others are left out.
func Keys(typed []byte) (keys []string) {
	for p := typed; len(p) > 0; {
		key, n := string(p[:1]), 1
		if len(p) >= 3 && p[0] == 0x1b && (p[1] == '[' || p[1] == 'O') {
			key, n = map[byte]string{'C': "right", 'D': "left"}[p[2]], 3
		}
		if p = p[n:]; key != "" { // it would end a pause
			keys = append(keys, key)
		}
	}
	return keys
}

// Player plays a record. Make one with New or NewText. It is not safe for concurrent use.
type Player struct {
	r        *record.Reader
	o        Options
	to       io.Writer
	screen   Screen    // nil for text
	at, end  uint64    // at is what it has shown
	sought   time.Time // that a jump asked for, if any
	speed    float64
	paused   bool
	commands []record.Command
	every    uint64 // how far apart keyframes are
}

// New plays r on a screen. Both stay the caller's to close.
func New(r *record.Reader, on Screen, o Options) *Player {
	p := newPlayer(r, on, o)
	p.screen, p.commands = on, r.Commands()
	return p
}

// NewText plays r as raw bytes, from an offset on, with words where some are missing.
func NewText(r *record.Reader, to io.Writer, from uint64, o Options) *Player {
	p := newPlayer(r, to, o)
	p.at = from
	return p
}

func newPlayer(r *record.Reader, to io.Writer, o Options) *Player {
	p := &Player{r: r, o: o, to: to, end: o.End, speed: o.Speed, every: record.KeyframeEvery}
	if p.end == 0 {
		p.end = r.End()
	}
	return p
}

// skip is how far a key goes back or forth.
const skip = 5 * time.Second

// Play goes on from where it is to the end, with the record's pauses, none longer than Idle, divided by the speed, and does what it is told
// meanwhile. It returns ctx's cause when that ends it.
func (p *Player) Play(ctx context.Context, orders <-chan Order) error {
	now := p.now()
	for p.at < p.end || p.paused || p.o.Stay { // at the end a paused player waits for orders
		if p.at >= p.end && !p.paused {
			p.paused = true
			p.tell()
		}
		to, at, timed := p.r.Next(p.at)
		to = min(to, p.end)
		pause := time.Duration(0)
		if timed && p.speed > 0 {
			pause = time.Duration(float64(max(0, min(at.Sub(now), p.o.Idle))) / p.speed)
		}
		order, err := p.rest(ctx, pause, orders)
		switch {
		case err != nil:
			return err
		case order.Key == "q":
			return nil
		case order.Key != "":
			if err := p.do(ctx, order); err != nil {
				return err
			}
			now = p.now()
			continue
		}
		if err := p.feed(ctx, to, nil); err != nil {
			return err
		}
		now = at
		p.tell()
	}
	return nil
}

// tell says where it is.
func (p *Player) tell() {
	if p.screen == nil {
		return
	}
	at := p.place()
	p.screen.Status(p.status(at))
	if p.o.Shown != nil {
		p.o.Shown(at)
	}
}

// now is the time of the record at the place that is shown: within a pause the one that was asked for.
func (p *Player) now() time.Time {
	if at := p.printed(); !p.sought.After(at) {
		return at
	}
	if last := p.r.Last(); p.sought.After(last) {
		return last
	}
	return p.sought
}

// printed is when the last of what is shown was printed.
func (p *Player) printed() time.Time {
	if p.at == 0 {
		return time.UnixMilli(p.r.Begin().TimeUnix)
	}
	return p.r.Time(p.at - 1)
}

// rest waits, for ever while it is paused, and returns the order that ended that.
func (p *Player) rest(ctx context.Context, pause time.Duration, orders <-chan Order) (Order, error) {
	if pause == 0 && !p.paused {
		select {
		case order := <-orders:
			return order, nil
		default:
			return Order{}, context.Cause(ctx)
		}
	}
	var over <-chan time.Time
	if !p.paused {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case order := <-orders:
		return order, nil
	case <-over:
		return Order{}, nil
	case <-ctx.Done():
		return Order{}, context.Cause(ctx)
	}
}

// do does what an order says.
func (p *Player) do(ctx context.Context, o Order) error {
	switch o.Key {
	case " ":
		if p.paused = !p.paused; !p.paused && p.at >= p.end {
			return p.Seek(ctx, 0) // from the beginning: there is nothing more
		}
	case "+", "=":
		p.speed = min(max(2*p.speed, 1), 64)
	case "-":
		if p.speed > 1./8 {
			p.speed /= 2
		}
	case "speed":
		p.speed = min(max(o.Speed, 1./8), 64)
	case "seek":
		to := time.UnixMilli(p.r.Begin().TimeUnix).Add(o.At)
		return p.seek(ctx, p.r.At(to), to)
	case ",", "left":
		to := p.r.At(p.printed().Add(-skip))
		if to >= p.at && p.at > 0 {
			to = p.r.At(p.printed().Add(-time.Millisecond)) // nothing was printed for so long
		}
		return p.Seek(ctx, to)
	case ".", "right":
		to := p.r.At(p.printed().Add(skip))
		if to <= p.at {
			to, _, _ = p.r.Next(p.at)
		}
		return p.Seek(ctx, to)
	case "[", "]":
		return p.Seek(ctx, p.nextCommand(o.Key == "]"))
	}
	p.tell()
	return nil
}

// nextCommand is where the command after the place that is shown begins, or the one before.
func (p *Player) nextCommand(after bool) uint64 {
	to := uint64(0)
	for _, c := range p.commands {
		switch at := c.Line[0]; {
		case after && at > p.at:
			return at
		case !after && at < p.at:
			to = at
		}
	}
	if after {
		return p.end
	}
	return to
}

// Seek shows what the terminal showed when the log was to bytes long. It begins at the last keyframe before.
func (p *Player) Seek(ctx context.Context, to uint64) error {
	return p.seek(ctx, to, time.Time{})
}

// seek is Seek to a time at which nothing has to have been printed.
func (p *Player) seek(ctx context.Context, to uint64, at time.Time) error {
	p.sought = at
	to = min(to, p.r.End())
	if to < p.at || to-p.at > p.every || p.at == 0 {
		begin := p.r.Begin()
		p.at = 0
		if snapshot, at, ok := p.r.Keyframe(to); ok && p.screen.Jump(snapshot, 0, 0) == nil {
			p.at = at
		} else if err := p.screen.Jump(nil, begin.Cols, begin.Rows); err != nil {
			return err
		}
	} else {
		p.screen.Hold()
	}
	keep := func(at uint64) {
		// Without it the next jump takes longer.
		_ = p.r.AddKeyframe(at, p.screen.Snapshot())
	}
	if err := p.feed(ctx, to, keep); err != nil {
		return err
	}
	p.tell()
	return p.screen.Show()
}

// feed shows bytes up to offset to, with the sizes that the terminal had. keep, if set, is called at every place that should
// have a keyframe and is passed.
func (p *Player) feed(ctx context.Context, to uint64, keep func(at uint64)) error {
	for p.at < to {
		stop := to
		if p.screen != nil {
			size, next := p.r.SizeAt(p.at)
			p.screen.Resize(size.Cols, size.Rows)
			stop = min(stop, next)
			if frame := (p.at/p.every + 1) * p.every; keep != nil {
				stop = min(stop, frame)
			}
		}
		if err := record.Copy(ctx, p.to, p.r, p.at, stop, p.missing); err != nil {
			return err
		}
		if p.at = stop; keep != nil && stop%p.every == 0 {
			keep(stop)
		}
	}
	if p.screen != nil {
		size, _ := p.r.SizeAt(p.at)
		p.screen.Resize(size.Cols, size.Rows)
	}
	return nil
}

// missing says in text what is not there. A screen shows what comes after it.
func (p *Player) missing(g *record.GapError) {
	if p.screen == nil {
		fmt.Fprintf(p.to, "\r\n%s\r\n", record.Missing(g))
	}
}

// place is what is shown now.
func (p *Player) place() Place {
	begin := time.UnixMilli(p.r.Begin().TimeUnix)
	n := 0
	for n < len(p.commands) && p.commands[n].Line[0] < max(p.at, 1) {
		n++
	}
	return Place{At: p.now().Sub(begin), Long: p.r.Last().Sub(begin), Paused: p.paused, Speed: p.speed, Command: n, Commands: len(p.commands)}
}

// status is the line below what is played.
func (p *Player) status(at Place) string {
	how := fmt.Sprintf("%gx", at.Speed)
	switch {
	case at.Paused:
		how = "paused"
	case at.Speed == 0:
		how = "no pauses"
	}
	line := fmt.Sprintf(" replay %s/%s   command %d/%d   %s", clock(at.At), clock(at.Long), at.Command, at.Commands, how)
	if p.o.Keys != "" {
		line += "  " + p.o.Keys
	}
	return line
}

func clock(d time.Duration) string {
	s := int(max(d, 0).Seconds())
	return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
}
