// Package person is a person at a terminal in a shared session, whatever door they came by: what they see is drawn by our renderer, what
// they type takes a free keyboard, the prefix and the door's own buttons do the rest, and the status line says who types. It knows sessions
// and terminals, and neither SSH nor HTTP.
package person

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/gateway/view"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Options are what a door says of a person.
type Options struct {
	Out        io.Writer               // their terminal. It gets whole frames, in order, one at a time; an error comes with the end of Read, too
	Cols, Rows int                     // of their window, with the row of the status line
	Prefix     byte                    // of their commands, as view.Keys has it
	Public     func(error) *wire.Error // what they may see of an error

	// Read passes on what they do, by Type, Press, Resize and Leave, until ctx ends. Run starts it and does not wait for it: it may have to
	// wait for a client to close.
	Read func(ctx context.Context, p *Person)
	// Stands is told how things are for them, before each picture of the screen, where a door shows that in a way of its own. nil is not told.
	Stands func(Standing)
}

// Standing is what a door's own buttons depend on.
type Standing struct {
	Target   wire.Target
	Keyboard string // the holder, or empty
	Asking   string // who asks for it, or empty
	Private  string // who has a private stretch, or empty
	Holds    bool   // they have the keyboard themselves
	Asked    bool   // they have asked for it and have no answer yet
	MayDrive bool
	Owner    bool   // may take it from anybody
	Line     string // the status line
}

// Person is somebody in a session. Make one with New, join with its JoinOptions, then Run. The other methods may be called at once, from when
// Run has called Read.
//
// One goroutine paints, one reads what they type; a third, which asks the session for what they want, is there only while they want
// something, and a moment longer. Of a thousand people who only watch that is what they cost.
type Person struct {
	o     Options
	at    *attach.Attachment
	wake  chan struct{} // there may be something new to draw
	leave context.CancelCauseFunc
	jobs  *jobs

	prefix byte   // of their commands, as view.Keys has it
	lost   uint64 // of the goroutine that works; the paste of which a piece could not be taken

	untaken   int       // of the goroutine that works; bytes that were not taken lately
	untakenAt time.Time // of the goroutine that works; when that was
	why       string    // of the goroutine that works; and why

	renderer *view.Renderer // of the painter
	stood    Standing       // of the painter: what the door was told last
	turn     pace           // of the painter
	keyed    atomic.Bool    // they have pressed a key since the painter waited last
	filled   time.Time      // of the painter: when it last sent a windowful of lines to the terminal's scrollback, or more

	kmu    sync.Mutex // taken before mu
	keys   view.Keys  // guarded by kmu
	pieces int        // guarded by kmu; how many of input came

	mu         sync.Mutex
	cols, rows int          // guarded by mu; of their window
	resized    bool         // guarded by mu; since the last picture, perhaps to the size it had
	notice     string       // guarded by mu; shown in the status line
	cut        bool         // guarded by mu; the notice says how much of what they typed was dropped
	about      *about       // guarded by mu; nil unless the notice is about who has the keyboard
	until      time.Time    // guarded by mu; when the notice goes
	fade       *time.Timer  // guarded by mu; wakes the painter then
	modes      screen.Modes // guarded by mu; of the program, while they drive
	notes      notes        // guarded by mu
}

// Times of a person's terminal.
const (
	NoticeTime = 5 * time.Second       // of a notice in the status line
	FlushTime  = 50 * time.Millisecond // until a lone ESC is a key
	fillTime   = time.Second           // between two times that many lines go to the scrollback: in a flood nobody reads them there
)

// New makes a person who is not in a session yet.
func New(o Options) *Person {
	return &Person{o: o, wake: make(chan struct{}, 1), cols: o.Cols, rows: o.Rows, prefix: o.Prefix,
		renderer: view.NewRenderer(o.Cols, o.Rows)}
}

// JoinOptions are those with which they join: of their window's size, and told of changes.
func (p *Person) JoinOptions() attach.JoinOptions {
	cols, rows := p.renderer.Area()
	return attach.JoinOptions{Cols: cols, Rows: rows, Changed: p.changed}
}

// Welcome shows what there is to say to somebody who comes in, with the way to more.
func (p *Person) Welcome(what string) { p.Say(Words(what, p.key("?", "help"))[1:]) }

// Run shows the session until it ends or the person leaves, gives their terminal back, and returns their exit status and the last words. The
// painter takes asides meanwhile, so that a door which has such a channel needs no goroutine for it: nil is none. A channel that is closed
// says that they have gone.
func Run[A any](ctx context.Context, p *Person, at *attach.Attachment, asides <-chan A, do func(A)) (int, string) {
	p.at = at
	ctx, p.leave = context.WithCancelCause(ctx)
	defer p.leave(nil)
	p.jobs = newJobs(func(j job) { p.do(ctx, j) })
	p.keys.Prefix = p.prefix
	// Not waited for: it ends when the client closes its end, which comes after the farewell.
	go p.o.Read(ctx, p)

	cause := draw(ctx, p, asides, do)
	p.leave(cause)
	p.jobs.close()
	_, _ = p.o.Out.Write(p.renderer.Leave())
	return p.ended(cause)
}

// Leave ends the stay. The cause is ErrDetached where they want to.
func (p *Person) Leave(cause error) { p.leave(cause) }

// Causes of an end.
var (
	ErrDetached = errors.New("detached")
	ErrGone     = errors.New("the client is gone")
)

// ended is what a person is told at the end, by its cause.
func (p *Person) ended(cause error) (int, string) {
	target := p.at.Target()
	switch {
	case errors.Is(cause, ErrDetached):
		return 0, "detached from " + Full(target)
	case errors.Is(cause, ErrGone):
		return wire.ExitTransport, ""
	case errors.Is(cause, interrupt.ErrDisconnected):
		return wire.ExitTransport, "the owner disconnected you from " + Full(target)
	case errors.Is(cause, interrupt.ErrUnshared):
		return wire.ExitTransport, target.Sandbox + " is no longer shared with you"
	case errors.Is(cause, io.EOF):
		status := ExitOf(p.at.Live().State())
		return status, fmt.Sprintf("%s ended with exit status %d", Full(target), status)
	case errors.Is(cause, context.Canceled):
		return wire.ExitTransport, "the gateway is stopping; " + Full(target) + " goes on"
	}
	return wire.ExitTransport, "detached from " + Full(target) + ": " + plain(p.o.Public(cause).Message)
}

// Full is a target with its session also where that is the default one.
func Full(t wire.Target) string { return t.Sandbox + "~" + t.Session }

// changed wakes the painter.
func (p *Person) changed() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// draw paints, as often as pace lets it, until the attachment or ctx ends: it returns why. While the terminal does not take what was
// painted nothing is painted; what comes then is the screen of that moment.
func draw[A any](ctx context.Context, p *Person, asides <-chan A, do func(A)) error {
	r := p.renderer
	if _, err := p.o.Out.Write(r.Enter()); err != nil {
		return ErrGone
	}
	for {
		over := p.at.Over() // before the last look: the last thing that a session printed is worth seeing
		left := ctx.Err() != nil
		cost := lookTime
		if p.paint(r, p.news(), over == nil && !left) {
			cost = paintTime
		}
		p.turn.spend(time.Now(), cost)
		switch {
		case left:
			return context.Cause(ctx)
		case over != nil:
			return over
		case ctx.Err() == nil:
			rest(ctx, p, r.Held(), asides, do)
		}
	}
}

// rest waits until there is something to paint and it is time for that. With held, lines wait for their time.
func rest[A any](ctx context.Context, p *Person, held bool, asides <-chan A, do func(A)) {
	var due <-chan time.Time
	if held {
		due = time.After(time.Until(p.filled.Add(fillTime)))
	}
	for woken := false; !woken; {
		select {
		case <-ctx.Done():
			return
		case aside, ok := <-asides:
			if !ok {
				p.leave(ErrGone)
				return
			}
			do(aside)
		case <-p.wake:
			woken = true
		case <-due:
			woken = true
		}
	}
	if p.keyed.Swap(false) {
		p.turn.earn()
	}
	if wait := p.turn.wait(time.Now()); wait > 0 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// paint writes what is new when things stand like that, and reports whether there was anything. With hold, the lines of a flood wait until
// fillTime has passed since the last that went to the scrollback.
func (p *Person) paint(r *view.Renderer, now stand, hold bool) bool {
	pushed := r.Pushed()
	hold = hold && time.Since(p.filled) < fillTime
	p.mu.Lock()
	cols, rows, notice, resized := p.cols, p.rows, p.notice, p.resized
	p.resized = false
	if !time.Now().Before(p.until) {
		notice, p.notice = "", ""
	}
	p.mu.Unlock()
	if resized { // also to the size it had: a window that was smaller for a moment has moved its lines
		r.Resize(cols, rows)
	}
	var out []byte
	var line string
	err := p.at.Screen(func(sc *screen.Screen, _ uint64) {
		var clipped string
		if r.Clipped(sc) {
			cols, rows := sc.Size()
			clipped = fmt.Sprintf("%d×%d, clipped", cols, rows)
		}
		status, brief := p.status(now, notice, clipped)
		line = status
		var modes screen.Modes
		if now.holds {
			modes = sc.Modes()
		}
		p.wantModes(modes)
		// The bytes are the renderer's own; they last until the next Draw.
		out = r.Draw(view.Frame{Screen: sc, Status: status, Brief: brief, Driver: now.holds, Hold: hold})
	})
	if err != nil {
		status, brief := p.status(stand{}, notice, "")
		out = r.Draw(view.Frame{Status: status, Brief: brief})
	} else {
		p.tell(now, line) // a door may wait for its client here: the screen is others', too
	}
	if _, rows := r.Area(); r.Pushed()-pushed > uint64(rows) {
		p.filled = time.Now()
	}
	if len(out) > 0 {
		_, _ = p.o.Out.Write(out)
	}
	return len(out) > 0
}

// tell tells the door how things stand.
func (p *Person) tell(s stand, line string) {
	if p.o.Stands == nil {
		return
	}
	self := p.at.Party()
	now := Standing{Target: p.at.Target(), Keyboard: s.Keyboard, Asking: s.Asking, Private: s.Private, Holds: s.holds, Asked: p.hasAsked(),
		MayDrive: self.Rights != wire.RightWatch, Owner: self.Owner, Line: strings.TrimSpace(line)}
	if now != p.stood {
		p.stood = now
		p.o.Stands(now)
	}
}

func (p *Person) wantModes(m screen.Modes) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.modes = m
}

// wantedModes are the modes that the program asked for, if they drive.
func (p *Person) wantedModes() screen.Modes {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.modes
}

// Say shows a notice for a while.
func (p *Person) Say(notice string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sayLocked(notice)
}

// about is who had the keyboard when a notice was given that speaks of that.
type about struct {
	holder string // by the notice
	known  string // here, which may have been behind
	mine   bool   // it says that they have it themselves
}

// sayOf shows a notice that is about holder having the keyboard, or nobody if that is empty. It goes when another has it.
func (p *Person) sayOf(holder, notice string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sayOfLocked(holder, notice)
}

func (p *Person) sayOfLocked(holder, notice string) {
	p.sayLocked(notice)
	s := p.stand()
	p.about = &about{holder: holder, known: s.Keyboard, mine: s.holds}
}

// dropOldLocked takes a notice away that things, as they stand in s, have overtaken.
func (p *Person) dropOldLocked(s stand) {
	if a := p.about; a != nil && (s.holds && !a.mine || s.Keyboard != "" && s.Keyboard != a.holder && s.Keyboard != a.known) {
		p.notice, p.about = "", nil
	}
}

func (p *Person) sayLocked(notice string) {
	p.notice, p.about, p.cut, p.until = notice, nil, false, time.Now().Add(NoticeTime)
	if p.fade == nil {
		p.fade = time.AfterFunc(NoticeTime, p.changed)
	} else {
		p.fade.Reset(NoticeTime)
	}
	p.changed()
}

// ExitOf is the exit status of an attachment whose session has ended as state says.
func ExitOf(state wire.State) int {
	switch {
	case state.Phase != wire.PhaseDead:
		return wire.ExitTransport
	case state.ExitCode != nil:
		return *state.ExitCode & 0xff
	case state.Signal != "":
		return 128 + wire.SignalNumber(state.Signal)
	}
	return wire.ExitTransport
}

// plain is a text of a sandbox as it may be passed on to people: short, and printable.
func plain(s string) string { return text.Line(s, 256) }
