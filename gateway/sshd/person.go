package sshd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/view"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// person is somebody at a terminal in a shared session: what they see is drawn by our renderer, what they type takes a
// free keyboard, the chord does the rest.
type person struct {
	s    *session
	at   *gateway.Attachment
	wake chan struct{} // there may be something new to draw

	drawnCols, drawnRows int // of the painter: the size it draws for

	mu         sync.Mutex
	cols, rows int       // guarded by mu; of their window
	notice     string    // guarded by mu; shown in the status line
	until      time.Time // guarded by mu; when the notice goes
	focus      bool      // guarded by mu; the program wants reports of focus, and they drive
}

// Times of a person's terminal.
const (
	frameTime  = time.Second / 30      // between two repaints
	noticeTime = 5 * time.Second       // of a notice
	flushTime  = 50 * time.Millisecond // until a lone ESC is a key
)

const help = "^]t take  ^]g give  ^]d detach  ^]^] sends ^]"

// join puts a person into the session that target names. With watch they only watch, whatever their rights.
func (s *session) join(ctx context.Context, target wire.Target, watch bool) {
	s.client.server.sit()
	defer s.client.server.rise()
	pty := s.ask.pty
	r := view.NewRenderer(int(pty.Cols), int(pty.Rows))
	cols, rows := r.Area()
	at, created, err := s.attach(ctx, target, gateway.JoinOptions{Cols: cols, Rows: rows, Watch: watch})
	if err != nil {
		s.fail(err)
		return
	}
	defer at.Close()
	s.begin()
	p := &person{s: s, at: at, wake: make(chan struct{}, 1), cols: int(pty.Cols), rows: int(pty.Rows),
		drawnCols: int(pty.Cols), drawnRows: int(pty.Rows)}
	if created != "" {
		p.say(created + "  Ctrl-] ? help")
	}
	status, words := p.run(ctx, r)
	if words != "" {
		s.say(words)
	}
	s.exit(status)
}

// run shows the session until it ends or the person leaves, gives their terminal back, and returns their exit status and
// the last words.
func (p *person) run(ctx context.Context, r *view.Renderer) (int, string) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	jobs := newJobs()
	input := make(chan []byte)
	var parts sync.WaitGroup
	parts.Go(func() { p.watch(ctx) })
	parts.Go(func() { cancel(p.at.Wait(ctx)) })
	parts.Go(func() { p.work(ctx, jobs) })
	parts.Go(func() { cancel(p.listen(ctx, input, jobs)) })
	// Not among the parts: it ends when the client closes the channel, which comes after the farewell.
	go p.read(ctx, input)

	p.draw(ctx, r)
	cause := context.Cause(ctx)
	parts.Wait()
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

// watch wakes the painter when the session has changed.
func (p *person) watch(ctx context.Context) {
	gen := p.at.Live().Generation()
	for {
		next, err := p.at.Live().Wait(ctx, gen)
		if err != nil {
			return
		}
		gen = next
		p.changed()
	}
}

func (p *person) changed() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// draw paints until ctx ends, at most frameTime apart. While the terminal does not take what was painted nothing is
// painted; what comes then is the screen of that moment.
func (p *person) draw(ctx context.Context, r *view.Renderer) {
	if _, err := p.s.channel.Write(r.Enter()); err != nil {
		return
	}
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		<-pause.C
		fade := p.paint(r)
		pause.Reset(frameTime)
		select {
		case <-ctx.Done():
			// The last thing that a session printed is worth seeing, on the way out.
			p.paint(r)
			return
		case <-p.wake:
		case <-fade:
		}
	}
}

// paint writes what is new, and returns what fires when the notice is to go.
func (p *person) paint(r *view.Renderer) <-chan time.Time {
	p.mu.Lock()
	cols, rows, notice := p.cols, p.rows, p.notice
	var fade <-chan time.Time
	if left := time.Until(p.until); notice != "" && left > 0 {
		fade = time.After(left)
	} else {
		notice, p.notice = "", ""
	}
	p.mu.Unlock()
	if cols != p.drawnCols || rows != p.drawnRows {
		r.Resize(cols, rows)
		p.drawnCols, p.drawnRows = cols, rows
	}
	live := p.at.Live()
	holds := p.at.Holds()
	var out []byte
	err := live.Screen(func(sc *screen.Screen, _ uint64) {
		var clipped string
		if r.Clipped(sc) {
			cols, rows := sc.Size()
			clipped = fmt.Sprintf("%d×%d, clipped", cols, rows)
		}
		status, brief := p.status(live.Keyboard(), live.Parties(), holds, notice, clipped)
		p.wantFocus(holds && sc.Modes().FocusEvents)
		// The bytes are the renderer's own; they last until the next Draw.
		out = r.Draw(view.Frame{Screen: sc, Status: status, Brief: brief, Driver: holds})
	})
	if err != nil {
		status, brief := p.status("", nil, false, notice, "")
		out = r.Draw(view.Frame{Status: status, Brief: brief})
	}
	if len(out) > 0 {
		_, _ = p.s.channel.Write(out) // an error comes with the end of the channel, too
	}
	return fade
}

// status is the status line: where, who types, what one is oneself, and what to do about it. clipped is what else there is to
// say, or empty. brief are its shorter forms: who types outlives everything else.
func (p *person) status(keyboard string, parties []wire.Party, holds bool, notice, clipped string) (line string, brief []string) {
	where := full(p.at.Target())
	if notice != "" { // the news; the rest can wait
		return words(where, notice), []string{words(notice)}
	}
	self, count := p.at.Party(), 0
	for _, other := range parties {
		if other.ID != self.ID && other.String() != keyboard {
			count++
		}
	}
	var others string
	if count > 0 {
		others = fmt.Sprintf("%d more", count)
	}
	var typing string
	if !holds && keyboard != "" {
		typing = keyboard + " typing"
	}
	you, key := "you: watching", "^]t take"
	switch {
	case holds:
		you, key = "you: typing", "^]g give"
	case self.Rights == wire.RightWatch:
		key = "^]d leave"
	case keyboard == "":
		key = "type, or ^]t take"
	}
	last := typing
	if last == "" {
		last = you
	}
	return words(where, typing, others, you, key, clipped), []string{words(where, typing, others, you, key), words(where, typing, you, key),
		words(where, last, key), words(last, key), words(last)}
}

// words are those that there are, as a status line.
func words(all ...string) string {
	return " " + strings.Join(slices.DeleteFunc(all, func(w string) bool { return w == "" }), "   ")
}

func (p *person) wantFocus(want bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.focus = want
}

func (p *person) wantsFocus() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.focus
}

// say shows a notice for a while.
func (p *person) say(notice string) {
	p.mu.Lock()
	p.notice, p.until = notice, time.Now().Add(noticeTime)
	p.mu.Unlock()
	p.changed()
}
