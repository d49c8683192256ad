package session

import (
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// keptEvents is how many events a session remembers for those who attach later or lag.
const keptEvents = 1024

// events is the last events of a session, numbered from 1. The zero value is empty.
type events struct {
	kept []wire.Event // in order of Seq, without gaps
	seq  uint64       // of the newest
}

func (e *events) add(ev wire.Event) {
	e.seq++
	ev.Seq = e.seq
	if len(e.kept) == keptEvents {
		// In bulk, so that an event costs no copy of all others.
		e.kept = append(e.kept[:0:0], e.kept[keptEvents/4:]...)
	}
	e.kept = append(e.kept, ev)
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
	if ev.Kind != wire.EventInput {
		s.tellInputLocked()
	}
	if ev.Offset == 0 {
		_, ev.Offset = s.log.bounds()
	}
	ev.TimeUnix = time.Now().UnixMilli()
	s.events.add(ev)
	s.fireLocked()
}

// inputRun is input of one party that no event has told yet. An event for every key would push what matters out of the
// memory of events, so they are gathered until something else happens, another party types, or a second has passed.
type inputRun struct {
	by     string
	bytes  int
	offset uint64
	since  time.Time
}

func (s *session) tellInputLocked() {
	if s.input.bytes == 0 {
		return
	}
	run := s.input
	s.input = inputRun{}
	s.emitLocked(wire.Event{Kind: wire.EventInput, By: run.by, Bytes: run.bytes, Offset: run.offset})
}

func (s *session) countInputLocked(by string, n int) {
	if s.input.bytes > 0 && (s.input.by != by || time.Since(s.input.since) > time.Second) {
		s.tellInputLocked()
	}
	if s.input.bytes == 0 {
		_, end := s.log.bounds()
		s.input = inputRun{by: by, offset: end, since: time.Now()}
	}
	s.input.bytes += n
}
