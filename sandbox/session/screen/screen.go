// Package screen is an exact model of the screen of an xterm-like terminal: cells, cursor, modes,
// alternate screen, and the answers to a program's queries. It accepts any bytes in pieces of any
// size, never fails and never blocks. Its memory is limited by its size, for any output.
//
// Where terminals differ, it follows xterm.js with the character widths of Unicode 11. For
// rewrapping lines, it follows tmux. The tests list the few cases in which it follows neither, with
// reasons. Columns are counted by rune, as programs do with wcwidth.
//
// The session uses it to answer queries and to inspect the screen. The gateway uses it to draw
// screens for people. The package does not know about pseudo-terminals, sessions or networks.
package screen

import (
	"slices"
	"strings"
)

// The size of a screen is clamped to 1..MaxCols by 1..MaxRows.
const (
	MaxCols = 1000
	MaxRows = 500
)

// MaxScrollback is the largest number of lines that a screen keeps.
const MaxScrollback = 100_000

// Options configure a Screen. The zero value is a screen of 80 by 24 that keeps no lines and
// answers no queries.
type Options struct {
	Cols, Rows int
	// Scrollback is how many of the lines that scrolled off the primary screen are kept.
	Scrollback int
	// Reply receives the answer to a program's query (DSR, DA, DECRQM, OSC 10 and so on). Write
	// calls it. It must not call the Screen or block, and may keep the bytes. If nil, queries are
	// not answered.
	Reply func([]byte)
}

// Screen is the model. It is not safe for concurrent use.
type Screen struct {
	cols, rows int
	reply      func([]byte)

	intern    interner
	primary   grid
	alternate grid // allocated at its first use
	g         *grid
	below     []*row // rows cut off at the bottom by a smaller size, topmost first
	history   history
	scratch   []*row // for rotating rows without an allocation

	// x == cols means that the next character first wraps, or overwrites the last column.
	x, y      int
	pen       Style  // style of printed text
	penMeta   uint32 // of pen, with width 1
	eraseCell cell   // a blank with the pen's background, for erasing
	charsets  [4]charset
	gl        uint8 // charset in use, 0 for G0
	saved     [2]savedCursor
	modes     Modes
	newline   bool // LNM: line feed includes carriage return
	cursor    CursorStyle

	repeatable bool // REP may repeat the last character: only text was printed since

	title      string
	notice     Notice // last notice
	call       Notice // last notice that is a bell or a message
	status     Status
	statuses   uint64 // number of status statements
	generation uint64

	parser parser
}

// New returns an empty screen.
func New(o Options) *Screen {
	if o.Cols == 0 && o.Rows == 0 {
		o.Cols, o.Rows = 80, 24
	}
	s := &Screen{reply: o.Reply, intern: newInterner()}
	s.cols, s.rows = clampSize(o.Cols, o.Rows)
	s.history.limit = min(max(o.Scrollback, 0), MaxScrollback)
	s.primary.rows = newRows(s.rows)
	s.reset()
	return s
}

func clampSize(cols, rows int) (int, int) {
	return min(max(cols, 1), MaxCols), min(max(rows, 1), MaxRows)
}

// Size returns the number of columns and rows.
func (s *Screen) Size() (cols, rows int) { return s.cols, s.rows }

// CursorStyle is the shape of the cursor, with the numbers of DECSCUSR. 0 is the terminal's
// default.
type CursorStyle uint8

// Cursor is the position of the next character. X is less than the number of columns, even if the
// next character wraps first.
type Cursor struct {
	X, Y    int
	Visible bool
	Style   CursorStyle
}

// Cursor returns the cursor of the active screen.
func (s *Screen) Cursor() Cursor {
	return Cursor{X: min(s.x, s.cols-1), Y: s.y, Visible: s.modes.CursorVisible, Style: s.cursor}
}

// Line returns row y of the active screen, with exactly one Cell for each column. The caller may
// keep it. Outside the screen, it returns nil.
func (s *Screen) Line(y int) []Cell {
	if y < 0 || y >= s.rows {
		return nil
	}
	return s.appendCells(nil, s.g.rows[y], s.cols)
}

// AppendLine appends row y to dst without trailing blanks. Outside the screen, it appends nothing.
func (s *Screen) AppendLine(dst []Cell, y int) []Cell {
	if y < 0 || y >= s.rows {
		return dst
	}
	return s.appendUsed(dst, s.g.rows[y], s.cols)
}

// appendUsed appends the cells of r without trailing blanks, at most cols.
func (s *Screen) appendUsed(dst []Cell, r *row, cols int) []Cell {
	if r.fill == blank {
		cols = min(cols, r.used())
	}
	return s.appendCells(dst, r, cols)
}

func (s *Screen) appendCells(dst []Cell, r *row, cols int) []Cell {
	n := min(len(r.cells), cols)
	dst = slices.Grow(dst, cols)
	out := dst[len(dst) : len(dst)+cols]
	for i, c := range r.cells[:n] {
		out[i] = s.intern.cell(c)
	}
	if n < cols {
		fill := s.intern.cell(r.fill)
		for i := n; i < cols; i++ {
			out[i] = fill
		}
	}
	return dst[:len(dst)+cols]
}

// LineGeneration returns a number that changes whenever the content of row y changes. A row that
// moves keeps its number, and no two rows of a screen have the same. So a reader can distinguish
// scrolled rows from rewritten ones.
func (s *Screen) LineGeneration(y int) uint64 {
	if y < 0 || y >= s.rows {
		return 0
	}
	return s.g.rows[y].gen
}

// Wrapped reports whether row y continues in the next row, because the text reached the margin.
func (s *Screen) Wrapped(y int) bool { return y >= 0 && y < s.rows && s.g.rows[y].wrapped }

// LineText returns the text of row y without trailing spaces.
func (s *Screen) LineText(y int) string {
	if y < 0 || y >= s.rows {
		return ""
	}
	return s.rowText(s.g.rows[y])
}

// Text returns the text of the screen: its lines without trailing spaces, joined by newlines,
// without trailing empty lines.
func (s *Screen) Text() string {
	var b strings.Builder
	empty := 0
	for y := range s.rows {
		line := s.LineText(y)
		if line == "" {
			empty++
			continue
		}
		if b.Len() == 0 {
			empty = y
		}
		for range empty {
			b.WriteByte('\n')
		}
		b.WriteString(line)
		empty = 1
	}
	return b.String()
}

// Blank reports whether the screen shows no character. Colors do not count.
func (s *Screen) Blank() bool {
	for _, r := range s.g.rows {
		if r.fill.ch != ' ' || slices.ContainsFunc(r.cells, func(c cell) bool {
			return c.ch != ' '
		}) {
			return false
		}
	}
	return true
}

func (s *Screen) rowText(r *row) string {
	n := len(r.cells)
	if r.fill.ch != ' ' {
		n = s.cols
	}
	b := make([]byte, 0, n)
	for x := range n {
		b = s.intern.appendText(b, r.at(x))
	}
	return strings.TrimRight(string(b), " ")
}

// Modes returns the modes that the program has set.
func (s *Screen) Modes() Modes { return s.modes }

// Title returns the window title that the program has set: at most 256 bytes of printable UTF-8.
func (s *Screen) Title() string { return s.title }

// Notice returns the program's last notice of any kind. Count grows with every notice, so that a
// reader detects a repeated one.
func (s *Screen) Notice() Notice { return s.notice }

// Call returns the program's last bell or message. Titles and progress do not count, because busy
// programs change them all the time.
func (s *Screen) Call() Notice { return s.call }

// Generation returns a number that changes whenever anything visible to a reader changes. It may
// also change without that.
func (s *Screen) Generation() uint64 { return s.generation }

// Scrolled returns how many lines have scrolled off the top of the primary screen so far.
func (s *Screen) Scrolled() uint64 { return s.history.total }

// Kept returns the number of the oldest kept line that scrolled off the primary screen, or Scrolled
// if none is kept.
func (s *Screen) Kept() uint64 { return s.history.total - uint64(len(s.history.ring)) }

// AppendKept appends line number n, from Kept to Scrolled-1, with its original width, without
// trailing blanks.
func (s *Screen) AppendKept(dst []Cell, n uint64) []Cell {
	r := s.history.line(n)
	return s.appendUsed(dst, r, max(len(r.cells), s.cols))
}
