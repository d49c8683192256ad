package attach

import (
	"encoding/json"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func newBoard() *attention.Board {
	return attention.NewBoard(func(string) []attention.Session { return nil })
}

// newStream returns a stream of a session of b with waits waits in progress, and its guest. The
// client does not read.
func newStream(t *testing.T, b *box, waits int) (st *stream, client, guest net.Conn) {
	t.Helper()
	near, client := net.Pipe()
	inner, guest := net.Pipe()
	t.Cleanup(func() { client.Close(); guest.Close(); near.Close(); inner.Close() })
	st = &stream{all: newAttachments(), client: wire.NewConn(near), guest: wire.NewConn(inner),
		sandbox: b, live: b.session(t), quiet: true,
		party: wire.Party{Name: "alice", Kind: wire.Agent}, more: make(chan struct{}),
		asked: make(map[uint32]asked), leave: func() {}, cancel: func() {}}
	for id := range uint32(waits) {
		st.asked[id] = asked{call: beginCall(b, st.live, demo, wire.Request{Verb: wire.VerbWait})}
	}
	return st, client, guest
}

// TestPauseWaitsForNoClient checks that a client that does not read cannot delay a pause.
func TestPauseWaitsForNoClient(t *testing.T) {
	b := newBox(t)
	st, client, _ := newStream(t, b, maxHeld+2)
	served := make(chan error, 1)
	go func() { served <- st.serve(t.Context()) }()
	// Half a frame: now the stream is served.
	if _, err := client.Write(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	paused := make(chan struct{})
	go func() {
		b.pauses.Interrupt(&interrupt.FrozenError{Lost: wire.LostError(wire.LostPaused, "paused")})
		close(paused)
	}()
	select {
	case <-paused:
	case <-time.After(10 * time.Second):
		t.Error("the pause waits for a client that does not read")
	}
	client.Close()
	<-served
}

// TestPauseLosesHeldAnswer checks that a pause loses a call whose answer waits for output in the
// sandbox. The call is lost immediately, not when the sandbox is resumed.
func TestPauseLosesHeldAnswer(t *testing.T) {
	b := newBox(t)
	st, near, far := newStream(t, b, 1)
	served := make(chan error, 1)
	go func() { served <- st.serve(t.Context()) }()
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
	b.pauses.Interrupt(&interrupt.FrozenError{Lost: wire.LostError(wire.LostPaused, "paused")})
	f, err := client.Read()
	if err != nil {
		t.Fatal(err)
	}
	var reply wire.Reply
	if err := json.Unmarshal(f.Data, &reply); err != nil || f.Type != wire.FrameReply {
		t.Fatalf("got a frame of type %d, %v", f.Type, err)
	}
	if reply.Result == nil || reply.Result.Ended != wire.Lost ||
		reply.Error.Reason != wire.LostPaused {
		t.Errorf("got %s, want a lost call", f.Data)
	}
	near.Close()
	<-served
}

// TestRequestIsAnsweredOnce checks that a guest's answer to a lost request is dropped, whenever it
// comes.
func TestRequestIsAnsweredOnce(t *testing.T) {
	st, _, _ := newStream(t, newBox(t), 1)
	st.lose(t.Context(), st.forget(), wire.LostError(wire.LostPaused, "paused"))
	st.lose(t.Context(), st.forget(), wire.LostError(wire.LostPaused, "paused"))
	if len(st.held) != 1 {
		t.Errorf("%d answers", len(st.held))
	}
	data := []byte(`{"id":0,"verb":"wait"}`)
	if _, _, err := st.check(wire.Frame{Type: wire.FrameRequest, Data: data}); err == nil {
		t.Error("a second request has the id of one that the guest has not answered")
	}
	h := heldFrame{frame: wire.Frame{Type: wire.FrameReply,
		Data: []byte(`{"result":{"ended":"done"}}`)}}
	if due, err := st.answer(t.Context(), &h); due || err != nil {
		t.Errorf("the guest's late answer: due %t, %v", due, err)
	}
	if len(st.asked) != 0 {
		t.Errorf("%d requests are kept", len(st.asked))
	}
}

// TestAskedIsSmall checks that a stream keeps little of a request that the guest does not answer.
func TestAskedIsSmall(t *testing.T) {
	st, _, _ := newStream(t, newBox(t), 0)
	long := strings.Repeat("a", 64<<10)
	data, err := plainJSON(wire.Request{Verb: wire.Verb(long), Op: long, Incarnation: long,
		Session: long, Keys: []string{long}})
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

// TestStreamOfAPausedSandbox checks that a stream rejects requests that cannot be answered while
// the sandbox is paused, and resumes it for requests that act in it.
func TestStreamOfAPausedSandbox(t *testing.T) {
	b := newBox(t)
	b.paused.Store(true)
	st, _, _ := newStream(t, b, 0)
	for verb, want := range map[wire.Verb]struct {
		refused,
		resumes bool
	}{wire.VerbScreen: {true, false}, wire.VerbTrace: {true, false}, wire.VerbGive: {true, false},
		wire.VerbCancel: {false, false}, wire.VerbRun: {false, true},
		wire.VerbWait: {false, true}} {
		data, err := plainJSON(wire.Request{Verb: verb, Text: "true"})
		if err != nil {
			t.Fatal(err)
		}
		clear(st.asked)
		refused, resumes, err := st.check(wire.Frame{Type: wire.FrameRequest, ID: 1, Data: data})
		if err != nil || (refused != nil) != want.refused || resumes != want.resumes {
			t.Errorf("%s: refused %v, resumes %v, %v", verb, refused, resumes, err)
		}
	}
}

// TestStreamPassesOnNoForgedReason checks that only the daemon reports why a sandbox ended. A
// guest's reason is dropped.
func TestStreamPassesOnNoForgedReason(t *testing.T) {
	st, _, _ := newStream(t, newBox(t), 1)
	h := heldFrame{frame: wire.Frame{Type: wire.FrameReply,
		Data: []byte(`{"error":{"code":"lost","message":"m","reason":"sandbox_removed"}}`)}}
	if due, err := st.answer(t.Context(), &h); !due || err != nil ||
		strings.Contains(string(h.frame.Data), wire.LostRemoved) {
		t.Errorf("%s: due %t, %v", h.frame.Data, due, err)
	}
}

// FuzzStreamAnswer checks that a stream passes on only frames that fit, or ends, for any frame of a
// guest.
func FuzzStreamAnswer(f *testing.F) {
	f.Add([]byte(`{"result":{"ended":"done","to":7}}`), "wait")
	f.Add([]byte(`{"error":{"code":"lost","reason":"x"}}`), "run")
	f.Add([]byte(`{}`), "screen")
	f.Fuzz(func(t *testing.T, data []byte, verb string) {
		b := newBox(t)
		st, _, _ := newStream(t, b, 0)
		c := beginCall(b, st.live, demo, wire.Request{Verb: wire.Verb(verb)})
		defer c.End()
		st.asked[0] = asked{call: c}
		frame := wire.Frame{Type: wire.FrameReply, Data: data}
		h, err := hold(frame)
		if err != nil {
			return
		}
		if due, err := st.answer(t.Context(), &h); err != nil || !due {
			return
		}
		var reply wire.Reply
		if err := json.Unmarshal(h.frame.Data, &reply); err != nil || len(h.frame.Data) > maxReply {
			t.Errorf("%d bytes are passed on, %v", len(h.frame.Data), err)
		}
		if r := reply.Result; r != nil && (r.Sandbox != "demo" || r.Session != "main") {
			t.Errorf("it names %s~%s", r.Sandbox, r.Session)
		}
	})
}
