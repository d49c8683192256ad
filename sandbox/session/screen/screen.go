// Package screen is an exact model of what an xterm-like terminal shows: cells, cursor, modes,
// alternate screen, and the answers to a program's queries. It takes any bytes in pieces of any
// size, never fails, never blocks, and its memory is bounded by its size and not by what it is fed.
//
// Where terminals differ it is xterm.js with the character widths of Unicode 11, and tmux in how
// lines are wrapped anew; the few cases in which it is neither are listed, with reasons, beside the
// tests. Columns are counted by character, as programs do with wcwidth.
//
// The session uses it to answer queries and to know what is on the screen, the gateway to draw for
// people. It knows nothing of pseudo-terminals, sessions or networks.
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

// Options of a Screen. The zero value is a screen of 80 by 24 that keeps no lines and answers no
// queries.
type Options struct {
	Cols, Rows int
	// Scrollback is how many lines that scrolled off the primary screen are kept.
	Scrollback int
	// Reply gets the answer to a program's query (DSR, DA, DECRQM, OSC 10 and so on), from within
	// Write. It must not call the Screen, must not block, and may keep the bytes. Nil leaves
	// queries unanswered.
	Reply func([]byte)
}

// Screen is the model. It is not safe for concurrent use: its owner locks.
type Screen struct {
	cols, rows int
	reply      func([]byte)

	intern    interner
	primary   grid
	alternate grid // allocated when first used
	g         *grid
	below     []*row // rows cut off at the bottom by a smaller size, topmost first
	history   history
	scratch   []*row // for rotating rows without allocating

	// X == cols means that the next character wraps first, or overwrites the last column.
	x, y      int
	pen       Style  // style of what is printed
	penMeta   uint32 // of pen, width 1
	eraseCell cell   // what erasing leaves: the pen's background
	charsets  [4]charset
	gl        uint8 // the charset in use, 0 for G0
	saved     [2]savedCursor
	modes     Modes
	newline   bool // LNM: line feed implies carriage return
	cursor    CursorStyle

	repeatable bool // nothing but printing happened since the last character, which REP may repeat

	title      string
	notice     Notice // the last one
	call       Notice // the last one that is a bell or a message
	status     Status
	statuses   uint64 // how often the program said one
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

// Size is the number of columns and rows.
func (s *Screen) Size() (cols, rows int) { return s.cols, s.rows }

// CursorStyle is the shape of the cursor, with the numbers of DECSCUSR; 0 is the terminal's
// default.
type CursorStyle uint8

// Cursor is where the next character goes. X is below the number of columns also when the next
// character will wrap first.
type Cursor struct {
	X, Y    int
	Visible bool
	Style   CursorStyle
}

// Cursor returns the cursor of the active screen.
func (s *Screen) Cursor() Cursor {
	return Cursor{X: min(s.x, s.cols-1), Y: s.y, Visible: s.modes.CursorVisible, Style: s.cursor}
}

// Line returns row y of the active screen, exactly one Cell for each column. It is the caller's to
// keep. A row outside the screen is nil.
func (s *Screen) Line(y int) []Cell {
	if y < 0 || y >= s.rows {
		return nil
	}
	return s.appendCells(nil, s.g.rows[y], s.cols)
}

// AppendLine appends row y to dst without trailing blanks, nothing for a row outside the screen.
func (s *Screen) AppendLine(dst []Cell, y int) []Cell {
	if y < 0 || y >= s.rows {
		return dst
	}
	return s.appendUsed(dst, s.g.rows[y], s.cols)
}

// appendUsed appends the cells of r up to the last one that is not blank, at most cols.
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

// LineGeneration changes whenever the content of row y changes. A row that moves takes its
// generation along, no two rows of a screen have the same one, so that a reader can tell what
// scrolled from what was rewritten.
func (s *Screen) LineGeneration(y int) uint64 {
	if y < 0 || y >= s.rows {
		return 0
	}
	return s.g.rows[y].gen
}

// Wrapped reports whether row y goes on in the row below because the text reached the margin.
func (s *Screen) Wrapped(y int) bool { return y >= 0 && y < s.rows && s.g.rows[y].wrapped }

// LineText is the text of row y without trailing spaces.
func (s *Screen) LineText(y int) string {
	if y < 0 || y >= s.rows {
		return ""
	}
	return s.rowText(s.g.rows[y])
}

// Text is the text of the screen: its lines without trailing spaces, joined by newlines, without
// trailing empty lines.
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

// Modes returns what the program has switched on.
func (s *Screen) Modes() Modes { return s.modes }

// Title is the window title that the program set, at most 256 bytes of printable UTF-8.
func (s *Screen) Title() string { return s.title }

// Notice returns the program's last notice of any kind. Count grows with every notice, so that a
// reader detects a repeated one.
func (s *Screen) Notice() Notice { return s.notice }

// Call returns the program's last bell or message. Titles and progress are no calls: programs that
// work change them all the time.
func (s *Screen) Call() Notice { return s.call }

// Generation changes whenever anything that a reader of the Screen can see changes. It may also
// change without.
func (s *Screen) Generation() uint64 { return s.generation }

// Scrolled is how many lines have ever scrolled off the top of the primary screen.
func (s *Screen) Scrolled() uint64 { return s.history.total }

// Kept is the number of the oldest line that is kept of those that scrolled off the primary screen,
// Scrolled when none is.
func (s *Screen) Kept() uint64 { return s.history.total - uint64(len(s.history.ring)) }

// AppendKept appends line number n, of those from Kept up to Scrolled, as wide as it was printed,
// without trailing blanks.
func (s *Screen) AppendKept(dst []Cell, n uint64) []Cell {
	r := s.history.line(n)
	return s.appendUsed(dst, r, max(len(r.cells), s.cols))
}
