package live

import (
	"errors"
	"time"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// maxLog is beyond every honest log. Files have signed offsets.
const maxLog = 1 << 61

// Feed takes what the guest sends of a session: into its record, then into the copy, then it wakes
// the readers. One goroutine at a time uses it.
type Feed struct{ s *Session }

// Feed returns the way into the session.
func (s *Session) Feed() Feed { return Feed{s} }

// Output takes bytes at offset off. It reports whether the stream makes sense and the session goes
// on.
func (f Feed) Output(off uint64, p []byte) bool {
	s := f.s
	s.mu.Lock()
	end, rec := s.replica.end, s.rec
	s.mu.Unlock()
	if off > maxLog || s.Final() {
		return false
	}
	if off < end {
		if end-off >= uint64(len(p)) {
			return true
		}
		p = p[end-off:]
		off = end
	}
	recorded := false
	if rec != nil {
		if rec.Private() && s.Private() == "" { // its end was reported while nobody listened
			s.noteProblem(rec.EndPrivate())
		}
		err := rec.Append(off, p)
		if recorded = err == nil; !recorded && f.endStrict(err) {
			return false
		}
		s.noteProblem(err)
	} else if f.endStrict(errNoRecord) {
		return false
	}
	s.mu.Lock()
	s.replica.skip(off)
	s.replica.add(p, recorded)
	s.printed = time.Now()
	s.changeLocked()
	s.mu.Unlock()
	if recorded {
		rec.Mark()
	}
	return true
}

// Event takes an event.
func (f Feed) Event(e wire.Event) {
	s := f.s
	e = inboundEvent(e)
	// Closed; without a reason its shell has ended, and can be started again.
	if e.Kind == wire.EventEnded && e.Text != "" {
		state := wire.State{Phase: wire.PhaseDead, Reason: "closed", Basis: []wire.Basis{}}
		if e.State != nil {
			state = *e.State
		}
		state.Offset = s.Len()
		s.end(state)
		return
	}
	// The guest's clock is trusted for what it held back, but not for the future.
	if now := time.Now().UnixMilli(); e.TimeUnix > now || e.TimeUnix < s.begun {
		e.TimeUnix = now
	}
	if e.Kind == wire.EventLagged && e.Text == wire.WhyPrivate {
		f.skipPrivate(e.Offset)
		return
	}
	s.mu.Lock()
	rec := s.rec
	s.mu.Unlock()
	if rec != nil && e.Seq != 0 {
		if err := rec.Event(e); err != nil {
			s.noteProblem(err)
		}
	}
	f.apply(e)
}

// apply takes an event into what is known of the session.
func (f Feed) apply(e wire.Event) {
	s := f.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || e.Seq != 0 && e.Seq <= s.seq {
		return
	}
	s.seq = max(s.seq, e.Seq)
	switch e.Kind {
	case wire.EventState, wire.EventEnded:
		if e.State != nil {
			f.becomeLocked(*e.State)
		}
	case wire.EventBegun:
		if e.Op == "" { // it was typed
			s.denials.begun("", time.Now())
		}
		e.Offset = min(e.Offset, s.replica.end)
		s.announced.add(e)
		s.edges.add(e)
	case wire.EventOver:
		s.edges.add(e)
	case wire.EventKeyboard:
		s.keyboard, s.asking = e.Keyboard, ""
	case wire.EventInput, wire.EventCommand:
		s.typed = e.By
		if e.Kind == wire.EventCommand {
			s.denials.begun(e.Op, time.Now())
		}
	case wire.EventAsk:
		s.asking = e.By
	case wire.EventPrivate:
		s.private = e.By
	case wire.EventResize:
		s.cols, s.rows = wire.ClampSize(uint32(max(e.Cols, 0)), uint32(max(e.Rows, 0)))
		s.display.resized(s.replica.end, s.cols, s.rows)
	}
	s.observeLocked()
	s.changeLocked()
}

// attached takes the state at the time of attaching, unless events have reported a newer one
// already.
func (f Feed) attached(a wire.Attached) {
	s := f.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.Seq < s.seq {
		return
	}
	f.becomeLocked(inboundState(a.State))
	s.keyboard, s.private = Cut(a.Keyboard, MaxWord), Cut(a.Private, MaxWord)
	s.cols, s.rows = wire.ClampSize(uint32(max(a.Cols, 0)), uint32(max(a.Rows, 0)))
	s.observeLocked()
	s.changeLocked()
}

// becomeLocked makes st the session's state. Session.mu is held.
func (f Feed) becomeLocked(st wire.State) {
	s := f.s
	was := busy(s.state)
	s.state = st
	if !was && busy(st) {
		s.denials.started(time.Now())
	}
}

// busy reports whether something is known to run in a session.
func busy(st wire.State) bool { return st.Phase != wire.PhasePrompt && st.Phase != wire.PhaseDead }

// skipPrivate notes that the bytes up to off were printed in private mode.
func (f Feed) skipPrivate(off uint64) {
	if off > maxLog {
		return
	}
	s := f.s
	s.mu.Lock()
	rec := s.rec
	s.mu.Unlock()
	if rec != nil {
		if err := rec.Skip(off, wire.WhyPrivate); err != nil {
			s.noteProblem(err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replica.skip(off)
	s.changeLocked()
}

// errNoRecord is why a session without a record is not recorded.
var errNoRecord = errors.New("its record could not be made")

// Unrecordable is why something could not be recorded, without the daemon's file names.
func Unrecordable(err error) string {
	switch {
	case errors.Is(err, record.ErrStopped):
		return record.WhyQuota
	case errors.Is(err, errNoRecord):
		return errNoRecord.Error()
	}
	return record.WhyFull
}

// endStrict ends a session whose output could not be recorded, where records are strict, and
// reports whether it did. The output is shown to nobody.
func (f Feed) endStrict(err error) bool {
	s := f.s
	if !s.set.options.Strict || errors.Is(err, record.ErrPrivate) {
		return false
	}
	why := "not recorded: " + Unrecordable(err)
	s.mu.Lock()
	s.lost = why
	s.mu.Unlock()
	s.end(deadState(why, s.Len()))
	s.log.Warn("a session is ended: it cannot be recorded, and records are strict", "err", err)
	return true
}

// Unrecorded says why the session was ended because it could not be recorded; it is empty while it
// is recorded.
func (s *Session) Unrecorded() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}
