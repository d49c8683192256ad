package gateway

import (
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// shows returns what an attachment's person sees.
func shows(t *testing.T, a *Attachment) (text string) {
	t.Helper()
	if err := a.Screen(func(s *screen.Screen, _ uint64) { text = s.Text() }); err != nil {
		t.Fatal(err)
	}
	return text
}

// A private stretch is seen by the person alone, and the record has a hole in its place, also when the daemon dies in the
// middle of it.
func TestPrivateStretch(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	w.run(d, "echo pub''lic-1")
	join := func(d *daemon, p Principal) *Attachment {
		t.Helper()
		a, err := d.Join(w.ctx(), p, main, JoinOptions{Create: true, Cols: 80, Rows: 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { a.Close() })
		return a
	}
	mine, other := join(d, alice), join(d, alice)
	wantCode(t, d.Private(w.ctx(), bob, main, true), wire.CodeNotFound)
	if err := mine.Private(w.ctx(), true); err != nil {
		t.Fatal(err)
	}
	wantCode(t, other.Private(w.ctx(), true), wire.CodeKeyboardHeld)
	if got := other.Live().Private(); got != "person:alice" {
		t.Errorf("private of %q", got)
	}
	if err := mine.Input(w.ctx(), []byte("echo sec''ret-1\r")); err != nil {
		t.Fatal(err)
	}
	w.eventually("the person sees it", func() bool { return strings.Contains(shows(t, mine), "secret-1") })
	if got := shows(t, mine); !strings.Contains(got, "public-1") {
		t.Errorf("what was before is not shown:\n%s", got)
	}
	if got := shows(t, other); strings.Contains(got, "ret-1") || !strings.Contains(got, "public-1") {
		t.Errorf("others see:\n%s", got)
	}
	if err := mine.Private(w.ctx(), false); err != nil {
		t.Fatal(err)
	}
	w.eventually("it is over", func() bool { return mine.Live().Private() == "" })
	if err := mine.Input(w.ctx(), []byte("echo pub''lic-2\r")); err != nil {
		t.Fatal(err)
	}
	w.eventually("all see what comes then", func() bool {
		return strings.Contains(shows(t, mine), "public-2") && strings.Contains(shows(t, other), "public-2")
	})
	if got := shows(t, mine); strings.Contains(got, "ret-1") {
		t.Errorf("the person still sees:\n%s", got)
	}

	// Again, and the daemon dies. What it printed meanwhile nobody reads.
	if err := mine.Private(w.ctx(), true); err != nil {
		t.Fatal(err)
	}
	if err := mine.Input(w.ctx(), []byte("echo sec''ret-2\r")); err != nil {
		t.Fatal(err)
	}
	w.eventually("the person sees it", func() bool { return strings.Contains(shows(t, mine), "secret-2") })
	mine.mu.Lock()
	client := mine.client
	mine.holds = false // so that the daemon has no time for manners
	mine.mu.Unlock()
	client.Close()
	d.stop()
	d = w.start()
	l, err := d.Live(w.ctx(), alice, main)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Private(); got != "person:alice" {
		t.Errorf("the next daemon: private of %q", got)
	}
	w.eventually("the person is gone for good", func() bool { return l.Private() == "" })
	if res := w.run(d, "echo pub''lic-3"); res.Output != "public-3\n" {
		t.Errorf("the next command: %q", res.Output)
	}
	text, r := w.recorded(d, main)
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
