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

// Attach attaches to a session and starts it if it does not exist, as o says. ctx bounds the call,
// not the attachment. The caller closes the Shell.
func (c *Client) Attach(ctx context.Context, o ShellOptions) (*Shell, error) {
	if o.Session == "" {
		o.Session = c.session
	}
	s := &Shell{client: c, window: expect.NewWindow(o.Window), attaching: make(chan struct{}, 1),
		taps: make(map[*tap]bool), changed: make(chan struct{})}
	s.life, s.end = context.WithCancelCause(context.Background())
	a := wire.Attach{
		Session: o.Session,
		Resume:  o.Resume,
		Fresh:   o.Fresh,
		Create:  !o.NoNew,
		From:    o.From.at,
		Start:   o.Start.wire(),
	}
	if o.Resume != "" {
		a = wire.Attach{Resume: o.Resume, From: o.From.at}
	}
	if _, err := s.open(ctx, a); err != nil {
		return nil, public(fmt.Errorf("attach to %s in %s: %w", o.Session, c.name, err))
	}
	return s, nil
}

// open opens a stream, attaches to the session and makes the stream the current one.
func (s *Shell) open(ctx context.Context, a wire.Attach) (*wire.Client, error) {
	rw, err := s.client.open(ctx)
	if err != nil {
		return nil, err
	}
	// Output and events may arrive before Open returns. They wait until its reply is stored.
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
	if offset < s.next { // a resumed stream may repeat bytes
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

// tapsLocked returns the taps of the call op, or all taps if op is empty. Call them without mu:
// their writers may be slow.
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

// reconnectFor is how long a shell tries to resume its attachment. The session keeps a lost
// attachment for the same time.
const reconnectFor = 30 * time.Second

// live returns the current stream. If it is broken, live reconnects and resumes the attachment.
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
	stream.Close() // its last output must not mix with that of the next stream
	bounded, cancel := context.WithTimeout(ctx, reconnectFor)
	defer cancel()
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		stream, err := s.open(bounded, a)
		if err == nil {
			return stream, nil
		}
		if ctx.Err() == nil && permanent(err) {
			return nil, fmt.Errorf(
				"session %s of %s: reattach: %w",
				session,
				s.client.name,
				err,
			)
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
		return nil, &Error{
			Code: CodeLost,
			Message: fmt.Sprintf(
				"session %s of %s is unreachable: %v",
				session,
				s.client.name,
				err,
			),
			Hint: "its program continues; attach again",
		}
	}
}

// permanent reports whether a retry is pointless.
func permanent(err error) bool {
	var coded *wire.Error
	if errors.As(err, &coded) {
		return coded.Code != wire.CodeUnavailable &&
			(coded.Code != wire.CodeLost || coded.Reason != "")
	}
	for _, e := range []error{
		connect.ErrIdentity, connect.ErrLogin, errSubsystem, errClientClosed, errShellClosed,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// maxRepeats bounds how often a request is repeated on a new stream.
const maxRepeats = 20

// ask sends a request and returns the reply. After a reconnect it repeats a request that is
// harmless to repeat or that carries an op, by which the session recognizes it. An error without a
// Reply.Error is a transport error. If the outcome of a sent request is unknown, the error has code
// lost and a Reason.
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
		broken := err != nil && reply.Result == nil &&
			(reply.Error == nil || reply.Error.Code == wire.CodeLost && reply.Error.Reason == "")
		if !broken || ctx.Err() != nil {
			return reply, err
		}
		stream.Close() // it is broken, or the other side reported that it is about to break
		if tries == maxRepeats || !repeatable(r) {
			return wire.Reply{}, lostFor(err)
		}
		if sent = true; r.Op != "" && r.Incarnation == "" {
			r.Incarnation = shell
		}
	}
}

// lostFor returns the error with code lost for a request that was sent before err broke the
// connection.
func lostFor(err error) error {
	known, ok := errors.AsType[*wire.Error](err)
	switch {
	case ok && known.Code == wire.CodeLost && known.Reason != "":
		return err
	case ok && known.Code == wire.CodeNotFound:
		return wire.LostError(wire.LostGuest, "the guest that ran the call has ended")
	}
	return wire.LostError(wire.LostGateway, err.Error())
}

// notSent returns err for a request that was never sent. If the attachment was lost, the result has
// code unavailable: the request itself did not run.
func notSent(err error) error {
	if known, ok := errors.AsType[*wire.Error](err); ok && known.Code == wire.CodeLost &&
		known.Reason != "" {
		return &Error{
			Code:    CodeUnavailable,
			Message: known.Message,
			Hint:    "the call did not run; attach again",
		}
	}
	return err
}

// repeatable reports whether r is harmless to repeat. An interrupt is not: it could stop a program
// that was started since.
func repeatable(r wire.Request) bool {
	switch r.Verb {
	case wire.VerbRun, wire.VerbType, wire.VerbKeys:
		return r.Op != ""
	case wire.VerbInterrupt, wire.VerbClose:
		return false
	}
	return true
}

// result completes a session's reply. A rejected call returns a Result without an error: Ended is
// refused, and Result.Error says why. A call that was lost, or that ended with the connection,
// returns both a Result and an error.
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

// refused returns the Result of a rejected call.
func (s *Shell) refused(why *wire.Error) *wire.Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &wire.Result{
		Session:    s.attached.Session,
		Ended:      wire.Refused,
		Phase:      s.state.Phase,
		Cwd:        s.state.Cwd,
		Foreground: s.state.Foreground,
		Attention:  "no",
		Basis:      s.state.Basis,
		Disputed:   []wire.Basis{},
		Keyboard:   s.keyboard,
		Notes:      []string{},
		Denied:     []wire.Denial{},
		From:       s.state.Offset,
		To:         s.state.Offset,
		Error:      why,
	}
}
