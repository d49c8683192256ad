package screen

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// stream returns n pieces of a simple program's output. It uses only what tmux, xterm.js and our
// screen treat the same.
func stream(r *rand.Rand, n, cols, rows int) string {
	var b strings.Builder
	words := []string{"a", "hello", "the quick brown fox jumps", "é", "e\u0301", "ñandú", "│─┼",
		"x y z", "    ", "0123456789"}
	// If half of a wide character is moved or erased, tmux keeps an invalid cell. So a stream has
	// either wide characters or such operations.
	wide := r.IntN(2) == 0
	if wide {
		words = append(words, "世界", "中", "ｆｕｌｌ", "한글")
	}
	pick := func(choices ...string) string { return choices[r.IntN(len(choices))] }
	num := func(limit int) int { return r.IntN(limit + 2) }
	// tmux keeps the first half of a wide character in column 0 when its second half is
	// overwritten.
	column := func() int { return max(num(cols), 3) }
	for range n {
		switch r.IntN(28) {
		case 0, 1, 2, 3, 4, 5:
			b.WriteString(words[r.IntN(len(words))])
		case 6, 7:
			b.WriteString("\r\n")
		case 8:
			b.WriteString(pick("\r", "\rwxyz\b", "\t", "\r\n\n"))
		case 9, 10:
			fmt.Fprintf(&b, "\x1b[%d;%dH", num(rows), column())
		case 11:
			fmt.Fprintf(&b, "\x1b[%d%s", num(rows), pick("A", "B", "E", "F"))
		case 12:
			fmt.Fprintf(&b, "\r\x1b[%d%s", column(), pick("C", "G", "`", "d"))
		case 13, 14:
			fmt.Fprintf(&b, "\x1b[%sm", pick("", "1", "7", "31", "42", "38;5;123", "48;2;1;2;3",
				"4", "0;3", "22;27", "39;49", "90;107"))
		case 15:
			if wide {
				b.WriteString(pick("\r\x1b[K", "\x1b[2K", "\r\x1b[J"))
				continue
			}
			fmt.Fprintf(&b, "\x1b[%s", pick("K", "1K", "2K"))
		case 16:
			if !wide {
				fmt.Fprintf(&b, "\x1b[%s", pick("J", "1J"))
			}
		case 17: // outside the region, tmux executes it and xterm does not
			fmt.Fprintf(&b, "\x1b[r\x1b[%dd\x1b[%d%s\r", num(rows), num(rows), pick("L", "M"))
		case 18: // inserting all the rest of a line does nothing in tmux
			if !wide {
				fmt.Fprintf(&b, "\r\x1b[%d%s", num(cols/2-1), pick("@", "P", "X"))
			}
		case 19: // tmux moves to the screen's corner, xterm to that of the region
			top := 1 + r.IntN(rows)
			fmt.Fprintf(&b, "\x1b[?6l\x1b[%d;%dr", top, top+r.IntN(rows))
		case 20:
			b.WriteString(pick("\x1b[r", "\x1bD\r", "\x1bM\r", "\x1bE"))
		case 21: // rows that SD adds have the background in tmux, and none in xterm.js
			fmt.Fprintf(&b, "\x1b[%s", pick("S", "2S", "49m\x1b[T", "49m\x1b[2T"))
		case 22: // tmux saves origin mode, xterm.js does not
			b.WriteString("\x1b[?6l" + pick("\r\x1b7", "\x1b8"))
		case 23:
			b.WriteString(pick("\x1b(0lqqk\x1b(B", "\x1b[?6h", "\x1b[?6l", "\x1b[?25l",
				"\x1b[?25h"))
		case 24:
			fmt.Fprintf(&b, "%s\x1b[%db", pick("=", "-"), num(cols))
		case 25:
			b.WriteString(pick("\x1b]0;title\a", "\x1b[?2004h", "\x1b[?1h\x1b=", "\x1b[?1000h",
				"\x1bP1$x\x1b\\"))
		default:
			fmt.Fprintf(&b, "line %d\r\n", r.IntN(1000))
		}
	}
	return b.String()
}

// dump returns everything that a reader can see of s, except generations.
func dump(s *Screen) string {
	var b strings.Builder
	cols, rows := s.Size()
	fmt.Fprintf(&b, "%d %d %+v %+v %q %v %v %d\n", cols, rows, s.Cursor(), s.Modes(), s.Title(),
		s.Notice(), s.Call(), s.Scrolled())
	line := func(cells []Cell) {
		var last Style
		for _, c := range cells {
			if c.Style != last {
				fmt.Fprintf(&b, "{%+v}", c.Style)
				last = c.Style
			}
			fmt.Fprintf(&b, "%s/%d ", c.Text, c.Width)
		}
		b.WriteByte('\n')
	}
	for y := range rows {
		fmt.Fprintf(&b, "%t ", s.Wrapped(y))
		line(s.Line(y))
	}
	fmt.Fprintf(&b, "%d\n", s.Kept())
	for n := s.Kept(); n < s.Scrolled(); n++ {
		line(s.AppendKept(nil, n))
	}
	return b.String()
}

// TestSplit checks that the result does not depend on how the stream is split.
func TestSplit(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 300 {
		in := hostile(r, 40, 20, 6)
		opts := Options{Cols: 20, Rows: 6, Scrollback: 10}
		whole, bytewise, pieces := New(opts), New(opts), New(opts)
		whole.Write([]byte(in))
		for j := range len(in) {
			bytewise.Write([]byte(in[j : j+1]))
		}
		for rest := in; rest != ""; {
			n := 1 + r.IntN(min(len(rest), 20))
			pieces.Write([]byte(rest[:n]))
			rest = rest[n:]
		}
		check(t, whole)
		want := dump(whole)
		if got := dump(bytewise); got != want {
			t.Fatalf("stream %d %q: byte by byte gives\n%s\nwhole gives\n%s", i, in, got, want)
		}
		if got := dump(pieces); got != want {
			t.Fatalf("stream %d %q: in pieces gives\n%s\nwhole gives\n%s", i, in, got, want)
		}
	}
}

// TestCollect checks that dropping unused styles and clusters has no visible effect.
func TestCollect(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		s := New(Options{Cols: 20, Rows: 6, Scrollback: 10})
		for range 5 {
			s.Write([]byte(hostile(r, 20, 20, 6)))
			before := dump(s)
			s.collect()
			check(t, s)
			if after := dump(s); after != before {
				t.Fatalf("collecting made of\n%s\nthis:\n%s", before, after)
			}
		}
	}
}

// TestBoundedMemory checks that a program that never repeats a style or a cluster cannot make the
// screen grow.
func TestBoundedMemory(t *testing.T) {
	s := New(Options{Cols: 80, Rows: 24, Scrollback: 100})
	var buf []byte
	for i := range 200_000 {
		buf = fmt.Appendf(buf[:0], "\x1b[38;2;%d;%d;%dmx%c%c", i>>16, i>>8&255, i&255, 0x300+i%64,
			0x300+i/64%64)
		s.Write(buf)
	}
	if n := len(s.intern.styles) + len(s.intern.clusters); n > 4*(80*124)+minInterned {
		t.Errorf("%d styles and clusters are kept", n)
	}
	s.Write([]byte("\x1b]0;" + strings.Repeat("x", 1<<20)))
	if n := cap(s.parser.str); n > 2*maxString {
		t.Errorf("%d bytes of an endless string are kept", n)
	}
	s.Write([]byte("\a" + strings.Repeat("a\u0301", 5) + strings.Repeat("\u0301", 1<<20)))
	check(t, s)
}

func FuzzScreen(f *testing.F) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 20 {
		f.Add([]byte(hostile(r, 30, 20, 6)), uint16(20), uint16(6), uint16(11), uint16(7), 17)
	}
	f.Fuzz(func(t *testing.T, in []byte, cols, rows, newCols, newRows uint16, cut int) {
		cut = min(max(cut, 0), len(in))
		c, h := int(cols%100), int(rows%50)
		one := New(Options{Cols: c, Rows: h, Scrollback: 20, Reply: func([]byte) {}})
		two := New(Options{Cols: c, Rows: h, Scrollback: 20})
		one.Write(in)
		two.Write(in[:cut])
		check(t, two)
		two.Write(in[cut:])
		check(t, one)
		if a, b := dump(one), dump(two); a != b {
			t.Fatalf("whole:\n%s\ncut at %d:\n%s", a, cut, b)
		}
		one.Resize(int(newCols%100), int(newRows%50))
		check(t, one)
		one.Write(in)
		check(t, one)
		one.Resize(c, h)
		check(t, one)
	})
}

func benchmark(b *testing.B, in string, scrollback int) {
	s := New(Options{Cols: 200, Rows: 50, Scrollback: scrollback})
	p := []byte(in)
	for len(p) < 32<<10 {
		p = append(p, in...)
	}
	s.Write(p)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		s.Write(p)
	}
}

func BenchmarkASCII(b *testing.B) {
	benchmark(b, strings.Repeat("The quick brown fox. ", 4)+"\r\n", 0)
}
func BenchmarkScrollback(b *testing.B) {
	benchmark(b, strings.Repeat("The quick brown fox. ", 4)+"\r\n", 2000)
}
func BenchmarkYes(b *testing.B)     { benchmark(b, "y\r\n", 0) }
func BenchmarkOneLine(b *testing.B) { benchmark(b, strings.Repeat("x", 1000), 0) }
func BenchmarkCJK(b *testing.B)     { benchmark(b, "世界人民大团结万岁\r\n", 0) }
func BenchmarkEmoji(b *testing.B)   { benchmark(b, "👩‍🚀❤️🇩🇪👍🏽 ok\r\n", 0) }
func BenchmarkColour(b *testing.B) {
	benchmark(
		b, "\x1b[1;32muser\x1b[m:\x1b[38;5;33m/home\x1b[m$ ls \x1b[38;2;1;2;3mfile\x1b[0m\r\n", 0)
}
func BenchmarkFullScreen(b *testing.B) {
	benchmark(
		b,
		"\x1b[H\x1b[2J\x1b[10;20Hhello\x1b[11;20H\x1b[7mworld\x1b[27m\x1b[K\x1b[30;1H\x1b[2;40r\x1b[40H\n\x1b[r", 0)
}
func BenchmarkWorstRepeat(b *testing.B) { benchmark(b, "\rx\x1b[999999b", 0) }
func BenchmarkWorstErase(b *testing.B)  { benchmark(b, "\x1b[41m\x1b[2J\x1b#8\x1b[49S", 0) }
