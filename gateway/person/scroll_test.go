package person

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/view"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// scrolling returns a scroller whose person sees 100 lines.
func scrolling(line func(int) string) *scroller {
	s := &scroller{changed: func() {}, lines: func(context.Context) (all []string, err error) {
		for i := range 100 {
			all = append(all, line(i))
		}
		return all, nil
	}}
	s.begin()
	s.work.Wait()
	return s
}

// Whatever a person presses, in a window of whatever size, they see lines of the record.
func FuzzScroll(f *testing.F) {
	f.Add([]byte("\x1b[5~kkgjG\x1b[6~/line 7\rnnNN/\x7f\x7fx\x1b"), uint8(80), uint8(20))
	f.Add([]byte("/é\xff\r\x1b[\x1bO"), uint8(1), uint8(1))
	f.Fuzz(func(t *testing.T, in []byte, cols, rows uint8) {
		if len(in) == 0 || cols == 0 || rows == 0 {
			return
		}
		s := scrolling(func(i int) string { return fmt.Sprintf("\x1b[31mline\x1b[m %d é漢", i) })
		for _, e := range [][]byte{in[:len(in)/2], in[len(in)/2:]} {
			if _, ok := s.frame(int(cols), int(rows), "demo~main", "", ""); !ok {
				return // they went back
			}
			if scrolls, _ := s.input(view.KeyEvent{Bytes: e}); !scrolls {
				t.Fatal("they see the past, but type")
			}
		}
		frame, ok := s.frame(int(cols), int(rows), "demo~main", "", "")
		if !ok {
			return
		}
		if top := s.past.top; top < 0 || top > 100 {
			t.Fatalf("top %d", top)
		}
		if text := frame.Screen.LineText(0); !strings.HasPrefix(text, "line") {
			t.Fatalf("the first row is %q", text)
		}
	})
}

// A text is found from below, in both directions, and marked where it is.
func TestScrollFinds(t *testing.T) {
	s := scrolling(func(i int) string { return fmt.Sprintf("漢 \x1b[31mLi\x1b[mne %d", i%50) })
	s.frame(40, 10, "", "", "")
	s.input(view.KeyEvent{Bytes: []byte("G")})
	for _, step := range []struct {
		keys, say string
		found     int
	}{
		{"n", "type / and a text", -1},
		{"/line 7\r", "", 57},
		{"n", "", 7},
		{"n", "no earlier line has it", 7},
		{"N", "", 57},
		{"N", "no later line has it", 57},
		{"G/line 44\x7f3\r", "", 93},
		{"/none\r", "not found", -1},
	} {
		_, say := s.input(view.KeyEvent{Bytes: []byte(step.keys)})
		if say != step.say || s.past.found != step.found {
			t.Errorf("%q: %q, found %d", step.keys, say, s.past.found)
		}
		if step.found < 0 {
			continue
		}
		f, _ := s.frame(40, 10, "", "", "")
		y := step.found - s.past.top
		marked := func(x int) bool { return f.Screen.Line(y)[x].Style.Attr&screen.Inverse != 0 }
		if y < 0 || y >= 10 || !marked(3) || marked(2) {
			t.Errorf("%q: row %d is not marked:\n%s", step.keys, y, f.Screen.Text())
		}
	}
}

// Until the lines are there, and when they cannot be read, keys do nothing but to go back: none is
// typed into the session. Who goes back ends the reading; one piece of input looks for a text once.
func TestScrollWaits(t *testing.T) {
	ended := make(chan error, 1)
	s := &scroller{changed: func() {}, public: func(err error) *wire.Error {
		return &wire.Error{Message: err.Error()}
	}, lines: func(ctx context.Context) ([]string, error) {
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	}}
	press := func(keys string, scrolls bool) {
		t.Helper()
		if got, say := s.input(view.KeyEvent{Bytes: []byte(keys)}); got != scrolls || say != "" {
			t.Errorf("%q: scrolls %v, %q", keys, got, say)
		}
	}
	status := func(want string) {
		t.Helper()
		if f, _ := s.frame(80, 10, "demo", "", "urgent"); f.Status != want {
			t.Errorf("status %q, want %q", f.Status, want)
		}
	}
	s.begin()
	press("/secret\rnkj", true)
	status(" demo   reading the record   q back   urgent")
	press("qrm -rf /\r", true) // the rest of the piece is dropped
	press("x", false)
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	s.work.Wait()

	s.lines = func(context.Context) ([]string, error) { return nil, errors.New("no record") }
	s.begin()
	s.work.Wait()
	press("/secret\rn", true)
	status(" demo   no record   q back   urgent")
	press("q", true)

	s = scrolling(func(i int) string { return fmt.Sprint("line ", i) })
	s.frame(80, 10, "", "", "")
	s.input(view.KeyEvent{Bytes: []byte("/line\rnnnn")})
	if s.past.found != 99 {
		t.Errorf("found %d", s.past.found)
	}
	s.close()
	s.begin()
	press("x", false)
}

// The mark is in the colours of the text that was found, and moves with another text on the same
// line. The rest of a paste that began while a person scrolled is not typed either.
func TestScrollMarks(t *testing.T) {
	s := scrolling(func(i int) string { return fmt.Sprintf("İ one two \x1b[31mred %d", i) })
	red, _ := s.frame(80, 10, "", "", "")
	colour := red.Screen.Line(0)[10].Style
	for _, step := range []struct {
		keys     string
		from, to int
		style    screen.Style
	}{{"/two \x7f\r", 6, 9, screen.Style{}}, {"/one\r", 2, 5, screen.Style{}},
		{"/red\r", 10, 13, colour}} {
		s.input(view.KeyEvent{Bytes: []byte(step.keys)})
		f, _ := s.frame(80, 10, "", "", "")
		step.style.Attr |= screen.Inverse
		for x, c := range f.Screen.Line(s.past.found - s.past.top) {
			marked, want := c.Style.Attr&screen.Inverse != 0, x >= step.from && x < step.to
			if marked != want || marked && c.Style != step.style {
				t.Errorf("%q: cell %d is %+v", step.keys, x, c)
			}
		}
	}
	s.input(view.KeyEvent{Bytes: []byte("rm -rf "), Paste: 7})
	s.end()
	for paste, dropped := range map[uint64]bool{7: true, 8: false, 0: false} {
		if got, _ := s.input(view.KeyEvent{Bytes: []byte("/"), Paste: paste}); got != dropped {
			t.Errorf("paste %d: dropped %v", paste, got)
		}
	}
}
