package gateway

import (
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
)

// A person who looks on where nothing happens has the same screen in front of them an hour later; a screen that nobody looks at is let go.
func TestScreenStaysWhileSomebodyLooks(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	w.run(d, "true")
	a := w.join(d, alice, main, JoinOptions{Cols: 80, Rows: 24})
	l := a.Live()
	look := func() (at *screen.Screen) {
		if err := l.Screen(func(s *screen.Screen, _ uint64) { at = s }); err != nil {
			t.Fatal(err)
		}
		return at
	}
	later := func() {
		l.display.mu.Lock()
		l.display.used = time.Now().Add(-2 * forgetDisplay)
		l.display.mu.Unlock()
		l.display.expire()
	}
	first := look()
	later()
	if look() != first {
		t.Error("the screen was let go while a person looks on")
	}
	a.Close()
	w.eventually("nobody is attached", func() bool { return !l.seen() })
	later()
	if look() == first {
		t.Error("the screen is kept when nobody looks on")
	}
}

// The screen of a long session begins at a keyframe of its record: what was drawn once, long ago, is there.
func TestScreenBeginsAtKeyframe(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	w.run(d, `printf '\033[2J\033[3;5Hcorner\033[5;10r\033[5H'; yes | head -c 9000000; printf 'last'`)
	l, err := d.Live(w.ctx(), alice, main)
	if err != nil {
		t.Fatal(err)
	}
	look := func() (text string) {
		if err := l.Screen(func(s *screen.Screen, _ uint64) { text = s.Text() }); err != nil {
			t.Fatal(err)
		}
		return text
	}
	want := look()
	l.mu.Lock()
	rec := l.rec
	l.mu.Unlock()
	var from uint64
	w.eventually("a keyframe is made", func() bool {
		_, at, ok := rec.Keyframe(l.Len())
		from = at
		return ok && at > 0 && at+record.KeyframeEvery > l.Len() // the last one
	})
	l.display.mu.Lock()
	l.display.screen = nil
	l.beginDisplay(&l.display, l.Len())
	if l.display.fed != from {
		t.Errorf("the screen begins at %d, want %d", l.display.fed, from)
	}
	l.display.mu.Unlock()
	if got := look(); got != want || !strings.Contains(got, "corner") || !strings.Contains(got, "last") {
		t.Errorf("from a keyframe the screen shows\n%s\nwant\n%s", got, want)
	}
}
