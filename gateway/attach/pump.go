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

// stream is one agent's stream: two connections, and the daemon's copy of the session between them.
type stream struct {
	client, guest *wire.Conn
	all           *Attachments
	sandbox       Sandbox
	live          *live.Session
	secret        string // resume secret of the client
	party         wire.Party
	quiet         bool   // the client reads the log elsewhere
	shell         string // shell of the session's commands
	sent          uint64 // offset up to which the client has output
	heard         uint64 // number of the last event that the client has
	leave         func()

	mu     sync.Mutex
	cancel context.CancelFunc // guarded by mu; ends the waits of fromGuest
	asked  map[uint32]asked   // guarded by mu; requests without an answer to the client
	held   []heldFrame        // guarded by mu; frames of the guest that wait for their turn
	weight int                // guarded by mu; bytes of held
	more   chan struct{}      // guarded by mu; closed and replaced when held or over changes
	over   bool               // guarded by mu; the guest sends nothing more
	failed error              // guarded by mu; first reason for the end
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

// Changed does nothing, because toClient waits for changes.
func (st *stream) Changed() {}

// Disconnect ends the stream with a cause.
func (st *stream) Disconnect(cause error) { st.fail(cause) }

// Resume does nothing, because the client attaches again itself.
func (st *stream) Resume(context.Context, *connect.Control) {}

// Secret returns the client's resume secret.
func (st *stream) Secret() string { return st.secret }

// Calls returns 0: a stream counts as attached while it is open.
func (st *stream) Calls() int { return 0 }

// Shared returns false.
func (st *stream) Shared() bool { return false }

func (st *stream) changedLocked() {
	close(st.more)
	st.more = make(chan struct{})
}

// errEnded is a regular end of the stream by one side.
var errEnded = errors.New("ended")

// serve passes frames both ways until one side ends.
func (st *stream) serve(ctx context.Context) error {
	defer st.leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st.mu.Lock()
	st.cancel = cancel
	if st.over { // it was ended before
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
	// If the guest is frozen, fromGuest ends when the guest continues, or when its connection ends.
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

// fromClient passes the client's input and requests to the guest.
func (st *stream) fromClient(ctx context.Context) {
	for {
		f, err := st.client.Read()
		if errors.Is(err, io.EOF) {
			err = errEnded // the client detaches
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

// check rejects frames that a client may not send, and incomplete commands. The guest checks the
// rest. resumes says to resume a paused sandbox for the frame. An error ends the stream.
func (st *stream) check(f wire.Frame) (refused *wire.Error, resumes bool, err error) {
	drives := st.party.Rights != wire.RightWatch
	switch f.Type {
	case wire.FrameInput:
		if drives {
			st.live.Unseen.Store(false) // as in Attachment.Input
		}
		return nil, drives, nil
	case wire.FrameRequest:
		r, refused := wire.ReadRequest(f.Data)
		if refused != nil {
			return refused, false, nil
		}
		if r.Party != nil {
			return nil, false, errors.New("request: party comes from the login")
		}
		if refused := incomplete(st.live, st.shell, r); refused != nil {
			return refused, false, nil
		}
		resumes, err := admits(st.sandbox, st.party.Rights, r.Verb, st.live.Name())
		if err != nil {
			return st.all.options.Public(err), false, nil
		}
		t := wire.Target{Sandbox: st.sandbox.Name(), Session: st.live.Name()}
		switch {
		case !drives:
		case r.Verb == wire.VerbRun:
			st.live.Unseen.Store(false)
		case types(r.Verb) && r.Incarnation == "" && st.live.Unseen.Swap(false):
			return shellEnded(t), false, nil
		}
		if r.Verb != wire.VerbCancel { // it has no reply
			// Keep only what the answer needs, because the guest may never answer.
			kept := wire.Request{Verb: wire.Verb(live.Cut(string(r.Verb), live.MaxWord)),
				Op: live.Cut(r.Op, live.MaxWord), MaxOutput: r.MaxOutput}
			c := beginCall(st.sandbox, st.live, t, kept)
			c.Sent()
			err = st.ask(f.ID, asked{call: c})
		}
		return nil, resumes, err
	}
	return nil, false, fmt.Errorf("frame type %d is not for a server", f.Type)
}

// fromGuest receives the guest's frames. It stops reading while too many frames wait, which makes
// the guest wait.
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
			// Frames that the guest sent before are still passed on. They may include the end of
			// the session.
			st.mu.Lock()
			st.over = true
			st.changedLocked()
			st.mu.Unlock()
			return
		}
		st.hold(h)
	}
}

// loseWhenFrozen answers the requests in progress as lost each time the guest is frozen, until ctx
// ends. frozen ends at the first time. The caller that freezes the guest does not wait for it,
// because the client may not read.
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

// loseAll answers the requests in progress as lost after the connection to the guest has ended, if
// the guest will not come back. Otherwise the client asks again, as the same party.
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
	left := uint64(wire.MaxWhole) // bytes to read for all of them
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

// answer turns a reply of the guest into the client's answer. due is false if the request was
// answered as lost: the reply is dropped.
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

// hold returns a frame of the guest with the offset after which it is due. An event at N comes
// after byte N, a result after its output.
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

// toClient sends output from the copy, and the guest's frames at their offsets.
func (st *stream) toClient(ctx context.Context) error {
	buf := make([]byte, 32<<10)
	// For frames that are held when the guest has ended: the copy will soon reach their offsets.
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

// lastFrames is how long frames of an ended guest wait for their offset.
const lastFrames = 5 * time.Second

func errOr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

// copyOutput sends the output that the copy has now. If there is none, it returns a channel that is
// closed when that changes, or nil if no more comes. It stops at the beginning and end of a run's
// output until the client has the event for it. With untold, the guest sends no more events, and it
// does not stop.
func (st *stream) copyOutput(buf []byte, untold bool) (progress bool, changed <-chan struct{},
	err error) {
	at := st.sent
	if st.quiet {
		at = st.live.Len()
	}
	n, changed, err := st.live.ReadNow(at, buf)
	if n > 0 && !untold {
		// Look the edge up after reading: then the edges within the bytes read are known.
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
		// The log grew after at was read. Held frames may be due by now.
		return true, nil, nil
	}
	if err := st.client.Queue(wire.Frame{Type: wire.FrameOutput, Offset: at,
		Data: buf[:n]}); err != nil {
		return false, nil, err
	}
	st.sent += uint64(n)
	return true, nil, nil
}
