package person

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/view"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Type carries out a piece of input, unless they have left.
func (p *Person) Type(ctx context.Context, b []byte) {
	p.kmu.Lock()
	defer p.kmu.Unlock()
	modes := p.wantedModes()
	p.keys.Focus, p.keys.Brackets = modes.FocusEvents, modes.BracketedPaste
	p.pressAll(ctx, p.keys.Feed(b))
	p.pieces++
	if p.keys.Unfinished() {
		last := p.pieces
		time.AfterFunc(FlushTime, func() {
			p.kmu.Lock()
			defer p.kmu.Unlock()
			if p.pieces == last {
				p.pressAll(ctx, p.keys.Flush())
			}
		})
	}
}

func (p *Person) pressAll(ctx context.Context, events []view.KeyEvent) {
	for _, e := range events {
		if ctx.Err() != nil {
			return
		}
		p.Press(e)
	}
	if p.keys.Pending() {
		p.Say(p.help())
	}
}

// Resize follows the size of the person's window. The session gets that size only while they have
// the keyboard.
func (p *Person) Resize(cols, rows int) {
	p.mu.Lock()
	p.cols, p.rows, p.resized = cols, rows, true
	p.mu.Unlock()
	p.changed()
	p.jobs.add(job{cols: cols, rows: max(rows-1, 1)}) // the last row is the status line
}

// Press carries out one key, or a command that follows the prefix key.
func (p *Person) Press(e view.KeyEvent) {
	switch e.Kind {
	case view.Detach:
		p.leave(ErrDetached)
	case view.Help:
		p.Say(p.help())
	case view.Unknown:
		p.Say("no such key: " + p.help())
	case view.Follow:
		p.scroll.end()
		p.look(e)
	case view.Pan:
		p.look(e)
	case view.Scroll:
		if p.o.Record == nil {
			p.Say("no such key: " + p.help())
			return
		}
		p.scroll.begin()
	case view.Other:
		p.goOn()
	case view.Input:
		if scrolls, say := p.scroll.input(e); scrolls {
			if say != "" {
				p.Say(say)
			}
			return
		}
		if p.at.Party().Rights == wire.RightWatch {
			p.Say(Words("you may only watch", p.key("d", "detach"))[1:])
			return
		}
		if e.Paste == 0 && len(e.Bytes) < manyBytes { // whose echo they look for
			p.keyed.Store(true)
			p.look(view.KeyEvent{Kind: view.Follow})
		}
		if !p.jobs.add(job{input: e.Bytes, paste: e.Paste}) {
			p.Say("the program takes no input; what you type is dropped")
		}
	case view.Take, view.Give, view.Keep, view.Private:
		p.scroll.end()
		if p.at.Party().Rights == wire.RightWatch {
			p.Say(Words("you may only watch", p.key("d", "detach"))[1:])
			return
		}
		if !p.jobs.add(job{command: e.Kind}) {
			p.Say(Words("the program takes no input; wait, or", p.key("d", "detach"))[1:])
		}
	}
}

// goOn leaves for another session that asks for an answer.
func (p *Person) goOn() {
	if p.o.Others == nil {
		p.Say("no such key: " + p.help())
		return
	}
	n, next := p.o.Others()
	if n == 0 {
		p.Say("no other session asks")
		return
	}
	p.mu.Lock()
	p.next = next
	p.mu.Unlock()
	p.leave(errNext)
}

// look moves a window that is smaller than the screen, or makes it follow the cursor.
func (p *Person) look(e view.KeyEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case e.Kind == view.Pan:
		p.pan[0] += e.X
		p.pan[1] += e.Y
		p.panned = true
	case !p.panned:
		return
	default:
		p.pan, p.panned = [2]int{}, false
	}
	p.changed()
}

// job is a request to the session. Jobs are done in the order of the person's actions.
type job struct {
	input      []byte
	paste      uint64       // of which input is a piece, as in view.KeyEvent
	command    view.KeyKind // without input: Take, Give, Keep or Private
	cols, rows int          // without input: a new size, if not 0
}

// maxTyped bounds the input that waits for a program that does not read.
const maxTyped = 1 << 20

// linger is how long an idle worker stays: typing continues, and for each key a new worker would
// have to grow its stack.
const linger = 10 * time.Second

// jobs is a queue between a person, who must never wait, and a session, which may block.
type jobs struct {
	do     func(job)      // one at a time
	worker sync.WaitGroup // runs while there are jobs, and for linger
	more   chan struct{}  // wakes the worker

	mu      sync.Mutex
	queue   []job // guarded by mu
	typed   int   // guarded by mu; bytes of input in it
	working bool  // guarded by mu; the worker runs
	closed  bool  // guarded by mu
}

func newJobs(do func(job)) *jobs { return &jobs{do: do, more: make(chan struct{}, 1)} }

// add appends j and reports whether there was room.
func (q *jobs) add(j job) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	last := len(q.queue) - 1
	switch {
	case q.closed, q.typed+len(j.input) > maxTyped, last > 1024:
		return false
	case last >= 0 && j.cols > 0 && q.queue[last].cols > 0:
		q.queue[last] = j // of a window that is being resized, only the last size counts
	case last >= 0 && len(j.input) > 0 && len(q.queue[last].input) > 0 &&
		j.paste == q.queue[last].paste:
		q.queue[last].input = append(q.queue[last].input, j.input...)
	default:
		q.queue = append(q.queue, j)
	}
	q.typed += len(j.input)
	if !q.working {
		q.working = true
		q.worker.Go(q.work)
	}
	q.wake()
	return true
}

func (q *jobs) wake() {
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// work does the jobs in order.
func (q *jobs) work() {
	idle := time.NewTimer(linger)
	defer idle.Stop()
	for {
		q.mu.Lock()
		if len(q.queue) == 0 {
			q.queue = nil
			closed := q.closed
			q.mu.Unlock()
			if closed || !q.rest(idle) {
				return
			}
			continue
		}
		j := q.queue[0]
		q.queue = q.queue[1:]
		q.typed -= len(j.input)
		q.mu.Unlock()
		q.do(j)
	}
}

// rest waits for a job. False means that there was none for so long that the worker ends.
func (q *jobs) rest(idle *time.Timer) bool {
	idle.Reset(linger)
	select {
	case <-q.more:
		return true
	case <-idle.C:
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.working = len(q.queue) > 0
	return q.working
}

// close drops waiting jobs and waits for the current one.
func (q *jobs) close() {
	q.mu.Lock()
	q.queue, q.closed = nil, true
	q.mu.Unlock()
	q.wake()
	q.worker.Wait()
}

// do sends a job to the session.
func (p *Person) do(ctx context.Context, j job) {
	var err error
	switch {
	case len(j.input) > 0 && j.paste > 0:
		p.pasted(ctx, j)
		return
	case len(j.input) > 0:
		p.input(ctx, j, "")
		return
	case j.cols > 0:
		err = p.at.Resize(ctx, j.cols, j.rows)
	default:
		err = p.command(ctx, j.command)
	}
	if err != nil {
		p.refused(ctx, err)
	}
}

// input passes j's bytes on, and shows how many were dropped; what is what the bytes were.
func (p *Person) input(ctx context.Context, j job, what string) bool {
	err := p.at.Input(ctx, j.input)
	if err == nil {
		p.untaken = 0
		return true
	}
	n := len(j.input)
	if refused, ok := errors.AsType[*wire.Error](err); ok && refused.Refused > 0 {
		n = min(n, refused.Refused)
	}
	p.notTaken(n)
	if what == "" && p.untaken < manyBytes {
		p.refused(ctx, err)
		return false
	}
	why := plain(p.o.Public(err).Message)
	if ctx.Err() == nil {
		p.cutOff(what, why)
	}
	return false
}

// manyBytes is the number of dropped bytes from which a notice gives the number: it is more than a
// few keys.
const manyBytes = 32

// notTaken counts n dropped bytes. Drops from long ago no longer count.
func (p *Person) notTaken(n int) {
	if time.Since(p.untakenAt) > NoticeTime {
		p.untaken = 0
	}
	p.untaken, p.untakenAt = p.untaken+n, time.Now()
}

// cutOff shows how much was dropped. News of the keyboard's holder do not replace this notice,
// which names the holder.
func (p *Person) cutOff(what, why string) {
	p.why = why
	if what == "" {
		what = "input"
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sayLocked(Words(fmt.Sprintf("%d bytes of %s were dropped: %s", p.untaken, what, why),
		p.key("t", "take"))[1:])
	p.cut = true
}

// command carries out a command of the prefix key.
func (p *Person) command(ctx context.Context, kind view.KeyKind) error {
	switch kind {
	case view.Take:
		asked, err := p.at.Ask(ctx)
		switch {
		case err != nil:
			return err
		case asked != "":
			p.asked(asked)
		default:
			p.sayOf(p.at.Party().String(), Words("the keyboard is yours", p.key("g", "give"))[1:])
		}
	case view.Give:
		held := p.at.Holds()
		p.did(func(n *notes) { n.gave, n.asked = true, false })
		if err := p.at.Give(ctx); err != nil {
			return err
		}
		if held {
			p.sayOf("", Words("given back", p.key("t", "take"))[1:])
		}
	case view.Keep:
		if !p.at.Holds() {
			p.Say("you do not have the keyboard")
			return nil
		}
		if err := p.at.Keep(ctx); err != nil {
			return err
		}
		p.Say("you keep the keyboard")
	case view.Private:
		on := p.at.Live().Private() == ""
		if err := p.at.Private(ctx, on); err != nil {
			return err
		}
		if on {
			p.Say(Words("only you see this, until you give the keyboard back",
				p.key("p", "ends it"))[1:])
		} else {
			p.Say("no longer private; what was on the screen is erased")
		}
	}
	return nil
}

// pasted passes on a piece of a paste. If a piece is dropped so are the later ones: a paste never
// continues after a hole.
func (p *Person) pasted(ctx context.Context, j job) {
	const what = "the paste"
	if j.paste == p.lost {
		p.notTaken(len(j.input))
		p.cutOff(what, p.why)
		return
	}
	if !p.input(ctx, j, what) {
		p.lost = j.paste
	}
}

// refused shows why an action failed.
func (p *Person) refused(ctx context.Context, err error) {
	var shown *wire.Error
	switch {
	case ctx.Err() != nil:
	case errors.As(err, &shown) && shown.Code == wire.CodeKeyboardHeld:
		p.sayOf(p.at.Live().Keyboard(), Words(shown.Message, p.key("t", "take"))[1:])
	default:
		p.Say(plain(p.o.Public(err).Message))
	}
}
