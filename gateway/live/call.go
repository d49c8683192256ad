package live

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// defaultOutput is the most bytes of Result.Output where its caller does not say.
const defaultOutput = 32 << 10

// Call is one request on a session while it is under way: what the daemon adds to the guest's
// answer, and the answer where the guest gives none.
type Call struct {
	Request wire.Request

	session *Session
	began   time.Time
	from    uint64 // length of the log when the request was sent
	after   uint64 // number of blocked connections before it
	starts  uint64 // how often the session had left its prompt before it
	runs    bool   // something of the session may connect
	drives  bool   // because of the call; guarded by session.mu
}

// Begin begins a call. The caller ends it.
func (s *Session) Begin(r wire.Request) *Call {
	_, after, _ := s.set.blocked.since(0)
	s.mu.Lock()
	defer s.mu.Unlock()
	drives := r.Verb == wire.VerbRun || r.Verb == wire.VerbType || r.Verb == wire.VerbKeys
	if drives {
		s.denials.calls++
	}
	if r.Verb == wire.VerbRun {
		s.denials.expect(r.Op, after)
	}
	return &Call{Request: r, session: s, began: time.Now(), from: s.replica.end, after: after,
		starts: s.denials.starts,
		runs:   drives || busy(s.state), drives: drives}
}

// Sent notes that the request goes to the guest now, for the first time.
func (c *Call) Sent() { c.began, c.from = time.Now(), c.session.Len() }

// End ends the call. Only the first time counts.
func (c *Call) End() {
	c.session.mu.Lock()
	defer c.session.mu.Unlock()
	if c.drives {
		c.session.denials.calls--
		c.drives = false
	}
}

// Complete adds to r, the guest's answer, what the guest does not know: which connections were
// blocked while the call ran.
func (c *Call) Complete(ctx context.Context, r *wire.Result) {
	all, complete := c.denied(ctx)
	if r.Denied = all; !complete {
		r.Notes = append(r.Notes, wire.NoteDenied)
	}
}

// NoteRestart adds shell_restarted to the first Result of a session whose shell ended with its
// sandbox: the guest knows only of shells of its own.
func (c *Call) NoteRestart(r *wire.Result) {
	s := c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if r == nil || !s.restarted || r.Ended == wire.Refused {
		return
	}
	s.restarted = false
	if !slices.Contains(r.Notes, wire.NoteShellRestarted) {
		r.Notes = append(r.Notes, wire.NoteShellRestarted)
	}
}

// Lost completes r, the Result of a call whose end is not known, with its output so far and the
// session's state as far as it is known. It reads at most most bytes of the log and returns how
// many it read.
func (c *Call) Lost(r *wire.Result, most uint64) (read uint64) {
	s := c.session
	s.mu.Lock()
	from, begun := s.announced.find(c.Request.Op)
	end, state := s.replica.end, s.state
	s.mu.Unlock()
	if c.Request.Verb == wire.VerbRun && !begun {
		from = end // nothing of it is known
	} else if !begun {
		from = c.from
	}
	from = min(from, end) // the guest says where a run began
	read = min(end-from, most)
	r.ElapsedMS = time.Since(c.began).Milliseconds()
	r.From, r.To, r.Cwd = from, end, state.Cwd
	if s.Final() {
		r.Phase = wire.PhaseDead
	}
	to := from + read
	// All of it is here: this waits for nothing.
	output, cut, missing, err := Render(context.Background(), s, from, to,
		cmp.Or(c.Request.MaxOutput, defaultOutput))
	if err != nil {
		s.log.Warn("output of a lost call cannot be read", "err", err)
		missing = err
	}
	r.Complete(output, cut, to, missing)
	r.Denied = []wire.Denial{}
	return read
}
