package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/agent/expect"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Attach attaches to a session. ctx bounds the attaching. The caller closes the Shell.
func (c *Client) Attach(ctx context.Context, o ShellOptions) (*Shell, error) {
	if o.Session == "" {
		o.Session = c.session
	}
	s := &Shell{client: c, window: expect.NewWindow(o.Window), attaching: make(chan struct{}, 1),
		taps: make(map[*tap]bool), changed: make(chan struct{})}
	s.life, s.end = context.WithCancelCause(context.Background())
	a := wire.Attach{Session: o.Session, Resume: o.Resume, Fresh: o.Fresh, Create: !o.NoNew, From: o.From.at, Start: o.Start.wire()}
	if o.Resume != "" {
		a = wire.Attach{Resume: o.Resume, From: o.From.at}
	}
	if _, err := s.open(ctx, a); err != nil {
		return nil, public(fmt.Errorf("attach to %s in %s: %w", o.Session, c.name, err))
	}
	return s, nil
}

// open attaches and makes the stream the current one.
func (s *Shell) open(ctx context.Context, a wire.Attach) (*wire.Client, error) {
	rw, err := s.client.open(ctx)
	if err != nil {
		return nil, err
	}
	// Output and events may arrive before Open returns; they wait for what attached said.
	ready := make(chan struct{})
	stream, err := wire.Open(ctx, rw, a, wire.Handler{
		Output: func(offset uint64, p []byte) { <-ready; s.output(offset, p) },
		Event:  func(e wire.Event) { <-ready; s.event(e) },
	})
	if err != nil {
		close(ready)
		return nil, err
	}
	at := stream.Attached()
	s.mu.Lock()
	closed := context.Cause(s.life)
	if closed == nil {
		if s.attached.Session == "" {
			s.next, s.seq = at.Offset, at.Seq
			s.window.Skip(at.Offset)
		}
		s.stream, s.attached = stream, at
		s.state, s.keyboard = at.State, at.Keyboard
		s.changedLocked()
	}
	s.mu.Unlock()
	close(ready)
	if closed != nil {
		stream.Close()
		return nil, closed
	}
	return stream, nil
}

func (s *Shell) output(offset uint64, p []byte) {
	s.mu.Lock()
	if offset < s.next { // a resumed stream may repeat
		skip := min(s.next-offset, uint64(len(p)))
		offset, p = offset+skip, p[skip:]
	}
	s.next = max(s.next, offset+uint64(len(p)))
	taps := s.tapsLocked("")
	s.mu.Unlock()
	if len(p) == 0 {
		return
	}
	for _, t := range taps {
		t.output(offset, p)
	}
	s.window.Write(offset, p)
}

func (s *Shell) event(e wire.Event) {
	s.mu.Lock()
	if e.Seq != 0 {
		if e.Seq <= s.seq {
			s.mu.Unlock()
			return
		}
		s.seq = e.Seq
	}
	switch e.Kind {
	case wire.EventState, wire.EventEnded:
		if e.State != nil {
			s.state = *e.State
		}
	case wire.EventKeyboard:
		s.keyboard = e.Keyboard
	}
	var taps []*tap
	if e.Op != "" {
		taps = s.tapsLocked(e.Op)
	}
	s.changedLocked()
	s.mu.Unlock()
	for _, t := range taps {
		switch e.Kind {
		case wire.EventBegun:
			t.begin(e.Offset)
		case wire.EventOver:
			t.end(e.Offset)
		}
	}
}

// tapsLocked returns the taps of a call, or all. They are called without mu: what they write to may take its time.
func (s *Shell) tapsLocked(op string) []*tap {
	var list []*tap
	for t := range s.taps {
		if op == "" || t.op == op {
			list = append(list, t)
		}
	}
	return list
}

func (s *Shell) changedLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// reconnectFor is how long a shell tries to come back to its party; the session keeps a party for as long.
const reconnectFor = 30 * time.Second

// live returns the current stream, or attaches again to the same party.
func (s *Shell) live(ctx context.Context) (*wire.Client, error) {
	ctx, done := within(ctx, s.life)
	defer done()
	select {
	case s.attaching <- struct{}{}:
		defer func() { <-s.attaching }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err := context.Cause(s.life); err != nil {
		return nil, err
	}
	s.mu.Lock()
	stream := s.stream
	a := wire.Attach{Resume: s.attached.Resume, From: wire.At(s.next), After: s.seq}
	session := s.attached.Session
	s.mu.Unlock()
	if stream.Err() == nil {
		return stream, nil
	}
	stream.Close() // so that its last output is not taken for that of the next
	bounded, cancel := context.WithTimeout(ctx, reconnectFor)
	defer cancel()
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		stream, err := s.open(bounded, a)
		if err == nil {
			return stream, nil
		}
		if ctx.Err() == nil && permanent(err) {
			return nil, fmt.Errorf("session %s of %s: attach again: %w", session, s.client.name, err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
			continue
		case <-bounded.Done():
			timer.Stop()
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, &Error{Code: CodeLost, Message: fmt.Sprintf("session %s of %s is out of reach: %v", session, s.client.name, err),
			Hint: "what runs in it goes on; attach again"}
	}
}

// permanent reports whether trying again cannot help.
func permanent(err error) bool {
	var refused *wire.Error
	if errors.As(err, &refused) {
		return refused.Code != wire.CodeUnavailable && (refused.Code != wire.CodeLost || refused.Reason != "")
	}
	for _, e := range []error{connect.ErrIdentity, connect.ErrLogin, errSubsystem, errClientClosed, errShellClosed} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// maxRepeats bounds how often a request is made again on a new stream.
const maxRepeats = 20

// ask sends a request, again after a reconnect if it may be done twice or says, by its op, that it is the same one. An error
// without a Reply.Error is about the transport. When a request was sent, and how it ended is not known, the error has code lost and
// a Reason.
func (s *Shell) ask(ctx context.Context, r wire.Request) (wire.Reply, error) {
	sent := false
	for tries := 0; ; tries++ {
		if r.Verb == wire.VerbRun && s.client.machine != nil {
			if err := s.client.machine.ready(ctx); err != nil {
				if sent {
					err = lostFor(err)
				}
				return wire.Reply{}, err
			}
		}
		stream, err := s.live(ctx)
		if err != nil {
			switch {
			case ctx.Err() != nil:
			case sent:
				err = lostFor(err)
			default:
				err = notSent(err)
			}
			return wire.Reply{}, err
		}
		shell := s.Incarnation()
		reply, err := stream.Request(ctx, r)
		if reply.Incarnation != "" {
			s.mu.Lock()
			s.attached.Incarnation = reply.Incarnation
			s.mu.Unlock()
		}
		broken := err != nil && reply.Result == nil && (reply.Error == nil || reply.Error.Code == wire.CodeLost && reply.Error.Reason == "")
		if !broken || ctx.Err() != nil {
			return reply, err
		}
		stream.Close() // it is broken, or about to be: the other side has said so
		if tries == maxRepeats || !repeatable(r) {
			return wire.Reply{}, lostFor(err)
		}
		if sent = true; r.Op != "" && r.Incarnation == "" {
			r.Incarnation = shell
		}
	}
}

// lostFor is err as the loss of a request that was sent before the connection broke with which it was.
func lostFor(err error) error {
	known, ok := errors.AsType[*wire.Error](err)
	switch {
	case ok && known.Code == wire.CodeLost && known.Reason != "":
		return err
	case ok && known.Code == wire.CodeNotFound:
		return wire.LostError(wire.LostGuest, "the guest that had the call has ended")
	}
	return wire.LostError(wire.LostGateway, err.Error())
}

// notSent is err as that of a request that was not sent: what is lost is the shell's party, not the request.
func notSent(err error) error {
	if known, ok := errors.AsType[*wire.Error](err); ok && known.Code == wire.CodeLost && known.Reason != "" {
		return &Error{Code: CodeUnavailable, Message: known.Message, Hint: "nothing was done; attach again"}
	}
	return err
}

// repeatable reports whether r does no harm when it is done twice. An interrupt would: it might hit what was started since.
func repeatable(r wire.Request) bool {
	switch r.Verb {
	case wire.VerbRun, wire.VerbType, wire.VerbKeys:
		return r.Op != ""
	case wire.VerbInterrupt, wire.VerbClose:
		return false
	}
	return true
}

// result completes what a session answered. A refusal is a Result, not an error: Ended says refused and Error why. What was lost, or
// ended with the connection, is both.
func (s *Shell) result(reply wire.Reply, err error) (wire.Result, error) {
	lost, _ := errors.AsType[*wire.Error](err)
	switch {
	case reply.Result != nil:
	case lost != nil && lost.Code == wire.CodeLost && lost.Reason != "":
		reply.Result = wire.LostResult(wire.Target{Session: s.Session()}, lost)
	case reply.Error == nil || reply.Error.Code == wire.CodeLost:
		return wire.Result{}, err
	default:
		reply.Result = s.refused(reply.Error)
	}
	reply.Result.Sandbox = s.client.name
	if reply.Result.Ended == wire.Lost && reply.Result.Error != nil {
		return *reply.Result, reply.Result.Error
	}
	return *reply.Result, s.linkLost(reply.Result.Ended)
}

// refused is the Result of a call that was not made.
func (s *Shell) refused(why *wire.Error) *wire.Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &wire.Result{Session: s.attached.Session, Ended: wire.Refused, Phase: s.state.Phase, Cwd: s.state.Cwd, Foreground: s.state.Foreground,
		Attention: "no", Basis: s.state.Basis, Disputed: []wire.Basis{}, Keyboard: s.keyboard, Notes: []string{}, Denied: []wire.Denial{},
		From: s.state.Offset, To: s.state.Offset, Error: why}
}
