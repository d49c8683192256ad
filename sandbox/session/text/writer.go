package text

import (
	"bytes"
	"slices"
	"unicode/utf8"
)

const (
	// windowLines is how far up a program may move the cursor to redraw lines, as multi-line
	// progress displays do.
	windowLines = 64
	// windowRunes bounds the memory of the lines that may still change.
	windowRunes = 64 << 10
	// spareRunes is the longest line whose memory is used again: as many of them as the window has
	// lines are no more than windowRunes.
	spareRunes = windowRunes / windowLines
	// maxColumn bounds what cursor movement alone can allocate.
	maxColumn = 4096
	// maxParams bounds the parameters of an escape sequence that are kept.
	maxParams = 64
)

// Writer renders a stream as it comes. Its memory is bounded by its limit, whatever is written. The
// zero value is not usable; it is for one goroutine at a time.
type Writer struct {
	kept    *keeper
	window  int      // lines that may still change
	lines   [][]rune // the lines that may still change; never empty
	runes   int      // in lines
	row     int      // of the cursor, in lines
	col     int
	spare   []rune // of a line that was handed on, for the next one
	text    []byte // of the line that is handed on
	hidden  bool   // the alternate screen is on
	partial []byte // the beginning of a character
	state   parserState
	params  []byte // of the escape sequence at hand
}

type parserState uint8

const (
	ground       parserState = iota
	escape                   // after ESC
	escapeInter              // after ESC and an intermediate byte
	sequence                 // after CSI
	stringBody               // OSC, DCS, APC, PM, SOS
	stringEscape             // ESC in one
)

// NewWriter returns a Writer that keeps at most limit bytes of text; negative is no limit.
func NewWriter(limit int) *Writer {
	return &Writer{kept: newKeeper(limit), window: windowLines, lines: make([][]rune, 1)}
}

// Truncated reports whether text was left out so far.
func (w *Writer) Truncated() bool {
	total := w.kept.total
	for i, l := range w.lines {
		total += len(string(l))
		if i > 0 {
			total++
		}
	}
	return w.kept.limit >= 0 && total > w.kept.limit
}

// String returns the text so far. Writing may go on afterwards.
func (w *Writer) String() string {
	k := *w.kept
	k.head = append([]byte(nil), k.head...)
	k.tail = append([]byte(nil), k.tail...)
	for i, l := range w.lines {
		if i > 0 {
			k.add([]byte{'\n'})
		}
		k.add([]byte(string(l)))
	}
	if len(w.partial) > 0 && !w.hidden {
		k.add([]byte(string(utf8.RuneError)))
	}
	return k.String()
}

// Write takes output in pieces of any size. It never fails.
func (w *Writer) Write(p []byte) (int, error) {
	n := len(p)
	if len(w.partial) > 0 {
		p = append(w.partial, p...)
		w.partial = nil
	}
	for len(p) > 0 {
		if w.state != ground {
			w.step(p[0])
			p = p[1:]
			continue
		}
		if run := plain(p); run > 0 {
			w.print(p[:run])
			p = p[run:]
			continue
		}
		if p[0] < utf8.RuneSelf {
			w.control(p[0])
			p = p[1:]
			continue
		}
		if !utf8.FullRune(p) {
			w.partial = append([]byte(nil), p...)
			break
		}
		r, size := utf8.DecodeRune(p)
		p = p[size:]
		switch {
		case r < 0xa0: // C1 controls
		case turns(r):
			for _, c := range appendMarked(nil, r) {
				w.put(rune(c))
			}
		case r >= 0x2028 && r <= 0x2029, r>>4 == 0x206: // what breaks a line, or has no width
		default:
			w.put(r)
		}
	}
	return n, nil
}

// plain is the length of the printable ASCII that p begins with.
func plain(p []byte) int {
	for i, c := range p {
		if c < 0x20 || c >= 0x7f {
			return i
		}
	}
	return len(p)
}

func (w *Writer) print(p []byte) {
	if w.hidden {
		return
	}
	for len(p) > 0 {
		// In pieces, so that a line without end leaves the window on the way.
		n := min(len(p), windowRunes/4)
		line := w.pad()
		w.runes += max(w.col+n-len(line), 0)
		over := min(n, len(line)-w.col)
		for i, c := range p[:over] {
			line[w.col+i] = rune(c)
		}
		for _, c := range p[over:n] {
			line = append(line, rune(c))
		}
		w.col += n
		w.lines[w.row] = line
		p = p[n:]
		w.shrink()
	}
}

func (w *Writer) put(r rune) {
	if w.hidden {
		return
	}
	line := w.pad()
	if w.col < len(line) {
		line[w.col] = r
	} else {
		line = append(line, r)
		w.runes++
	}
	w.col++
	w.lines[w.row] = line
	w.shrink()
}

// pad returns the cursor's line, at least as long as the cursor is far.
func (w *Writer) pad() []rune {
	line := w.lines[w.row]
	for len(line) < w.col {
		line = append(line, ' ')
		w.runes++
	}
	return line
}

// shrink hands lines that are out of reach to the keeper.
func (w *Writer) shrink() {
	for len(w.lines) > w.window || w.runes > windowRunes && len(w.lines) > 1 && w.row > 0 {
		w.keep(w.lines[0], "\n")
		w.runes -= len(w.lines[0])
		if w.spare = w.lines[0][:0]; cap(w.spare) > spareRunes {
			w.spare = nil
		}
		w.lines = slices.Delete(w.lines, 0, 1)
		w.row--
	}
	if w.runes <= windowRunes {
		return
	}
	// One line beyond measure: its beginning can no longer be changed.
	line := w.lines[0]
	n := len(line) / 2
	w.keep(line[:n], "")
	w.lines[0] = append([]rune(nil), line[n:]...)
	w.runes -= n
	if w.row == 0 {
		w.col = max(w.col-n, 0)
	}
}

// keep hands a line, or the beginning of one, to the keeper, with what ends it.
func (w *Writer) keep(line []rune, end string) {
	w.text = w.text[:0]
	for _, r := range line {
		w.text = utf8.AppendRune(w.text, r)
	}
	w.text = append(w.text, end...)
	w.kept.add(w.text)
}

func (w *Writer) control(c byte) {
	switch c {
	case 0x1b:
		w.state = escape
		return
	}
	if w.hidden {
		return
	}
	switch c {
	case '\n', '\v', '\f':
		w.row++
		w.col = 0
		if w.row == len(w.lines) {
			w.lines = append(w.lines, w.spare)
			w.spare = nil
		}
		w.row = min(w.row, len(w.lines)-1)
		w.shrink()
	case '\r':
		w.col = 0
	case '\b':
		w.col = max(w.col-1, 0)
	case '\t':
		w.col = min(w.col/8*8+8, max(maxColumn, w.col))
	}
}

// step takes one byte of an escape sequence (ECMA-48, section 5.4).
func (w *Writer) step(c byte) {
	if c == 0x18 || c == 0x1a { // CAN and SUB end any sequence
		w.state = ground
		return
	}
	switch w.state {
	case escape:
		switch {
		case c == '[':
			w.state, w.params = sequence, w.params[:0]
		case bytes.IndexByte([]byte("]PX^_"), c) >= 0:
			w.state = stringBody
		case c >= 0x20 && c < 0x30:
			w.state = escapeInter
		case c == 0x1b:
		default:
			w.state = ground
		}
	case escapeInter:
		if c < 0x20 || c >= 0x30 {
			w.state = ground
		}
	case sequence:
		switch {
		case c == 0x1b:
			w.state = escape
		case c >= 0x40 && c < 0x7f:
			w.state = ground
			w.dispatch(c)
		case c >= 0x20 && c < 0x40:
			if len(w.params) < maxParams {
				w.params = append(w.params, c)
			}
		case c < 0x20: // carried out in the middle of a sequence
			w.control(c)
		default:
			w.state = ground
		}
	case stringBody:
		switch c {
		case 0x07:
			w.state = ground
		case 0x1b:
			w.state = stringEscape
		}
	case stringEscape:
		w.state = ground
		if c != '\\' { // the string was cut off by another sequence
			w.state = escape
			w.step(c)
		}
	}
}

// param is the first parameter of the sequence at hand, or def where there is none.
func (w *Writer) param(def int) int {
	n, found := 0, false
	for _, c := range w.params {
		if c < '0' || c > '9' {
			break
		}
		n, found = min(n*10+int(c-'0'), maxColumn), true
	}
	if !found {
		return def
	}
	return n
}

// dispatch carries out the control sequences by which programs redraw lines, and forgets the
// others.
func (w *Writer) dispatch(final byte) {
	if len(w.params) > 0 && w.params[0] == '?' {
		switch string(w.params) {
		case "?1049", "?1047", "?47":
			switch final {
			case 'h':
				w.hidden = true
			case 'l':
				w.hidden = false
			}
		}
		return
	}
	if w.hidden || len(w.params) > 0 && w.params[0] > '9' {
		return
	}
	line := w.lines[w.row]
	switch final {
	case 'A', 'F': // up
		w.row = max(w.row-max(w.param(1), 1), 0)
	case 'B', 'E': // down
		w.row = min(w.row+max(w.param(1), 1), len(w.lines)-1)
	case 'C': // right
		w.col = min(w.col+max(w.param(1), 1), max(maxColumn, w.col))
	case 'D': // left
		w.col = max(w.col-max(w.param(1), 1), 0)
	case 'G', '`': // column
		w.col = max(w.param(1), 1) - 1
	case 'P': // delete characters
		if w.col < len(line) {
			n := min(max(w.param(1), 1), len(line)-w.col)
			w.lines[w.row] = append(line[:w.col], line[w.col+n:]...)
			w.runes -= n
		}
	case 'K', 'J': // erase in line; below the cursor the lines of J, too
		w.erase(final)
	}
	if final == 'E' || final == 'F' {
		w.col = 0
	}
}

func (w *Writer) erase(final byte) {
	line := w.lines[w.row]
	switch w.param(0) {
	case 0:
		if w.col < len(line) {
			w.runes -= len(line) - w.col
			w.lines[w.row] = line[:w.col]
		}
		if final == 'J' {
			for _, l := range w.lines[w.row+1:] {
				w.runes -= len(l)
			}
			w.lines = w.lines[:w.row+1]
		}
	case 1:
		if final == 'K' {
			for i := range min(w.col+1, len(line)) {
				line[i] = ' '
			}
		}
	case 2:
		if final == 'K' {
			w.runes -= len(line)
			w.lines[w.row] = line[:0]
		}
		// 2J, the clearing of the screen, takes nothing back: a person has read it, or could have
		// scrolled up.
	}
}
