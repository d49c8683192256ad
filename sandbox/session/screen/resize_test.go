package screen

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// all returns every line of s from the oldest kept one on, with wrapped rows joined, without
// trailing spaces.
func all(s *Screen) string {
	var b strings.Builder
	var line strings.Builder
	add := func(r *row) {
		for _, c := range r.cells {
			line.WriteString(s.intern.text(c))
		}
		if !r.wrapped {
			b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
			line.Reset()
		}
	}
	for n := s.history.total - uint64(len(s.history.ring)); n < s.history.total; n++ {
		add(s.history.line(n))
	}
	for _, r := range s.primary.rows {
		add(r)
	}
	for _, r := range s.below {
		add(r)
	}
	return strings.TrimRight(b.String()+line.String(), "\n ")
}

// TestResizeKeepsText checks that no sequence of sizes loses text.
func TestResizeKeepsText(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	for i := range 200 {
		s := New(Options{Cols: 40, Rows: 12, Scrollback: 10_000})
		for n := range 5 + r.IntN(20) {
			fmt.Fprintf(s, "%d %s\r\n", n, strings.Repeat("wörd 世界 ", r.IntN(12)))
		}
		s.Write([]byte("$ prompt"))
		if i%2 == 0 {
			fmt.Fprintf(s, "\x1b[%dH", 1+r.IntN(12)) // text below the cursor
		}
		if i%3 == 0 {
			s.Write([]byte("\x1b[?1049hother screen"))
		}
		want := all(s)
		var sizes []string
		for range 6 {
			cols, rows := 2+r.IntN(80), 1+r.IntN(20)
			sizes = append(sizes, fmt.Sprintf("%dx%d", cols, rows))
			s.Resize(cols, rows)
			check(t, s)
			if got := all(s); got != want {
				t.Fatalf("screen %d after %v:\n%s\nwant\n%s", i, sizes, got, want)
			}
		}
	}
}

func TestResize(t *testing.T) {
	tests := []struct {
		name, in   string
		cols, rows int
		want       string
		x, y       int
	}{
		{"narrower", "abcdefgh\r\n$ ", 5, 4, "abcde\nfgh\n$", 2, 2},
		{"wider joins what wrapped", "0123456789abc\r\n$ ", 20, 4, "0123456789abc\n$", 2, 1},
		{"wider joins nothing else", "0123456789\r\nabc", 20, 4, "0123456789\nabc", 3, 1},
		{"lower keeps the cursor's line", "a\r\nb\r\nc\r\nd", 10, 2, "c\nd", 1, 1},
		{"lower drops empty rows first", "a\r\nb", 10, 2, "a\nb", 1, 1},
		{"higher", "a\r\nb", 10, 6, "a\nb", 1, 1},
		{"wide characters stay whole", "世界世界\r\n", 3, 6, "世\n界\n世\n界", 0, 4},
		{"cursor beyond the text", "ab\x1b[9G", 5, 4, "ab", 4, 0},
		{"pending wrap", "0123456789", 5, 4, "01234\n56789", 4, 1},
		{"region is reset", "\x1b[2;3ra\r\nb\r\nc\r\nd", 9, 4, "a\nc\nd", 1, 2},
		{"too small", "abc", 0, 0, "c", 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := draw(t, tt.in)
			s.Resize(tt.cols, tt.rows)
			check(t, s)
			if got := s.Text(); got != tt.want {
				t.Errorf("text %q, want %q", got, tt.want)
			}
			if c := s.Cursor(); c.X != tt.x || c.Y != tt.y {
				t.Errorf("cursor at %d,%d, want %d,%d", c.X, c.Y, tt.x, tt.y)
			}
		})
	}
}

// TestResizeBelow checks that rows below the cursor that a smaller window set aside come back,
// unless the screen has scrolled.
func TestResizeBelow(t *testing.T) {
	const in = "a\r\nb\r\nc\r\nd\x1b[H"
	s := draw(t, in)
	s.Resize(10, 2)
	if got, want := s.Text(), "a\nb"; got != want {
		t.Errorf("at two rows %q, want %q", got, want)
	}
	s.Resize(12, 4)
	if got, want := s.Text(), "a\nb\nc\nd"; got != want {
		t.Errorf("back at four rows %q, want %q", got, want)
	}
	s.Resize(12, 2)
	s.Write([]byte("\x1b[2J"))
	s.Resize(12, 4)
	if got := s.Text(); got != "" {
		t.Errorf("what was put aside survived erasing: %q", got)
	}
}

func TestResizeAlternate(t *testing.T) {
	s := draw(t, "primary text\x1b[?1049h\x1b[H0123456789\x1b[4Hlast\x1b[H")
	s.Resize(5, 3)
	check(t, s)
	if got, want := s.Text(), "01234"; got != want {
		t.Errorf("alternate screen %q, want %q", got, want)
	}
	s.Resize(20, 5)
	check(t, s)
	s.Write([]byte("\x1b[?1049l!"))
	if got, want := s.Text(), "primary text!"; got != want {
		t.Errorf("primary screen %q, want %q", got, want)
	}
}

// TestSizes checks that sizes beyond the limits are clamped.
func TestSizes(t *testing.T) {
	for _, tt := range []struct{ cols, rows, wantCols, wantRows int }{
		{0, 0, 80, 24}, {-5, 3, 1, 3}, {0, 7, 1, 7}, {1 << 40, 1 << 40, MaxCols, MaxRows},
	} {
		s := New(Options{Cols: tt.cols, Rows: tt.rows})
		if c, r := s.Size(); c != tt.wantCols || r != tt.wantRows {
			t.Errorf("New %d by %d has %d by %d, want %d by %d", tt.cols, tt.rows, c, r,
				tt.wantCols, tt.wantRows)
		}
		s.Write([]byte("世界\x1b[99;99H\tx\x1b#8\x1b[9S"))
		check(t, s)
	}
}
