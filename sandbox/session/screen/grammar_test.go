package screen

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// grammar generates output of programs that use everything a terminal supports, and things that
// must not confuse it.
type grammar struct {
	r          *rand.Rand
	cols, rows int
	b          strings.Builder
	origin     bool // DECOM is on
	noWrap     bool // DECAWM is off
	wide       bool // wide characters are used
}

// program returns n pieces of such output, without the cases of TestDisagreements.
func program(r *rand.Rand, n, cols, rows int) string {
	g := newGrammar(r, cols, rows)
	return g.pieces(n)
}

func newGrammar(r *rand.Rand, cols, rows int) *grammar {
	return &grammar{r: r, cols: cols, rows: rows, wide: r.IntN(2) == 0}
}

// pieces returns the next n pieces of the program's output.
func (g *grammar) pieces(n int) string {
	g.b.Reset()
	for range n {
		g.piece()
	}
	return g.b.String()
}

var (
	latin = []string{"a", "hello", "the quick brown fox jumps over", "0123456789", "x y z", "    ",
		"#$@[\\]^_`{|}~", "\x00", "\x7f"}
	wide = []string{"世界", "中", "ｆｕｌｌ", "한글", "🚀", "👩\u200d🚀", "👍🏽", "世\u0301",
		"\u1112\u1161\u11ab"}
	marks = []string{"é", "e\u0301", "ñandú", "│─┼", "❤️", "🇩🇪", "a\u200db", "q\u0301\u0302\u0303",
		"x\u202ey", "☎️", "1️⃣", "ก็"}
	modes = []int{1, 3, 7, 7, 7, 25, 66, 1000, 1002, 1003, 1004, 1006, 2004, 2026, 9, 12, 31337}
)

func (g *grammar) pick(choices ...string) string { return choices[g.r.IntN(len(choices))] }

// num returns a parameter: mostly within limit, sometimes missing, zero, or far beyond.
func (g *grammar) num(limit int) string {
	switch g.r.IntN(12) {
	case 0:
		return ""
	case 1:
		return "0"
	case 2:
		return fmt.Sprint(limit + g.r.IntN(70))
	}
	return fmt.Sprint(1 + g.r.IntN(limit+1))
}

func (g *grammar) csi(final string, params ...string) {
	g.b.WriteString("\x1b[" + strings.Join(params, ";") + final)
}

func (g *grammar) piece() {
	switch g.r.IntN(36) {
	case 0, 1, 2, 3, 4:
		g.b.WriteString(g.pick(latin...))
	case 5, 6:
		// Without wrapping, xterm.js leaves halves of them in the last column.
		if g.wide && !g.noWrap {
			g.b.WriteString(g.pick(wide...))
		}
	case 7, 8:
		g.b.WriteString(g.pick(marks...))
	case 9, 10:
		g.b.WriteString("\r\n")
	case 11:
		g.b.WriteString(g.pick("\r", "\n", "\b", "\b\b\b", "\t", "\v", "\f", "\r\n\n", "\rwxyz\b"))
	case 12, 13:
		g.csi(g.pick("H", "f"), g.num(g.rows), g.num(g.cols))
	case 14, 15:
		g.move()
	case 16, 17, 18:
		g.csi("m", g.style())
	case 19, 20:
		g.csi(g.pick("K", "J", "?K", "?J"), g.pick("", "0", "1", "2"))
	case 21, 22:
		g.insert("@")
		g.csi(g.pick("P", "X"), g.num(g.cols/2))
	case 23:
		g.csi(g.pick("L", "M", "S", "T"), g.num(g.rows/2))
	case 24:
		g.region()
	case 25:
		g.b.WriteString(g.pick("\x1bD", "\x1bE", "\x1bM", "\x1bM"))
	case 26:
		g.csi("m", "24;59") // underlining is not saved
		g.b.WriteString(g.pick("\x1b7", "\x1b8", "\x1b[s", "\x1b[u", "\x1b[?1048h", "\x1b[?1048l"))
	case 27:
		g.charset()
	case 28, 29:
		g.mode()
	case 30:
		g.repeat()
	case 31:
		g.b.WriteString(g.pick("\x1bH", "\x1b[g", "\x1b[3g", "\x1b[I", "\x1b[2I", "\x1b[Z",
			"\x1b[3Z", "\t\t"))
	case 32:
		g.b.WriteString(g.pick("\x1b]0;title\a", "\x1b]2;ti\x1b\\", "\x1bP1$x\x1b\\",
			"\x1b_Gx\x1b\\", "\x1b^x\x1b\\", "\x1bXx\x1b\\",
			"\x1b]8;;http://x/\a\x1b]8;;\a", "\x1b]4;1;?\a", "\x1b]52;c;aGk=\a",
			"\x1b]unfinished\x1b[m", "\x1bPunfinished\x18"))
	case 33:
		g.b.WriteString(g.pick("\x1b[1;2é", "\x1b[?é", "\x1b[1?;éH", "\x1b[<0m", "\x1b[>4;1m",
			"\x1b[1$2m", "\x1b[1?h", "\x1b[3é", "\x1b[3\x18", "\x1bé", "\x1b[12\r;3H", "\x1b\x1b[m",
			"\x1b#é", "\x1b(世",
			"\x1b[1:2:3H", "\x1b["+strings.Repeat("1;", 40)+"4m", "\x1b[ 7z", "\x1b[1 2z"))
	case 34:
		g.columns()
	case 35:
		reset := g.pick("\x1b[?25h\x1b[20l\x1bc", "\x1b[!p", "\x1b#8", "\x1b[2J\x1b[H", "\x1b[3J")
		g.b.WriteString(reset)
		if strings.HasSuffix(reset, "c") || strings.HasSuffix(reset, "p") {
			g.origin, g.noWrap = false, false
		}
	}
}

// move moves the cursor relative to its position, or to a column or row. In origin mode, xterm.js
// moves it to another position.
func (g *grammar) move() {
	if g.origin {
		g.csi(g.pick("d"), g.num(g.rows))
		return
	}
	if g.r.IntN(2) == 0 {
		g.csi(g.pick("A", "B", "E", "F", "d", "e"), g.num(g.rows))
	} else {
		g.csi(g.pick("C", "D", "G", "`", "a"), g.num(g.cols))
	}
}

func (g *grammar) style() string {
	return g.pick("", "0", "1", "2", "3", "4", "5", "7", "8", "9", "53", "21", "4:0", "4:2", "4:3",
		"4:5", "22", "23", "24", "25", "27", "28", "29", "55",
		"31", "42", "90", "107", "39", "49", "1;31;44", "0;3", "22;27", "38;5;123", "48;5;17",
		"48;2;1;2;3", "38;2;9;8;7;1",
		"38:5:9", "48:2::1:2:3", "58;5;9;4", "58:2::1:2:3", "59", "38;5;300", "38;5", "38;2;1",
		"38", "1;;3", "999", "4:9",
		"38;2;256;257;511", "31;38;7;1;2;3;4;5;6;42", "41", "46", "100")
}

func (g *grammar) region() {
	top := 1 + g.r.IntN(g.rows)
	switch g.r.IntN(4) {
	case 0:
		g.csi("r")
	case 1:
		g.csi("r", fmt.Sprint(top))
	default:
		g.csi("r", fmt.Sprint(top), g.num(g.rows))
	}
}

// charset uses a set and returns to the default, because it is a disagreement what DECSC saves of
// it.
func (g *grammar) charset() {
	set := g.pick("0", "0", "0", "A", "K", "R", "=", "4", "Z", "H", "B", "U")
	text := "lqqk~a#@[\\]^_`{|}~"
	g.b.WriteString(g.pick(
		"\x1b("+set+text+"\x1b(B", "\x1b)"+set+"\x0e"+text+"\x0f\x1b)B", "\x1b*"+set+"\x1bn"+text+
			"\x0f\x1b*B", "\x1b+"+set+"\x1bo"+text+"\x0f\x1b+B",
		"\x1b("+set+text+"\x1b%G", "\x1b-"+set+"\x1b~"+text+"\x0f\x1b)B",
	))
}

func (g *grammar) mode() {
	switch g.r.IntN(5) {
	case 0:
		g.csi(g.pick("h", "l"), "4")
	case 1:
		g.b.WriteString(g.pick("\x1b[?6h", "\x1b[?6l", "\x1b[?6l"))
		g.origin = strings.HasSuffix(g.b.String(), "h")
	case 2:
		g.csi("m", "24;59")
		g.csi(g.pick("h", "l"), "?"+g.pick("47", "1047", "1049", "1049", "1049"))
	case 3:
		g.b.WriteString(g.pick("\x1b=", "\x1b>", "\x1b[20h", "\x1b[20l", "\x1b[4;20l", "\x1b[2 q"))
	default:
		n, final := modes[g.r.IntN(len(modes))], g.pick("h", "l", "l")
		if n == 7 {
			g.csi("J", "2")
			g.noWrap = final == "l"
		}
		g.csi(final, fmt.Sprintf("?%d", n))
	}
}

// insert inserts blanks at the cursor. Between the halves of a wide character, they leave a half in
// xterm.js.
func (g *grammar) insert(final string) {
	g.b.WriteString("\b")
	if g.wide {
		g.b.WriteString("\r")
	}
	g.csi(final, g.num(g.cols/2))
}

// repeat is REP near the start of a line, because our REP does not leave its line.
func (g *grammar) repeat() {
	if room := (g.cols - 3) / 2; room > 0 && g.wide && !g.noWrap {
		fmt.Fprintf(&g.b, "\r世\x1b[%db", 1+g.r.IntN(room))
	} else if room > 0 {
		fmt.Fprintf(&g.b, "\r%s\x1b[%db", g.pick("=", "-", "e\u0301", "x\x1b[1b"), 1+g.r.IntN(room))
	}
}

func (g *grammar) columns() {
	g.b.WriteString("\b") // if a wrap is pending, xterm.js uses the first column
	g.csi(g.pick(" @", " A", "'~"), g.num(g.cols/2))
	g.insert("'}")
}

// hostile returns output with things that the terminals disagree about, and meaningless bytes.
func hostile(r *rand.Rand, n, cols, rows int) string {
	odd := []string{"\u0301", "\u200d", "\ufe0f", "\xff", "\xe4\xb8", "\u009b", "\u202e", "\u2028",
		"\ufeff", "\x1b[?7l", "\x1b[?6h", "世\b\x1b[@", "\x1b[99b",
		"\x1b[1;2", "\x1b[?", "\x1b", "\x1b]0;t", "\x1b(0", "\x1b[4;9m", "\x1b[?1049h"}
	var b strings.Builder
	for range n {
		b.WriteString(program(r, 1, cols, rows))
		if r.IntN(3) == 0 {
			b.WriteString(odd[r.IntN(len(odd))])
		}
	}
	return b.String()
}
