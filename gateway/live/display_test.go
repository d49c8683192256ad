package live

import (
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A person who looks on where nothing happens has the same screen an hour later; a screen that
// nobody looks at is released.
func TestScreenStaysWhileSomebodyLooks(t *testing.T) {
	s := adopt(t, newSessions(t, nil), "main")
	leave := s.Join(&member{party: wire.Party{Name: "alice", Kind: wire.Person, ID: "a"}})
	look := func() (at *screen.Screen) {
		if err := s.Screen(func(sc *screen.Screen, _ uint64) { at = sc }); err != nil {
			t.Fatal(err)
		}
		return at
	}
	later := func() {
		s.display.mu.Lock()
		s.display.used = time.Now().Add(-2 * forgetDisplay)
		s.display.mu.Unlock()
		s.Tidy(time.Minute)
	}
	first := look()
	later()
	if look() != first {
		t.Error("the screen was released while a person looks on")
	}
	leave()
	later()
	if look() == first {
		t.Error("the screen is kept when nobody looks on")
	}
}

// The screen of a long session begins at a key frame of its record: what was drawn once, long ago,
// is there.
func TestScreenBeginsAtKeyframe(t *testing.T) {
	s := adopt(t, newSessions(t, nil), "main")
	out := []byte("\033[2J\033[3;5Hcorner\033[5;10r\033[5H" +
		strings.Repeat("y\r\n", record.KeyframeEvery/3+1000) + "last")
	for at := 0; at < len(out); at += 64 << 10 {
		s.Feed().Output(uint64(at), out[at:min(len(out), at+64<<10)])
	}
	look := func() (text string) {
		if err := s.Screen(func(sc *screen.Screen, _ uint64) { text = sc.Text() }); err != nil {
			t.Fatal(err)
		}
		return text
	}
	want := look()
	s.Tidy(time.Minute)
	_, from, ok := s.rec.Keyframe(s.Len())
	if !ok || from == 0 || from+record.KeyframeEvery <= s.Len() {
		t.Fatalf("the last key frame of %d bytes is at %d", s.Len(), from)
	}
	s.display.mu.Lock()
	s.display.screen = nil
	s.display.begin(s, s.Len())
	if s.display.fed != from {
		t.Errorf("the screen begins at %d, want %d", s.display.fed, from)
	}
	s.display.mu.Unlock()
	if got := look(); got != want || !strings.Contains(got, "corner") ||
		!strings.Contains(got, "last") {
		t.Errorf("from a key frame the screen shows\n%s\nwant\n%s", got, want)
	}
}

// A terminal that is resized while a screen is made leaves the screen whole, which the race
// detector checks.
func TestScreenBeginsWhileResized(t *testing.T) {
	s := adopt(t, newSessions(t, nil), "main")
	f := s.Feed()
	seq := uint64(0)
	resize := func(cols int) {
		seq++
		f.Event(wire.Event{Kind: wire.EventResize, Seq: seq, Cols: cols, Rows: 30})
	}
	resize(80)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 2000 {
			resize(100 + i%2)
		}
	}()
	for looking := true; looking; {
		select {
		case <-done:
			looking = false
		default:
		}
		s.display.mu.Lock()
		s.display.screen = nil
		s.display.mu.Unlock()
		if err := s.Screen(func(*screen.Screen, uint64) {}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Screen(func(sc *screen.Screen, _ uint64) {
		if cols, rows := sc.Size(); cols != 101 || rows != 30 {
			t.Errorf("the screen has %d columns and %d rows, want 101 and 30", cols, rows)
		}
	}); err != nil {
		t.Fatal(err)
	}
}
