package session

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"slices"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	keptOps       = 64      // calls whose results a session stores by op
	keptOpsOutput = 4 << 20 // limit of their output in bytes
	keptSpent     = 1024    // older calls that are known to have run, without results
	opLen         = 32      // 128 bits of hex
)

var (
	errCancelled  = errors.New("cancelled")
	errStreamOver = errors.New("the session stream ended")
)

// op is a run, type or keys call. It belongs to the session, not to the stream: it continues if the
// stream breaks, so that the caller can repeat it with the same op and receive the one result.
type op struct {
	key    string // key of the party
	name   string // Request.Op; empty if the caller set none
	call   digest // digest of the request
	done   chan struct{}
	result *wire.Result // valid after done

	cancel context.CancelCauseFunc
	typed  bool // guarded by session.mu; after the first byte it cannot be cancelled
	asking int  // guarded by session.mu; number of waiting requests
}

// digest is a truncated SHA-256, long enough against accidental collisions.
type digest [16]byte

func digestOf(p []byte) (d digest) {
	sum := sha256.Sum256(p)
	copy(d[:], sum[:])
	return d
}

// callOf returns a digest of the effect of a request.
func callOf(r wire.Request) digest {
	does := wire.Request{Verb: r.Verb, Text: r.Text, Raw: r.Raw, Answer: r.Answer, Keys: r.Keys}
	p, _ := json.Marshal(does) // only strings and booleans: it cannot fail
	return digestOf(p)
}

// spent has calls whose results were dropped, oldest first. They are not run again.
type spent []digest

func (o *op) spent() digest { return digestOf([]byte(o.key + "\x00" + o.name)) }

func (s *spent) add(d digest) {
	if len(*s) >= keptSpent {
		*s = slices.Delete(*s, 0, len(*s)-keptSpent+1)
	}
	*s = append(*s, d)
}

// ops are the calls of one session. Its fields are guarded by session.mu.
type ops struct {
	s     *session
	all   []*op // oldest first
	spent spent
}

// abandonLocked cancels an op that has typed nothing yet.
func (o *op) abandonLocked() {
	if !o.typed {
		o.cancel(errCancelled)
	}
}

// perform runs the call do for p, or joins the call with the same op. Cancelling the request ends
// the call only if nothing was typed. The end of the stream does so only if the call has no op.
func (l *ops) perform(
	ctx context.Context,
	p *party,
	r wire.Request,
	do func(context.Context, *op) *wire.Result,
) (*wire.Result, error) {
	s := l.s
	if r.Op != "" && !validOp(r.Op) {
		return nil, wire.Errorf(
			wire.CodeUsage,
			"op %.40q is not 128 bits of hex in lower case",
			r.Op,
		)
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, errClosed
	}
	o, err := l.findLocked(p.Key, r)
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	if o == nil {
		if !l.roomLocked() {
			s.mu.Unlock()
			return nil, &wire.Error{
				Code:    wire.CodeLimitOps,
				Message: "too many calls on this session at the same time",
				Hint:    "wait until some have ended",
			}
		}
		o = &op{key: p.Key, name: r.Op, call: callOf(r), done: make(chan struct{})}
		var octx context.Context
		octx, o.cancel = context.WithCancelCause(s.ctx)
		l.all = append(l.all, o)
		s.spawn(func() {
			defer o.cancel(nil)
			o.result = do(octx, o)
			l.overLocked(p, o)
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
	goesOn := o.typed || o.asking > 0
	s.mu.Unlock()
	if errors.Is(cause, errCancelled) && goesOn {
		e := wire.LostError(wire.LostDetached, "the request was cancelled; its program continues")
		e.Hint = "repeat the call with its op for the result, or interrupt"
		return nil, e
	}
	if errors.Is(cause, errCancelled) {
		return nil, &wire.Error{Code: wire.CodeUnavailable, Message: "the request was cancelled"}
	}
	return nil, cause
}

// findLocked returns the call that r repeats, or nil for a new call. An error means that r must not
// run: its result was dropped, its op belongs to another call, or its shell has ended.
func (l *ops) findLocked(key string, r wire.Request) (*op, error) {
	s := l.s
	if r.Op == "" {
		return nil, nil //nolint:nilnil // a new call
	}
	for _, o := range l.all {
		if o.name != r.Op || o.key != key {
			continue
		}
		if o.call != callOf(r) {
			return nil, &wire.Error{
				Code:    wire.CodeUsage,
				Message: "the op belongs to another call: " + r.Op,
				Hint:    "make a new op for each call",
			}
		}
		return o, nil
	}
	if slices.Contains(l.spent, (&op{key: key, name: r.Op}).spent()) {
		return nil, wire.LostError(
			wire.LostForgotten,
			"the call was made before, and its result is no longer kept",
		)
	}
	if r.Incarnation != "" && r.Incarnation != s.incarnationLocked() {
		e := wire.LostError(
			wire.LostShell,
			"the shell that the call was for has ended; the session does not know the call",
		)
		e.Hint = "look at the session, and decide whether to make the call again with a new op"
		return nil, e
	}
	return nil, nil //nolint:nilnil // a new call
}

// incarnationLocked returns the ID of the session's shell; empty before the first one.
func (s *session) incarnationLocked() string {
	if s.console == nil {
		return ""
	}
	return s.console.incarnation
}

// roomLocked drops the oldest results to make room for one op, and reports whether there is room.
func (l *ops) roomLocked() bool {
	output := 0
	for _, o := range l.all {
		if o.over() {
			output += o.size()
		}
	}
	for i := 0; i < len(l.all) && (len(l.all) >= keptOps || output > keptOpsOutput); {
		if o := l.all[i]; !o.over() {
			i++
			continue
		}
		output -= l.all[i].size()
		l.spent.add(l.all[i].spent())
		l.all = slices.Delete(l.all, i, i+1)
	}
	return len(l.all) < keptOps
}

// size returns the length of the output of an op that is over.
func (o *op) size() int {
	n := len(o.result.Output)
	if shown := o.result.Screen; shown != nil {
		n += len(shown.Text)
	}
	return n
}

func (o *op) over() bool {
	select {
	case <-o.done:
		return true
	default:
		return false
	}
}

// overLocked ends o. It frees a keyboard that the call took if the shell is at its prompt.
func (l *ops) overLocked(p *party, o *op) {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	close(o.done)
	if o.name == "" {
		l.all = slices.DeleteFunc(l.all, func(q *op) bool { return q == o })
	}
	if !s.track.Rests() {
		return
	}
	for _, q := range l.all {
		if q.key == p.Key && !q.over() {
			return
		}
	}
	s.keyboard.applyLocked(s.keyboard.EndCall(&p.Party))
}

func validOp(s string) bool {
	if len(s) != opLen {
		return false
	}
	for i := range len(s) {
		// Lower case only, because the text identifies the call.
		if c := s[i]; !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') {
			return false
		}
	}
	return true
}
