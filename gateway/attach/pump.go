package attach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// stream is one agent's stream: two connections and the replica between them.
type stream struct {
	client, guest *wire.Conn
	all           *Attachments
	sandbox       Sandbox
	live          *live.Session
	secret        string // with which the client is the same party again
	party         wire.Party
	quiet         bool   // the client reads the log elsewhere
	shell         string // what the session's commands are for
	sent          uint64 // the client has output up to here
	heard         uint64 // and events up to this one
	leave         func()

	mu     sync.Mutex
	cancel context.CancelFunc // guarded by mu; ends what fromGuest waits for
	asked  map[uint32]asked   // guarded by mu; requests whose answer has not gone out
	held   []heldFrame        // guarded by mu; what came from the guest and waits for its turn
	weight int                // guarded by mu; bytes of held
	more   chan struct{}      // guarded by mu; closed and replaced when held or over changes
	over   bool               // guarded by mu; the guest sends nothing more
	failed error              // guarded by mu; how the stream ended first
}

// fail ends the stream; the first reason counts.
func (st *stream) fail(why error) {
	st.mu.Lock()
	if st.failed == nil {
		st.failed = why
	}
	st.over = true
	st.changedLocked()
	cancel := st.cancel
	st.mu.Unlock()
	cancel()
	st.guest.Close()
	st.client.Close()
}

// Party, Changed, Disconnect, Resume, Secret, Calls and Shared make it a live.Member.
func (st *stream) Party() wire.Party { return st.party }

// Changed does nothing: toClient waits for changes.
func (st *stream) Changed() {}

// Disconnect ends the stream for a cause.
func (st *stream) Disconnect(cause error) { st.fail(cause) }

// Resume does nothing: the client comes again itself.
func (st *stream) Resume(context.Context, *connect.Control) {}

// Secret is that of the client.
func (st *stream) Secret() string { return st.secret }

// Calls is 0: a stream counts as attached as long as it lasts.
func (st *stream) Calls() int { return 0 }

// Shared is false.
func (st *stream) Shared() bool { return false }

func (st *stream) changedLocked() {
	close(st.more)
	st.more = make(chan struct{})
}

// errEnded says that a side ended the stream in order.
var errEnded = errors.New("ended")

// serve passes frames both ways until one side ends.
func (st *stream) serve(ctx context.Context) error {
	defer st.leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st.mu.Lock()
	st.cancel = cancel
	if st.over { // it was ended before this
		cancel()
	}
	st.mu.Unlock()
	frozen, over := st.sandbox.Within(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { st.loseWhenFrozen(ctx, frozen, over) })
	wg.Go(func() { st.fromClient(ctx) })
	told := make(chan struct{})
	go func() {
		defer close(told)
		st.fromGuest(ctx)
	}()
	st.fail(st.toClient(ctx))
	wg.Wait()
	// Of a frozen guest fromGuest ends when that goes on, or its connection ends.
	if !st.sandbox.IsPaused() && st.sandbox.Silence() == nil {
		<-told
	}
	for _, a := range st.forget() {
		a.call.End()
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if errors.Is(st.failed, errEnded) {
		return nil
	}
	return st.failed
}

// fromClient passes on input and requests.
func (st *stream) fromClient(ctx context.Context) {
	for {
		f, err := st.client.Read()
		if errors.Is(err, io.EOF) {
			err = errEnded // it detaches
		}
		var refused *wire.Error
		var resumes bool
		if err == nil {
			refused, resumes, err = st.check(f)
		}
		if err == nil && refused == nil && resumes {
			err = st.sandbox.Wake(ctx, st.party.Name)
		}
		switch {
		case err != nil:
		case refused != nil:
			err = st.client.WriteJSON(wire.FrameReply, f.ID, wire.Reply{Error: refused})
		default:
			err = st.guest.Write(f)
		}
		if err != nil {
			st.fail(err)
			return
		}
	}
}

// check refuses what a client may not send, and commands that are not whole. The rest is the
// guest's to judge. resumes says that the sandbox is resumed for it if it is paused. An error ends
// the stream.
func (st *stream) check(f wire.Frame) (refused *wire.Error, resumes bool, err error) {
	switch f.Type {
	case wire.FrameInput:
		return nil, st.party.Rights != wire.RightWatch, nil
	case wire.FrameRequest:
		r, refused := wire.ReadRequest(f.Data)
		if refused != nil {
			return refused, false, nil
		}
		if r.Party != nil {
			return nil, false, errors.New("request: party comes from the login")
		}
		if refused := incomplete(st.shell, r); refused != nil {
			return refused, false, nil
		}
		resumes, err := admits(st.sandbox, st.party.Rights, r.Verb, st.live.Name())
		if err != nil {
			return st.all.options.Public(err), false, nil
		}
		if r.Verb != wire.VerbCancel { // which has no reply of its own
			// What its answer needs and no more: the guest may never give one.
			kept := wire.Request{Verb: wire.Verb(live.Cut(string(r.Verb), live.MaxWord)),
				Op: live.Cut(r.Op, live.MaxWord), MaxOutput: r.MaxOutput}
			c := beginCall(st.sandbox, st.live,
				wire.Target{Sandbox: st.sandbox.Name(), Session: st.live.Name()}, kept)
			c.Sent()
			err = st.ask(f.ID, asked{call: c})
		}
		return nil, resumes, err
	}
	return nil, false, fmt.Errorf("frame type %d is not for a server", f.Type)
}

// fromGuest takes in what the guest sends. When too much waits it stops reading, and the guest
// waits.
func (st *stream) fromGuest(ctx context.Context) {
	for {
		f, err := st.guest.Read()
		var h heldFrame
		if err == nil {
			h, err = hold(f)
		}
		if err == nil && f.Type == wire.FrameReply {
			var due bool
			if due, err = st.answer(ctx, &h); !due && err == nil {
				continue
			}
		}
		if err != nil {
			st.loseAll(ctx)
			// What it sent before is still passed on: that it ended the session may be among it.
			st.mu.Lock()
			st.over = true
			st.changedLocked()
			st.mu.Unlock()
			return
		}
		st.hold(h)
	}
}

// loseWhenFrozen answers what is under way each time the guest is frozen, until ctx ends. frozen
// ends at the first time. Who freezes it does not wait for that: the client may not read.
func (st *stream) loseWhenFrozen(ctx, frozen context.Context, over func()) {
	for {
		<-frozen.Done()
		why, ok := errors.AsType[*interrupt.FrozenError](context.Cause(frozen))
		over()
		if !ok {
			return
		}
		frozen, over = st.sandbox.Within(ctx)
		st.lose(ctx, st.forget(), why.Lost)
		st.lose(ctx, st.dropStuck(), why.Lost)
	}
}

// loseAll answers what is under way, after the connection to the guest has ended, if the guest will
// not be found again. Else the client asks again, as the party that it was.
func (st *stream) loseAll(ctx context.Context) {
	st.mu.Lock()
	none := st.over || !st.owedLocked()
	st.mu.Unlock()
	if none {
		return
	}
	if lost := st.sandbox.Answers(ctx); lost != nil && ctx.Err() == nil {
		lastWords(ctx, st.sandbox, st.live)
		st.lose(ctx, st.forget(), lost)
	}
}

// lose answers requests as lost.
func (st *stream) lose(ctx context.Context, all map[uint32]asked, why *wire.Error) {
	defer func() {
		for _, a := range all {
			a.call.End()
		}
	}()
	left := uint64(wire.MaxWhole) // to be read, of all of them
	for id, a := range all {
		reply, read := a.call.lose(ctx, why, left)
		left -= read
		h := heldFrame{frame: wire.Frame{Type: wire.FrameReply, ID: id}, lost: true}
		var err error
		if h.frame.Data, err = fitting(reply); err != nil {
			st.fail(err)
			return
		}
		if reply.Result != nil {
			h.after = reply.Result.To
		}
		st.holdLost(h)
	}
}

// answer makes a reply of the guest what the client gets. due is false for a request that was
// answered as lost: the reply is not for the client.
func (st *stream) answer(ctx context.Context, h *heldFrame) (due bool, err error) {
	st.mu.Lock()
	a, asked := st.asked[h.frame.ID]
	if a.lost {
		delete(st.asked, h.frame.ID)
	}
	st.mu.Unlock()
	if a.lost {
		return false, nil
	}
	var reply wire.Reply
	if err := json.Unmarshal(h.frame.Data, &reply); err != nil {
		return true, fmt.Errorf("reply: %w", err)
	}
	changed := live.InboundReply(&reply)
	if asked {
		if lost := a.call.lossOf(reply); lost != nil && reply.Result == nil {
			reply, _ = a.call.lose(ctx, lost, maxReply/2)
			h.after = max(h.after, reply.Result.To)
		} else {
			a.call.complete(ctx, &reply, lost)
		}
	} else if reply.Result != nil {
		reply.Result.Session, reply.Result.Denied = st.live.Name(), []wire.Denial{}
	}
	if reply.Result == nil && !changed {
		return true, nil
	}
	h.frame.Data, err = fitting(reply)
	return true, err
}

// hold says after which byte a frame of the guest belongs: events at N come after byte N, a result
// after its output.
func hold(f wire.Frame) (heldFrame, error) {
	h := heldFrame{frame: f}
	h.frame.Data = slices.Clone(f.Data)
	switch f.Type {
	case wire.FrameAccepted:
	case wire.FrameEvent:
		var e struct {
			Offset uint64 `json:"offset"`
			Seq    uint64 `json:"seq"`
		}
		if err := json.Unmarshal(f.Data, &e); err != nil {
			return h, fmt.Errorf("event: %w", err)
		}
		h.after, h.seq = e.Offset, e.Seq
	case wire.FrameReply:
		var r struct {
			Result *struct {
				To uint64 `json:"to"`
			} `json:"result"`
			Screen *struct {
				Offset uint64 `json:"offset"`
			} `json:"screen"`
		}
		if err := json.Unmarshal(f.Data, &r); err != nil {
			return h, fmt.Errorf("reply: %w", err)
		}
		if r.Result != nil {
			h.after = r.Result.To
		}
		if r.Screen != nil {
			h.after = max(h.after, r.Screen.Offset)
		}
	default:
		return h, fmt.Errorf("frame type %d is not for a client", f.Type)
	}
	return h, nil
}

// toClient sends output from the replica and, each in its place, what came from the guest.
func (st *stream) toClient(ctx context.Context) error {
	buf := make([]byte, 32<<10)
	// For what is held when the guest has gone: the replica is about to have its place.
	var patience <-chan time.Time
	for {
		seen, ended := st.sent, st.live.Final()
		if length := st.live.Len(); st.quiet {
			seen = length
		} else {
			ended = ended && seen >= length
		}
		st.mu.Lock()
		more, over, failed, empty := st.more, st.over, st.failed, len(st.held) == 0
		head, due := st.nextLocked(seen, ended)
		st.mu.Unlock()
		if over && (empty || failed != nil) {
			return errOr(failed, errOr(st.client.Flush(), errEnded))
		}
		if over && patience == nil {
			timer := time.NewTimer(lastFrames)
			defer timer.Stop()
			patience = timer.C
		}
		if why := st.live.Unrecorded(); why != "" {
			return st.farewell(why)
		}
		if due {
			if err := st.client.Queue(head.frame); err != nil {
				return err
			}
			st.heard = max(st.heard, head.seq)
			continue
		}
		room := uint64(len(buf))
		if !empty {
			room = min(room, head.after-seen)
		}
		progress, changed, err := st.copyOutput(buf[:room], over || head.lost)
		if err != nil {
			return err
		}
		if progress {
			continue
		}
		if err := st.client.Flush(); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-more:
		case <-patience:
			return errEnded
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// lastFrames is how long frames of a guest that has gone wait for their place in the log.
const lastFrames = 5 * time.Second

func errOr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

// copyOutput sends the output that the replica has now. If there is none it returns a channel that
// is closed when that changes, or nil if no more comes. It stops where a run's output begins or
// ends until the client has the event for it. With untold, the guest sends no more events, and it
// does not stop.
func (st *stream) copyOutput(buf []byte, untold bool) (progress bool, changed <-chan struct{},
	err error) {
	at := st.sent
	if st.quiet {
		at = st.live.Len()
	}
	n, changed, err := st.live.ReadNow(at, buf)
	if n > 0 && !untold {
		// Looked up after the reading: by then the edges within what was read are known.
		if n = int(min(uint64(n), st.live.Edge(at, st.heard)-at)); n == 0 {
			return false, nil, nil // the event wakes us
		}
	}
	var lagged *live.LaggedError
	switch {
	case errors.As(err, &lagged):
		st.sent = lagged.To
		e := wire.Event{Kind: wire.EventLagged, Offset: lagged.To, Missed: lagged.To - lagged.From,
			Text: lagged.Why}
		return true, nil, st.client.QueueJSON(wire.FrameEvent, 0, e)
	case errors.Is(err, io.EOF), errors.Is(err, interrupt.ErrClosed):
		return false, changed, nil
	case err != nil:
		return false, nil, err
	case n == 0:
		return false, changed, nil
	case st.quiet:
		// The log grew since at was looked up: what is held may have its place by now.
		return true, nil, nil
	}
	if err := st.client.Queue(wire.Frame{Type: wire.FrameOutput, Offset: at,
		Data: buf[:n]}); err != nil {
		return false, nil, err
	}
	st.sent += uint64(n)
	return true, nil, nil
}
