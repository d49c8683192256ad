package sshd

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/view"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// read passes on what the person's terminal sends, until the channel ends.
func (p *person) read(ctx context.Context, input chan<- []byte) {
	defer close(input)
	src := p.s.input()
	buf := make([]byte, 4<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			select {
			case input <- append([]byte(nil), buf[:n]...):
			case <-ctx.Done():
			}
		}
		if err != nil {
			return
		}
	}
}

// listen takes the person's keys and their window's size until they leave: it returns why. It never waits for the
// session, so that leaving always works.
func (p *person) listen(ctx context.Context, input <-chan []byte, jobs *jobs) error {
	var keys view.Keys
	var flush <-chan time.Time
	for {
		var events []view.KeyEvent
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case b, ok := <-input:
			if !ok {
				return errDetached // their terminal has no more to say: EOF detaches
			}
			keys.Focus = p.wantsFocus()
			events = keys.Feed(b)
			flush = time.After(flushTime)
		case <-flush:
			events, flush = keys.Flush(), nil
		case q, ok := <-p.s.requests:
			if !ok {
				return errClientGone
			}
			_ = q.Reply(p.window(q.Type, q.Payload, jobs), nil)
			continue
		}
		for _, e := range events {
			if e.Kind == view.Detach {
				return errDetached
			}
			p.key(e, jobs)
		}
		if keys.Pending() {
			p.say(help)
		}
	}
}

// window follows the size of the person's window. The session has that size only while they drive.
func (p *person) window(request string, payload []byte, jobs *jobs) bool {
	if request != wire.RequestWindowChange {
		return false
	}
	w, ok := parseWindow(payload)
	if !ok {
		return false
	}
	p.mu.Lock()
	p.cols, p.rows = int(w.Cols), int(w.Rows)
	p.mu.Unlock()
	p.changed()
	jobs.add(job{cols: int(w.Cols), rows: max(int(w.Rows)-1, 1)}) // the lowest row is the status line's
	return true
}

// key does what one key asks for.
func (p *person) key(e view.KeyEvent, jobs *jobs) {
	switch e.Kind {
	case view.Help:
		p.say(help)
	case view.Unknown:
		p.say("no such key: " + help)
	case view.Input:
		if p.at.Party().Rights == wire.RightWatch {
			p.say("you may only watch   ^]d detach")
			return
		}
		if !jobs.add(job{input: e.Bytes}) {
			p.say("the program takes no input; what you type is dropped")
		}
	case view.Take, view.Give:
		if p.at.Party().Rights == wire.RightWatch {
			p.say("you may only watch   ^]d detach")
			return
		}
		if !jobs.add(job{command: e.Kind}) {
			p.say("the program takes no input; wait, or ^]d detach")
		}
	}
}

// job is something that the session has to be asked for, in the order in which the person wanted it.
type job struct {
	input      []byte
	command    view.KeyKind // without input: Take or Give
	cols, rows int          // without input: a new size, if not 0
}

// maxTyped is how much input may wait for a program that reads nothing.
const maxTyped = 1 << 20

// jobs is a queue between a person, who must never wait, and a session, that may.
type jobs struct {
	more chan struct{} // there may be some

	mu    sync.Mutex
	queue []job // guarded by mu
	typed int   // guarded by mu; bytes of input in it
}

func newJobs() *jobs { return &jobs{more: make(chan struct{}, 1)} }

// add appends j and reports whether there was room.
func (q *jobs) add(j job) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	last := len(q.queue) - 1
	switch {
	case q.typed+len(j.input) > maxTyped, last > 1024:
		return false
	case last >= 0 && j.cols > 0 && q.queue[last].cols > 0:
		q.queue[last] = j // a window that is dragged: the last size counts
	case last >= 0 && len(j.input) > 0 && len(q.queue[last].input) > 0:
		q.queue[last].input = append(q.queue[last].input, j.input...)
	default:
		q.queue = append(q.queue, j)
	}
	q.typed += len(j.input)
	select {
	case q.more <- struct{}{}:
	default:
	}
	return true
}

// take returns the next job; false when there is none.
func (q *jobs) take() (job, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) == 0 {
		return job{}, false
	}
	j := q.queue[0]
	q.queue = q.queue[1:]
	q.typed -= len(j.input)
	return j, true
}

// work asks the session for what the person wants, one after the other.
func (p *person) work(ctx context.Context, jobs *jobs) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-jobs.more:
		}
		for j, ok := jobs.take(); ok; j, ok = jobs.take() {
			if ctx.Err() != nil {
				return
			}
			p.do(ctx, j)
		}
	}
}

func (p *person) do(ctx context.Context, j job) {
	var err error
	switch {
	case len(j.input) > 0:
		err = p.at.Input(ctx, j.input)
	case j.cols > 0:
		err = p.at.Resize(ctx, j.cols, j.rows)
	case j.command == view.Take:
		if err = p.at.Take(ctx); err == nil {
			p.say("the keyboard is yours   ^]g give")
		}
	case j.command == view.Give:
		if err = p.at.Give(ctx); err == nil {
			p.say("given back   ^]t take")
		}
	}
	if err == nil {
		return
	}
	var shown *wire.Error
	if errors.As(err, &shown) && shown.Code == wire.CodeKeyboardHeld {
		p.say(shown.Message + "   ^]t take")
		return
	}
	if ctx.Err() == nil {
		p.say(plain(p.s.client.public(err).Message))
	}
}
