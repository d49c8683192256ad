package lifecycle

import (
	"bytes"
	"context"
	"sync"
	"time"
)

// state is the record of a sandbox, with the lock of the act that changes it.
type state struct {
	reg    *Registry
	id     string
	paused func()        // called after a transition to Paused
	op     chan struct{} // semaphore: one act changes the sandbox at a time

	wmu sync.Mutex // held while a change is stored; taken before mu

	mu     sync.Mutex
	record Record // guarded by mu
	gone   bool   // guarded by mu; removed, or never created
	// Aborts the act under way; nil if it cannot be aborted.
	abort context.CancelCauseFunc // guarded by mu
	// Why it ended or is about to, a wire.Lost constant; empty while it runs.
	endReason string // guarded by mu
}

// ID returns the sandbox's ID. It never changes, and names the directory of its records.
func (s *state) ID() string { return s.id }

// Name returns the sandbox's name.
func (s *state) Name() string { return s.get().Name }

// Owner returns the principal that owns the sandbox.
func (s *state) Owner() string { return s.get().Owner }

// State returns the sandbox's current state.
func (s *state) State() State { return s.get().State }

func (s *state) get() Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record
}

// lock begins an act, once other acts on this sandbox have ended.
func (s *state) lock(ctx context.Context) error {
	select {
	case s.op <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if ctx.Err() != nil { // the earlier act may have ended ctx
		s.unlock()
		return context.Cause(ctx)
	}
	return nil
}

// lockNow begins an act if none is under way.
func (s *state) lockNow() bool {
	select {
	case s.op <- struct{}{}:
		return true
	default:
		return false
	}
}

func (s *state) unlock() { <-s.op }

func (s *state) isGone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone
}

// transition stores a change of the record and then applies it. It ignores the end of ctx, so that
// no change is applied in part.
func (s *state) transition(ctx context.Context, change func(*Record)) error {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	f := s.get()
	before := f.State
	change(&f)
	if f.State != before {
		f.Since = time.Now()
	}
	row, err := f.row(s.id)
	if err != nil {
		return err
	}
	// The manifest first: if the store is lost, the sandbox keeps the spec that its owner last
	// asked for.
	if was, err := s.get().row(s.id); err == nil && !f.isPooled() && !bytes.Equal(was.Spec,
		row.Spec) {
		if err := s.reg.manifests.write(s.id, f); err != nil {
			return stored(err)
		}
	}
	if err := s.reg.options.Store.Put(context.WithoutCancel(ctx), row); err != nil {
		return stored(err)
	}
	s.apply(f, before)
	return nil
}

// apply makes f the record and reports it; before was the state. It is called with wmu held.
func (s *state) apply(f Record, before State) {
	s.mu.Lock()
	s.record = f
	if f.State == Running && before != Running {
		s.endReason = ""
	}
	s.mu.Unlock()
	s.reg.board.Change()
	if f.State == Paused && before != Paused {
		s.paused()
	}
	if f.State != before {
		s.reg.log.Info("sandbox", "id", s.id, "name", f.Name, "state", f.State, "reason", f.Reason)
		s.reg.journal.add(s.id, "state", map[string]any{"state": f.State, "reason": f.Reason})
	}
}

// observed stores a state that the daemon found rather than caused. The state applies even if it
// cannot be stored.
func (s *state) observed(ctx context.Context, state State, reason string) {
	if f := s.get(); f.State == state && f.Reason == reason {
		return
	}
	err := s.transition(ctx, func(f *Record) { f.State, f.Reason = state, reason })
	if err == nil {
		return
	}
	s.reg.log.Error("state not stored", "id", s.id, "state", state, "err", err)
	s.wmu.Lock()
	defer s.wmu.Unlock()
	f := s.get()
	before := f.State
	f.State, f.Reason, f.Since = state, reason, time.Now()
	s.apply(f, before)
}

// setEndReason sets why sb is about to end; empty withdraws it.
func (s *state) setEndReason(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endReason = reason
}

// acting makes the act under way one that abortAct can abort, until the returned function is
// called.
func (s *state) acting(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	s.mu.Lock()
	s.abort = cancel
	s.mu.Unlock()
	return ctx, func() {
		s.mu.Lock()
		s.abort = nil
		s.mu.Unlock()
		cancel(nil)
	}
}

func (s *state) abortAct(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.abort != nil {
		s.abort(cause)
	}
}

// abortCreation aborts the creation under way if it is the one of f.
func (s *state) abortCreation(f Record, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.abort != nil && s.record.State == Creating && s.record.Since.Equal(f.Since) {
		s.abort(cause)
	}
}

// ended returns the record, why the sandbox ended or is about to, and whether it is removed.
// endReason is empty while it runs.
func (s *state) ended() (f Record, endReason string, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record, s.endReason, s.gone
}

// setGone marks the sandbox as removed.
func (s *state) setGone() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
}
