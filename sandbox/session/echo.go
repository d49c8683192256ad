package session

import (
	"bytes"
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/marks"
)

const (
	echoSize = 64 << 10        // limit of output that counts as the echo of a typed command
	echoTime = 2 * time.Second // and its time limit

	// Output of line editors at the end of a line.
	pasteOff  = "\x1b[?2004l\r"
	keypadOff = "\x1b[?1l\x1b>"

	keyEcho = "^E\b \b\b \b" // output of a terminal without a line editor for ^E and ^U
)

// echo is output between the typing of a command's constant line and the mark of its start.
type echo struct {
	typed []byte // or, after a key, the drawing of the line editor
	// unsent text at the prompt, which the line editor may redraw before it clears it
	line  string
	again []int // offsets in bytes of the ends of redrawn prompts
	bytes []byte
	// all bytes count as the shell's own output, whose form is unknown
	own   bool
	timer *time.Timer
}

func (e *echo) add(p []byte) bool {
	if len(e.bytes)+len(p) > echoSize {
		return false
	}
	e.bytes = append(e.bytes, p...)
	return true
}

// beginEchoLocked holds output back until endEchoLocked, for a limited time. If no mark arrives, it
// is normal output.
func (c *console) beginEchoLocked(typed []byte, line string) {
	e := &echo{typed: typed, line: line}
	c.echo = e
	e.timer = time.AfterFunc(echoTime, func() {
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		if c.echo == e && !c.s.sealed {
			c.s.log.append(c.endEchoLocked().bytes)
		}
	})
}

// endEchoLocked ends the echo and returns it.
func (c *console) endEchoLocked() *echo {
	e := c.echo
	c.echo = nil
	e.timer.Stop()
	return e
}

// dropPrompt removes the redrawn prompt at the end of the echo, from the start of its row. It keeps
// changes of terminal modes.
func (e *echo) dropPrompt() {
	from := bytes.LastIndexByte(e.bytes, '\r') + 1
	if from < len(e.bytes) && e.bytes[from] == '\n' {
		from++
	}
	e.bytes = append(e.bytes[:from:from], marks.Keep(e.bytes[from:])...)
	e.again = append(e.again, len(e.bytes))
}

// dropLine removes the unsent line that was redrawn after a prompt. What remains is the line
// editor's clearing of the line, which would be wrong without the prompt.
func (e *echo) dropLine() {
	for i := len(e.again) - 1; i >= 0 && e.line != ""; i-- {
		at := min(e.again[i], len(e.bytes)) // a later prompt is in the same row
		for at < len(e.bytes) && e.bytes[at] == 0x1b {
			at += escape(e.bytes[at:])
		}
		if bytes.HasPrefix(e.bytes[at:], []byte(e.line)) {
			e.bytes = append(e.bytes[:at], e.bytes[at+len(e.line):]...)
		}
	}
	e.again = nil
}

// output returns what is not echo: changes of modes, and output of others, such as a background
// job, byte for byte. It removes the typed line and its end. Output of others may split them into
// pieces. It also removes what a line editor prints around them.
func (e *echo) output() []byte {
	if e.own {
		return marks.Keep(e.bytes)
	}
	e.dropLine()
	typed := e.typed
	// The keys that clear the line have no echo.
	for len(typed) > 0 && (typed[0] < 0x20 || typed[0] == 0x7f) {
		typed = typed[escape(typed):]
	}
	typed = bytes.TrimRight(typed, "\r\n")
	var modes, rest []byte
	take := func(p []byte) {
		if editing(p) {
			modes = append(modes, marks.Keep(p)...)
		} else {
			rest = append(rest, p...)
		}
	}
	p := e.bytes
	if len(p) > 1 && p[0] == '\r' &&
		p[1] == '\n' { // the line is not complete: this ends a job's line
		rest, p = p[:2:2], p[2:]
	}
	if before, after, found := bytes.Cut(p, []byte(keyEcho)); found {
		take(before)
		p = after
	}
	// zsh also moves back to the start of the line.
	for _, done := range []string{fmt.Sprintf("\x1b[%dD", len(typed)), keypadOff, pasteOff} {
		if before, after, found := bytes.Cut(p, []byte(done)); found {
			modes = append(modes, marks.Keep([]byte(done))...)
			p = append(before[:len(before):len(before)], after...)
		}
	}
	p = withoutWrap(p, typed)
	for _, g := range gaps(p, append(typed[:len(typed):len(typed)], "\r\n"...)) {
		take(p[g.from:g.to])
	}
	return append(modes, rest...)
}

// editing reports whether p is only output of a line editor.
func editing(p []byte) bool {
	var shown []byte
	for len(p) > 0 {
		n := 1
		switch p[0] {
		case 0x1b:
			n = escape(p)
		case '\a':
		case '\b':
			shown = shown[:max(0, len(shown)-1)]
		default:
			shown = append(shown, p[0])
		}
		p = p[n:]
	}
	return len(bytes.TrimSpace(shown)) == 0
}

// withoutWrap returns p without what readline prints after typed in a full row: it moves to the
// next row, and back to redraw the last character.
func withoutWrap(p, typed []byte) []byte {
	const wrap = " \r\x1b[A"
	from := bytes.Index(p, []byte(wrap))
	if from < 0 || len(typed) == 0 {
		return p
	}
	to := from + len(wrap)
	for to < len(p) && p[to] == 0x1b {
		to += escape(p[to:])
	}
	if to == len(p) || p[to] != typed[len(typed)-1] {
		return p
	}
	return append(p[:from:from], p[to+1:]...)
}

// escape returns the length of the control character or sequence at the start of p, in the forms
// that line editors use.
func escape(p []byte) int {
	switch {
	case p[0] != 0x1b:
		return 1
	case len(p) < 2 || p[1] != '[':
		return min(2, len(p))
	}
	for i, c := range p[2:] {
		if c >= 0x40 && c < 0x7f {
			return i + 3
		}
	}
	return len(p)
}
