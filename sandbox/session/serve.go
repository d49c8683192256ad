package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	maxRequests    = 64      // running requests of one stream
	maxOutgoing    = 256     // waiting replies; at the limit, the stream is not read
	maxQueuedInput = 1 << 20 // waiting input in bytes, likewise
	inputCost      = 64      // overhead of an input frame in bytes
)

// stream is one session stream. It has one goroutine to read it, one to write it, one for its
// input, and one for each request. Its memory is bounded, whatever the other side reads.
//
// Lock session.mu before mu.
type stream struct {
	set     *Set
	conn    *wire.Conn
	trusted bool
	over    chan struct{} // closed when serve has released everything

	session *session // set by attach, before the other goroutines start
	party   *party
	quiet   bool
	offset  uint64 // used by the writer; next log offset
	seq     uint64 // used by the writer; number of the last event
	secret  uint64 // used by the writer; offset of the next private byte

	mu   sync.Mutex
	out  []outgoing // guarded by mu
	wake chan struct{}
	// guarded by mu; closed when out or input shrinks; nil if nothing waits
	drained  chan struct{}
	requests map[uint32]context.CancelCauseFunc // guarded by mu
	input    []queuedInput                      // guarded by mu
	// guarded by mu; bytes of input, with inputCost for each frame
	queued   int
	more     chan struct{} // wakes the goroutine for input
	expected uint64        // used by the reader; sequence of the next input
}

// outgoing is a waiting frame. It is sent after the output before off and the events up to seq, so
// that everything arrives in order.
type outgoing struct {
	frame    wire.Frame
	off, seq uint64
}

type queuedInput struct {
	data    []byte
	dropped bool
}

func newStream(set *Set, rw io.ReadWriteCloser, trusted bool) *stream {
	return &stream{set: set, conn: wire.NewConn(rw), trusted: trusted, over: make(chan struct{}),
		wake: make(
			chan struct{},
			1,
		), more: make(chan struct{}, 1), requests: make(map[uint32]context.CancelCauseFunc)}
}

// serve runs the stream to its end.
func (st *stream) serve(ctx context.Context, cancel context.CancelCauseFunc) error {
	defer close(st.over)
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := context.AfterFunc(ctx, func() { st.conn.Close() })
	defer func() {
		cancel(errStreamOver)
		if stop() {
			st.conn.Close()
		}
		wg.Wait()
		if st.party != nil {
			st.session.log.unkeep(st)
			st.session.parties.cutOff(st.party, st)
		}
	}()
	if err := st.conn.Welcome(); err != nil {
		return err
	}
	writing := false
	write := func() {
		if writing {
			return
		}
		writing = true
		wg.Go(func() {
			if err := st.write(ctx); err != nil {
				cancel(err)
				return
			}
			cancel(io.EOF) // the session was closed, and everything was sent
		})
	}
	for {
		f, err := st.conn.Read()
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return err
		}
		switch f.Type {
		case wire.FrameAttach:
			if st.session != nil || writing {
				return errors.New("a second attach on one stream")
			}
			if err := st.attach(ctx, f.Data); err != nil {
				return err
			}
			write()
			wg.Go(func() { st.work(ctx) })
		case wire.FrameInput:
			if st.session == nil {
				return errors.New("input without an attachment")
			}
			if err := st.enqueue(ctx, f); err != nil {
				return err
			}
		case wire.FrameRequest:
			write()
			if err := st.request(ctx, f, &wg); err != nil {
				return err
			}
		default:
			return fmt.Errorf("frame type %d is not for a session", f.Type)
		}
	}
}

// reply queues the reply to request id.
func (st *stream) reply(id uint32, r wire.Reply) {
	data, err := json.Marshal(r)
	for limit := maxMaxOutput / 2; err == nil && len(data) > wire.MaxFrame-64 && r.Result != nil &&
		limit > 0; limit /= 2 {
		// The output as JSON is longer than a frame.
		cut := *r.Result
		cut.Output, _ = text.Cut(r.Result.Output, limit)
		cut.Truncated = true
		if !slices.Contains(cut.Notes, wire.NoteTruncated) {
			cut.Notes = append(slices.Clone(cut.Notes), wire.NoteTruncated)
		}
		data, err = json.Marshal(wire.Reply{Result: &cut})
	}
	if err != nil || len(data) > wire.MaxFrame-64 {
		if err == nil {
			err = fmt.Errorf("%d bytes exceed a frame", len(data))
		}
		data, _ = json.Marshal(wire.Reply{Error: st.set.internal("reply", err)})
	}
	var off uint64
	if r.Result != nil && r.Result.Ended != wire.Refused {
		off = r.Result.To
	}
	st.push(wire.Frame{Type: wire.FrameReply, ID: id, Data: data}, off)
}

// push queues a frame after the events so far, and after the output before off. A reply also comes
// after delayed events.
func (st *stream) push(f wire.Frame, off uint64) {
	o := outgoing{frame: f, off: off}
	if s := st.session; s != nil {
		s.mu.Lock()
		if f.Type == wire.FrameReply {
			s.events.tellLateLocked()
			s.events.tellInputLocked()
		}
		o.seq = s.events.seq
		s.mu.Unlock()
	}
	st.mu.Lock()
	st.out = append(st.out, o)
	st.mu.Unlock()
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// write runs in the only goroutine that writes the stream after attached. It sends all pending
// frames in as few writes as possible. It returns nil if the session was closed.
func (st *stream) write(ctx context.Context) error {
	reads := !st.quiet && st.session != nil
	for {
		st.mu.Lock()
		var head *outgoing
		if len(st.out) > 0 {
			head = &st.out[0]
		}
		idle := len(st.requests) == 0
		st.mu.Unlock()

		var ev wire.Event
		var missed, end uint64
		var hasEvent, closed, secret bool
		var changed, longer <-chan struct{}
		if s := st.session; s != nil {
			s.mu.Lock()
			ev, missed, hasEvent = s.events.next(st.seq)
			end = s.log.shown() // after the event, so that the output before it is included
			if secret = s.keyboard.Private() != nil && s.keyboard.Sees(&st.party.Party); secret {
				st.secret = max(st.secret, end)
			}
			changed, closed = s.events.more(), s.closed
			s.mu.Unlock()
		}
		first := head != nil && (st.session == nil || head.seq <= st.seq)
		until := end
		switch {
		case first:
			until = min(head.off, end)
		case hasEvent:
			until = min(ev.Offset, end)
		}
		switch {
		case reads && st.offset < until:
			if err := st.output(until); err != nil {
				return err
			}
		case first:
			if err := st.conn.Queue(head.frame); err != nil {
				return err
			}
			st.sent()
		case hasEvent:
			if missed > 0 {
				lag := wire.Event{
					Kind:   wire.EventLagged,
					Offset: st.offset,
					Text:   fmt.Sprintf("%d events are no longer kept", missed),
				}
				if err := st.conn.QueueJSON(wire.FrameEvent, 0, lag); err != nil {
					return err
				}
			}
			if err := st.conn.QueueJSON(wire.FrameEvent, 0, ev); err != nil {
				return err
			}
			st.seq = ev.Seq
		case closed && idle && head == nil:
			return st.conn.Flush()
		default:
			if secret {
				sent, err := st.outputSecret()
				if err != nil {
					return err
				}
				if sent {
					continue
				}
				longer = st.session.log.changed(st.secret)
			} else if reads {
				longer = st.session.log.grown(st.offset)
			}
			if closed {
				longer = nil // a closed log is always ready
			}
			if err := st.conn.Flush(); err != nil {
				return err
			}
			select {
			case <-st.wake:
			case <-changed:
			case <-longer:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}

// output sends the next piece of the log before until.
func (st *stream) output(until uint64) error {
	p, err := st.session.log.at(st.offset)
	var lagged *LaggedError
	if errors.As(err, &lagged) {
		st.offset += lagged.Missed
		st.session.log.kept(st, st.offset)
		ev := wire.Event{Kind: wire.EventLagged, Offset: st.offset, Missed: lagged.Missed}
		if lagged.Private {
			ev.Text = wire.WhyPrivate
		}
		return st.conn.QueueJSON(wire.FrameEvent, 0, ev)
	}
	p = p[:min(uint64(len(p)), until-st.offset)]
	if err := st.conn.Queue(wire.Frame{Type: wire.FrameOutput, Offset: st.offset,
		Data: p}); err != nil {
		return err
	}
	st.offset += uint64(len(p))
	st.session.log.kept(st, st.offset)
	return nil
}

// outputSecret sends the next piece of private output to the person in private mode, also on a
// quiet stream.
func (st *stream) outputSecret() (sent bool, err error) {
	p, err := st.session.log.all(st.secret)
	var lagged *LaggedError
	if errors.As(err, &lagged) {
		st.secret += lagged.Missed
		return true, nil
	}
	if len(p) == 0 {
		return false, nil
	}
	err = st.conn.Queue(wire.Frame{Type: wire.FrameOutput, Offset: st.secret, Data: p})
	st.secret += uint64(len(p))
	return true, err
}

// sent removes a sent frame from the queue.
func (st *stream) sent() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.out[0] = outgoing{}
	st.out = st.out[1:]
	st.roomLocked()
}

func (st *stream) roomLocked() {
	if st.drained != nil {
		close(st.drained)
		st.drained = nil
	}
}

// throttle waits while too many replies or too much input wait.
func (st *stream) throttle(ctx context.Context) error {
	for {
		st.mu.Lock()
		if len(st.out) < maxOutgoing && st.queued < maxQueuedInput {
			st.mu.Unlock()
			return nil
		}
		if st.drained == nil {
			st.drained = make(chan struct{})
		}
		drained := st.drained
		st.mu.Unlock()
		select {
		case <-drained:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
