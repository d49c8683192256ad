package screen

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/session/screen/screentest"
)

// The reference terminals of the differential tests.
const (
	followXterm = "xterm.js"
	followTmux  = "tmux"
	followNone  = "neither"
)

// disagreements lists all known cases in which the screens of xterm.js and tmux differ, or both
// differ from ours. Normally xterm.js decides; otherwise the case says why. Screens are 10 by 4.
var disagreements = []struct {
	name, in string
	follow   string
	why      string // reason if it is not xterm.js
	want     string // text of our screen
	x, y     int    // our cursor
}{
	{name: "joined emoji keep their columns", in: "👩\u200d🚀x", follow: followXterm, want: "👩\u200d🚀x", x: 5},
	{name: "what passes the margin leaves the last column empty", in: "0123456789\rabcdefghi世", follow: followXterm, want: "abcdefghi\n世", x: 2, y: 1},
	{name: "ICH ends a pending wrap", in: "0123456789\x1b[@x", follow: followXterm, want: "012345678x", x: 9},
	{name: "switching wrapping on at the margin", in: "\x1b[?7l0123456789\x1b[?7hx", follow: followXterm, want: "0123456789\nx", x: 1, y: 1},
	{name: "VPR passes the margin", in: "\x1b[1;2r\x1b[3ex", follow: followXterm, want: "\n\n\nx", x: 1, y: 3},
	{name: "DECSC saves no origin mode", in: "\x1b[2;3r\x1b[?6h\x1b7\x1b[?6l\x1b8\x1b[Hx", follow: followXterm, want: "x", x: 1},
	{name: "each screen has its margins", in: "\x1b[1;2r\x1b[?1049h\x1b[r\x1b[?1049la\r\nb\r\nc", follow: followXterm, want: "b\nc", x: 1, y: 1},
	{name: "a line of the alignment test", in: "\x1b[2;3r\x1b[?6h\x1b#8\x1b[Hx",
		follow: followXterm,
		want:   "EEEEEEEEEE\nxEEEEEEEEE\nEEEEEEEEEE\nEEEEEEEEEE", x: 1, y: 1},
	{name: "British pound", in: "\x1b(A#", follow: followXterm, want: "£", x: 1},
	{name: "national set", in: "\x1b(K[{", follow: followXterm, want: "Ää", x: 2},
	{name: "UTF-8 is selected", in: "\x1b(0\x1b%Gq", follow: followXterm, want: "q", x: 1},
	{name: "soft reset", in: "\x1b[4h\x1b[!pab\rx", follow: followXterm, want: "xb", x: 1},
	{name: "columns are deleted", in: "abc\r\ndef\x1b[2G\x1b['~", follow: followXterm, want: "ac\ndf", x: 1, y: 1},
	{name: "columns are inserted", in: "abc\r\ndef\x1b[2G\x1b['}", follow: followXterm, want: "a bc\nd ef", x: 1, y: 1},
	{name: "scrolling left", in: "abc\x1b[ @", follow: followXterm, want: "bc", x: 3},
	{name: "a character breaks off a sequence", in: "a\x1b[3éb", follow: followXterm, want: "ab", x: 2},
	{name: "sub-parameters outside of SGR", in: "\x1b[2:3Hx", follow: followXterm, want: "\nx", x: 1, y: 1},
	{name: "repeated clusters", in: "e\u0301\x1b[2b", follow: followXterm, want: "e\u0301e\u0301e\u0301", x: 3},
	{name: "IL below the region", in: "a\r\nb\x1b[3;4r\x1b[2H\x1b[Lx", follow: followXterm, want: "a\nx", x: 1, y: 1},

	{name: "a mark that begins a line", in: "\u0301x", follow: followTmux, want: "x", x: 1,
		why: "xterm.js gives it a column of no width, which cannot be drawn"},
	{name: "a mark after a sequence", in: "e\x1b[m\u0301x", follow: followTmux, want: "e\u0301x",
		x:   2,
		why: "xterm.js gives it a column of no width, which cannot be drawn"},
	{name: "a half that does not wrap", in: "\x1b[?7l01234567世x", follow: followTmux,
		want: "01234567 x", x: 9,
		why: "xterm.js leaves the first half of a wide character without its second"},
	{name: "inserting into a wide character", in: "世x\x1b[2G\x1b[@", follow: followNone,
		want: "   x", x: 1,
		why: "both leave a half: tmux the first one, xterm.js the second one without a width"},
	{name: "columns at a pending wrap", in: "0123456789\x1b['}", follow: followNone,
		want: "012345678", x: 9,
		why: "xterm.js inserts them at the left edge, tmux knows no columns"},
	{name: "moving in origin mode", in: "\x1b[2;4r\x1b[?6h\x1b[2H\x1b[2Cx", follow: followTmux,
		want: "\n\n  x", x: 3, y: 2,
		why: "xterm.js adds the region's top to the row with every move"},
	{name: "8-bit controls", in: "a\u0085b\u009b31mc", follow: followTmux, want: "ab31mc", x: 6,
		why: "a program that prints UTF-8 does not mean them, and a filter does not expect them"},
	{name: "invalid UTF-8", in: "a\xffb\xc3(", follow: followNone, want: "a\ufffdb\ufffd(", x: 5,
		why: "both hide that something was there; the Unicode standard (3.9, best practice) and " +
			"most terminals show it"},
	{name: "line separator", in: "a\u2028b", follow: followNone, want: "a b", x: 3,
		why: "xterm.js keeps it in a cell, tmux drops it: a blank takes its column"},
	{name: "emoji newer than Unicode 12", in: "🫠x", follow: followTmux, want: "🫠x", x: 3,
		why: "the data of xterm.js does not have it"},
	{name: "REP at the margin", in: "ab\x1b[20bc", follow: followTmux, want: "abbbbbbbbb\nc", x: 1,
		y:   1,
		why: "a few bytes could ask for any amount of work"},
	{name: "DECRC restores the character sets", in: "\x1b(0\x1b7\x1b(B\x1b8q\x0fq",
		follow: followTmux, want: "──", x: 2,
		why: "xterm.js restores what is shown, and forgets which set is in use"},
	{name: "RIS ends newline mode and shows the cursor", in: "\x1b[20h\x1b[?25l\x1bcab\nc",
		follow: followTmux, want: "ab\n  c", x: 3, y: 1,
		why: "xterm.js has the two among its options, which a reset leaves"},
}

// TestDisagreements checks that our screen and the named reference terminal show what the list
// says, and that the other one does not.
func TestDisagreements(t *testing.T) {
	x, m := screentest.StartXterm(t), screentest.StartTmux(t, 10, 4, 500)
	for _, tt := range disagreements {
		t.Run(tt.name, func(t *testing.T) {
			s := draw(t, tt.in)
			got := shape(s.Text(), s.Cursor())
			if want := shape(tt.want, Cursor{X: tt.x, Y: tt.y}); got != want {
				t.Errorf("we show\n%s\nwant\n%s", got, want)
			}
			x.Order('n', 10, 4, "")
			x.Order('w', 0, 0, tt.in)
			theirs := map[string]string{followXterm: textOf(x), followTmux: textIn(t, m, tt.in)}
			for name, shows := range theirs {
				if (shows == got) != (name == tt.follow) {
					t.Errorf("follows %s, but %s shows\n%s\nand we\n%s", tt.follow, name, shows,
						got)
				}
			}
			if (tt.why == "") != (tt.follow == followXterm) {
				t.Error("a reason is needed where xterm.js does not decide, and only there")
			}
		})
	}
}

// shape returns a text and a cursor in a form for comparison.
func shape(text string, c Cursor) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n") + "\n" + strings.Repeat("-", c.X) +
		"^" + strings.Repeat("|", c.Y)
}

// textOf returns the text and the cursor of the terminal, with everything in its cells.
func textOf(x *screentest.Xterm) string {
	v := x.Show()
	var b strings.Builder
	for _, l := range v.Lines {
		b.WriteString(strings.Join(l.Text, "") + "\n")
	}
	return shape(b.String(), Cursor{X: min(v.X, v.Cols-1), Y: v.Y})
}

// textIn returns the text and the cursor of a pane of 10 columns and 4 rows after the output in.
func textIn(t *testing.T, m *screentest.Tmux, in string) string {
	t.Helper()
	m.Write("\x1bc\x1b7" + in)
	s, cursor := pane(m, 10, 4)
	var c Cursor
	if _, err := fmt.Sscanf(cursor, "%d,%d", &c.X, &c.Y); err != nil {
		t.Fatal(err)
	}
	c.X = min(c.X, 9)
	return shape(s.Text(), c)
}

// TestStyleDisagreements checks styles of the cell in the corner in which we follow tmux, or
// neither.
func TestStyleDisagreements(t *testing.T) {
	x := screentest.StartXterm(t)
	for _, tt := range []struct {
		name, in string
		want     Style
		why      string
	}{
		{"underline after DECRC", "\x1b[4m\x1b7\x1b[m\x1b8x", Style{Underline: SingleUnderline}, "xterm.js forgets to save the form of the underline"},
		{"hyperlink", "\x1b[4:3m\x1b]8;;http://x/\ax\x1b]8;;\a", Style{Underline: CurlyUnderline}, "no link of a program reaches a person, so nothing shall look like one"},
		{"colour without a colour space", "\x1b[38:2:1:2:3mx", Style{Fg: RGB(1, 2, 3)}, "xterm.js takes red for a colour space; tmux and many programs know this form"},
		{"rapid blinking", "\x1b[6mx", Style{Attr: Blink}, "xterm.js does not know it, tmux shows it as blinking"},
	} {
		x.Order('n', 10, 4, "")
		x.Order('w', 0, 0, tt.in)
		s := draw(t, tt.in)
		if got := s.Line(0)[0].Style; got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
		if show(x) == picture(s) {
			t.Errorf("%s: xterm.js agrees by now", tt.name)
		}
	}
}

// TestQueriesAgainstXterm checks the queries that we answer differently from xterm.js, and the same
// ones.
func TestQueriesAgainstXterm(t *testing.T) {
	x := screentest.StartXterm(t)
	for _, tt := range []struct{ name, in, want, why string }{
		{"CPR", "ab\x1b[6n\x1b[2;3H\x1b[?6n", "\x1b[1;3R\x1b[?2;3R", ""},
		{"CPR in origin mode", "\x1b[2;3r\x1b[?6h\x1b[2H\x1b[6n", "\x1b[3;1R", ""},
		{"DSR", "\x1b[5n", "\x1b[0n", ""},
		{"size", "\x1b[18t", "\x1b[8;4;10t", ""},
		{"DECRQM",
			"\x1b[?2004h\x1b[?2004$p\x1b[?1$p\x1b[?7$p\x1b[?25$p\x1b[4$p\x1b[?31337$p\x1b[?1049$p\x1b[?1002h\x1b[?1002$p",
			"\x1b[?2004;1$y\x1b[?1;2$y\x1b[?7;1$y\x1b[?25;1$y\x1b[4;2$y\x1b[?31337;0$y\x1b[?1049;2$y\x1b[?1002;1$y", ""},
		{"DECRQSS", "\x1b[2;3r\x1bP$qr\x1b\\\x1bP$qx\x1b\\", "\x1bP1$r2;3r\x1b\\\x1bP0$r\x1b\\", ""},
		{"CPR while a wrap is pending", "0123456789\x1b[6n", "\x1b[1;10R", "no terminal of DEC has a column beyond the last one"},
		{"who it is", "\x1b[c", "\x1b[?62;22c", "we are no xterm.js"},
		{"the pen", "\x1b[1mx\x1bP$qm\x1b\\", "\x1bP1$r0;1m\x1b\\", "xterm.js always says that it is the default"},
	} {
		var got strings.Builder
		s := New(Options{Cols: 10, Rows: 4, Reply: func(p []byte) { got.Write(p) }})
		s.Write([]byte(tt.in))
		x.Order('n', 10, 4, "")
		x.Order('w', 0, 0, tt.in)
		v := x.Show()
		if got.String() != tt.want || (v.Replies == tt.want) != (tt.why == "") {
			t.Errorf("%s: we answer %q, want %q; xterm.js %q", tt.name, got.String(), tt.want,
				v.Replies)
		}
	}
}
