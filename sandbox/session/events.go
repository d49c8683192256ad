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
func (s *session) emitLocked(ev wire.Event) {
	s.tellLateLocked()
	if ev.Kind != wire.EventInput {
		s.tellInputLocked()
	}
	if s.untoldLocked(ev) {
		return
	}
	if end := s.log.shown(); ev.Offset == 0 || ev.Offset > end {
		ev.Offset = end
	}
	ev.TimeUnix = time.Now().UnixMilli()
	s.events.add(ev)
	s.fireLocked()
}

// lateness is how much later than anything else an event may be told for which the echo of a key must not wait.
const lateness = 5 * time.Millisecond

// emitLateLocked is emitLocked for such an event: it is told before the next one, at the latest after lateness.
func (s *session) emitLateLocked(ev wire.Event) {
	s.tellLateLocked()
	s.late = &ev
	s.fireLocked()
	time.AfterFunc(lateness, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.tellLateLocked()
	})
}

func (s *session) tellLateLocked() {
	if ev := s.late; ev != nil {
		s.late = nil
		s.emitLocked(*ev)
	}
}

// inputRun is input of one party that no event has told yet. An event for every key would push what matters out of the
// memory of events, so they are gathered until something else is told, another party types, or a second has passed.
type inputRun struct {
	by     string
	hidden bool // the terminal did not show it
	bytes  int
	offset uint64
}

func (s *session) tellInputLocked() {
	if s.input.bytes == 0 {
		return
	}
	run := s.input
	s.input = inputRun{}
	e := wire.Event{Kind: wire.EventInput, By: run.by, Bytes: run.bytes, Offset: run.offset}
	if run.hidden {
		e.Text, e.Bytes = wire.Hidden, 0
	}
	s.emitLocked(e)
}

func (s *session) countInputLocked(by string, n int, hidden bool) {
	if s.input.bytes > 0 && (s.input.by != by || s.input.hidden != hidden) {
		s.tellInputLocked()
	}
	if s.input.bytes == 0 {
		_, end := s.log.bounds()
		s.runs++
		run := s.runs
		s.input = inputRun{by: by, hidden: hidden, offset: end}
		time.AfterFunc(inputTime, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.runs == run {
				s.tellInputLocked()
			}
		})
	}
	s.input.bytes += n
}
