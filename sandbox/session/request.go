package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/sandboxd/sandboxd/sandbox/session/keyboard"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// request runs a request in a new goroutine. An error ends the stream.
func (st *stream) request(ctx context.Context, f wire.Frame, wg *sync.WaitGroup) error {
	r, refused := wire.ReadRequest(f.Data)
	if refused != nil {
		st.reply(f.ID, wire.Reply{Error: refused})
		return nil //nolint:nilerr // the reply has the error
	}
	if err := st.throttle(ctx); err != nil {
		return err
	}
	id := f.ID
	if r.Verb == wire.VerbCancel {
		st.mu.Lock()
		cancel := st.requests[r.Cancel]
		st.mu.Unlock()
		if cancel != nil {
			cancel(errCancelled)
		}
		st.reply(id, wire.Reply{}) // a request whose reply is being sent cannot be cancelled
		return nil
	}
	rctx, cancel := context.WithCancelCause(ctx)
	st.mu.Lock()
	_, twice := st.requests[id]
	full := len(st.requests) >= maxRequests
	if !twice && !full {
		st.requests[id] = cancel
	}
	st.mu.Unlock()
	switch {
	case twice:
		cancel(nil)
		return fmt.Errorf("request %d is already running", id)
	case full:
		cancel(nil)
		st.reply(
			id,
			wire.Reply{
				Error: &wire.Error{
					Code:    wire.CodeLimitOps,
					Message: "too many requests on this stream at the same time",
					Hint:    "wait for replies",
				},
			},
		)
		return nil
	}
	wg.Go(func() {
		defer cancel(nil)
		reply, err := st.handle(rctx, r)
		if err != nil {
			reply.Error = publicError(st.set, "request "+string(r.Verb), err)
		}
		st.reply(id, reply)
		st.mu.Lock()
		delete(st.requests, id)
		st.mu.Unlock()
		select { // the writer may wait for the last request of a closed session
		case st.wake <- struct{}{}:
		default:
		}
	})
	return nil
}

// handle runs a request. A call that did not run returns a Result; requests without a Result return
// an error.
func (st *stream) handle(ctx context.Context, r wire.Request) (wire.Reply, error) {
	if r.Party != nil && !st.trusted {
		return wire.Reply{}, &wire.Error{
			Code:    wire.CodeDenied,
			Message: "a client cannot set the party",
			Hint:    "the login does",
		}
	}
	if p := st.party; p != nil && p.Rights == wire.RightWatch && r.Drives() {
		return wire.Reply{}, keyboard.WatchOnly(
			&p.Party,
		) // before any work for it, such as restarting the shell
	}
	if _, err := wire.ParseShowScreen(string(r.Screen)); err != nil {
		return wire.Reply{}, err
	}
	switch r.Verb {
	case wire.VerbList:
		return wire.Reply{Sessions: st.set.List()}, nil
	case wire.VerbClose:
		return wire.Reply{}, st.closeSession(r.Session)
	}
	s, p := st.session, st.party
	if s == nil {
		return wire.Reply{}, wire.Errorf(
			wire.CodeUsage,
			"request %.40q needs an attachment",
			r.Verb,
		)
	}
	switch r.Verb {
	case wire.VerbRun, wire.VerbType, wire.VerbKeys:
		res, err := s.ops.perform(ctx, p, r, func(ctx context.Context, o *op) *wire.Result {
			s.awaitStops(ctx)
			if r.Verb == wire.VerbRun {
				return s.run(ctx, o, p, r)
			}
			return s.typing(ctx, o, p, r)
		})
		s.mu.Lock()
		defer s.mu.Unlock()
		return wire.Reply{Result: res, Incarnation: s.incarnationLocked()}, err
	case wire.VerbInterrupt:
		return wire.Reply{Result: s.interrupt(ctx, p)}, nil
	case wire.VerbWait:
		if r.Keyboard {
			res, err := s.waitKeyboard(ctx, p, r)
			return wire.Reply{Result: res}, err
		}
		res, err := s.waiting(ctx, r)
		return wire.Reply{Result: res}, err
	case wire.VerbMonitor, wire.VerbHeed:
		s.waiters.monitor(ctx)
		return wire.Reply{}, nil
	case wire.VerbTake:
		now, asked, err := s.keyboard.take(ctx, p, r.Ask)
		return wire.Reply{Keyboard: now, Asked: asked}, err
	case wire.VerbKeep:
		return wire.Reply{Keyboard: s.keyboard.keep(p)}, nil
	case wire.VerbGive:
		return wire.Reply{Keyboard: s.keyboard.give(p)}, nil
	case wire.VerbResize:
		return wire.Reply{}, s.resize(p, r.Cols, r.Rows)
	case wire.VerbPrivate:
		return wire.Reply{}, s.private.set(ctx, p, r.On)
	case wire.VerbScreen:
		if !s.private.sees(p) {
			return wire.Reply{}, errPrivate
		}
		_, end := s.log.bounds()
		if err := s.display.sync(ctx, end); err != nil {
			return wire.Reply{}, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.keyboard.Sees(&p.Party) { // private mode began meanwhile
			return wire.Reply{}, errPrivate
		}
		return wire.Reply{Screen: s.display.snapshot()}, nil
	case wire.VerbTrace:
		trace, err := s.trace()
		return wire.Reply{Trace: trace}, err
	}
	return wire.Reply{}, wire.Errorf(wire.CodeUsage, "request %.40q is not known", r.Verb)
}

// closeSession ends a session with its processes. An empty name means the session of the
// attachment.
func (st *stream) closeSession(name string) error {
	s := st.session
	if name != "" {
		if _, err := wire.ParseLabel("session name", name); err != nil {
			return err
		}
		s = st.set.lookup(name)
	}
	if s == nil {
		return &wire.Error{Code: wire.CodeNotFound, Message: "no session " + name}
	}
	st.set.remove(s)
	s.end("closed")
	return nil
}

// publicError returns err as clients may see it, without a session.
func publicError(set *Set, doing string, err error) *wire.Error {
	var known *wire.Error
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, errClosed), errors.Is(err, errStreamOver):
		return &wire.Error{Code: wire.CodeLost, Message: err.Error()}
	case errors.Is(err, errCancelled):
		return &wire.Error{Code: wire.CodeUnavailable, Message: "the request was cancelled"}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &wire.Error{Code: wire.CodeLost, Message: "the session stream is ending"}
	}
	return set.internal(doing, err)
}

// enqueue queues an input frame. It drops input that a resumed party sends again.
func (st *stream) enqueue(ctx context.Context, f wire.Frame) error {
	if f.Offset > st.expected {
		return fmt.Errorf("input at %d instead of %d", f.Offset, st.expected)
	}
	data := f.Data
	skip := st.expected - f.Offset
	data = data[min(skip, uint64(len(data))):]
	if err := st.throttle(ctx); err != nil {
		return err
	}
	st.expected += uint64(len(data))
	st.mu.Lock()
	st.input = append(st.input, queuedInput{data: append([]byte(nil), data...)})
	st.queued += len(data) + inputCost
	st.mu.Unlock()
	select {
	case st.more <- struct{}{}:
	default:
	}
	return nil
}

// work writes input to the terminal, in order, and acknowledges each frame.
func (st *stream) work(ctx context.Context) {
	s, p := st.session, st.party
	for {
		st.mu.Lock()
		if len(st.input) == 0 {
			st.mu.Unlock()
			select {
			case <-st.more:
				continue
			case <-ctx.Done():
				return
			}
		}
		in := st.input[0]
		st.input = st.input[1:]
		st.mu.Unlock()

		var n int
		var err error
		switch {
		case ctx.Err() != nil:
			return
		case in.dropped:
			err = &wire.Error{Code: wire.CodeLost, Message: "input was " + errDropped.Error()}
		case len(in.data) > 0:
			n, err = s.raw(ctx, p, in.data)
		}
		refused := len(in.data) - n
		if ctx.Err() == nil {
			n = len(in.data) // handled in any case
		}
		s.mu.Lock()
		p.accepted += uint64(n)
		answer := wire.Frame{Type: wire.FrameAccepted, Offset: p.accepted}
		s.mu.Unlock()
		if err != nil {
			e := *publicError(st.set, "input", err)
			e.Refused = refused
			answer.Data, _ = json.Marshal(&e)
		}
		st.mu.Lock()
		st.queued -= len(in.data) + inputCost
		st.roomLocked()
		st.mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		st.push(answer, 0)
	}
}

// dropInput rejects queued input.
func (st *stream) dropInput() {
	st.mu.Lock()
	defer st.mu.Unlock()
	for i := range st.input {
		st.input[i].dropped = true
	}
}
