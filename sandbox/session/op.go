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
	keptOps       = 64      // calls that a session remembers by their op, with their results
	keptOpsOutput = 4 << 20 // and how much output of theirs
	keptSpent     = 1024    // further calls of which it knows that they were made
	opLen         = 32      // 128 bits of hex
)

var (
	errCancelled  = errors.New("cancelled")
	errStreamOver = errors.New("the session stream ended")
)

// op is a run, type or keys that the session was asked for. It belongs to the session and not to
// the stream that asked: it goes on when that breaks, so that the caller can ask again, by the same
// name, and get the one result.
type op struct {
	key    string // of the party
	name   string // under which it is remembered; empty if the caller gave none
	call   digest // what was asked for
	done   chan struct{}
	result *wire.Result // valid after done

	cancel context.CancelCauseFunc
	typed  bool // guarded by session.mu; from the first byte on it can no longer be undone
	asking int  // guarded by session.mu; requests that wait for it
}

// digest is a SHA-256, cut to what nobody finds a second text for by chance.
type digest [16]byte

func digestOf(p []byte) (d digest) {
	sum := sha256.Sum256(p)
	copy(d[:], sum[:])
	return d
}

// callOf tells apart what two requests would do.
func callOf(r wire.Request) digest {
	does := wire.Request{Verb: r.Verb, Text: r.Text, Raw: r.Raw, Answer: r.Answer, Keys: r.Keys}
	p, _ := json.Marshal(does) // of strings and booleans alone: it cannot fail
	return digestOf(p)
}

// spent are the calls whose results are forgotten, oldest first: they are not made again.
type spent []digest

func (o *op) spent() digest { return digestOf([]byte(o.key + "\x00" + o.name)) }

func (s *spent) add(d digest) {
	if len(*s) >= keptSpent {
		*s = slices.Delete(*s, 0, len(*s)-keptSpent+1)
	}
	*s = append(*s, d)
}

// ops are the calls of one session that were asked for. Its fields are guarded by session.mu.
type ops struct {
	s     *session
	all   []*op // oldest first
	spent spent
}

// abandonLocked ends an op of which nothing was typed yet. What was typed cannot be taken back.
func (o *op) abandonLocked() {
	if !o.typed {
		o.cancel(errCancelled)
	}
}

// perform makes the call do for p, or joins the one with the same op. Cancelling the request ends
// the call only as long as nothing was typed; the stream's end does so only if the call has no name
// by which it could be asked for again.
func (l *ops) perform(ctx context.Context, p *party, r wire.Request, do func(context.Context, *op) *wire.Result) (*wire.Result, error) {
	s := l.s
	if r.Op != "" && !validOp(r.Op) {
		return nil, wire.Errorf(wire.CodeUsage, "op %.40q is not 128 bits of hex in lower case", r.Op)
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
			return nil, &wire.Error{Code: wire.CodeLimitOps, Message: "too many calls are under way on this session", Hint: "wait until some have ended"}
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
		e := wire.LostError(wire.LostDetached, "the request was cancelled; what it began goes on")
		e.Hint = "repeat the call with its op for the result, or interrupt"
		return nil, e
	}
	if errors.Is(cause, errCancelled) {
		return nil, &wire.Error{Code: wire.CodeUnavailable, Message: "the request was cancelled"}
	}
	return nil, cause
}

// findLocked returns the call that r repeats, nil if it is a new one. An error says that r must not
// be made: it was made before and its result is forgotten, the op is that of another call, or the
// shell for which it was is gone.
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
			return nil, &wire.Error{Code: wire.CodeUsage, Message: "the op is that of another call: " + r.Op, Hint: "make a new op for each call"}
		}
		return o, nil
	}
	if slices.Contains(l.spent, (&op{key: key, name: r.Op}).spent()) {
		return nil, wire.LostError(wire.LostForgotten, "the call was made before, and its result is no longer kept")
	}
	if r.Incarnation != "" && r.Incarnation != s.incarnationLocked() {
		e := wire.LostError(wire.LostShell, "the shell that the call was for has ended; the session does not know the call")
		e.Hint = "look at the session, and decide whether to make the call again with a new op"
		return nil, e
	}
	return nil, nil //nolint:nilnil // a new call
}

// incarnationLocked names the shell that the session has; empty before the first one.
func (s *session) incarnationLocked() string {
	if s.console == nil {
		return ""
	}
	return s.console.incarnation
}

// roomLocked makes room for one more op by forgetting the results of the oldest that are over, and
// reports whether there is any.
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

// size is how much text the result of an op that is over has.
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

// overLocked ends o: a keyboard that its call took is free if the shell is at its prompt.
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
		if c := s[i]; !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') { // one text for one number: calls are told apart by it
			return false
		}
	}
	return true
}
