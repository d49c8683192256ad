package session

import (
	"context"
	"errors"
	"slices"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	keptOps       = 64      // calls that a session remembers by their op
	keptOpsOutput = 4 << 20 // and how much output of theirs
	opLen         = 32      // 128 bits of hex
)

var (
	errCancelled  = errors.New("cancelled")
	errStreamOver = errors.New("the session stream ended")
)

// op is a run, type or keys that the session was asked for. It belongs to the session and not to the stream that asked: it
// goes on when that breaks, so that the caller can ask again, by the same name, and get the one result.
type op struct {
	key    string // of the party
	name   string // under which it is remembered; empty if the caller gave none
	done   chan struct{}
	result *wire.Result // valid after done

	cancel context.CancelCauseFunc
	typed  bool // guarded by session.mu; from the first byte on it can no longer be undone
	asking int  // guarded by session.mu; requests that wait for it
}

// abandonLocked ends an op of which nothing was typed yet. What was typed cannot be taken back.
func (o *op) abandonLocked() {
	if !o.typed {
		o.cancel(errCancelled)
	}
}

// perform makes the call do for p, or joins the one with the same op. Cancelling the request ends the call only as long as
// nothing was typed; the stream's end does so only if the call has no name by which it could be asked for again.
func (s *session) perform(ctx context.Context, p *party, r wire.Request, do func(context.Context, *op) *wire.Result) (*wire.Result, error) {
	if r.Op != "" && !validOp(r.Op) {
		return nil, wire.Errorf(wire.CodeUsage, "op %.40q is not 128 bits of hex", r.Op)
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, errClosed
	}
	o := s.findOpLocked(p.key, r.Op)
	if o == nil {
		if !s.roomLocked() {
			s.mu.Unlock()
			return nil, &wire.Error{Code: wire.CodeLimitOps, Message: "too many calls are under way on this session", Hint: "wait until some have ended"}
		}
		o = &op{key: p.key, name: r.Op, done: make(chan struct{})}
		var octx context.Context
		octx, o.cancel = context.WithCancelCause(s.ctx)
		s.ops = append(s.ops, o)
		s.spawn(func() {
			defer o.cancel(nil)
			o.result = do(octx, o)
			s.opOver(p, o)
		})
	}
	o.asking++
	s.mu.Unlock()

	select {
	case <-o.done:
		return o.result, nil
	case <-ctx.Done():
	}
	cause := context.Cause(ctx)
	s.mu.Lock()
	o.asking--
	if o.asking == 0 && (errors.Is(cause, errCancelled) || o.name == "") {
		o.abandonLocked()
	}
	s.mu.Unlock()
	if errors.Is(cause, errCancelled) {
		return nil, &wire.Error{Code: wire.CodeUnavailable, Message: "the request was cancelled"}
	}
	return nil, cause
}

func (s *session) findOpLocked(key, name string) *op {
	for _, o := range s.ops {
		if name != "" && o.name == name && o.key == key {
			return o
		}
	}
	return nil
}

// roomLocked makes room for one more op by forgetting the oldest that are over, and reports whether there is any.
func (s *session) roomLocked() bool {
	output := 0
	for _, o := range s.ops {
		if o.over() {
			output += len(o.result.Output)
		}
	}
	for i := 0; i < len(s.ops) && (len(s.ops) >= keptOps || output > keptOpsOutput); {
		if o := s.ops[i]; !o.over() {
			i++
			continue
		}
		output -= len(s.ops[i].result.Output)
		s.ops = slices.Delete(s.ops, i, i+1)
	}
	return len(s.ops) < keptOps
}

func (o *op) over() bool {
	select {
	case <-o.done:
		return true
	default:
		return false
	}
}

// opOver ends o: a keyboard that its call took is free if the shell is at its prompt.
func (s *session) opOver(p *party, o *op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(o.done)
	if o.name == "" {
		s.ops = slices.DeleteFunc(s.ops, func(q *op) bool { return q == o })
	}
	if s.keyboard.hold != holdCall || !s.keyboard.holds(p) || !s.restingLocked() {
		return
	}
	for _, q := range s.ops {
		if q.key == p.key && !q.over() {
			return
		}
	}
	s.freeLocked()
}

func validOp(s string) bool {
	if len(s) != opLen {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F') {
			return false
		}
	}
	return true
}
