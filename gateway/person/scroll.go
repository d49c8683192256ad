package person

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/gateway/view"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// scroller shows a person earlier output instead of the session's screen, while they want that.
type scroller struct {
	lines   func(context.Context) ([]string, error) // as player.Lines
	public  func(error) *wire.Error
	changed func()         // called after each change
	work    sync.WaitGroup // readings
	mu      sync.Mutex
	past    *past // guarded by mu; nil while they see the session
	closed  bool  // guarded by mu; at the end of the visit
	// Guarded by mu; the end of the last reading, or nil.
	ended chan struct{}
	paste uint64 // guarded by mu; of which a piece was dropped, so that the rest is, too
}

// past is what a person sees of earlier output: lines of the record as they were when they began to
// scroll. They see it on their terminal's alternate screen.
type past struct {
	cancel  context.CancelFunc // of the reading
	lines   []string           // as of player.Lines
	read    bool               // the lines are there
	problem string             // why they will not be
	top     int                // index of the first line that they see
	rows    int                // of their window, as last drawn
	asking  bool               // they type a text to look for
	typed   string             // so far
	sought  string             // in lower case
	found   int                // index of the line with the text, or -1
	screen  *screen.Screen     // nil before the first drawing
	drawn   drawn              // the last drawing
}

// drawn is what a drawing depends on.
type drawn struct {
	top, found, lines, cols, rows int
	sought                        string
}

const maxSought = 200 // characters of a text to look for

// begin shows the past, if they see the session. Their keys are then no longer for the program.
func (s *scroller) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.past != nil || s.closed {
		return
	}
	ctx, cancel := context.WithCancel(context.Background()) // end cancels it
	w := &past{cancel: cancel, found: -1}
	earlier, ended := s.ended, make(chan struct{})
	s.past, s.ended = w, ended
	s.work.Go(func() {
		defer close(ended)
		defer cancel()
		if earlier != nil {
			<-earlier // a person reads once at a time; that one was canceled
		}
		lines, err := s.lines(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.past != w {
			return
		}
		if w.lines, w.read, w.top = lines, err == nil, len(lines); err != nil {
			w.problem = plain(s.public(err).Message)
		}
		s.changed()
	})
	s.changed()
}

// end shows the session again.
func (s *scroller) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked()
}

func (s *scroller) endLocked() {
	if s.past != nil {
		s.past.cancel()
		s.past = nil
		s.changed()
	}
}

// close ends scrolling for good, and waits for readings.
func (s *scroller) close() {
	s.mu.Lock()
	s.endLocked()
	s.closed = true
	s.mu.Unlock()
	s.work.Wait()
}

// input carries out input of a person who sees the past, and reports whether they do, and what to
// say to them, if not empty. It looks for a text at most once, because that takes time.
func (s *scroller) input(e view.KeyEvent) (scrolls bool, say string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.past == nil {
		return e.Paste > 0 && e.Paste == s.paste, ""
	}
	if e.Paste > 0 {
		s.paste = e.Paste
	}
	looked := false
	for in := string(e.Bytes); in != "" && s.past != nil; {
		key := pastKey.FindString(in)
		in = in[len(key):]
		look := 0
		switch w := s.past; {
		case w.asking:
			look = w.ask(key)
		case e.Paste > 0: // whose letters are no commands
		case key == "q", key == "\x03":
			s.endLocked()
		case w.read:
			look = w.press(key)
		}
		if look != 0 && !looked {
			looked, say = true, s.past.find(look)
		}
	}
	s.changed()
	return true, say
}

// frame returns what to draw while they see the past. The status line says where they are and what
// is urgent, or notice instead.
func (s *scroller) frame(cols, rows int, where, notice, urgent string) (f view.Frame, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.past
	if w == nil {
		return view.Frame{}, false
	}
	w.draw(cols, rows)
	f.Screen = w.screen
	switch {
	case w.asking:
		f.Status = " /" + w.typed + "▏"
	case w.problem != "":
		f.Status = Words(where, w.problem, "q back", urgent)
	case notice != "":
		f.Status = Words(where, notice)
	case !w.read:
		f.Status = Words(where, "reading the record", "q back", urgent)
	default:
		lines := fmt.Sprintf("lines %d–%d of %d", min(w.top+1, len(w.lines)),
			min(w.top+rows, len(w.lines)), len(w.lines))
		f.Status = Words(where, lines, "PgUp", "PgDn", "/ find", "n next", "q back", urgent)
		f.Brief = []string{Words(lines, "q back", urgent), Words("q back", urgent)}
	}
	return f, true
}

// pastKey matches a key: a control sequence, an SS3 sequence, or a character.
var pastKey = regexp.MustCompile(`(?s)^(?:\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|.)`)

// ask carries out a key while they type a text to look for. It returns -1 to look for it, else 0.
func (w *past) ask(key string) (look int) {
	switch c, _ := utf8.DecodeRuneInString(key); {
	case key == "\r", key == "\n":
		w.asking = false
		if w.typed != "" {
			w.sought, w.found = strings.ToLower(w.typed), -1
			return -1
		}
	case key == "\x1b", key == "\x03":
		w.asking = false
	case key == "\x7f", key == "\b":
		_, n := utf8.DecodeLastRuneInString(w.typed)
		w.typed = w.typed[:len(w.typed)-n]
	case len(key) > utf8.RuneLen(c), !utf8.ValidString(key), !unicode.IsPrint(c),
		utf8.RuneCountInString(w.typed) >= maxSought: // no character, or too many
	default:
		w.typed += key
	}
	return 0
}

// press carries out a command. It returns -1 or 1 to look for the text above or below, else 0.
func (w *past) press(key string) (look int) {
	switch key {
	case "\x1b[A", "\x1bOA", "k":
		w.top--
	case "\x1b[B", "\x1bOB", "j":
		w.top++
	case "\x1b[5~", "\x02", "b":
		w.top -= max(w.rows-1, 1)
	case "\x1b[6~", "\x06", " ":
		w.top += max(w.rows-1, 1)
	case "\x1b[H", "\x1bOH", "\x1b[1~", "g":
		w.top = 0
	case "\x1b[F", "\x1bOF", "\x1b[4~", "G":
		w.top = len(w.lines)
	case "/":
		w.asking, w.typed = true, ""
	case "n":
		return -1
	case "N":
		return 1
	}
	w.clamp()
	return 0
}

func (w *past) clamp() { w.top = max(min(w.top, len(w.lines)-w.rows), 0) }

// sgr matches the control sequences in lines.
var sgr = regexp.MustCompile(`\x1b\[[0-9:;]*m`)

// plainOf returns a line without its styles.
func plainOf(line string) string { return sgr.ReplaceAllString(line, "") }

// find shows the next line with the text in a direction, or says that there is none. It begins at
// the line that it found before, else with the last line that they see.
func (w *past) find(by int) string {
	if w.sought == "" {
		return "type / and a text"
	}
	i := w.found + by
	if w.found < 0 {
		i = min(w.top+w.rows, len(w.lines)) - 1
	}
	for ; i >= 0 && i < len(w.lines); i += by {
		if strings.Contains(strings.ToLower(plainOf(w.lines[i])), w.sought) {
			w.found = i
			if i < w.top || i >= w.top+w.rows {
				w.top = i - w.rows/2
			}
			w.clamp()
			return ""
		}
	}
	switch {
	case w.found < 0:
		return "not found"
	case by < 0:
		return "no earlier line has it"
	}
	return "no later line has it"
}

// draw makes the screen show the lines, unless it does already.
func (w *past) draw(cols, rows int) {
	w.rows = rows
	w.clamp()
	now := drawn{w.top, w.found, len(w.lines), cols, rows, w.sought}
	if w.screen != nil && w.drawn == now {
		return
	}
	w.drawn = now
	if w.screen == nil {
		w.screen = screen.New(screen.Options{Cols: cols, Rows: rows})
		fmt.Fprint(w.screen, "\x1b[?1049h\x1b[?7l\x1b[?25l")
	}
	for _, line := range w.lines[w.top:min(w.top+rows, len(w.lines))] {
		cols = max(cols, widest(line)) // of a time when the session was wider
	}
	w.screen.Resize(cols, rows)
	for y := range rows {
		fmt.Fprintf(w.screen, "\x1b[%dH\x1b[m\x1b[K", y+1)
		if i := w.top + y; i < len(w.lines) {
			fmt.Fprint(w.screen, w.lines[i])
			if i == w.found {
				w.mark(y)
			}
		}
	}
	fmt.Fprint(w.screen, "\x1b[H") // the window follows the cursor
}

// widest returns how many columns a line takes at most.
func widest(line string) int {
	text := plainOf(line)
	if n := utf8.RuneCountInString(text); n < len(text) {
		return 2 * n // some may be wide
	}
	return len(text)
}

// mark shows the text that was found in row y in reverse.
func (w *past) mark(y int) {
	from := strings.Index(strings.ToLower(w.screen.LineText(y)), w.sought)
	if from < 0 {
		return // beyond the end of the row
	}
	at := 0
	for x, c := range w.screen.Line(y) {
		if at >= from && at < from+len(w.sought) && c.Width > 0 {
			style := c.Style
			style.Attr ^= screen.Inverse
			fmt.Fprintf(w.screen, "\x1b[%d;%dH\x1b[m%s%s", y+1, x+1,
				style.AppendSGR(nil, screen.Style{}), c.Text)
		}
		at += len(strings.ToLower(c.Text))
	}
}
