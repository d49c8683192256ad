package session

import (
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// inputTime is how long input is collected into one event.
const inputTime = time.Second

// keptEvents is how many events a session stores for later and slow readers.
const keptEvents = 1024

// events stores the last events of a session, numbered from 1. The zero value is empty.
type events struct {
	kept []wire.Event  // in order of Seq, without gaps
	seq  uint64        // number of the newest event
	wake chan struct{} // closed at the next event; nil if nothing waits

	s     *session    // for events that all parties receive
	input inputRun    // pending input event
	runs  uint64      // number of input events so far
	late  *wire.Event // pending late event; nil if none
}

func (e *events) add(ev wire.Event) {
	e.seq++
	ev.Seq = e.seq
	if len(e.kept) == keptEvents {
		// Many at a time, so that not every event copies all others.
		e.kept = append(e.kept[:0:0], e.kept[keptEvents/4:]...)
	}
	e.kept = append(e.kept, ev)
	if e.wake != nil {
		close(e.wake)
		e.wake = nil
	}
}

// more returns a channel that is closed at the next event.
func (e *events) more() <-chan struct{} {
	if e.wake == nil {
		e.wake = make(chan struct{})
	}
	return e.wake
}

// next returns the oldest stored event after seq, and how many in between are no longer stored.
func (e *events) next(seq uint64) (ev wire.Event, missed uint64, ok bool) {
	if seq >= e.seq {
		return wire.Event{}, 0, false
	}
	first := e.kept[0].Seq
	if seq+1 < first {
		return e.kept[0], first - seq - 1, true
	}
	return e.kept[seq+1-first], 0, true
}

// emitLocked sends an event to all parties. It sets Offset to the current one, unless the event has
// an earlier one.
func (e *events) emitLocked(ev wire.Event) {
	s := e.s
	e.tellLateLocked()
	if ev.Kind != wire.EventInput {
		e.tellInputLocked()
	}
	if s.private.secretLocked(ev) {
		return
	}
	if end := s.log.shown(); ev.Offset == 0 || ev.Offset > end {
		ev.Offset = end
	}
	ev.TimeUnix = time.Now().UnixMilli()
	s.events.add(ev)
	s.fireLocked()
}

// lateness is how long an event may be delayed so that it does not delay the echo of a key.
const lateness = 5 * time.Millisecond

// emitLateLocked is emitLocked for such an event. It is sent before the next event, at the latest
// after lateness.
func (e *events) emitLateLocked(ev wire.Event) {
	s := e.s
	e.tellLateLocked()
	e.late = &ev
	s.fireLocked()
	time.AfterFunc(lateness, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		e.tellLateLocked()
	})
}

func (e *events) tellLateLocked() {
	if ev := e.late; ev != nil {
		e.late = nil
		e.emitLocked(*ev)
	}
}

// inputRun is input of one party without an event. An event for every key would displace other
// stored events. So input is collected until another event is sent, another party types, or a
// second has passed.
type inputRun struct {
	by     string
	hidden bool // the terminal did not echo it
	bytes  int
	offset uint64
}

func (e *events) tellInputLocked() {
	if e.input.bytes == 0 {
		return
	}
	run := e.input
	e.input = inputRun{}
	told := wire.Event{Kind: wire.EventInput, By: run.by, Bytes: run.bytes, Offset: run.offset}
	if run.hidden {
		told.Text, told.Bytes = wire.Hidden, 0
	}
	e.emitLocked(told)
}

func (e *events) countInputLocked(by string, n int, hidden bool) {
	s := e.s
	if e.input.bytes > 0 && (e.input.by != by || e.input.hidden != hidden) {
		e.tellInputLocked()
	}
	if e.input.bytes == 0 {
		_, end := s.log.bounds()
		e.runs++
		run := e.runs
		e.input = inputRun{by: by, hidden: hidden, offset: end}
		time.AfterFunc(inputTime, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if e.runs == run {
				e.tellInputLocked()
			}
		})
	}
	e.input.bytes += n
}
