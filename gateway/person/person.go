// Package person connects a person at a terminal to a shared session, for any frontend: it draws
// the screen with our renderer, passes on typed input and takes a free keyboard for it, carries out
// commands of the prefix key and of the frontend's buttons, and shows in the status line who types.
// It knows sessions and terminals, and neither SSH nor HTTP.
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
	"github.com/sandboxd/sandboxd/gateway/player"
	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/gateway/view"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Options are a frontend's settings of a person.
type Options struct {
	// Their terminal. It gets whole frames, in order, one at a time; Read ends, too, after an
	// error.
	Out        io.Writer
	Cols, Rows int                     // of their window, with the row of the status line
	Prefix     byte                    // prefix key, as for view.Keys
	Public     func(error) *wire.Error // the part of an error that they may see

	// Read begins to pass on their actions, with Type, Press, Resize and Leave, until ctx ends, and
	// returns at once: Run calls it before the first frame, so that no key is lost that answers it.
	// Run does not wait for what it begins, which may have to wait for a client to close.
	Read func(ctx context.Context, p *Person)
	// Others returns how many other sessions ask the person for an answer, and the next of them. It
	// may be nil: the frontend shows that itself.
	Others func() (n int, next wire.Target)
	// Began returns the sessions that have begun to ask the person since the last call, for alerts
	// of the kind Alert. It may be nil.
	Began func() []wire.Target
	Alert Alert
	// Record calls read with the record of the session, for scrolling. It may be nil.
	Record func(ctx context.Context, read func(*record.Reader) error) error
	// Report gets the state before a repaint when it has changed, for a frontend with its own
	// display of it. It may be nil.
	Report func(State)
}

// State is what a frontend's own buttons depend on.
type State struct {
	Target   wire.Target
	Keyboard string // the holder, or empty
	Asking   string // who asks for the keyboard, or empty
	Private  string // who is in private mode, or empty
	Holds    bool   // this person has the keyboard
	Asked    bool   // this person has asked for it and has no answer yet
	MayDrive bool
	Owner    bool   // may take it from anyone
	Line     string // the status line
}

// Person is a person in a session. Make one with New, join with its JoinOptions, then Run. The
// other methods may be called concurrently, once Run has called Read.
//
// One goroutine paints and one reads input. A third sends requests to the session, only while there
// are any and for a short time after. So a person who only watches costs two goroutines, which
// matters with a thousand of them.
type Person struct {
	o     Options
	at    *attach.Attachment
	wake  chan struct{} // there may be changes to paint
	leave context.CancelCauseFunc
	jobs  *jobs

	scroll scroller

	prefix byte   // their prefix key, as for view.Keys
	lost   uint64 // used by the worker; the paste of which a piece was dropped

	untaken   int       // used by the worker; bytes that were dropped recently
	untakenAt time.Time // used by the worker; when
	why       string    // used by the worker; why

	renderer *view.Renderer // used by the painter
	reported State          // used by the painter: last state in Report
	turn     pace           // used by the painter
	keyed    atomic.Bool    // they have pressed a key since the painter's last wait
	rung     time.Time      // used by the painter: last alert
	// Used by the painter: when it last sent at least a windowful of lines to the terminal's
	// scrollback.
	filled time.Time

	kmu    sync.Mutex // taken before mu
	keys   view.Keys  // guarded by kmu
	pieces int        // guarded by kmu; number of received pieces of input

	mu         sync.Mutex
	cols, rows int         // guarded by mu; of their window
	resized    bool        // guarded by mu; since the last repaint, possibly to the same size
	next       wire.Target // guarded by mu; the session to join after this visit, if any
	pan        [2]int      // guarded by mu; by which the next repaint moves it, as Renderer.Pan
	panned     bool        // guarded by mu; the window does not follow the cursor
	notice     string      // guarded by mu; shown in the status line
	cut        bool        // guarded by mu; the notice says how much of their input was dropped
	// Guarded by mu; nil unless the notice is about the holder of the keyboard.
	about *about
	until time.Time    // guarded by mu; when the notice ends
	fade  *time.Timer  // guarded by mu; then wakes the painter
	modes screen.Modes // guarded by mu; of the program, while they have the keyboard
	notes notes        // guarded by mu
}

// Times of a person's terminal.
const (
	NoticeTime = 5 * time.Second       // of a notice in the status line
	FlushTime  = 50 * time.Millisecond // until a lone ESC counts as a key
	// Between batches of lines for the scrollback: in a flood they cannot be read.
	fillTime = time.Second
)

// history is how many lines from before they joined a person finds in their scrollback.
const history = 1000

// New makes a person who has not joined a session yet.
func New(o Options) *Person {
	r := view.NewRenderer(o.Cols, o.Rows)
	r.History = history
	p := &Person{o: o, wake: make(chan struct{}, 1), cols: o.Cols, rows: o.Rows, prefix: o.Prefix,
		renderer: r}
	p.scroll.public, p.scroll.changed = o.Public, p.changed
	p.scroll.lines = func(ctx context.Context) (lines []string, err error) {
		err = o.Record(ctx, func(r *record.Reader) (err error) {
			lines, err = player.Lines(ctx, r)
			return err
		})
		return lines, err
	}
	return p
}

// JoinOptions returns the options to join with: the size of their window, and a call on changes.
func (p *Person) JoinOptions() attach.JoinOptions {
	cols, rows := p.renderer.Area()
	return attach.JoinOptions{Cols: cols, Rows: rows, Changed: p.changed}
}

// Welcome shows a message to a person who joins, with the key for help.
func (p *Person) Welcome(what string) { p.Say(Words(what, p.key("?", "help"))[1:]) }

// Run shows the session until it ends or the person leaves, restores their terminal, and returns
// the exit status and the farewell. Meanwhile the painter calls do for each value of asides, so
// that a frontend needs no goroutine for them; asides may be nil. A closed channel means that the
// client is gone.
func Run[A any](ctx context.Context, p *Person, at *attach.Attachment, asides <-chan A,
	do func(A)) (int, string) {
	p.at = at
	ctx, p.leave = context.WithCancelCause(ctx)
	defer p.leave(nil)
	p.jobs = newJobs(func(j job) { p.do(ctx, j) })
	p.keys.Prefix = p.prefix
	p.o.Read(ctx, p)

	cause := draw(ctx, p, asides, do)
	p.leave(cause)
	if !errors.Is(cause, errNext) {
		p.mu.Lock()
		p.next = wire.Target{}
		p.mu.Unlock()
	}
	p.scroll.close()
	p.jobs.close()
	_, _ = p.o.Out.Write(p.renderer.Leave())
	return p.ended(cause)
}

// Leave ends the visit. The cause is ErrDetached if the person wants to leave.
func (p *Person) Leave(cause error) { p.leave(cause) }

// Causes of an end.
var (
	ErrDetached = errors.New("detached")
	ErrGone     = errors.New("the client is gone")
	errNext     = errors.New("they go to another session")
)

// ended returns the exit status and the farewell for a cause.
func (p *Person) ended(cause error) (int, string) {
	target := p.at.Target()
	switch {
	case errors.Is(cause, ErrDetached):
		return 0, "detached from " + Full(target)
	case errors.Is(cause, errNext):
		return 0, ""
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
		return wire.ExitTransport, "the gateway is stopping; " + Full(target) + " continues"
	}
	return wire.ExitTransport, "detached from " + Full(target) + ": " +
		plain(p.o.Public(cause).Message)
}

// Full returns a target with its session, even if that is the default one.
func Full(t wire.Target) string { return t.Sandbox + "~" + t.Session }

// Next returns the session that the person left for, after Run has returned.
func (p *Person) Next() (t wire.Target, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.next, p.next.Sandbox != ""
}

// Changed wakes the painter after a change that the attachment does not report, such as of Others.
func (p *Person) Changed() { p.changed() }

// changed wakes the painter.
func (p *Person) changed() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// draw paints, as often as pace allows, until the attachment or ctx ends, and returns why. While
// the terminal does not accept a frame nothing is painted; the next frame is the screen at that
// time.
func draw[A any](ctx context.Context, p *Person, asides <-chan A, do func(A)) error {
	r := p.renderer
	if _, err := p.o.Out.Write(r.Enter()); err != nil {
		return ErrGone
	}
	for {
		over := p.at.Over() // before the last repaint, which shows the last output of the session
		left := ctx.Err() != nil
		if over != nil || left {
			p.scroll.close()
		}
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

// rest waits until there is something to paint and pace allows it. With held, lines wait for
// fillTime.
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

// paint writes the changes for the state now, and reports whether there were any. With hold, the
// lines of a flood wait until fillTime has passed since the last ones for the scrollback.
func (p *Person) paint(r *view.Renderer, now situation, hold bool) bool {
	pushed := r.Pushed()
	hold = hold && time.Since(p.filled) < fillTime
	p.mu.Lock()
	cols, rows, notice, resized := p.cols, p.rows, p.notice, p.resized
	p.resized = false
	pan, panned := p.pan, p.panned
	p.pan = [2]int{}
	if !time.Now().Before(p.until) {
		notice, p.notice = "", ""
	}
	p.mu.Unlock()
	// Also to the same size: a window that was smaller for a moment has moved its lines.
	if resized {
		r.Resize(cols, rows)
	}
	if panned {
		r.Pan(pan[0], pan[1])
	} else {
		r.Follow()
	}
	areaCols, areaRows := r.Area()
	width, _ := p.at.Live().Size()
	if frame, ok := p.scroll.frame(max(areaCols, width), areaRows, Full(p.at.Target()), notice,
		urgent(now, p.asking())); ok {
		frame.Hold = hold
		p.wantModes(screen.Modes{})
		out := append(r.Draw(frame), p.alert(now)...)
		p.report(now, frame.Status)
		if len(out) > 0 {
			_, _ = p.o.Out.Write(out)
		}
		return len(out) > 0
	}
	var out []byte
	var line string
	err := p.at.Screen(func(sc *screen.Screen, _ uint64) {
		var clipped string
		if r.Clipped(sc) {
			cols, rows := sc.Size()
			clipped = fmt.Sprintf("%d×%d, clipped", cols, rows)
			if x, y := r.Offset(); panned {
				clipped = Words(fmt.Sprintf("%d×%d from %d,%d", cols, rows, x+1, y+1),
					p.key("c", "to the cursor"))[1:]
			}
		}
		status, brief := p.status(now, notice, clipped)
		line = status
		var modes screen.Modes
		if now.holds {
			modes = sc.Modes()
		}
		p.wantModes(modes)
		// The bytes belong to the renderer; they are valid until the next Draw.
		out = r.Draw(view.Frame{Screen: sc, Status: status, Brief: brief, Driver: now.holds,
			Hold: hold})
	})
	if err != nil {
		status, brief := p.status(situation{}, notice, "")
		out = r.Draw(view.Frame{Status: status, Brief: brief})
	} else {
		p.report(now, line) // outside the lock of the screen: a frontend may block on its client
	}
	if _, rows := r.Area(); r.Pushed()-pushed > uint64(rows) {
		p.filled = time.Now()
	}
	out = append(out, p.alert(now)...)
	if len(out) > 0 {
		_, _ = p.o.Out.Write(out)
	}
	return len(out) > 0
}

// report passes the state to the frontend if it has changed.
func (p *Person) report(s situation, line string) {
	if p.o.Report == nil {
		return
	}
	self := p.at.Party()
	now := State{Target: p.at.Target(), Keyboard: s.Keyboard, Asking: s.Asking, Private: s.Private,
		Holds: s.holds, Asked: p.hasAsked(),
		MayDrive: self.Rights != wire.RightWatch, Owner: self.Owner, Line: strings.TrimSpace(line)}
	if now != p.reported {
		p.reported = now
		p.o.Report(now)
	}
}

func (p *Person) wantModes(m screen.Modes) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.modes = m
}

// wantedModes returns the modes that the program asked for, while they have the keyboard.
func (p *Person) wantedModes() screen.Modes {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.modes
}

// Say shows a notice for NoticeTime.
func (p *Person) Say(notice string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sayLocked(notice)
}

// about is the holder of the keyboard when a notice about that was given.
type about struct {
	holder string // according to the notice
	known  string // known here, possibly out of date
	mine   bool   // the notice says that this person has it
}

// sayOf shows a notice about holder having the keyboard, or no one if holder is empty. It ends when
// the holder changes.
func (p *Person) sayOf(holder, notice string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sayOfLocked(holder, notice)
}

func (p *Person) sayOfLocked(holder, notice string) {
	p.sayLocked(notice)
	s := p.situation()
	p.about = &about{holder: holder, known: s.Keyboard, mine: s.holds}
}

// dropOldLocked removes a notice that s contradicts.
func (p *Person) dropOldLocked(s situation) {
	if a := p.about; a != nil && (s.holds && !a.mine || s.Keyboard != "" &&
		s.Keyboard != a.holder && s.Keyboard != a.known) {
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

// ExitOf returns the exit status of an attachment whose session has ended in state.
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

// plain returns text of a sandbox in a form that is safe to show: short, and printable.
func plain(s string) string { return text.Line(s, 256) }
