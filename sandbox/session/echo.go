package session

import (
	"bytes"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/marks"
)

const (
	echoSize = 64 << 10        // most output that is taken for the echo of a typed command
	echoTime = 2 * time.Second // and how long
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
		if c.echo == e {
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

// output is what of the echo is none: changes of modes, which the terminal has to know, and what others printed meanwhile,
// such as a job in the background. The line that was typed is taken out as the characters of which it is made, since
// others' may stand between them.
func (e *echo) output() []byte {
	out := marks.Keep(e.bytes)
	if e.own {
		return out
	}
	typed := e.typed
	for len(typed) > 0 && typed[0] < 0x20 { // the keys that empty the line leave nothing
		typed = typed[escape(typed):]
	}
	typed = bytes.TrimRight(typed, "\r\n")
	var rest []byte
	for i := 0; i < len(e.bytes); i++ {
		c := e.bytes[i]
		switch {
		case c == 0x1b:
			i += escape(e.bytes[i:]) - 1
		case len(typed) > 0 && c == typed[0]:
			typed = typed[1:]
		case c == '\a':
		case c == '\b': // without a line editor, the terminal echoes ^E and rubs it out again
			rest = rest[:max(0, len(rest)-1)]
		default:
			rest = append(rest, c)
		}
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		// The line's own end stands last.
		out = append(out, bytes.TrimSuffix(rest, []byte("\r\n"))...)
	}
	return out
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
