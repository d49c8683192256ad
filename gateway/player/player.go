// Package player plays the record of a session in real time or faster: its text, or its terminal,
// drawn by the renderer of live sessions. It knows records and terminals, and neither SSH nor HTTP.
package player

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/sandboxd/sandboxd/gateway/record"
)

// Screen is a terminal that plays a record: it takes raw bytes and shows safe ones. A Canvas is
// one.
type Screen interface {
	io.Writer
	Resize(cols, rows int)
	// Status sets the line below. It is drawn with the next output, or soon by itself.
	Status(line string)
	// Jump restarts with the screen of a snapshot, or without one with an empty screen of that
	// size, and holds. It fails, and changes nothing, if the snapshot is invalid.
	Jump(snapshot []byte, cols, rows int) error
	// Hold delays drawing until Show, which draws immediately.
	Hold()
	Show() error
	// Snapshot returns the screen for Jump.
	Snapshot() []byte
	Close() error
}

// Options say how to play a record.
type Options struct {
	Speed float64       // factor; 0 is without pauses
	Idle  time.Duration // the longest pause, before Speed
	End   uint64        // where it ends; 0 is the end of the record
	Stay  bool          // at the end it pauses and waits for orders
	Keys  string        // help on keys for the status line; empty if the frontend has its own
	// Shown gets the player's place after every step. It may be nil.
	Shown func(Place)
}

// Place is what a player shows.
type Place struct {
	At, Long time.Duration // since the record's beginning; the whole record
	Paused   bool
	Speed    float64
	Command  int // the current one, counted from 1; 0 is before the first
	Commands int
}

// Order is an instruction for a player. Do is a key, one of space (pause), + - (speed), left right
// (or , and .: 5 s), [ ] (commands), q (end); or seek, with a time since the beginning; or speed,
// with a number.
type Order struct {
	Key   string
	At    time.Duration
	Speed float64
}

// Keys returns the keys of Order in terminal input: characters, and the left and right arrows. It
// skips others.
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
	sought   time.Time // target of a jump, if any
	speed    float64
	paused   bool
	commands []record.Command
	every    uint64 // distance of keyframes
}

// New plays r on a screen. The caller closes both.
func New(r *record.Reader, on Screen, o Options) *Player {
	p := newPlayer(r, on, o)
	p.screen, p.commands = on, r.Commands()
	return p
}

// NewText plays r as raw bytes from an offset on, with a text in place of missing bytes.
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

// skip is how far a key moves forward or back.
const skip = 5 * time.Second

// Play plays from the current place to the end and carries out orders meanwhile. It waits for the
// record's pauses, at most Idle each, divided by the speed. It returns ctx's cause if ctx ends it.
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

// tell reports the current place.
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

// now returns the record's time at the current place: the target of a jump if that is within a
// pause.
func (p *Player) now() time.Time {
	if at := p.printed(); !p.sought.After(at) {
		return at
	}
	if last := p.r.Last(); p.sought.After(last) {
		return last
	}
	return p.sought
}

// printed returns when the last shown output was printed.
func (p *Player) printed() time.Time {
	if p.at == 0 {
		return time.UnixMilli(p.r.Begin().TimeUnix)
	}
	return p.r.Time(p.at - 1)
}

// rest waits for a pause, or indefinitely while paused, and returns the order that ended the wait.
func (p *Player) rest(ctx context.Context, pause time.Duration, orders <-chan Order) (Order,
	error) {
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

// do carries out an order.
func (p *Player) do(ctx context.Context, o Order) error {
	switch o.Key {
	case " ":
		if p.paused = !p.paused; !p.paused && p.at >= p.end {
			return p.Seek(ctx, 0) // from the beginning: this is the end
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
			to = p.r.At(p.printed().Add(-time.Millisecond)) // nothing was printed for that long
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

// nextCommand returns where the next command after the current place begins, or the previous one.
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

// Seek shows the terminal as it was when the log was to bytes long. It begins at the last keyframe
// before.
func (p *Player) Seek(ctx context.Context, to uint64) error {
	return p.seek(ctx, to, time.Time{})
}

// seek is Seek to a time, possibly one without output.
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

// feed shows bytes up to offset to, with the sizes of the terminal. It calls keep, if set, at every
// place where a keyframe is due.
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

// missing prints a text in place of missing bytes. A screen shows only what follows.
func (p *Player) missing(g *record.GapError) {
	if p.screen == nil {
		fmt.Fprintf(p.to, "\r\n%s\r\n", record.Missing(g))
	}
}

// place returns the current place.
func (p *Player) place() Place {
	begin := time.UnixMilli(p.r.Begin().TimeUnix)
	n := 0
	for n < len(p.commands) && p.commands[n].Line[0] < max(p.at, 1) {
		n++
	}
	return Place{At: p.now().Sub(begin), Long: p.r.Last().Sub(begin), Paused: p.paused,
		Speed: p.speed, Command: n, Commands: len(p.commands)}
}

// status returns the line below the screen.
func (p *Player) status(at Place) string {
	how := fmt.Sprintf("%gx", at.Speed)
	switch {
	case at.Paused:
		how = "paused"
	case at.Speed == 0:
		how = "no pauses"
	}
	line := fmt.Sprintf(" replay %s/%s   command %d/%d   %s", clock(at.At), clock(at.Long),
		at.Command, at.Commands, how)
	if p.o.Keys != "" {
		line += "  " + p.o.Keys
	}
	return line
}

func clock(d time.Duration) string {
	s := int(max(d, 0).Seconds())
	return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
}
