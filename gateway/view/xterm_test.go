package view

import (
	"strconv"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/session/screen/screentest"
)

// xterm is a person's terminal that is one of xterm.js.
type xterm struct {
	*screentest.Xterm
	t     *testing.T
	above []string // known lines of its scrollback
}

func startXterm(t *testing.T) *xterm { return &xterm{Xterm: screentest.StartXterm(t), t: t} }

// describeLines describes lines with describe.
func describeLines(v screentest.Shown) (lines []string) {
	for _, l := range v.Lines {
		var line []screen.Cell
		for i, text := range l.Text {
			st := v.Styles[l.Style[i]]
			line = append(line, screen.Cell{Text: text, Width: uint8(l.Width[i]),
				Style: screen.Style{
					Fg: screen.Color(st[0]), Bg: screen.Color(st[1]), UnderlineColor: screen.Color(
						st[2]), Attr: screen.Attr(st[3]), Underline: screen.Underline(st[4])}})
		}
		lines = append(lines, describe(line))
	}
	return lines
}

func (x *xterm) start(cols, rows int) {
	x.Order('n', cols, rows, "20000")
	x.above = nil
}

func (x *xterm) resize(cols, rows int) {
	x.Order('r', cols, rows, "")
	x.above = nil // wrapped anew
}

func (x *xterm) feed(p []byte) {
	x.t.Helper()
	if err := allowed(p); err != nil {
		x.t.Fatalf("%v in %q", err, p)
	}
	x.Order('w', 0, 0, string(p))
}

func (x *xterm) look() look {
	x.t.Helper()
	v := x.Show()
	if v.Replies != "" {
		x.t.Fatalf("the terminal was asked something: it says %q", v.Replies)
	}
	l := look{rows: describeLines(v), x: v.X, y: v.Y, visible: v.Visible, alternate: v.Alternate,
		wraps: v.AutoWrap}
	if !v.Alternate {
		var kept screentest.Shown
		x.Ask('h', strconv.Itoa(len(x.above)), &kept)
		x.above = append(x.above, describeLines(kept)...)
		l.above = x.above
	}
	return l
}

// describe returns a line in a form for comparison, without trailing blanks.
func describe(line []screen.Cell) string {
	for len(line) > 0 && line[len(line)-1].Blank() {
		line = line[:len(line)-1]
	}
	var b []byte
	var last screen.Style
	for _, c := range line {
		if c.Style.Underline == screen.NoUnderline {
			c.Style.UnderlineColor = 0 // invisible
		}
		b = c.Style.AppendSGR(b, last)
		last = c.Style
		b = append(b, c.Text...)
		if c.Width == 2 {
			b = append(b, "→"...)
		}
	}
	return strings.ReplaceAll(string(b), "\x1b", "␛")
}
