package gateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// pair returns the two ends of a connection with the buffers of a socket.
func pair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	client, server, err := sandboxtest.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// transcript is what a client of a stream got, in order.
type transcript struct {
	mu     sync.Mutex
	output strings.Builder
	from   uint64
	next   uint64
	events []wire.Event
	bad    []string
	wake   chan struct{}
}

func (s *transcript) handler() wire.Handler {
	s.wake = make(chan struct{}, 1)
	return wire.Handler{
		Output: func(off uint64, p []byte) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.output.Len() == 0 {
				s.from, s.next = off, off
			}
			if off != s.next {
				s.bad = append(s.bad, "output does not follow")
			}
			s.output.Write(p)
			s.next = off + uint64(len(p))
			s.poke()
		},
		Event: func(e wire.Event) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.output.Len() > 0 && e.Offset > s.next {
				s.bad = append(s.bad, string(e.Kind)+" before its byte")
			}
			if n := len(s.events); n > 0 && e.Seq != 0 && e.Seq <= s.events[n-1].Seq {
				s.bad = append(s.bad, string(e.Kind)+" out of order")
			}
			s.events = append(s.events, e)
			s.poke()
		},
	}
}

func (s *transcript) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *transcript) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.output.String()
}

// until waits until f, called with the transcript locked, is true.
func (s *transcript) until(ctx context.Context, t *testing.T, what string, f func() bool) {
	t.Helper()
	for {
		s.mu.Lock()
		ok := f()
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			t.Fatalf("it never came to this: %s; output %q", what, s.text())
		}
	}
}

// dial opens a stream through the hub as p. served gives what Stream returned.
func (w *world) dial(d *daemon, p gateway.Principal, a wire.Attach,
	h wire.Handler) (c *wire.Client, served chan error, err error) {
	w.T.Helper()
	near, far := pair(w.T)
	served = make(chan error, 1)
	go func() { served <- d.Sessions.Stream(context.Background(), p, "demo", far) }()
	c, err = wire.Open(w.Ctx(), near, a, h)
	if err == nil {
		w.T.Cleanup(func() { c.Close() })
	}
	return c, served, err
}

func TestStreamKeepsTheOrder(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	var seen transcript
	c, served, err := w.dial(d, robot, wire.Attach{Session: "main", Create: true,
		From: wire.Offset{Word: wire.FromStart}}, seen.handler())
	if err != nil {
		t.Fatal(err)
	}
	if !c.Attached().Created || c.Attached().Resume == "" || c.Attached().Offset != 0 {
		t.Errorf("attached = %+v", c.Attached())
	}
	for range 20 {
		reply, err := c.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun, Text: "seq 1 2000"})
		if err != nil {
			t.Fatal(err)
		}
		seen.mu.Lock()
		if reply.Result.To > seen.next {
			t.Errorf("a result up to %d came when output was at %d", reply.Result.To, seen.next)
		}
		seen.mu.Unlock()
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-served; err != nil {
		t.Errorf("Stream: %v, want nil", err)
	}
	for _, bad := range seen.bad {
		t.Error(bad)
	}
	if got := strings.Count(seen.text(), numbers(1, 2000)); got != 20 {
		t.Errorf("%d outputs are whole, want 20", got)
	}
	if text, _ := w.Recorded(d, main); !strings.HasPrefix(text, seen.text()) {
		t.Error("what the client saw is not the beginning of the record")
	}
}

func TestStreamRefusals(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	watcher := gateway.Principal{Name: "alice", Kind: wire.Agent, Rights: wire.RightWatch}
	for name, tt := range map[string]struct {
		p    gateway.Principal
		a    wire.Attach
		code wire.Code
	}{
		"another's sandbox": {bob, wire.Attach{Session: "main", Create: true}, wire.CodeNotFound},
		"a party of its own": {robot, wire.Attach{Session: "main", Create: true,
			Party: &wire.Party{Name: "root", Kind: wire.Person, Rights: wire.RightDrive}},
			wire.CodeUsage},
		"a watcher creates": {watcher, wire.Attach{Session: "main", Create: true},
			wire.CodeDenied},
		"no session": {robot, wire.Attach{Session: "main"}, wire.CodeNotFound},
		"a stolen secret": {robot, wire.Attach{Resume: "0123456789abcdef0123456789abcdef"},
			wire.CodeNotFound},
		"a bad name": {robot, wire.Attach{Session: "../main", Create: true},
			wire.CodeUsage},
	} {
		t.Run(name, func(t *testing.T) {
			_, served, err := w.dial(d, tt.p, tt.a, wire.Handler{})
			wantCode(t, err, tt.code)
			if err := <-served; err != nil {
				t.Errorf("Stream: %v", err)
			}
		})
	}
}

func TestStreamWithoutAttachmentListsAndCloses(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	w.Run(d, "true")
	agent, err := d.Sessions.Shared(w.Ctx(), robot, main, attach.JoinOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Its call is over: who holds nothing then is not listed.
	if err := agent.Take(w.Ctx()); err != nil {
		t.Fatal(err)
	}
	c, _, err := w.dial(d, robot, wire.Attach{}, wire.Handler{})
	if err != nil {
		t.Fatal(err)
	}
	reply, err := c.Request(w.Ctx(), wire.Request{Verb: wire.VerbList})
	if err != nil || len(reply.Sessions) != 1 || reply.Sessions[0].Name != "main" {
		t.Fatalf("list = %+v, %v", reply.Sessions, err)
	}
	if diff := cmp.Diff([]string{"agent:alice"}, names(reply.Sessions[0].Parties)); diff != "" {
		t.Errorf("parties (-want +got):\n%s", diff)
	}
	if _, err := c.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun, Text: "true"}); !errors.Is(err,
		&wire.Error{Code: wire.CodeUsage}) {
		t.Errorf("run without an attachment: %v, want code usage", err)
	}
	if _, err := c.Request(w.Ctx(), wire.Request{Verb: wire.VerbClose,
		Session: "main"}); err != nil {
		t.Fatal(err)
	}
	reply, err = c.Request(w.Ctx(), wire.Request{Verb: wire.VerbList})
	if err != nil || len(reply.Sessions) != 0 {
		t.Errorf("list after closing = %+v, %v", reply.Sessions, err)
	}
}

func names(parties []wire.Party) []string {
	all := []string{}
	for _, p := range parties {
		all = append(all, p.String())
	}
	return all
}

// A client that does not read holds up nobody, and finds everything when it reads again.
func TestClientThatDoesNotRead(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	w.Run(d, "true")
	near, far := pair(t)
	served := make(chan error, 1)
	go func() { served <- d.Sessions.Stream(context.Background(), robot, "demo", far) }()
	slow := wire.NewConn(near)
	if err := slow.WriteJSON(wire.FrameHello, 0,
		wire.Hello{Versions: []int{wire.Version}}); err != nil {
		t.Fatal(err)
	}
	if err := slow.WriteJSON(wire.FrameAttach, 0, wire.Attach{Session: "main"}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := slow.Read(); err != nil {
			t.Fatal(err)
		}
	}
	res := w.Run(d, "seq 1 400000; echo e''nd")
	if res.Ended != wire.Done {
		t.Fatalf("with a reader that is stuck: %+v", res)
	}
	var got strings.Builder
	for !strings.HasSuffix(got.String(), "end\r\n") {
		f, err := slow.Read()
		if err != nil {
			t.Fatal(err)
		}
		switch f.Type {
		case wire.FrameOutput:
			got.Write(f.Data)
		case wire.FrameEvent:
			var e wire.Event
			if err := json.Unmarshal(f.Data, &e); err != nil || e.Kind == wire.EventLagged {
				t.Fatalf("event %+v, %v", e, err)
			}
		}
		if got.Len() > 20<<20 {
			t.Fatal("the end never comes")
		}
	}
	if !strings.Contains(got.String(), numbers(1, 400000)) {
		t.Error("the output is not whole")
	}
	near.Close()
	<-served
}

// An agent whose connection broke is the same party on the next one: what it asked for is done
// once.
func TestStreamResumes(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	info := w.Create(d, "demo")
	var seen transcript
	c, served, err := w.dial(d, robot, wire.Attach{Session: "main", Create: true}, seen.handler())
	if err != nil {
		t.Fatal(err)
	}
	op := strings.Repeat("ab", 16)
	request := wire.Request{Verb: wire.VerbRun, Op: op,
		Text: "echo once >>count; while [ ! -e go ]; do sleep 0.01; done; wc -l <count"}
	lost := make(chan error, 1)
	go func() {
		_, err := c.Request(w.Ctx(), request)
		lost <- err
	}()
	seen.until(w.Ctx(), t, "the command has begun", func() bool {
		for _, e := range seen.events {
			if e.Kind == wire.EventCommand {
				return true
			}
		}
		return false
	})
	// The sandbox's connection breaks, and with it the stream.
	w.cut(info)
	wantCode(t, <-lost, wire.CodeLost)
	<-served
	peer, err := w.Memory.Dial(w.Ctx(), instanceOf(info))
	if err != nil {
		t.Fatal(err)
	}
	sshRun(t, peer, "touch go")
	again, _, err := w.dial(d, robot, wire.Attach{Session: "main", Resume: c.Attached().Resume,
		From: wire.At(seen.next)}, wire.Handler{})
	if err != nil {
		t.Fatal(err)
	}
	if !again.Attached().Resumed {
		t.Error("the party is a new one")
	}
	reply, err := again.Request(w.Ctx(), request)
	if err != nil || strings.TrimSpace(reply.Result.Output) != "1" {
		t.Errorf("result after resuming = %+v, %v; want the output 1", reply.Result, err)
	}
	// Nobody else may be that party.
	_, _, err = w.dial(d, bobsRobot, wire.Attach{Session: "main",
		Resume: again.Attached().Resume}, wire.Handler{})
	wantCode(t, err, wire.CodeNotFound)
}

// A resume secret is worth nothing to another principal, also for a sandbox of that one's own.
func TestSecretOfAnother(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	bobsAgent := bobsRobot
	if _, err := d.Create(w.Ctx(), bob, lifecycle.NewSpec{Name: "bobs"}, nil); err != nil {
		t.Fatal(err)
	}
	c, _, err := w.dial(d, robot, wire.Attach{Session: "main", Create: true}, wire.Handler{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Request(w.Ctx(), wire.Request{Verb: wire.VerbTake}); err != nil {
		t.Fatal(err)
	}
	secret := c.Attached().Resume
	for _, name := range []string{"demo", "bobs", "nosuch"} {
		near, far := pair(t)
		served := make(chan error, 1)
		go func() { served <- d.Sessions.Stream(context.Background(), bobsAgent, name, far) }()
		_, err := wire.Open(w.Ctx(), near, wire.Attach{Resume: secret}, wire.Handler{})
		wantCode(t, err, wire.CodeNotFound)
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
	// The same principal's other logins are that party – on a stream everybody is an agent –,
	// unless they have other rights.
	if _, _, err = w.dial(d, alice, wire.Attach{Resume: secret}, wire.Handler{}); err != nil {
		t.Errorf("the same principal: %v", err)
	}
	watcher := gateway.Principal{Name: "alice", Kind: wire.Agent, Rights: wire.RightWatch}
	_, _, err = w.dial(d, watcher, wire.Attach{Resume: secret}, wire.Handler{})
	wantCode(t, err, wire.CodeNotFound)
}

// Who was sent away is no longer that party: neither is the keyboard his, nor does his secret bring
// him back.
func TestKickedStreamStaysAway(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	c, served, err := w.dial(d, robot, wire.Attach{Session: "main", Create: true}, wire.Handler{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Request(w.Ctx(), wire.Request{Verb: wire.VerbTake}); err != nil {
		t.Fatal(err)
	}
	l, err := d.Sessions.Live(w.Ctx(), alice, main)
	if err != nil {
		t.Fatal(err)
	}
	w.Eventually("the agent has the keyboard", func() bool { return l.Keyboard() == "agent:alice" })
	if n, err := d.Sessions.Disconnect(w.Ctx(), alice, main, "agent:alice"); n != 1 || err != nil {
		t.Fatalf("Kick = %d, %v", n, err)
	}
	if err := <-served; !errors.Is(err, interrupt.ErrDisconnected) {
		t.Errorf("Stream = %v, want interrupt.ErrDisconnected", err)
	}
	w.Eventually("the keyboard is free", func() bool { return l.Keyboard() == "" })
	for _, session := range []string{"main", ""} {
		_, _, err = w.dial(d, robot, wire.Attach{Session: session, Resume: c.Attached().Resume},
			wire.Handler{})
		wantCode(t, err, wire.CodeDenied)
	}
	// He may log in again, as another party.
	again, _, err := w.dial(d, robot, wire.Attach{Session: "main"}, wire.Handler{})
	if err != nil || again.Attached().Resumed || again.Attached().Resume == c.Attached().Resume {
		t.Errorf("by name: %+v, %v", again, err)
	}
}

// A kick by the id of one of an agent's parties leaves the others what they hold.
func TestKickLeavesTheOthers(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	one, _, err := w.dial(d, robot, wire.Attach{Session: "main", Create: true}, wire.Handler{})
	if err != nil {
		t.Fatal(err)
	}
	two, served, err := w.dial(d, robot, wire.Attach{Session: "main"}, wire.Handler{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := one.Request(w.Ctx(), wire.Request{Verb: wire.VerbTake}); err != nil {
		t.Fatal(err)
	}
	l, err := d.Sessions.Live(w.Ctx(), alice, main)
	if err != nil {
		t.Fatal(err)
	}
	w.Eventually("the agent has the keyboard", func() bool { return l.Keyboard() == "agent:alice" })
	var id string
	for _, m := range l.Members() {
		if m.Secret() == two.Attached().Resume {
			id = m.Party().ID
		}
	}
	if n, err := d.Sessions.Disconnect(w.Ctx(), alice, main, id); n != 1 || err != nil {
		t.Fatalf("Kick = %d, %v", n, err)
	}
	if err := <-served; !errors.Is(err, interrupt.ErrDisconnected) {
		t.Errorf("Stream = %v, want interrupt.ErrDisconnected", err)
	}
	if err := one.Input(w.Ctx(), []byte("x")); err != nil {
		t.Errorf("who stayed: %v", err)
	}
	if got := l.Keyboard(); got != "agent:alice" {
		t.Errorf("the keyboard is %q", got)
	}
}

func TestGarbageEndsTheStream(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	for name, send := range map[string]string{
		"not frames":     "GET / HTTP/1.1\r\n\r\n",
		"no hello":       "\x00\x00\x00\x03\x02{}",
		"unknown type":   "\x00\x00\x00\x03\x63{}",
		"hello, garbage": "\x00\x00\x00\x11\x01{\"versions\":[1]}\xff\xff\xff\xff",
		"no common one":  "\x00\x00\x00\x12\x01{\"versions\":[99]}",
		"truncated":      "\x00\x00\x00\x11\x01{\"ver",
	} {
		t.Run(name, func(t *testing.T) {
			near, far := pair(t)
			served := make(chan error, 1)
			go func() { served <- d.Sessions.Stream(context.Background(), robot, "demo", far) }()
			go io.Copy(io.Discard, near) // ends when the hub has closed its end
			if _, err := io.WriteString(near, send); err != nil {
				t.Fatal(err)
			}
			if cw, ok := near.(interface{ CloseWrite() error }); ok {
				if err := cw.CloseWrite(); err != nil {
					t.Fatal(err)
				}
			}
			select {
			case err := <-served:
				if err == nil {
					t.Error("Stream took garbage for an end in order")
				}
			case <-w.Ctx().Done():
				t.Error("Stream does not end")
			}
		})
	}
}

// What a client may not send does not reach the guest.
func TestStreamRefusesAPartyInARequest(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	c, served, err := w.dial(d, robot, wire.Attach{Session: "main", Create: true}, wire.Handler{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Request(w.Ctx(), wire.Request{Verb: wire.VerbTake, Party: &wire.Party{Name: "bob",
		Kind: wire.Person, Rights: wire.RightDrive}})
	wantCode(t, err, wire.CodeLost)
	if err := <-served; err == nil || !strings.Contains(err.Error(), "party") {
		t.Errorf("Stream: %v, want an error about the party", err)
	}
}
