package session

import (
	"bytes"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/marks"
)

const (
	echoSize = 64 << 10        // most output that is taken for the echo of a typed command
	echoTime = 2 * time.Second // and how long

	pasteOff = "\x1b[?2004l\r" // what readline prints when a line is done
	keyEcho  = "^E\b \b\b \b"  // what a terminal without a line editor makes of ^E and ^U
)

// echo is output between the typing of a command's constant line and the mark of its start.
type echo struct {
	typed []byte
	bytes []byte
	own   bool // all of bytes is the shell's own doing, and nobody's output
	timer *time.Timer
}

func (e *echo) add(p []byte) bool {
	if len(e.bytes)+len(p) > echoSize {
		return false
	}
	e.bytes = append(e.bytes, p...)
	return true
}

// beginEchoLocked holds output back until endEchoLocked, for a bounded time: if the mark does not come, what came instead
// is output like any other.
func (c *console) beginEchoLocked(typed []byte) {
	e := &echo{typed: typed}
	c.echo = e
	e.timer = time.AfterFunc(echoTime, func() {
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		if c.echo == e && !c.s.sealed {
			c.s.log.append(c.endEchoLocked().bytes)
		}
	})
}

// endEchoLocked returns what was held back.
func (c *console) endEchoLocked() *echo {
	e := c.echo
	c.echo = nil
	e.timer.Stop()
	return e
}

// dropPrompt takes out the prompt at the end of what was held back, which the line editor has drawn again: from the beginning of the
// row on. What it changed of the terminal's modes stays.
func (e *echo) dropPrompt() {
	from := bytes.LastIndexByte(e.bytes, '\r') + 1
	if from < len(e.bytes) && e.bytes[from] == '\n' {
		from++
	}
	e.bytes = append(e.bytes[:from:from], marks.Keep(e.bytes[from:])...)
}

// leastPiece is the least of the typed line that is taken for its echo: less may stand in anybody's output.
const leastPiece = 3

// output is what of the echo is none: changes of modes, which the terminal has to know, and what others printed meanwhile,
// such as a job in the background, byte for byte. The line that was typed is taken out in the longest pieces that are there, since
// others' output may stand between them, and with it what a line editor prints around them.
func (e *echo) output() []byte {
	if e.own {
		return marks.Keep(e.bytes)
	}
	typed := e.typed
	for len(typed) > 0 && typed[0] < 0x20 { // the keys that empty the line leave nothing
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
	if before, after, found := bytes.Cut(p, []byte(keyEcho)); found {
		take(before)
		p = after
	}
	for len(typed) > 0 {
		at, n := longest(p, typed)
		if n < min(leastPiece, len(typed)) {
			break
		}
		take(p[:at])
		p, typed = p[at+n:], typed[n:]
		if len(typed) == 0 {
			p = withoutWrap(p, e.typed)
		}
	}
	if before, after, found := bytes.Cut(p, []byte(pasteOff)); found {
		modes = append(modes, marks.Keep([]byte(pasteOff))...)
		p = append(before[:len(before):len(before)], after...)
	}
	take(withoutEnd(p))
	return append(modes, rest...)
}

// longest is where in p the longest beginning of typed stands, and how long that is.
func longest(p, typed []byte) (at, n int) {
	for i := range p {
		k := 0
		for k < len(typed) && i+k < len(p) && p[i+k] == typed[k] {
			k++
		}
		if k > n {
			at, n = i, k
		}
	}
	return at, n
}

// editing reports whether p is nothing but the doing of a line editor.
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

// withoutWrap is what stands behind typed without what readline prints there when the row is full: it goes to the next one, and,
// as the line has ended, back to draw its last character again.
func withoutWrap(p, typed []byte) []byte {
	const wrap = " \r\x1b[A"
	if !bytes.HasPrefix(p, []byte(wrap)) {
		return p
	}
	i := len(wrap)
	for i < len(p) && p[i] == 0x1b {
		i += escape(p[i:])
	}
	typed = bytes.TrimRight(typed, "\r\n")
	if i == len(p) || p[i] != typed[len(typed)-1] {
		return p
	}
	return p[i+1:]
}

// withoutEnd is what stands behind a typed line without that line's own end: the first one that ends nothing, as the lines
// of others that came before it have ends of their own.
func withoutEnd(p []byte) []byte {
	const end = "\r\n"
	if bytes.HasPrefix(p, []byte(end)) {
		return p[len(end):]
	}
	before, after, found := bytes.Cut(p, []byte(end+end))
	if !found {
		before, after, _ = bytes.Cut(p, []byte(end))
		return append(before[:len(before):len(before)], after...)
	}
	return append(append(before[:len(before):len(before)], end...), after...)
}

// escape is the length of the control character or sequence that p begins with, as line editors print and read them.
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
