package session

import (
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// inputTime is for how long input is gathered into one event.
const inputTime = time.Second

// keptEvents is how many events a session remembers for those who attach later or lag.
const keptEvents = 1024

// events is the last events of a session, numbered from 1. The zero value is empty.
type events struct {
	kept []wire.Event  // in order of Seq, without gaps
	seq  uint64        // of the newest
	wake chan struct{} // closed at the next one; nil while nobody waits

	s     *session    // for what is reported to everybody
	input inputRun    // not reported yet
	runs  uint64      // of input so far
	late  *wire.Event // not reported yet; nil when there is none
}

func (e *events) add(ev wire.Event) {
	e.seq++
	ev.Seq = e.seq
	if len(e.kept) == keptEvents {
		// In bulk, so that an event costs no copy of all others.
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

// next returns the oldest kept event after seq, and how many between them are no longer kept.
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

// emitLocked tells everybody. Offset is filled in unless the event belongs to an earlier place.
func (e *events) emitLocked(ev wire.Event) {
	s := e.s
	e.tellLateLocked()
	if ev.Kind != wire.EventInput {
		e.tellInputLocked()
	}
	if s.private.untoldLocked(ev) {
		return
	}
	if end := s.log.shown(); ev.Offset == 0 || ev.Offset > end {
		ev.Offset = end
	}
	ev.TimeUnix = time.Now().UnixMilli()
	s.events.add(ev)
	s.fireLocked()
}

// lateness is how much later than anything else an event may be told for which the echo of a key
// must not wait.
const lateness = 5 * time.Millisecond

// emitLateLocked is emitLocked for such an event: it is told before the next one, at the latest
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

// inputRun is input of one party that no event has told yet. An event for every key would push what
// matters out of the memory of events, so they are gathered until something else is told, another
// party types, or a second has passed.
type inputRun struct {
	by     string
	hidden bool // the terminal did not show it
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
