package sshd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/view"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// person is somebody at a terminal in a shared session: what they see is drawn by our renderer, what they type takes a
// free keyboard, the chord does the rest.
//
// One goroutine paints, one reads what they type; a third, which asks the session for what they want, is there only while they want
// something, and a moment longer. Of a thousand people who only watch that is what they cost.
type person struct {
	s     *session
	at    *gateway.Attachment
	wake  chan struct{} // there may be something new to draw
	leave context.CancelCauseFunc
	jobs  *jobs

	chord byte   // of their commands, as view.Keys has it
	lost  uint64 // of the goroutine that works; the paste of which a piece could not be taken

	untaken   int       // of the goroutine that works; bytes that were not taken lately
	untakenAt time.Time // of the goroutine that works; when that was
	why       string    // of the goroutine that works; and why

	drawnCols, drawnRows int       // of the painter: the size it draws for
	turn                 pace      // of the painter
	filled               time.Time // of the painter: when it last sent a windowful of lines to the terminal's scrollback, or more

	kmu    sync.Mutex // taken before mu
	keys   view.Keys  // guarded by kmu
	pieces int        // guarded by kmu; how many of input came

	mu         sync.Mutex
	cols, rows int          // guarded by mu; of their window
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
	noticeTime = 5 * time.Second       // of a notice
	flushTime  = 50 * time.Millisecond // until a lone ESC is a key
	fillTime   = time.Second           // between two times that many lines go to the scrollback: in a flood nobody reads them there
)

// join puts a person into the session that target names. With watch they only watch, whatever their rights.
func (s *session) join(ctx context.Context, target wire.Target, watch bool) {
	err := s.visit(ctx, target, watch, func(status int, words string) {
		if words != "" {
			s.say(words)
		}
		s.exit(status)
	})
	if err != nil {
		s.fail(err)
	}
}

// visit puts a person into a session until they leave or it ends. Then their terminal is their own again, and farewell gets their
// exit status and the last words. An error says that they did not get in.
func (s *session) visit(ctx context.Context, target wire.Target, watch bool, farewell func(status int, words string)) error {
	s.client.server.sit()
	defer s.client.server.rise()
	pty := s.ask.pty
	r := view.NewRenderer(int(pty.Cols), int(pty.Rows))
	cols, rows := r.Area()
	p := &person{s: s, wake: make(chan struct{}, 1), cols: int(pty.Cols), rows: int(pty.Rows),
		drawnCols: int(pty.Cols), drawnRows: int(pty.Rows), chord: s.client.server.chord}
	at, created, err := s.attach(ctx, target, gateway.JoinOptions{Cols: cols, Rows: rows, Watch: watch, Changed: p.changed})
	if err != nil {
		return err
	}
	defer at.Close()
	s.begin()
	p.at = at
	if created != "" {
		p.say(words(created, p.key("?", "help"))[1:])
	}
	farewell(p.run(ctx, r))
	return nil
}

// run shows the session until it ends or the person leaves, gives their terminal back, and returns their exit status and
// the last words.
func (p *person) run(ctx context.Context, r *view.Renderer) (int, string) {
	ctx, p.leave = context.WithCancelCause(ctx)
	defer p.leave(nil)
	p.jobs = newJobs(func(j job) { p.do(ctx, j) })
	p.keys.Chord = p.chord
	// Not waited for: it ends when the client closes the channel, which comes after the farewell.
	go p.read(ctx)

	cause := p.draw(ctx, r)
	p.leave(cause)
	p.jobs.close()
	_, _ = p.s.channel.Write(r.Leave())
	return p.ended(cause)
}

// errDetached ends the stay of a person who wants to leave.
var errDetached = errors.New("detached")

// ended is what a person is told at the end, by its cause.
func (p *person) ended(cause error) (int, string) {
	target := p.at.Target()
	switch {
	case errors.Is(cause, errDetached):
		return 0, "detached from " + full(target)
	case errors.Is(cause, errClientGone):
		return wire.ExitTransport, ""
	case errors.Is(cause, gateway.ErrKicked):
		return wire.ExitTransport, "you were sent away from " + full(target)
	case errors.Is(cause, gateway.ErrUnshared):
		return wire.ExitTransport, target.Sandbox + " is no longer shared with you"
	case errors.Is(cause, io.EOF):
		status := exitOf(p.at.Live().State())
		return status, fmt.Sprintf("%s ended with exit status %d", full(target), status)
	case errors.Is(cause, context.Canceled):
		return wire.ExitTransport, "the gateway is stopping; " + full(target) + " goes on"
	}
	return wire.ExitTransport, "detached from " + full(target) + ": " + plain(p.s.client.public(cause).Message)
}

// full is a target with its session also where that is the default one.
func full(t wire.Target) string { return t.Sandbox + "~" + t.Session }

// changed wakes the painter.
func (p *person) changed() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// draw paints, as often as pace lets it, until the attachment or ctx ends: it returns why. While the terminal does not take what was
// painted nothing is painted; what comes then is the screen of that moment.
func (p *person) draw(ctx context.Context, r *view.Renderer) error {
	if _, err := p.s.channel.Write(r.Enter()); err != nil {
		return errClientGone
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
			p.rest(ctx, r.Held())
		}
	}
}

// rest waits until there is something to paint and it is time for that. With held, lines wait for their time.
func (p *person) rest(ctx context.Context, held bool) {
	var due <-chan time.Time
	if held {
		due = time.After(time.Until(p.filled.Add(fillTime)))
	}
	for woken := false; !woken; {
		select {
		case <-ctx.Done():
			return
		case q, ok := <-p.s.requests:
			if !ok {
				p.leave(errClientGone)
				return
			}
			_ = q.Reply(p.window(q.Type, q.Payload), nil)
		case <-p.wake:
			woken = true
		case <-due:
			woken = true
		}
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
func (p *person) paint(r *view.Renderer, now stand, hold bool) bool {
	pushed := r.Pushed()
	hold = hold && time.Since(p.filled) < fillTime
	p.mu.Lock()
	cols, rows, notice := p.cols, p.rows, p.notice
	if !time.Now().Before(p.until) {
		notice, p.notice = "", ""
	}
	p.mu.Unlock()
	if cols != p.drawnCols || rows != p.drawnRows {
		r.Resize(cols, rows)
		p.drawnCols, p.drawnRows = cols, rows
	}
	var out []byte
	err := p.at.Screen(func(sc *screen.Screen, _ uint64) {
		var clipped string
		if r.Clipped(sc) {
			cols, rows := sc.Size()
			clipped = fmt.Sprintf("%d×%d, clipped", cols, rows)
		}
		status, brief := p.status(now, notice, clipped)
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
	}
	if _, rows := r.Area(); r.Pushed()-pushed > uint64(rows) {
		p.filled = time.Now()
	}
	if len(out) > 0 {
		_, _ = p.s.channel.Write(out) // an error comes with the end of the channel, too
	}
	return len(out) > 0
}

func (p *person) wantModes(m screen.Modes) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.modes = m
}

// wantedModes are the modes that the program asked for, if they drive.
func (p *person) wantedModes() screen.Modes {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.modes
}

// say shows a notice for a while.
func (p *person) say(notice string) {
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
func (p *person) sayOf(holder, notice string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sayOfLocked(holder, notice)
}

func (p *person) sayOfLocked(holder, notice string) {
	p.sayLocked(notice)
	s := p.stand()
	p.about = &about{holder: holder, known: s.Keyboard, mine: s.holds}
}

// dropOldLocked takes a notice away that things, as they stand in s, have overtaken.
func (p *person) dropOldLocked(s stand) {
	if a := p.about; a != nil && (s.holds && !a.mine || s.Keyboard != "" && s.Keyboard != a.holder && s.Keyboard != a.known) {
		p.notice, p.about = "", nil
	}
}

func (p *person) sayLocked(notice string) {
	p.notice, p.about, p.cut, p.until = notice, nil, false, time.Now().Add(noticeTime)
	if p.fade == nil {
		p.fade = time.AfterFunc(noticeTime, p.changed)
	} else {
		p.fade.Reset(noticeTime)
	}
	p.changed()
}
