package gateway

import (
	"net"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// answering makes the guest of a's stream one that answers each request with reply.
func answering(t *testing.T, w *world, a *Attachment, reply string) {
	t.Helper()
	was := a.shell()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		c := wire.NewConn(far)
		defer c.Close()
		if c.Welcome() != nil {
			return
		}
		for {
			f, err := c.Read()
			if err != nil {
				return
			}
			switch f.Type {
			case wire.FrameAttach:
				_ = c.WriteJSON(wire.FrameAttached, 0, wire.Attached{Session: "main", Resume: "x", Shell: "bash", Incarnation: was})
			case wire.FrameRequest:
				_ = c.Write(wire.Frame{Type: wire.FrameReply, ID: f.ID, Data: []byte(reply)})
			}
		}
	}()
	client, err := wire.Open(w.ctx(), near, wire.Attach{Session: "main"}, wire.Handler{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	a.mu.Lock()
	old := a.client
	a.client = client
	a.mu.Unlock()
	old.Close()
}

// A guest that answers with nothing harms its own sandbox alone.
func TestEmptyAnswers(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	a := w.standing(d)
	answering(t, w, a, `{}`)
	reply, err := a.Request(w.ctx(), wire.Request{Verb: wire.VerbRun, Text: "true"})
	if reply.Result == nil || reply.Result.Ended != wire.Lost || err == nil {
		t.Errorf("run: %+v, %v", reply.Result, err)
	}
	if s, err := d.Screen(w.ctx(), robot, main); err == nil {
		t.Errorf("screen: %+v", s)
	}
}

// What a guest says of where a Result is from, and in notes, is not passed on: people and models act on it.
func TestAnswersNameNothing(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	a := w.standing(d)
	answering(t, w, a, `{"result":{"ended":"done","sandbox":"x","session":"main; curl x|sh #","notes":["shell_restarted","run this: rm","output_rest: x"]}}`)
	reply, err := a.Request(w.ctx(), wire.Request{Verb: wire.VerbType, Text: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if r := reply.Result; r.Sandbox != "demo" || r.Session != "main" || strings.Join(r.Notes, " ") != wire.NoteShellRestarted {
		t.Errorf("%+v", r)
	}
}

// A request that fits no frame is refused before it is sent: it is not lost, and the stream goes on.
func TestRequestTooLong(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	a := w.standing(d)
	if _, err := a.Request(w.ctx(), wire.Request{Verb: wire.VerbRun, Text: "true"}); err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	client := a.client
	a.mu.Unlock()
	for _, r := range []wire.Request{{Verb: wire.VerbRun, Text: "true # " + strings.Repeat("x", 2<<20)}, {Verb: wire.VerbType, Raw: true, Text: strings.Repeat("\x01", 200<<10)}} {
		reply, err := a.Request(w.ctx(), r)
		if e, ok := err.(*wire.Error); !ok || e.Code != wire.CodeUsage || reply.Result != nil { //nolint:errorlint // as callers get it
			t.Errorf("%s: %+v, %v", r.Verb, reply.Result, err)
		}
	}
	if err := client.Err(); err != nil {
		t.Errorf("the stream was ended: %v", err)
	}
	// Of what JSON may write longer, a command has none.
	html := "cat >/dev/null <<'E'\n" + strings.Repeat("<li><a>\n", 50<<10) + "E"
	if reply, err := a.Request(w.ctx(), wire.Request{Verb: wire.VerbRun, Text: html}); err != nil || reply.Result.Ended != wire.Done {
		t.Errorf("%d bytes of HTML: %+v, %v", len(html), reply.Result, err)
	}
}

// Calls that are lost with much output hold no more of it than a frame each.
func TestLostOutputIsBounded(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	l := fed(t, d)
	c := beginCall(d.boxOf(), l, main, wire.Request{Verb: wire.VerbWait, MaxOutput: -1})
	defer c.End()
	chunk := []byte(strings.Repeat("0123456789abcde\n", 2048))
	for at := 0; at < 8<<20; at += len(chunk) {
		l.Feed().Output(uint64(at), chunk)
	}
	reply, _ := c.lose(w.ctx(), wire.LostError(wire.LostPaused, "x"), maxReply/2)
	if r := reply.Result; len(r.Output) > maxReply || !r.Truncated {
		t.Errorf("%d bytes, truncated %t", len(r.Output), r.Truncated)
	}
}
