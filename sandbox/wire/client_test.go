package wire

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open returns a Client and the serving side of its stream, after the handshake.
func open(t *testing.T, attached Attached, h Handler) (*Client, *Conn) {
	t.Helper()
	near, far := net.Pipe()
	server := NewConn(far)
	served := make(chan error, 1)
	go func() {
		for _, want := range []FrameType{FrameHello, FrameAttach} {
			if f, err := server.Read(); err != nil || f.Type != want {
				served <- errors.Join(err, errors.New("not the frame that was due"))
				return
			}
		}
		if err := server.WriteJSON(FrameHello, 0, Hello{Versions: []int{Version}}); err != nil {
			served <- err
			return
		}
		served <- server.WriteJSON(FrameAttached, 0, attached)
	}()
	c, err := Open(t.Context(), near, Attach{Session: "main"}, h)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); server.Close() })
	return c, server
}

func TestClientRequest(t *testing.T) {
	c, server := open(t, Attached{Session: "main"}, Handler{})
	go func() {
		for range 2 {
			f, err := server.Read()
			if err != nil {
				t.Error(err)
				return
			}
			var r Request
			if err := json.Unmarshal(f.Data, &r); err != nil {
				t.Error(err)
			}
			reply := Reply{Result: &Result{Output: r.Text}}
			if r.Text == "no" {
				reply = Reply{Error: Errorf(CodeKeyboardHeld, "person:bob has it")}
			}
			_ = server.WriteJSON(FrameReply, f.ID, reply)
		}
	}()
	reply, err := c.Request(t.Context(), Request{Verb: VerbRun, Text: "yes"})
	if err != nil || reply.Result.Output != "yes" {
		t.Errorf("got %+v, %v", reply, err)
	}
	if _, err := c.Request(t.Context(), Request{Verb: VerbRun, Text: "no"}); !errors.Is(
		err,
		&Error{Code: CodeKeyboardHeld},
	) {
		t.Errorf("refused: got %v", err)
	}
}

// JSON would replace an invalid byte by U+FFFD, and a different command would run: both sides
// reject it.
func TestTextIsUTF8(t *testing.T) {
	c, _ := open(t, Attached{Session: "main"}, Handler{})
	for _, r := range []Request{{Verb: VerbRun, Text: "echo ü\xff"},
		{Verb: VerbKeys, Keys: []string{"Up", "\xfe"}}} {
		reply, err := c.Request(t.Context(), r)
		if !errors.Is(err, &Error{Code: CodeUsage}) || reply.Error == nil {
			t.Errorf("%s: got %+v, %v", r.Verb, reply, err)
		}
	}
	for _, data := range []string{"{\"verb\":\"run\",\"text\":\"\xff\"}", "{", "", "[]"} {
		if r, err := ReadRequest([]byte(data)); err == nil || err.Code != CodeUsage {
			t.Errorf("%q: got %+v, %v", data, r, err)
		}
	}
	if r, err := ReadRequest([]byte(`{"verb":"run","text":"echo ü\ud83d\ude00"}`)); err != nil ||
		r.Text != "echo ü😀" {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestClientRequestCancelled(t *testing.T) {
	c, server := open(t, Attached{Session: "main"}, Handler{})
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancelled := make(chan Request, 1)
	go func() {
		run, _ := server.Read()
		id := run.ID
		cancel(cause)
		f, err := server.Read()
		if err != nil {
			t.Error(err)
		}
		var r Request
		_ = json.Unmarshal(f.Data, &r)
		if r.Cancel != id {
			t.Errorf("cancels %d, want %d", r.Cancel, id)
		}
		cancelled <- r
		_ = server.WriteJSON(FrameReply, id, Reply{}) // a late reply has no waiter and no effect
		_ = server.WriteJSON(FrameAccepted, 0, nil)
	}()
	if _, err := c.Request(ctx, Request{Verb: VerbRun}); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
	if r := <-cancelled; r.Verb != VerbCancel {
		t.Errorf("sent %s", r.Verb)
	}
}

func TestClientInput(t *testing.T) {
	c, server := open(t, Attached{Session: "main", Accepted: 10}, Handler{})
	go func() {
		first, err := server.Read()
		if err != nil || first.Offset != 10 || string(first.Data) != "ls\r" {
			t.Errorf("got %+v, %v", first, err)
		}
		_ = server.Write(Frame{Type: FrameAccepted, Offset: 13})
		_, _ = server.Read()
		refusal, _ := json.Marshal(Errorf(CodeKeyboardHeld, "person:bob has it"))
		_ = server.Write(Frame{Type: FrameAccepted, Offset: 14, Data: refusal})
	}()
	if err := c.Input(t.Context(), []byte("ls\r")); err != nil {
		t.Error(err)
	}
	if err := c.Input(t.Context(), []byte("x")); !errors.Is(err, &Error{Code: CodeKeyboardHeld}) {
		t.Errorf("refused input: got %v", err)
	}
}

func TestClientOrder(t *testing.T) {
	var got []string
	c, server := open(t, Attached{Session: "main"}, Handler{
		Output: func(_ uint64, p []byte) { got = append(got, string(p)) },
		Event:  func(e Event) { got = append(got, string(e.Kind)) },
	})
	_ = server.Write(Frame{Type: FrameOutput, Offset: 0, Data: []byte("a")})
	_ = server.WriteJSON(FrameEvent, 0, Event{Kind: EventState, Offset: 1})
	_ = server.Write(Frame{Type: FrameOutput, Offset: 1, Data: []byte("b")})
	server.Close()
	<-c.Done()
	if len(got) != 3 || got[0] != "a" || got[1] != "state" || got[2] != "b" {
		t.Errorf("got %q", got)
	}
	if err := c.Err(); !errors.Is(err, io.EOF) {
		t.Errorf("Err() = %v, want EOF", err)
	}
	if _, err := c.Request(t.Context(), Request{Verb: VerbWait}); !errors.Is(
		err,
		&Error{Code: CodeLost},
	) {
		t.Errorf("after the end: got %v", err)
	}
}

func TestOpenRefused(t *testing.T) {
	for _, c := range []struct {
		name  string
		serve func(*Conn)
		want  error
	}{
		{"no such session", func(s *Conn) {
			_ = s.WriteJSON(FrameHello, 0, Hello{Versions: []int{Version}})
			_ = s.WriteJSON(FrameAttached, 0, Attached{Error: Errorf(CodeNotFound, "no session x")})
		}, &Error{Code: CodeNotFound}},
		{"another version", func(s *Conn) {
			_ = s.WriteJSON(FrameHello, 0,
				Hello{Versions: []int{Version + 1}})
		}, &Error{Code: CodeUnavailable}},
		{"the stream ends", func(s *Conn) { s.Close() }, nil},
		{"something else", func(s *Conn) { _ = s.WriteJSON(FrameEvent, 0, Event{}) }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			near, far := net.Pipe()
			server := NewConn(far)
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = server.Read()
				_, _ = server.Read()
				c.serve(server)
			}()
			_, err := Open(t.Context(), near, Attach{Session: "x"}, Handler{})
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			<-done
			server.Close()
		})
	}
}

func TestOpenEndsWithContext(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := Open(ctx, near, Attach{Session: "x"}, Handler{}); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
}

// TestClientNotRead attaches to a server that then reads nothing: a call does not block beyond its
// ctx.
func TestClientNotRead(t *testing.T) {
	for name, call := range map[string]func(context.Context, *Client) error{
		"request": func(ctx context.Context, c *Client) error {
			_, err := c.Request(ctx, Request{Verb: VerbList})
			return err
		},
		"input": func(ctx context.Context, c *Client) error { return c.Input(ctx, []byte("x")) },
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := open(t, Attached{Session: "main"}, Handler{})
			why := errors.New("no longer wanted")
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(why)
			if err := call(ctx, c); !errors.Is(err, why) {
				t.Errorf("got %v, want the reason why nobody waits", err)
			}
			<-c.Done() // half a frame cannot be withdrawn
		})
	}
}
