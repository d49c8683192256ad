package wire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
)

// connected returns two ends of a connection. Not net.Pipe: both sides write before they read.
func connected(t *testing.T) (near, far *Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return NewConn(a), NewConn(b)
}

func TestHandshake(t *testing.T) {
	for _, c := range []struct {
		name   string
		attach Attach
		answer Attached
		want   error
	}{
		{"by name", Attach{Session: "main"}, Attached{Session: "main", Accepted: 7}, nil},
		{"resumed", Attach{Resume: "secret"}, Attached{Session: "main", Resumed: true}, nil},
		{"refused", Attach{Session: "main"}, Attached{Error: Errorf(CodeDenied, "no")},
			&Error{Code: CodeDenied}},
	} {
		t.Run(c.name, func(t *testing.T) {
			near, far := connected(t)
			served := make(chan error, 1)
			go func() {
				var got Attach
				err := far.Welcome()
				if err == nil {
					err = far.readJSON(FrameAttach, &got)
				}
				if err == nil &&
					(got.Session != c.attach.Session || got.Resume != c.attach.Resume) {
					t.Errorf("asked for %+v, want %+v", got, c.attach)
				}
				served <- errors.Join(err, far.WriteJSON(FrameAttached, 0, c.answer))
			}()
			at, err := near.Attach(c.attach)
			if !errors.Is(err, c.want) || at.Session != c.answer.Session ||
				at.Resumed != c.answer.Resumed ||
				at.Accepted != c.answer.Accepted {
				t.Errorf("got %+v, %v; want %+v, %v", at, err, c.answer, c.want)
			}
			if err := <-served; err != nil {
				t.Errorf("serving: %v", err)
			}
		})
	}
}

// On a stream for list and close, no attach is sent. The next frame is the first request.
func TestHandshakeWithoutAttachment(t *testing.T) {
	near, far := connected(t)
	served := make(chan error, 1)
	go func() {
		if err := far.Welcome(); err != nil {
			served <- err
			return
		}
		f, err := far.Read()
		if err == nil && f.Type != FrameRequest {
			t.Errorf("frame type %d, want a request", f.Type)
		}
		served <- err
	}()
	if at, err := near.Attach(Attach{}); err != nil || at.Session != "" {
		t.Errorf("got %+v, %v", at, err)
	}
	if err := near.WriteJSON(FrameRequest, 1, Request{Verb: VerbList}); err != nil {
		t.Fatal(err)
	}
	if err := <-served; err != nil {
		t.Errorf("serving: %v", err)
	}
}

func TestWelcomeRefuses(t *testing.T) {
	for _, c := range []struct {
		name  string
		first Frame
		want  error // nil: any
	}{
		{"another version", Frame{Type: FrameHello, Data: []byte(`{"versions":[99]}`)}, &Error{Code: CodeUnavailable}},
		{"no version", Frame{Type: FrameHello, Data: []byte(`{}`)}, &Error{Code: CodeUnavailable}},
		{"no JSON", Frame{Type: FrameHello, Data: []byte(`versions`)}, nil},
		{"no hello", Frame{Type: FrameAttach, Data: []byte(`{"session":"main"}`)}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			in, err := AppendFrame(nil, c.first)
			if err != nil {
				t.Fatal(err)
			}
			var answer bytes.Buffer
			err = NewConn(duplex{bytes.NewReader(in), &answer}).Welcome()
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			// The reply has this side's versions, for the error of the other side.
			var reply Hello
			if err := NewConn(duplex{&answer, io.Discard}).readJSON(FrameHello,
				&reply); c.want != nil &&
				(err != nil || len(reply.Versions) == 0) {
				t.Errorf("answered %+v, %v", reply, err)
			}
		})
	}
	if err := NewConn(duplex{bytes.NewReader(nil), io.Discard}).Welcome(); !errors.Is(err, io.EOF) {
		t.Errorf("a client that closes immediately: got %v, want EOF", err)
	}
}
