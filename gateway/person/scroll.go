package person

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/gateway/player"
	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/gateway/view"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
)

// scroller shows a person earlier output instead of the session's screen, while they want that.
type scroller struct {
	changed func() // called after each change
	mu      sync.Mutex
	past    *past // guarded by mu; nil while they see the session
}

// past is what a person sees of earlier output instead of the session's screen: lines of the
// record as they were when they began to scroll. They see it on their terminal's alternate screen.
type past struct {
	lines  []string // as of player.Lines
	read   bool     // the lines are there
	top    int      // index of the first line that they see
	rows   int      // of their window, as last drawn
	asking bool     // they type a text to look for
	typed  string   // so far
	sought string   // in lower case
	found  int      // index of the line with the text, or -1
	screen *screen.Screen
}

const maxSought = 200 // characters of a text to look for

// begin shows the past, and reports whether they saw the session before. Their keys are no longer
// for the program.
func (s *scroller) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.past != nil {
		return false
	}
	s.past = &past{found: -1}
	s.changed()
	return true
}

// read reads the lines of a record, and closes it.
func (s *scroller) read(ctx context.Context,
	open func(context.Context) (*record.Reader, error)) error {
	var lines []string
	r, err := open(ctx)
	if err == nil {
		lines, err = player.Lines(ctx, r)
		r.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.past == nil || s.past.read: // they have left it meanwhile
		return nil
	case err != nil:
		s.past = nil
		return err
	}
	s.past.lines, s.past.read, s.past.top = lines, true, len(lines)
	s.changed()
	return nil
}

// end shows the session again.
func (s *scroller) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.past != nil {
		s.past = nil
		s.changed()
	}
}

// input carries out input of a person who sees the past, and reports whether they do, and what to
// say to them, if not empty.
func (s *scroller) input(e view.KeyEvent) (scrolls bool, say string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.past == nil {
		return false, ""
	}
	for in := string(e.Bytes); in != "" && s.past != nil; {
		key := pastKey.FindString(in)
		in = in[len(key):]
		switch {
		case s.past.asking:
			say = s.past.ask(key)
		case e.Paste > 0: // whose letters are no commands
		case key == "q", key == "\x03":
			s.past = nil
		default:
			say = s.past.press(key)
		}
	}
	s.changed()
	return true, say
}

// frame returns what to draw while they see the past. where and waits are for the status line; so
// is notice, instead of the rest.
func (s *scroller) frame(cols, rows int, where, notice, waits string) (f view.Frame, ok bool) {
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
	case notice != "":
		f.Status = Words(where, notice)
	case !w.read:
		f.Status = Words(where, "reading the record")
	default:
		lines := fmt.Sprintf("lines %d–%d of %d", min(w.top+1, len(w.lines)),
			min(w.top+rows, len(w.lines)), len(w.lines))
		f.Status = Words(where, lines, "PgUp", "PgDn", "/ find", "n next", "q back", waits)
		f.Brief = []string{Words(lines, "q back", waits), Words("q back", waits)}
	}
	return f, true
}

// pastKey matches a key: a control sequence, an SS3 sequence, or a character.
var pastKey = regexp.MustCompile(`(?s)^(?:\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|.)`)

// ask carries out a key while they type a text to look for, and returns what to say to them, or "".
func (w *past) ask(key string) string {
	switch c, _ := utf8.DecodeRuneInString(key); {
	case key == "\r", key == "\n":
		w.asking = false
		if w.typed != "" {
			w.sought, w.found = strings.ToLower(w.typed), -1
			return w.find(-1)
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
	return ""
}

// press carries out a command, and returns what to say to them, or "".
func (w *past) press(key string) string {
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
		return w.find(-1)
	case "N":
		return w.find(1)
	}
	w.clamp()
	return ""
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

// draw makes the screen show the lines.
func (w *past) draw(cols, rows int) {
	if w.screen == nil {
		w.screen = screen.New(screen.Options{Cols: cols, Rows: rows})
		fmt.Fprint(w.screen, "\x1b[?1049h\x1b[?7l\x1b[?25l")
	}
	w.rows = rows
	w.clamp()
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
	text := strings.ToLower(w.screen.LineText(y))
	from := strings.Index(text, w.sought)
	x, at := 0, 0
	for _, c := range w.screen.Line(y) {
		if at >= from && at < from+len(w.sought) && from >= 0 && c.Width > 0 {
			fmt.Fprintf(w.screen, "\x1b[%d;%dH\x1b[7m%s", y+1, x+1, c.Text)
		}
		at += len(c.Text)
		x++
	}
}
