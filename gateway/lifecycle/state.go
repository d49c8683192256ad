package lifecycle

import (
	"bytes"
	"context"
	"sync"
	"time"
)

// state is the record of a sandbox, and whose turn it is to change it.
type state struct {
	reg    *Registry
	id     string
	paused func()        // called when it has become Paused
	op     chan struct{} // semaphore: one act at a time changes what the sandbox is

	wmu sync.Mutex // held while a change is written down; taken before mu

	mu     sync.Mutex
	record Record                  // guarded by mu
	gone   bool                    // guarded by mu; removed, or never made
	abort  context.CancelCauseFunc // guarded by mu; ends the act under way; nil if there is none that can be ended
	fate   string                  // guarded by mu; why it has ended or is about to: wire.LostStopped and the others; empty while it runs
}

// ID is what the daemon calls it: it never changes, and names the directory of its records.
func (s *state) ID() string { return s.id }

// Name is the sandbox's name in messages to its owner.
func (s *state) Name() string { return s.get().Name }

// Owner is who owns it.
func (s *state) Owner() string { return s.get().Owner }

// State is its state now.
func (s *state) State() State { return s.get().State }

func (s *state) get() Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record
}

// lock waits for the acts of others on this sandbox.
func (s *state) lock(ctx context.Context) error {
	select {
	case s.op <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if ctx.Err() != nil { // whoever held the lock has ended it
		s.unlock()
		return context.Cause(ctx)
	}
	return nil
}

// lockNow is lock for those who let an act under way decide.
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

// become writes a change down and then makes it so. It does not end with ctx: half a transition is
// none.
func (s *state) become(ctx context.Context, change func(*Record)) error {
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
	// The note first: where the store is lost, a sandbox has what its owner asked for last.
	if was, err := s.get().row(s.id); err == nil && !f.isPooled() && !bytes.Equal(was.Spec, row.Spec) {
		if err := s.reg.notes.write(s.id, f); err != nil {
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
		s.fate = ""
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

// note writes down a state that was found, rather than made. That it cannot be written makes it no
// less true.
func (s *state) note(ctx context.Context, state State, reason string) {
	if f := s.get(); f.State == state && f.Reason == reason {
		return
	}
	err := s.become(ctx, func(f *Record) { f.State, f.Reason = state, reason })
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

// doom says why sb, which somebody is about to end, ends. Empty takes it back.
func (s *state) doom(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fate = reason
}

// acting makes the act under way one that abortAct ends. The returned function ends that.
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

// abortCreation ends the creation under way of which f was seen, unless it is over.
func (s *state) abortCreation(f Record, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.abort != nil && s.record.State == Creating && s.record.Since.Equal(f.Since) {
		s.abort(cause)
	}
}

// ended returns the record, and why the sandbox has ended or is about to: fate is empty while it
// runs, gone is true once it was removed.
func (s *state) ended() (f Record, fate string, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record, s.fate, s.gone
}

// vanish marks it as gone.
func (s *state) vanish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
}
