package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// heldDialing is a backend whose dialling can be held up.
type heldDialing struct {
	*sandboxtest.Backend
	hold    atomic.Bool
	stopped atomic.Bool
	dialing chan bool // receives when a dial is held up: whether it began after stopped was set
}

func (h *heldDialing) Dial(ctx context.Context, inst sandbox.Instance) (sandbox.Peer, error) {
	late := h.stopped.Load()
	if h.hold.Load() {
		select {
		case h.dialing <- late:
		case <-ctx.Done():
		}
		<-ctx.Done()
	}
	return h.Backend.Dial(ctx, inst)
}

// A call that is not sent yet when the sandbox is stopped does not start it again: that is for a later call.
func TestCallBeforeStopStartsNothing(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	held := &heldDialing{Backend: w.memory, dialing: make(chan bool)}
	w.backend = held
	d := w.start()
	w.create(d, "demo")
	b := d.boxOf()
	b.letGo(errors.New("so that a call has to dial"))
	held.hold.Store(true)
	for name, call := range map[string]func() error{
		"exec": func() error {
			up, err := d.Upstream(w.ctx(), robot, "demo", nil)
			if err == nil {
				up.Close()
			}
			return err
		},
		"run": func() error {
			_, err := d.Standing(w.ctx(), robot, main, JoinOptions{Create: true})
			return err
		},
	} {
		held.stopped.Store(false)
		if err := b.become(w.ctx(), func(f *facts) { f.state = Running }); err != nil {
			t.Fatal(err)
		}
		answered := make(chan error, 1)
		go func() { answered <- call() }()
		<-held.dialing
		if err := d.Stop(w.ctx(), alice, "demo"); err != nil {
			t.Fatal(err)
		}
		held.stopped.Store(true)
		for waiting := true; waiting; {
			select {
			case err := <-answered:
				wantCode(t, err, wire.CodeUnavailable)
				waiting = false
			case late := <-held.dialing:
				if late {
					t.Fatalf("%s: dials again after the stop", name)
				}
			}
		}
		if state := w.state(d, "demo"); state != Stopped {
			t.Errorf("%s: the sandbox is %s after it was stopped", name, state)
		}
	}
}

// A party that comes back to its session on a new connection starts no sandbox that was stopped meanwhile.
func TestReattachStartsNothing(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	a := w.standing(d)
	if _, err := a.Request(w.ctx(), wire.Request{Verb: wire.VerbRun, Text: "true"}); err != nil {
		t.Fatal(err)
	}
	b := d.boxOf()
	c, err := b.control(w.ctx(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Stop(w.ctx(), alice, "demo"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(w.ctx(), 2*firstRetry)
	defer cancel()
	a.reattach(ctx, c)
	if state := w.state(d, "demo"); state != Stopped {
		t.Errorf("the sandbox is %s", state)
	}
}

// streamOf is a stream of demo's main session whose client does not read, with that many waits under way, and its guest.
func (w *world) streamOf(d *daemon, waits int) (st *stream, client, guest net.Conn) {
	w.t.Helper()
	w.run(d, "true")
	near, client := net.Pipe()
	inner, guest := net.Pipe()
	w.t.Cleanup(func() { client.Close(); guest.Close(); near.Close(); inner.Close() })
	st = &stream{client: wire.NewConn(near), guest: wire.NewConn(inner), box: d.boxOf(), live: d.boxOf().sessions.Get("main"), quiet: true, more: make(chan struct{}),
		asked: make(map[uint32]asked), leave: func() {}, cancel: func() {}}
	for id := range uint32(waits) {
		st.asked[id] = asked{call: beginCall(st.box, st.live, main, wire.Request{Verb: wire.VerbWait})}
	}
	return st, client, guest
}

// A client that does not read what it gets keeps nobody from pausing, stopping or removing the sandbox.
func TestPauseWaitsForNoClient(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	st, client, _ := w.streamOf(d, maxHeld+2)
	b := d.boxOf()
	served := make(chan error, 1)
	go func() { served <- st.serve(w.ctx()) }()
	if _, err := client.Write(make([]byte, 1)); err != nil { // half a frame: the stream serves
		t.Fatal(err)
	}
	paused := make(chan error, 1)
	go func() { paused <- b.become(context.Background(), func(f *facts) { f.state = Paused }) }()
	select {
	case err := <-paused:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the pause waits for a client that does not read")
	}
	client.Close()
	<-served
	if err := b.become(w.ctx(), func(f *facts) { f.state = Running }); err != nil {
		t.Fatal(err)
	}
}

// A guest's answer whose output is still in the sandbox when that is paused comes no more: the call
// is lost, at once and not when the sandbox is resumed.
func TestPauseLosesHeldAnswer(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	st, near, far := w.streamOf(d, 1)
	go st.serve(w.ctx())
	client, guest := wire.NewConn(near), wire.NewConn(far)
	end := st.live.Len()
	for _, f := range []any{
		wire.Event{Kind: wire.EventState, Offset: end + 1},
		wire.Reply{Result: &wire.Result{Ended: wire.Done, To: end + 1}},
	} {
		kind := wire.FrameEvent
		if _, ok := f.(wire.Reply); ok {
			kind = wire.FrameReply
		}
		if err := guest.WriteJSON(kind, 0, f); err != nil {
			t.Fatal(err)
		}
	}
	for held := 0; held < 2; {
		st.mu.Lock()
		held = len(st.held)
		more := st.more
		st.mu.Unlock()
		if held < 2 {
			<-more
		}
	}
	b := d.boxOf()
	if err := b.become(w.ctx(), func(f *facts) { f.state = Paused }); err != nil {
		t.Fatal(err)
	}
	f, err := client.Read()
	if err != nil {
		t.Fatal(err)
	}
	var reply wire.Reply
	if err := json.Unmarshal(f.Data, &reply); err != nil || f.Type != wire.FrameReply {
		t.Fatalf("got a frame of type %d, %v", f.Type, err)
	}
	if reply.Result == nil || reply.Result.Ended != wire.Lost || reply.Error.Reason != wire.LostPaused {
		t.Errorf("got %s, want a lost call", f.Data)
	}
	if err := b.become(w.ctx(), func(f *facts) { f.state = Running }); err != nil {
		t.Fatal(err)
	}
}

// A request is answered once: what the guest says of one that was lost is not passed on, whenever it comes.
func TestRequestIsAnsweredOnce(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	st, _, _ := w.streamOf(d, 1)
	st.lose(w.ctx(), st.forget(), wire.LostError(wire.LostPaused, "paused"))
	st.lose(w.ctx(), st.forget(), wire.LostError(wire.LostPaused, "paused"))
	if len(st.held) != 1 {
		t.Errorf("%d answers", len(st.held))
	}
	data := []byte(`{"id":0,"verb":"wait"}`)
	if _, _, err := st.check(wire.Frame{Type: wire.FrameRequest, Data: data}); err == nil {
		t.Error("a second request has the id of one that the guest has not answered")
	}
	h := heldFrame{frame: wire.Frame{Type: wire.FrameReply, Data: []byte(`{"result":{"ended":"done"}}`)}}
	if due, err := st.answer(w.ctx(), &h); due || err != nil {
		t.Errorf("the guest's late answer: due %t, %v", due, err)
	}
	if len(st.asked) != 0 {
		t.Errorf("%d requests are kept", len(st.asked))
	}
}

// What a stream keeps of a request that the guest does not answer is small.
func TestAskedIsSmall(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	st, _, _ := w.streamOf(d, 0)
	long := strings.Repeat("a", 64<<10)
	data, err := plainJSON(wire.Request{Verb: wire.Verb(long), Op: long, Incarnation: long, Session: long, Keys: []string{long}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := st.check(wire.Frame{Type: wire.FrameRequest, ID: 7, Data: data}); err != nil {
		t.Fatal(err)
	}
	if kept, _ := plainJSON(st.asked[7].call.Request); len(kept) > 4*live.MaxWord {
		t.Errorf("%d bytes are kept", len(kept))
	}
}

// The daemon alone knows what became of a sandbox: a guest's word for it is not believed.
func TestGuestGivesNoReason(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	st, _, _ := w.streamOf(d, 1)
	h := heldFrame{frame: wire.Frame{Type: wire.FrameReply, Data: []byte(`{"error":{"code":"lost","message":"m","reason":"sandbox_removed"}}`)}}
	if due, err := st.answer(w.ctx(), &h); !due || err != nil || strings.Contains(string(h.frame.Data), wire.LostRemoved) {
		t.Errorf("%s: due %t, %v", h.frame.Data, due, err)
	}
}

// Why a sandbox ended is no longer so once it runs, however it came to run: a host is logged in to again, and not started.
func TestFateEndsWhenSandboxRuns(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	b := d.boxOf()
	b.doom(wire.LostStopped)
	b.note(w.ctx(), Stopped, "stopped by itself")
	if err := b.become(w.ctx(), func(f *facts) { f.state, f.reason = Running, "" }); err != nil {
		t.Fatal(err)
	}
	if over := b.over(); over != nil {
		t.Errorf("calls are lost: %v", over)
	}
}

// A guest that takes each connection and ends it when it gets the call does not keep the daemon busy with it.
func TestRepeatsEnd(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	a := w.standing(d)
	if _, err := a.Request(w.ctx(), wire.Request{Verb: wire.VerbRun, Text: "true"}); err != nil {
		t.Fatal(err)
	}
	s := &sent{party: a.client.Attached().Resume}
	for range maxRepeats {
		client, err := a.resumed(w.ctx(), s)
		if err != nil {
			t.Fatal(err)
		}
		client.Close()
	}
	_, err := a.resumed(w.ctx(), s)
	if lost := (*wire.Error)(nil); !errors.As(err, &lost) || lost.Reason != wire.LostGuest {
		t.Errorf("%v", err)
	}
}

// An event ends the contexts that there are, with its cause, and those after it wait for the next one.
func TestInterrupter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var i interrupter
		i.interrupt(errors.New("nobody waits"))
		cause := errors.New("event")
		ctx, done := i.within(t.Context())
		defer done()
		over, forget := i.within(t.Context())
		forget()
		i.interrupt(cause)
		later, end := i.within(t.Context())
		defer end()
		synctest.Wait()
		if !errors.Is(context.Cause(ctx), cause) || !errors.Is(context.Cause(over), context.Canceled) || later.Err() != nil {
			t.Errorf("%v, %v, %v", context.Cause(ctx), context.Cause(over), later.Err())
		}
	})
}
