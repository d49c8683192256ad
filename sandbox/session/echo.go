package session

import (
	"bytes"
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/marks"
)

const (
	echoSize = 64 << 10        // most output that is taken for the echo of a typed command
	echoTime = 2 * time.Second // and how long

	// What line editors print when a line is done.
	pasteOff  = "\x1b[?2004l\r"
	keypadOff = "\x1b[?1l\x1b>"

	keyEcho = "^E\b \b\b \b" // what a terminal without a line editor makes of ^E and ^U
)

// echo is output between the typing of a command's constant line and the mark of its start.
type echo struct {
	typed []byte // or, after a key, what the line editor draws for it
	line  string // what stood unsent at the prompt, which the line editor may draw again before it empties it
	again []int  // where in bytes a prompt ended that was drawn again
	bytes []byte
	own   bool // all of bytes is taken for the shell's own doing, as what that looks like is not known
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
	e.again = append(e.again, len(e.bytes))
}

// dropLine takes out what stood unsent behind a prompt and was drawn again there. What is left of it is the line editor's emptying
// it, which would not do where the prompt is missing.
func (e *echo) dropLine() {
	for i := len(e.again) - 1; i >= 0 && e.line != ""; i-- {
		at := min(e.again[i], len(e.bytes)) // a later prompt was drawn in the same row
		for at < len(e.bytes) && e.bytes[at] == 0x1b {
			at += escape(e.bytes[at:])
		}
		if bytes.HasPrefix(e.bytes[at:], []byte(e.line)) {
			e.bytes = append(e.bytes[:at], e.bytes[at+len(e.line):]...)
		}
	}
	e.again = nil
}

// output is what of the echo is none: changes of modes, which the terminal has to know, and what others printed meanwhile,
// such as a job in the background, byte for byte. The line that was typed and its end are taken out in the pieces in which they
// are there, since others' output may stand between them, and with them what a line editor prints around them.
func (e *echo) output() []byte {
	if e.own {
		return marks.Keep(e.bytes)
	}
	e.dropLine()
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
	if len(p) > 1 && p[0] == '\r' && p[1] == '\n' { // no line is done yet: it ends a job's, of which the rest came before
		rest, p = p[:2:2], p[2:]
	}
	if before, after, found := bytes.Cut(p, []byte(keyEcho)); found {
		take(before)
		p = after
	}
	// zsh goes back to where the line begins, too.
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

// withoutWrap is p without what readline prints behind typed when the row is full: it goes to the next one, and, as the line has
// ended, back to draw its last character again.
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
