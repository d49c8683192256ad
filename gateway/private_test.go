package gateway_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// shows returns what an attachment's person sees.
func shows(t *testing.T, a *attach.Attachment) (text string) {
	t.Helper()
	if err := a.Screen(func(s *screen.Screen, _ uint64) { text = s.Text() }); err != nil {
		t.Fatal(err)
	}
	return text
}

// Only the person sees what happens in private mode. The record has a gap there, even if the daemon
// dies meanwhile.
func TestPrivateStretch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sandboxtest.Options{})
	cut := &severed{Backend: w.Memory}
	w.Backend = cut
	d := w.Start()
	w.Create(d, "demo")
	w.Run(d, "echo pub''lic-1")
	join := func(d *daemon, p gateway.Principal) *attach.Attachment {
		t.Helper()
		a, err := d.Sessions.Join(w.Ctx(), p, main, attach.JoinOptions{Create: true, Cols: 80,
			Rows: 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { a.Close() })
		return a
	}
	mine, other := join(d, alice), join(d, alice)
	wantCode(t, d.Sessions.Private(w.Ctx(), bob, main, true), wire.CodeNotFound)
	if err := mine.Private(w.Ctx(), true); err != nil {
		t.Fatal(err)
	}
	wantCode(t, other.Private(w.Ctx(), true), wire.CodeKeyboardHeld)
	if got := other.Live().Private(); got != "person:alice" {
		t.Errorf("private of %q", got)
	}
	if err := mine.Input(w.Ctx(), []byte("echo sec''ret-1\r")); err != nil {
		t.Fatal(err)
	}
	w.Eventually("the person sees it", func() bool {
		return strings.Contains(shows(t, mine), "secret-1")
	})
	if got := shows(t, mine); !strings.Contains(got, "public-1") {
		t.Errorf("what was before is not shown:\n%s", got)
	}
	if got := shows(t, other); strings.Contains(got, "ret-1") || !strings.Contains(got,
		"public-1") {
		t.Errorf("others see:\n%s", got)
	}
	if err := mine.Private(w.Ctx(), false); err != nil {
		t.Fatal(err)
	}
	w.Eventually("it is over", func() bool { return mine.Live().Private() == "" })
	if err := mine.Input(w.Ctx(), []byte("echo pub''lic-2\r")); err != nil {
		t.Fatal(err)
	}
	w.Eventually("all see what comes then", func() bool {
		return strings.Contains(shows(t, mine), "public-2") && strings.Contains(shows(t, other),
			"public-2")
	})
	if got := shows(t, mine); strings.Contains(got, "ret-1") {
		t.Errorf("the person still sees:\n%s", got)
	}

	// Again, and the daemon dies. What it printed meanwhile nobody reads.
	if err := mine.Private(w.Ctx(), true); err != nil {
		t.Fatal(err)
	}
	if err := mine.Input(w.Ctx(), []byte("echo sec''ret-2\r")); err != nil {
		t.Fatal(err)
	}
	w.Eventually("the person sees it", func() bool {
		return strings.Contains(shows(t, mine), "secret-2")
	})
	cut.sever(true) // so that the daemon has no time for manners
	d.End()
	cut.sever(false)
	d = w.Start()
	l, err := d.Sessions.Live(w.Ctx(), alice, main)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Private(); got != "person:alice" {
		t.Errorf("the next daemon: private of %q", got)
	}
	w.Eventually("the person is gone for good", func() bool { return l.Private() == "" })
	if res := w.Run(d, "echo pub''lic-3"); res.Output != "public-3\n" {
		t.Errorf("the next command: %q", res.Output)
	}
	text, r := w.Recorded(d, main)
	if strings.Contains(text, "ret-1") || strings.Contains(text, "ret-2") {
		t.Errorf("the record has the secret: %q", text)
	}
	for _, word := range []string{"public-1\r\n", "public-2\r\n", "public-3\r\n"} {
		if strings.Count(text, word) != 1 {
			t.Errorf("%q is %d times in the record", word, strings.Count(text, word))
		}
	}
	if g := r.Gaps(); len(g) != 2 || g[0].Why != "private" || g[1].Why != "private" {
		t.Errorf("gaps: %v", g)
	}
}

// severed is a backend whose connections can be cut all at once; new ones then fail.
type severed struct {
	*sandboxtest.Backend
	mu    sync.Mutex
	conns []net.Conn // guarded by mu
	cut   bool       // guarded by mu
}

func (s *severed) Dial(ctx context.Context, inst sandbox.Instance) (sandbox.Peer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut {
		return sandbox.Peer{}, errors.New("the network is away")
	}
	p, err := s.Backend.Dial(ctx, inst)
	if err == nil {
		s.conns = append(s.conns, p.Conn)
	}
	return p, err
}

func (s *severed) sever(cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = cut
	for _, c := range s.conns {
		c.Close()
	}
	s.conns = nil
}
