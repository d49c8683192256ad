package httpd

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// rounds is how often each end is tried: failures are rare.
const rounds = 12

// heard is how a socket ended for its reader.
type heard struct {
	code   websocket.StatusCode // -1 is none: a browser reports it as 1006
	reason string
	words  bool // a message said that the session or the replay ended
	err    error
}

// listen reads until the socket ends. began is closed after the first message, of a terminal after
// three frames.
func listen(ctx context.Context, c *websocket.Conn, terminal bool) (began chan struct{},
	end chan heard) {
	c.SetReadLimit(-1)
	began, end = make(chan struct{}), make(chan heard, 1)
	go func() {
		var h heard
		start := sync.OnceFunc(func() { close(began) })
		for pictures := 0; ; {
			kind, p, err := c.Read(ctx)
			if err != nil {
				h.err, h.code = err, websocket.CloseStatus(err)
				if _, text, ok := strings.Cut(err.Error(), `reason = "`); ok {
					h.reason = text
				}
				start()
				end <- h
				return
			}
			if kind == websocket.MessageBinary {
				pictures++
			} else {
				h.words = h.words || strings.Contains(string(p), `"ended"`) ||
					strings.Contains(string(p), `"over"`)
			}
			if pictures == 3 || !terminal {
				start()
			}
		}
	}()
	return began, end
}

// The first cause of a socket's end sets its close code and reason, and the page receives both,
// also during output. Its reaction depends on them. It gets no message that the session ended while
// it continues.
func TestSocketsSayWhyTheyEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sandbox("demo")
	agent := w.agent("demo")
	w.run(agent, "echo something to replay")
	w.goesOn(agent, "i=0; while [ $((i+=1)) ]; do echo line $i of much; done")
	for _, end := range []struct {
		name   string
		by     func(s session, id string)
		code   websocket.StatusCode
		reason string
	}{
		{"the token is revoked", func(_ session, id string) {
			if err := w.tokens.Revoke(t.Context(), "alice", id); err != nil {
				t.Error(err)
			}
		}, 4401, "revoked"},
		{"they log out", func(s session, _ string) {
			got := w.call("POST", "/page/logout", "", `{"revoke":true}`, func(r *http.Request) {
				r.AddCookie(s.cookie)
				r.Header.Set("X-Sandboxd-Key", s.key)
				r.Header.Set("Origin", "http://"+w.addr)
			})
			if got.status != http.StatusNoContent {
				t.Errorf("%d %s", got.status, got.body)
			}
		}, 4401, "revoked"},
		{"the daemon ends", func(session, string) { w.end(); w.serve() }, websocket.StatusGoingAway, "the daemon is stopping"},
	} {
		t.Run(end.name, func(t *testing.T) {
			for round := range rounds {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				s, id := w.loginID()
				ends := make(map[string]chan heard)
				for _, path := range []string{"live", "terminal/demo/main?cols=200&rows=60",
					"terminal/demo/main?cols=80&rows=24", "replay/demo/main"} {
					c, _, err := w.socket(s, "/page/"+path)
					if err != nil {
						t.Fatal(err)
					}
					defer c.CloseNow()
					began, over := listen(ctx, c, strings.HasPrefix(path, "terminal"))
					ends[path] = over
					<-began
					if strings.HasPrefix(path, "terminal") { // people type meanwhile
						_ = c.Write(ctx, websocket.MessageBinary, []byte("x"))
					}
				}
				end.by(s, id)
				for path, over := range ends {
					got := <-over
					if got.code != end.code || !strings.Contains(got.reason, end.reason) {
						t.Errorf("round %d: %s ended with %v %s (%v)", round, path, got.code,
							got.reason, got.err)
					}
					if got.words {
						t.Errorf("round %d: %s got a message that the session ended", round, path)
					}
				}
				if t.Failed() && round > 3 {
					t.Fatal("enough")
				}
			}
		})
	}
	s := w.login(wire.RightDrive)
	c, _, err := w.socket(s, "/page/terminal/nowhere/main")
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, over := listen(ctx, c, true)
	if got := <-over; got.code != 4400 || !strings.Contains(got.reason, "no sandbox nowhere") {
		t.Errorf("no such sandbox: %v %s (%v)", got.code, got.reason, got.err)
	}
}

// goesOn runs a command that does not end.
func (w *world) goesOn(a *attach.Attachment, command string) {
	w.t.Helper()
	got, err := a.Request(w.t.Context(),
		wire.Request{Verb: wire.VerbRun, Text: command, TimeoutMS: 2000})
	if err != nil || got.Result.Ended != wire.Deadline {
		w.t.Fatalf("%v, %+v", err, got.Result)
	}
}

// A terminal that was smaller for a moment is redrawn: it has moved its lines.
func TestSocketIsPaintedAfterAResize(t *testing.T) {
	w := newWorld(t)
	w.sandbox("demo")
	w.run(w.agent("demo"), "echo to-be-seen-again")
	c, _, err := w.socket(w.login(wire.RightDrive), "/page/terminal/demo/main?cols=80&rows=24")
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for range 5 { // back to its size, as when both changes come between two frames
		for seen := false; !seen; {
			_, p, err := c.Read(ctx)
			if err != nil {
				t.Fatal(err)
			}
			seen = strings.Contains(string(p), "to-be-seen-again")
		}
		if err := c.Write(ctx, websocket.MessageText,
			[]byte(`{"do":"resize","cols":80,"rows":24}`)); err != nil {
			t.Fatal(err)
		}
	}
}

// loginID is login, with the token's ID.
func (w *world) loginID() (s session, id string) {
	w.t.Helper()
	known := make(map[string]bool)
	for _, tok := range w.tokens.List("alice") {
		known[tok.ID] = true
	}
	s = w.login(wire.RightDrive)
	for _, tok := range w.tokens.List("alice") {
		if !known[tok.ID] {
			id = tok.ID
		}
	}
	return s, id
}
