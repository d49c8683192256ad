package screen

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// draw returns a screen of 10 by 4 after the output in.
func draw(t *testing.T, in string) *Screen {
	t.Helper()
	s := New(Options{Cols: 10, Rows: 4, Scrollback: 100})
	s.Write([]byte(in))
	check(t, s)
	return s
}

// check fails the test if s is not a valid screen.
func check(t *testing.T, s *Screen) {
	t.Helper()
	cols, rows := s.Size()
	cur := s.Cursor()
	if cur.X < 0 || cur.X >= cols || cur.Y < 0 || cur.Y >= rows {
		t.Fatalf("cursor %+v outside of %d by %d", cur, cols, rows)
	}
	if s.g.top < 0 || s.g.bottom >= rows || s.g.top > s.g.bottom || s.g.top == s.g.bottom &&
		rows > 1 {
		t.Fatalf("scroll region %d to %d in %d rows", s.g.top, s.g.bottom, rows)
	}
	if len(s.g.rows) != rows || len(s.primary.rows) != rows {
		t.Fatalf("%d and %d rows, want %d", len(s.g.rows), len(s.primary.rows), rows)
	}
	gens := make(map[uint64]bool)
	for y := range rows {
		if g := s.LineGeneration(y); g == 0 || gens[g] {
			t.Fatalf("row %d: generation %d is not its own", y, g)
		}
		gens[s.LineGeneration(y)] = true
		if n := len(s.g.rows[y].cells); n > cols {
			t.Fatalf("row %d stores %d cells", y, n)
		}
		line := s.Line(y)
		if len(line) != cols {
			t.Fatalf("row %d has %d cells", y, len(line))
		}
		for x, c := range line {
			wide := x > 0 && line[x-1].Width == 2
			switch {
			case c.Width > 2, wide != (c.Width == 0), c.Width == 2 && x == cols-1,
				(c.Text == "") != (c.Width == 0):
				t.Fatalf("row %d column %d: impossible cell %+v", y, x, c)
			case !utf8.ValidString(c.Text), len(c.Text) > maxCluster,
				strings.ContainsFunc(c.Text, control):
				t.Fatalf("row %d column %d: text %q", y, x, c.Text)
			}
		}
	}
	if n := len(s.intern.styles) + len(s.intern.clusters); n > s.intern.limit+2 {
		t.Fatalf("%d styles and clusters are kept, limit %d", n, s.intern.limit)
	}
	if n := cap(s.parser.str); n > 2*maxString {
		t.Fatalf("%d bytes of a string are kept", n)
	}
	if n := len(s.history.ring); n > s.history.limit {
		t.Fatalf("%d lines kept, limit %d", n, s.history.limit)
	}
}

func control(r rune) bool { return r < 0x20 || r >= 0x7f && r < 0xa0 }

func TestSequences(t *testing.T) {
	const full = "aaa\r\nbbb\r\nccc\r\nddd"
	tests := []struct {
		name, in, want string
		x, y           int
	}{
		{"text", "hello", "hello", 5, 0},
		{"line feed keeps the column", "ab\ncd", "ab\n  cd", 4, 1},
		{"newline mode", "\x1b[20hab\ncd", "ab\ncd", 2, 1},
		{"carriage return", "abc\rX", "Xbc", 1, 0},
		{"backspace", "abc\b\bX", "aXc", 2, 0},
		{"tab", "a\tb", "a       b", 9, 0},
		{"tab stops at the margin", "a\t\t\tb", "a        b", 9, 0},
		{"own tab stop", "\x1b[4G\x1bH\rx\ty", "x  y", 4, 0},
		{"no tab stops", "\x1b[3ga\tb", "a        b", 9, 0},
		{"tab back", "\x1b[10G\x1b[ZX", "        X", 9, 0},
		{"wrap is deferred", "0123456789", "0123456789", 9, 0},
		{"wrap", "0123456789x", "0123456789\nx", 1, 1},
		{"no wrap", "\x1b[?7l0123456789xyz", "012345678z", 9, 0},
		{"carriage return ends a pending wrap", "0123456789\rx", "x123456789", 1, 0},
		{"erasing spares the last column while a wrap is pending", "0123456789\x1b[K", "0123456789", 9, 0},
		{"scroll", full + "\r\neee", "bbb\nccc\nddd\neee", 3, 3},
		{"position", "\x1b[3;4Hx", "\n\n   x", 4, 2},
		{"position is clamped", "\x1b[99999;99999Hx", "\n\n\n         x", 9, 3},
		{"up stops at the top", "\x1b[99Ax", "x", 1, 0},
		{"relative", "\x1b[2B\x1b[3Cx\x1b[2D\x1b[Ay", "\n  y\n   x", 3, 1},
		{"next and previous line", "abc\x1b[Ed\x1b[Fe", "ebc\nd", 1, 0},
		{"column and row", "\x1b[5G\x1b[2dx", "\n    x", 5, 1},
		{"index and reverse index", "a\x1bDb\x1bMc", "a c\n b", 3, 0},
		{"reverse index scrolls", full + "\x1b[H\x1bMx", "x\naaa\nbbb\nccc", 1, 0},
		{"region", full + "\x1b[2;3r\x1b[3;1H\nx", "aaa\nccc\nx\nddd", 1, 2},
		{"region is left below", full + "\x1b[1;2r\x1b[4;1H\n\nx", "aaa\nbbb\nccc\nxdd", 1, 3},
		{"a region needs two rows", full + "\x1b[2;2r\x1b[4;1H\nx", "bbb\nccc\nddd\nx", 1, 3},
		{"origin mode", "\x1b[2;3r\x1b[?6h\x1b[9;9Hx\x1b[Hy", "\ny\n        x", 1, 1},
		{"insert lines", full + "\x1b[2H\x1b[2Lx", "aaa\nx\n\nbbb", 1, 1},
		{"delete lines", full + "\x1b[2H\x1b[2Mx", "aaa\nxdd", 1, 1},
		{"scroll up", full + "\x1b[2S", "ccc\nddd", 3, 3},
		{"scroll down", full + "\x1b[2T", "\n\naaa\nbbb", 3, 3},
		{"insert characters", "abcdef\x1b[3G\x1b[2@", "ab  cdef", 2, 0},
		{"insert characters past the margin", "0123456789\x1b[3G\x1b[2@", "01  234567", 2, 0},
		{"delete characters", "abcdef\x1b[3G\x1b[2P", "abef", 2, 0},
		{"erase characters", "abcdef\x1b[3G\x1b[2X", "ab  ef", 2, 0},
		{"insert mode", "abc\x1b[1G\x1b[4hxy\x1b[4lz", "xyzbc", 3, 0},
		{"erase to the right", "abcdef\x1b[3G\x1b[K", "ab", 2, 0},
		{"erase to the left", "abcdef\x1b[3G\x1b[1K", "   def", 2, 0},
		{"erase the line", "abcdef\x1b[3G\x1b[2Kx", "  x", 3, 0},
		{"erase below", full + "\x1b[2;2H\x1b[J", "aaa\nb", 1, 1},
		{"erase above", full + "\x1b[3;2H\x1b[1J", "\n\n  c\nddd", 1, 2},
		{"erase all", full + "\x1b[2Jx", "\n\n\n   x", 4, 3},
		{"repeat", "ab\x1b[3bc", "abbbbc", 6, 0},
		{"repeat is bounded by the line", "ab\x1b[999999999b", "abbbbbbbbb", 9, 0},
		{"repeat of nothing", "a\x1b[1m\x1b[3b", "a", 1, 0},
		{"save and restore", "\x1b[2;3H\x1b7\x1b[Hx\x1b8y", "x\n  y", 3, 1},
		{"line drawing", "\x1b(0lqk\x1b(Bq", "┌─┐q", 4, 0},
		{"shift out", "\x1b)0a\x0eq\x0fq", "a─q", 3, 0},
		{"national set", "\x1b(K[a{\x1b(B[", "Äaä[", 4, 0},
		{"UTF-8 is selected", "\x1b(0\x1b%Gq", "q", 1, 0},
		{"locking shift", "\x1b*0a\x1bnq\x0fq", "a─q", 3, 0},
		{"alignment test", "\x1b#8", strings.Repeat("EEEEEEEEEE\n", 3) + "EEEEEEEEEE", 0, 0},
		{"reset", full + "\x1b[2;3r\x1b[?6h\x1bcx", "x", 1, 0},
		{"soft reset", "\x1b[2;3r\x1b[4h\x1b[!p\x1b[Hab\rx", "xb", 1, 0},
		{"alternate screen", "abc\x1b[?1049hxyz\x1b[?1049ld", "abcd", 4, 0},
		{"alternate screen is empty", "abc\x1b[?1049hxyz", "   xyz", 6, 0},
		{"alternate screen is cleared on leaving", "\x1b[?1047hxyz\x1b[?1047l\x1b[?47h", "", 3, 0},
		{"control within a sequence", "a\x1b[1\r;2Hb", "ab", 2, 0},
		{"cancelled sequence", "a\x1b[1\x18b", "ab", 2, 0},
		{"malformed sequences", "a\x1b[1?h\x1b[1$2mb", "ab", 2, 0},
		{"private SGR is not SGR", "a\x1b[>4;1mb", "ab", 2, 0},
		{"too many parameters", "\x1b[" + strings.Repeat("1;", 99) + "mx", "x", 1, 0},
		{"strings are swallowed", "a\x1b]52;c;aGk=\ab\x1bP1;2qxx\x1b\\c\x1b_Gx\x1b\\d\x1b^x\x1b\\e\x1bXx\x1b\\f", "abcdef", 6, 0},
		{"string ended by another sequence", "\x1b]0;x\x1b[3Gy", "  y", 3, 0},
		{"wide", "世界x", "世界x", 5, 0},
		{"wide wraps before the margin", "012345678世", "012345678\n世", 2, 1},
		{"wide without wrapping", "\x1b[?7l012345678世x", "012345678x", 9, 0},
		{"overwriting the first half", "世\rx", "x", 1, 0},
		{"overwriting the second half", "世\x1b[2Gx", " x", 2, 0},
		{"combining", "e\u0301x", "e\u0301x", 2, 0},
		{"combining at the margin", "012345678e\u0301", "012345678e\u0301", 9, 0},
		{"combining with nothing", "\u0301x", "x", 1, 0},
		{"joined emoji", "👩‍🚀x", "👩‍🚀x", 5, 0},
		{"family", "👨‍👩‍👧‍👦x", "👨‍👩‍👧‍👦x", 9, 0},
		{"skin tone", "👍🏽x", "👍🏽x", 5, 0},
		{"emoji style", "❤️x", "❤️x", 2, 0},
		{"keycap", "1️⃣x", "1️⃣x", 2, 0},
		{"flags", "🇩🇪🇫🇷x", "🇩🇪🇫🇷x", 5, 0},
		{"emoji style at the margin", "012345678❤️x", "012345678❤️\nx", 1, 1},
		{"flag at the margin", "012345678🇩🇪x", "012345678🇩\n🇪x", 2, 1},
		{"combining at the margin without wrapping", "\x1b[?7l012345678xe\u0301", "012345678e\u0301", 9, 0},
		{"half a flag", "🇩x", "🇩x", 2, 0},
		{"joiner and a letter", "a\u200db", "a\u200db", 2, 0},
		{"Hangul syllable of letters", "\u1112\u1161\u11abx", "\u1112\u1161\u11abx", 3, 0},
		{"directions leave no trace", "a\u202eb\u2066c\u200fd\ufeffe", "abcde", 5, 0},
		{"invalid UTF-8", "a\xffb\xc3(\xe2\x82z", "a\ufffdb\ufffd(\ufffd\ufffdz", 8, 0},
		{"8-bit controls", "a\x9b31mb\u009b31mc", "a\ufffd31mb31mc", 9, 0},
		{"8-bit in a sequence", "a\x1b[3\u00e9b", "ab", 2, 0},
		{"delete is nothing", "a\x7fb\x00c", "abc", 3, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := draw(t, tt.in)
			if got := s.Text(); got != tt.want {
				t.Errorf("text %q, want %q", got, tt.want)
			}
			if c := s.Cursor(); c.X != tt.x || c.Y != tt.y {
				t.Errorf("cursor at %d,%d, want %d,%d", c.X, c.Y, tt.x, tt.y)
			}
		})
	}
}

func TestStyle(t *testing.T) {
	tests := []struct {
		in   string
		want Style
	}{
		{"\x1b[m", Style{}},
		{"\x1b[1;2;3;5;7;8;9;53m", Style{Attr: Bold | Faint | Italic | Blink | Inverse | Conceal | Strike | Overline}},
		{"\x1b[1;2;3;5;7;8;9;53m\x1b[22;23;25;27;28;29;55m", Style{}},
		{"\x1b[1;31;44m", Style{Fg: Indexed(1), Bg: Indexed(4), Attr: Bold}},
		{"\x1b[91;104m", Style{Fg: Indexed(9), Bg: Indexed(12)}},
		{"\x1b[31;44m\x1b[39;49m", Style{}},
		{"\x1b[38;5;200;48;5;17m", Style{Fg: Indexed(200), Bg: Indexed(17)}},
		{"\x1b[38;2;1;2;3;1m", Style{Fg: RGB(1, 2, 3), Attr: Bold}},
		{"\x1b[38:2:1:2:3;1m", Style{Fg: RGB(1, 2, 3), Attr: Bold}},
		{"\x1b[48:2::1:2:3m", Style{Bg: RGB(1, 2, 3)}},
		{"\x1b[38:5:9m", Style{Fg: Indexed(9)}},
		{"\x1b[4m", Style{Underline: SingleUnderline}},
		{"\x1b[4:3;58;5;1m", Style{Underline: CurlyUnderline, UnderlineColor: Indexed(1)}},
		{"\x1b[4:3;58:5:1m\x1b[24;59m", Style{}},
		{"\x1b[21m", Style{Underline: DoubleUnderline}},
		{"\x1b[4m\x1b[4:0m", Style{}},
		{"\x1b[1m\x1b[38;5;300m\x1b[38m", Style{Attr: Bold, Fg: Indexed(44)}},
		{"\x1b[38;2;1m", Style{Fg: RGB(1, 0, 0)}},
		{"\x1b[38;5m", Style{Fg: Indexed(0)}},
		{"\x1b[38;9;1;2;3;4;3m", Style{Attr: Italic}},
		{"\x1b[1;;3m", Style{Attr: Italic}},
		{"\x1b[1m\x1b7\x1b[m\x1b8", Style{Attr: Bold}},
		{"\x1b[1m\x1b[!p", Style{}},
	}
	for _, tt := range tests {
		s := draw(t, tt.in+"x")
		if got := s.Line(0)[0].Style; got != tt.want {
			t.Errorf("%q: %+v, want %+v", tt.in, got, tt.want)
		}
	}
}

// TestAppendSGR checks that AppendSGR leads from any style to any other.
func TestAppendSGR(t *testing.T) {
	styles := []Style{
		{}, {Attr: Bold}, {Attr: Bold | Faint}, {Attr: Faint | Overline, Fg: Indexed(3)}, {Fg: Indexed(12), Bg: Indexed(200)},
		{Fg: RGB(1, 2, 3), Bg: RGB(0, 0, 0)}, {Underline: SingleUnderline}, {Underline: CurlyUnderline, UnderlineColor: RGB(9, 8, 7)},
		{Underline: DoubleUnderline, UnderlineColor: Indexed(4), Attr: Inverse}, {Bg: Indexed(15), Attr: Strike | Conceal | Italic | Blink},
	}
	for _, from := range styles {
		for _, to := range styles {
			s := New(Options{})
			s.Write(from.AppendSGR(nil, Style{}))
			s.Write(to.AppendSGR(nil, from))
			if s.pen != to {
				t.Errorf("from %+v by %q to %+v, want %+v", from, to.AppendSGR(nil, from), s.pen,
					to)
			}
		}
	}
}

func TestEraseTakesTheBackground(t *testing.T) {
	red := Style{Bg: Indexed(1)}
	tests := []struct {
		in   string
		x, y int
		want Style
	}{
		{"\x1b[1;41m\x1b[K", 9, 0, red},
		{"ab\x1b[41m\x1b[2J", 0, 3, red},
		{"abc\x1b[41m\x1b[1G\x1b[2X", 1, 0, red},
		{"abc\x1b[41m\x1b[1G\x1b[2X", 2, 0, Style{}},
		{"abc\x1b[41m\x1b[1G\x1b[P", 9, 0, red},
		{"abc\x1b[41m\x1b[1G\x1b[@", 0, 0, red},
		{"\x1b[4H\x1b[41m\n", 5, 3, red},
		{"\x1b[41m\x1b[K\x1b[m\x1b[5G\x1b[K", 4, 0, Style{}},
		{"\x1b[41m\x1b[K\x1b[m\x1b[5G\x1b[K", 3, 0, red},
		{"\x1b[41m\x1b[K\x1b[m\x1b[5Gx", 9, 0, red},
		{"\x1b[41m\x1b[K\x1b[m\x1b[5G\x1b[@", 9, 0, red},
		{"\x1b[41m\x1b[K\x1b[m\x1b[5G\x1b[P", 9, 0, Style{}},
		{"\x1b[41m\x1b[K\x1b[m\x1b[5G\x1b[P", 8, 0, red},
		{"\x1b[5G\x1b[41m\x1b[1K", 4, 0, red},
		{"\x1b[5G\x1b[41m\x1b[1K", 5, 0, Style{}},
	}
	for _, tt := range tests {
		if got := draw(t, tt.in).Line(tt.y)[tt.x].Style; got != tt.want {
			t.Errorf("%q: cell %d,%d has %+v, want %+v", tt.in, tt.x, tt.y, got, tt.want)
		}
	}
}

func TestModes(t *testing.T) {
	start := Modes{AutoWrap: true, CursorVisible: true}
	tests := []struct {
		in   string
		want func(*Modes)
	}{
		{"", func(m *Modes) {}},
		{"\x1b[?1h\x1b=", func(m *Modes) { m.AppCursor, m.AppKeypad = true, true }},
		{"\x1b[?1;2004h", func(m *Modes) { m.AppCursor, m.BracketedPaste = true, true }},
		{"\x1b[?25;7l", func(m *Modes) { m.CursorVisible, m.AutoWrap = false, false }},
		{"\x1b[?1000;1006h", func(m *Modes) { m.Mouse, m.MouseEncoding = MouseNormal, MouseSGR }},
		{"\x1b[?1000h\x1b[?1003h\x1b[?1015h\x1b[?1004h", func(m *Modes) { m.Mouse, m.MouseEncoding, m.FocusEvents = MouseAny, MouseURXVT, true }},
		{"\x1b[?1002;1006h\x1b[?1002;1006l", func(m *Modes) {}},
		{"\x1b[?1049h\x1b[4h\x1b[?2026h\x1b[?12h", func(m *Modes) { m.AltScreen, m.Insert, m.Synchronized, m.CursorBlink = true, true, true, true }},
		{"\x1b[?1;1000;1004;1049;2004h\x1bc", func(m *Modes) {}},
	}
	for _, tt := range tests {
		want := start
		tt.want(&want)
		if diff := cmp.Diff(want, draw(t, tt.in).Modes()); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.in, diff)
		}
	}
	if got := draw(t, "\x1b[4 q").Cursor().Style; got != 4 {
		t.Errorf("cursor style %d, want 4", got)
	}
}

func TestQueries(t *testing.T) {
	tests := []struct{ in, want string }{
		{"\x1b[5n", "\x1b[0n"},
		{"ab\x1b[6n", "\x1b[1;3R"},
		{"0123456789\x1b[6n", "\x1b[1;10R"},
		{"\x1b[?6n", "\x1b[?1;1R"},
		{"\x1b[2;3r\x1b[?6h\x1b[2H\x1b[6n", "\x1b[3;1R"},
		{"\x1b[c\x1b[0c\x1bZ", "\x1b[?62;22c\x1b[?62;22c\x1b[?62;22c"},
		{"\x1b[>c", "\x1b[>1;277;0c"},
		{"\x1b[=c", "\x1bP!|00000000\x1b\\"},
		{"\x1b[>q", "\x1bP>|sandboxd\x1b\\"},
		{"\x1b[?2004$p\x1b[?2004h\x1b[?2004$p\x1b[?31337$p\x1b[4$p", "\x1b[?2004;2$y\x1b[?2004;1$y\x1b[?31337;0$y\x1b[4;2$y"},
		{"\x1b[18t", "\x1b[8;4;10t"},
		{"\x1b]10;?\a\x1b]11;?\x1b\\", "\x1b]10;rgb:d0d0/d0d0/d0d0\x1b\\\x1b]11;rgb:0000/0000/0000\x1b\\"},
		{"\x1b[1;31m\x1bP$qm\x1b\\", "\x1bP1$r0;1;31m\x1b\\"},
		{"\x1bP$qr\x1b\\\x1bP$q q\x1b\\", "\x1bP1$r1;4r\x1b\\\x1bP1$r0 q\x1b\\"},
		// Queries whose answer could type a program's own text into its shell are not answered, or
		// without that text.
		{"\x1b]0;rm -rf\n\a\x1b[21t\x1b[20t", ""},
		{"\x1bP$qrm -rf\x1b\\", "\x1bP0$r\x1b\\"},
		{"\x1bP+q726d\x1b\\", "\x1bP0+r\x1b\\"},
		{"\x1b]52;c;?\a\x1b]50;?\a\x1b[5i\x05", ""},
		{"\x1b[0000000000000000000000000000000000000000c", "\x1b[?62;22c"},
	}
	for _, tt := range tests {
		var got []byte
		s := New(Options{Cols: 10, Rows: 4, Reply: func(p []byte) { got = append(got, p...) }})
		s.Write([]byte(tt.in))
		if string(got) != tt.want {
			t.Errorf("%q answered by %q, want %q", tt.in, got, tt.want)
		}
		draw(t, tt.in) // without Reply, nothing happens
	}
}

func TestTitleAndNotices(t *testing.T) {
	tests := []struct {
		in, title string
		want      Notice
	}{
		{"\x1b]0;hello\a", "hello", Notice{NoticeTitle, "hello", 1}},
		{"\x1b]2;he\x1bllo\x1b\\", "he", Notice{NoticeTitle, "he", 1}},
		{"\x1b]2;世\xff\u202e\u0085界\x1b\\", "世\ufffd<U+202E>界", Notice{NoticeTitle, "世\ufffd<U+202E>界", 1}},
		{"\x1b]2;" + strings.Repeat("x", 999) + "\a", strings.Repeat("x", 256), Notice{NoticeTitle, strings.Repeat("x", 256), 1}},
		{"\x1b]2;" + strings.Repeat("x", 9999) + "\a", "", Notice{}},
		{"\a\a", "", Notice{NoticeBell, "", 2}},
		{"\x1b]9;done\a", "", Notice{NoticeText, "done", 1}},
		{"\x1b]9;4;1;50\a", "", Notice{NoticeProgress, "1;50", 1}},
		{"\x1b]99;i=1;done\a", "", Notice{NoticeText, "done", 1}},
		{"\x1b]99;i=1:p=body;done\a", "", Notice{NoticeText, "done", 1}},
		{"\x1b]99;i=opentui-notifications:p=?;\a", "", Notice{}},
		{"\x1b]99;i=1:p=close;\a", "", Notice{}},
		{"\x1b]777;notify;build;done\a", "", Notice{NoticeText, "build;done", 1}},
		{"\x1b]x;y\a\x1b]\a\x1b];\a", "", Notice{}},
	}
	for _, tt := range tests {
		s := draw(t, tt.in)
		if s.Title() != tt.title || s.Notice() != tt.want {
			t.Errorf("%q: title %q, notice %+v; want %q, %+v", tt.in, s.Title(), s.Notice(),
				tt.title, tt.want)
		}
	}
}

// TestCallBeforeTitle checks that a title or progress after a call for attention replaces it in
// Notice, but not in Call.
func TestCallBeforeTitle(t *testing.T) {
	tests := []struct {
		in   string
		want Notice
	}{
		{"", Notice{}},
		{"\x1b]0;title\a", Notice{}},
		{"\a", Notice{NoticeBell, "", 1}},
		{"\a\x1b]0;title\a", Notice{NoticeBell, "", 1}},
		{"\x1b]0;title\a\a\x1b]9;4;1;50\a", Notice{NoticeBell, "", 2}},
		{"\a\x1b]9;done\a\x1b]2;title\a", Notice{NoticeText, "done", 2}},
	}
	for _, tt := range tests {
		s := draw(t, tt.in)
		if got := s.Call(); got != tt.want {
			t.Errorf("%q: call %+v, want %+v", tt.in, got, tt.want)
		}
		if restored, err := Restore(s.Snapshot(), 0); err != nil || restored.Call() != tt.want {
			t.Errorf("%q: restored: %v, call %+v, want %+v", tt.in, err, restored.Call(), tt.want)
		}
	}
}

func TestHistory(t *testing.T) {
	s := New(Options{Cols: 10, Rows: 3, Scrollback: 5})
	for i := range 10 {
		fmt.Fprintf(s, "line %d\r\n", i)
	}
	if got := s.Scrolled(); got != 8 {
		t.Errorf("Scrolled = %d, want 8", got)
	}
	text := func() string {
		var b strings.Builder
		for n := s.Kept(); n < s.Scrolled(); n++ {
			for _, c := range s.AppendKept(nil, n) {
				b.WriteString(c.Text)
			}
			b.WriteByte('|')
		}
		return b.String()
	}
	if got, want := text(), "line 3|line 4|line 5|line 6|line 7|"; got != want || s.Kept() != 3 {
		t.Errorf("kept %q from %d, want %q from 3", got, s.Kept(), want)
	}
	s.Write([]byte("\x1b[?1049h\n\n\n\n\n\x1b[?1049l\x1b[2;3r\x1b[3H\n\n"))
	if got := s.Scrolled(); got != 8 {
		t.Errorf(
			"the alternate screen or a region below the top scrolled into the history: %d lines, "+
				"want 8", got)
	}
	s.Write([]byte("\x1b[3J"))
	if got := text(); got != "" || s.Kept() != 8 {
		t.Errorf("after ED 3 %q is kept from %d, want none from 8", got, s.Kept())
	}
	// A background up to the margin stays.
	s.Write([]byte("\x1b[r\x1b[41m\x1b[2J\x1b[Hx\x1b[3H\n"))
	line := s.AppendKept(nil, 8)
	if len(line) != 10 || line[0].Text != "x" || line[9].Style != (Style{Bg: Indexed(1)}) {
		t.Errorf("a coloured line is kept as %+v", line)
	}
}

// TestGenerationOfTheOtherScreen checks that a row has its former generation after the other screen
// was shown, and that every row has one.
func TestGenerationOfTheOtherScreen(t *testing.T) {
	s := draw(t, "a\r\nb\r\nc\r\nd")
	seen := make(map[uint64]bool)
	var before []uint64
	for y := range 4 {
		before = append(before, s.LineGeneration(y))
		seen[s.LineGeneration(y)] = true
	}
	s.Write([]byte("\x1b[?1049h"))
	for y := range 4 {
		if seen[s.LineGeneration(y)] {
			t.Errorf("row %d of the alternate screen has the generation of another row", y)
		}
		seen[s.LineGeneration(y)] = true
	}
	s.Write([]byte("\x1b[?1049l"))
	for y, want := range before {
		if got := s.LineGeneration(y); got != want {
			t.Errorf("row %d has generation %d after the alternate screen, %d before", y, got, want)
		}
	}
	s.Write([]byte("\x1b[?1049h"))
	s.Resize(7, 9)
	s.Write([]byte("\x1b[?1049l"))
	now := make(map[uint64]bool)
	for y := range 9 {
		g := s.LineGeneration(y)
		if g == 0 || now[g] {
			t.Errorf("row %d has generation %d, which is none of its own", y, g)
		}
		now[g] = true
	}
}

func TestGeneration(t *testing.T) {
	s := draw(t, "a\r\nb\r\nc\r\nd")
	gens := func() (g []uint64) {
		for y := range 4 {
			g = append(g, s.LineGeneration(y))
		}
		return g
	}
	all, before := s.Generation(), gens()
	if s.Write(nil); s.Generation() != all {
		t.Error("writing nothing changed the generation")
	}
	s.Write([]byte("\x1b[2;3Hx"))
	if after := gens(); after[1] == before[1] || after[0] != before[0] || after[2] != before[2] {
		t.Errorf("generations %v, then %v; want only row 1 changed", before, after)
	}
	before = gens()
	s.Write([]byte("\x1b[4H\n"))
	if after := gens(); !cmp.Equal(after[:3], before[1:]) {
		t.Errorf("generations %v, after scrolling %v; want them to move", before, after)
	}
	for _, in := range []string{"\x1b[H", "\x1b[?25l", "\x1b]0;t\a", "\x1b[?2004h", "\x1b[?1049h",
		"x", "\x1b[2 q"} {
		all = s.Generation()
		if s.Write([]byte(in)); s.Generation() == all {
			t.Errorf("%q did not change the generation", in)
		}
	}
}

func TestBlank(t *testing.T) {
	for in, want := range map[string]bool{
		"":                                true,
		"x":                               false,
		"x\b \b":                          true,
		"\x1b[41m\x1b[2J":                 true,
		"x\x1b[?1049h":                    true,
		"\x1b[?1049hx\x1b[?1049l":         true,
		"\x1b[?1049h\x1b[4;10Hx":          false,
		"\x1b[?1049h\x1b[48;5;3m  \x1b[K": true,
		"\x1b#8":                          false,
		"\u754c":                          false,
	} {
		if got := draw(t, in).Blank(); got != want {
			t.Errorf("%q: blank is %v, want %v", in, got, want)
		}
	}
}
