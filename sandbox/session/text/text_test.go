package text

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestRender(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"plain", "hello\r\nworld\r\n", "hello\nworld\n"},
		{"no newline", "x", "x"},
		{"progress", " 10%\r 50%\r100%\r\ndone", "100%\ndone"},
		{"shorter over longer", "abcdef\rxy\n", "xycdef\n"},
		{"erased line", "abcdef\r\x1b[Kxy\n", "xy\n"},
		{"erased whole line", "abcdef\x1b[2K\rxy\n", "xy\n"},
		{"colours", "\x1b[1;31mred\x1b[0m\n", "red\n"},
		{"title", "\x1b]0;title\x07a\x1b]2;t\x1b\\b", "ab"},
		{"dcs", "a\x1bP+q544e\x1b\\b", "ab"},
		{"charset", "\x1b(Ba", "a"},
		{"cursor keys mode", "\x1b=\x1b>\x1b[?1h\x1b[?2004ha", "a"},
		{"backspace", "abc\b\bX", "aXc"},
		{"erasing backspace", "abc\b \bX", "abX"},
		{"backspace at start", "\bX", "X"},
		{"tab", "a\tb", "a       b"},
		{"move right", "a\x1b[3Cb", "a   b"},
		{"move left", "abc\x1b[2DX", "aXc"},
		{"column", "abc\x1b[2GX", "aXc"},
		{"delete", "abcd\r\x1b[2P", "cd"},
		{"lines redrawn", "one\ntwo\n\x1b[2Auno\ndos\n", "uno\ndos\n"},
		{"erase below", "one\ntwo\n\x1b[2A\x1b[Jtres", "tres"},
		{"invalid", "a\xffb\xc3", "a\ufffdb\ufffd"},
		{"utf8", "héllo – 界 👩‍👩‍👧", "héllo – 界 👩‍👩‍👧"},
		{"directions", "a" + bidi + "\u2028\u2029\u2060b", "a" + Mark(bidi) + "b"},
		{"direction over text", "abcdef\r\u202e", "<U+202E>"},
		{"controls", "a\x00\x07\x7fb\u0085c", "abc"},
		{"alternate screen", "a\x1b[?1049hvim stuff\x1b[Hmore\x1b[?1049lb", "ab"},
		{"unfinished sequence", "a\x1b[12;", "a"},
		{"cancelled sequence", "a\x1b[12\x18b", "ab"},
		{"huge movement", "\x1b[999999999Cx", strings.Repeat(" ", 4096) + "x"},
		{"clear keeps", "a\n\x1b[H\x1b[2Jb", "a\nb"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, truncated := Render([]byte(tt.in), -1)
			if got != tt.want || truncated {
				t.Errorf("Render(%q) = %q, %v, want %q", tt.in, got, truncated, tt.want)
			}
			// Split at every place, it reads the same.
			for i := range len(tt.in) {
				w := NewWriter(-1)
				w.Write([]byte(tt.in[:i]))
				w.Write([]byte(tt.in[i:]))
				if got := w.String(); got != tt.want {
					t.Errorf("split at %d: %q, want %q", i, got, tt.want)
				}
			}
		})
	}
}

func TestRenderLimit(t *testing.T) {
	var in strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&in, "line %05d\r\n", i)
	}
	got, truncated := Render([]byte(in.String()), 1000)
	if !truncated {
		t.Fatal("not truncated")
	}
	if len(got) > 1000+60 {
		t.Errorf("%d bytes for a limit of 1000", len(got))
	}
	if !strings.HasPrefix(got, "line 00000\nline 00001\n") ||
		!strings.HasSuffix(got, "line 19998\nline 19999\n") {
		t.Errorf("head or tail is missing: %q … %q", got[:40], got[len(got)-40:])
	}
	if !strings.Contains(got, "bytes left out") {
		t.Errorf("does not say what is missing: %q", got)
	}
	for _, limit := range []int{0, 1, 2, 3, 10} {
		if s, _ := Render([]byte("ééééééééé"), limit); !utf8.ValidString(s) {
			t.Errorf("limit %d: invalid %q", limit, s)
		}
	}
}

func TestLimitNotReached(t *testing.T) {
	for _, n := range []int{0, 1, 9, 10} {
		in := strings.Repeat("x", n)
		if got, truncated := Render([]byte(in), 10); got != in || truncated {
			t.Errorf("%d of 10: %q, %v", n, got, truncated)
		}
	}
	if _, truncated := Render([]byte(strings.Repeat("x", 11)), 10); !truncated {
		t.Error("11 of 10 is not truncated")
	}
}

func TestCut(t *testing.T) {
	if s, cut := Cut("abc", 3); s != "abc" || cut {
		t.Errorf("Cut = %q, %v", s, cut)
	}
	s, cut := Cut(strings.Repeat("a", 50)+strings.Repeat("b", 50), 20)
	if want := strings.Repeat("a", 10) + "\n[… 80 bytes left out …]\n" +
		strings.Repeat("b", 10); s != want || !cut {
		t.Errorf("Cut = %q, %v", s, cut)
	}
}

func TestEndlessLine(t *testing.T) {
	w := NewWriter(1000)
	chunk := []byte(strings.Repeat("y", 32<<10))
	for range 200 {
		w.Write(chunk)
	}
	if w.runes > 2*windowRunes || len(w.kept.head)+len(w.kept.tail) > 1000 {
		t.Errorf("holds %d runes and %d bytes", w.runes, len(w.kept.head)+len(w.kept.tail))
	}
	if !w.Truncated() {
		t.Error("not truncated")
	}
}

func FuzzWriter(f *testing.F) {
	f.Add([]byte("a\rb\x1b[2K\x1b[3Ac\n\x1b]0;x\x07"), 10, 3)
	f.Add([]byte("\xe2\x82\xac\x1b[?1049h"), -1, 2)
	f.Fuzz(func(t *testing.T, p []byte, limit, split int) {
		limit = max(limit, -1) % 4096
		whole, _ := Render(p, limit)
		if !utf8.ValidString(whole) {
			t.Errorf("invalid UTF-8: %q", whole)
		}
		if strings.ContainsAny(whole, "\x1b\x07\r\b") {
			t.Errorf("controls left: %q", whole)
		}
		if limit >= 0 && len(whole) > limit+64 {
			t.Errorf("%d bytes for a limit of %d", len(whole), limit)
		}
		if split = split % (len(p) + 1); split < 0 {
			split = -split
		}
		w := NewWriter(limit)
		w.Write(p[:split])
		w.Write(p[split:])
		if got := w.String(); got != whole {
			t.Errorf("split at %d: %q, want %q", split, got, whole)
		}
		runes := 0
		for _, l := range w.lines {
			runes += len(l)
		}
		if runes != w.runes || w.row >= len(w.lines) {
			t.Errorf("counted %d runes of %d, row %d of %d", w.runes, runes, w.row, len(w.lines))
		}
	})
}

func BenchmarkWriter(b *testing.B) {
	chunk := []byte(strings.Repeat("the quick brown fox jumps over the lazy dog\r\n", 700))
	w := NewWriter(32 << 10)
	b.SetBytes(int64(len(chunk)))
	b.ReportAllocs()
	for b.Loop() {
		w.Write(chunk)
	}
}
