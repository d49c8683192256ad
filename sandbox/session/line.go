package session

import (
	"bytes"
	"context"
	"strings"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// maxLineRows limits the examined rows of a line at the prompt.
const maxLineRows = 200

// editLine is the text after a prompt.
type editLine struct {
	text  string // without trailing blanks
	below int    // rows from the cursor down to its last row
	atEnd bool   // the cursor is after it
}

// lineLocked returns the text after the current prompt of c, at offset end of the log. ok is false
// if it is unknown. It is drawn on a separate screen of the same width, because the session's
// screen may be behind the log.
func (c *console) lineLocked(end uint64) (line editLine, ok bool) {
	s := c.s
	at := c.editAt
	if at == 0 || end < at || end-at > maxTyped {
		return line, false
	}
	from := s.log.lineStart(at)
	prompt, typed := s.log.tail(from, at), s.log.tail(at, end)
	if uint64(len(prompt)) < at-from || uint64(len(typed)) < end-at {
		return line, false // some bytes are private or no longer stored
	}
	rows := min(
		2+bytes.Count(
			prompt,
			[]byte("\n"),
		)+bytes.Count(
			typed,
			[]byte("\n"),
		)+(len(prompt)+len(typed))/max(
			s.size.Cols,
			1,
		),
		maxLineRows,
	)
	sc := screen.New(screen.Options{Cols: s.size.Cols, Rows: rows})
	_, _ = sc.Write(prompt) // in memory: it cannot fail
	begin := sc.Cursor()
	before := sc.Scrolled()
	_, _ = sc.Write(typed)
	if sc.Scrolled() != before {
		return line, false
	}
	last := begin.Y
	var b strings.Builder
	for y, x := begin.Y, begin.X; y < rows; y, x = y+1, 0 {
		for _, cell := range sc.Line(y)[x:] {
			b.WriteString(cell.Text)
		}
		if !sc.Wrapped(y) {
			b.WriteByte('\n')
		}
		if sc.LineText(y) != "" {
			last = y
		}
	}
	rest := strings.Split(b.String(), "\n")
	for i := range rest {
		rest[i] = strings.TrimRight(rest[i], " ")
	}
	line.text = strings.TrimSpace(strings.Join(rest, "\n"))
	cur := sc.Cursor()
	line.below = max(last-cur.Y, 0)
	line.atEnd = cur.Y == last && cur.X >= len([]rune(sc.LineText(last)))
	return line, true
}

// maxAhead limits the stored bytes of type-ahead.
const maxAhead = 1 << 10

// ahead is the text that a party has typed since the last end of a line, at or before a prompt. If
// the program does not read it, it appears at the shell's next prompt.
type ahead struct {
	by   *party
	text []byte
}

// typed records input of p. It supports the two common editing keys. Others result in a text that
// equals no line.
func (a *ahead) typed(p *party, data []byte) {
	if a.by != p {
		*a = ahead{by: p}
	}
	for _, b := range data {
		switch b {
		case '\r', '\n', 3, 4, 0x15:
			a.text = a.text[:0]
		case '\b', 0x7f:
			_, n := utf8.DecodeLastRune(a.text)
			a.text = a.text[:len(a.text)-n]
		default:
			if len(a.text) < maxAhead {
				a.text = append(a.text, b)
			}
		}
	}
}

// line returns the line as a prompt would show it.
func (a *ahead) line() string { return strings.TrimSpace(string(a.text)) }

// awaitAhead waits a short time until the line editor has drawn a person's type-ahead, if there was
// no input at the prompt. It never appears if a program has read it.
func (f *call) awaitAhead(ctx context.Context, c *console) {
	s := f.s
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	for {
		s.mu.Lock()
		_, end := s.log.bounds()
		a := &c.ahead
		drawn := c.typist != nil || a.by == nil || a.by.Kind != wire.Person || a.line() == ""
		if !drawn {
			line, _ := c.lineLocked(end)
			drawn = line.text == a.line()
		}
		s.mu.Unlock()
		if drawn {
			return
		}
		select {
		case <-s.log.changed(end):
		case <-ctx.Done():
			return
		case <-s.ctx.Done():
			return
		}
	}
}

// clearLineLocked prints the end of an unsent line at the prompt of c, as for an interrupt, and a
// new prompt: the shell clears its line before it runs a command. It returns the line and its
// party; nil if there was none.
func (c *console) clearLineLocked() (text string, whose *party) {
	s := c.s
	p, before := c.typist, c.ahead
	c.typist, c.ahead = nil, ahead{}
	if p == nil && before.by == nil {
		return "", nil
	}
	_, end := s.log.bounds()
	line, ok := c.lineLocked(end)
	if !ok || line.text == "" {
		return "", nil
	}
	if p == nil { // the text may be output of a job
		if line.text != before.line() {
			return "", nil
		}
		p = before.by
	}
	var b []byte
	if line.atEnd {
		b = append(b, "^C"...)
	}
	b = append(b, bytes.Repeat([]byte("\r\n"), line.below+1)...)
	b = append(b, s.log.tail(c.promptFrom, c.promptTo)...)
	c.editAt = s.log.append(b)
	return line.text, p
}
