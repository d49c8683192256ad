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
//
// It has four parts. The parser splits output into text and control sequences. The Screen executes
// the sequences and answers queries. The terminal has the cursor and the modes, and prints text.
// The page has the cells. Each knows only those after it.
type Screen struct {
	terminal
	parser parser
	reply  func([]byte)

	title    string
	notice   Notice // last notice
	call     Notice // last notice that is a bell or a message
	status   Status
	statuses uint64 // number of status statements
}

// New returns an empty screen.
func New(o Options) *Screen {
	if o.Cols == 0 && o.Rows == 0 {
		o.Cols, o.Rows = 80, 24
	}
	s := &Screen{reply: o.Reply}
	s.intern = newInterner()
	s.cols, s.rows = clampSize(o.Cols, o.Rows)
	s.history.limit = min(max(o.Scrollback, 0), MaxScrollback)
	s.primary.rows = newRows(s.rows)
	s.reset()
	return s
}

// Title returns the window title that the program has set: at most 256 bytes of printable UTF-8.
func (s *Screen) Title() string { return s.title }

// Notice returns the program's last notice of any kind. Count grows with every notice, so that a
// reader detects a repeated one.
func (s *Screen) Notice() Notice { return s.notice }

// Call returns the program's last bell or message. Titles and progress do not count, because busy
// programs change them all the time.
func (s *Screen) Call() Notice { return s.call }
