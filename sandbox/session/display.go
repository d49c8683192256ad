package session

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/session/track"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	maxAnswer = 4 << 10 // limit of the answers to queries in one batch, in bytes
	maxLine   = 512     // limit of a quoted line in a state, in bytes
)

// display is the session's screen. It reads the log, so that a flood of output does not slow the
// pump. It alone answers terminal queries of programs.
type display struct {
	s *session

	calls atomic.Uint64                   // count of the last notice that was a bell or a message
	said  atomic.Pointer[track.Statement] // the last status statement of the program; nil if none

	mu      sync.Mutex
	screen  *screen.Screen // guarded by mu
	fed     uint64         // guarded by mu; log offset up to which the screen is drawn
	answers []byte         // guarded by mu; answers to queries in the current bytes
	// guarded by mu; log offset up to which the screen is private
	veil   uint64
	hushed uint64        // guarded by mu; count of notices up to the end of private mode
	wake   chan struct{} // guarded by mu; closed when fed grows; nil if nothing waits
}

func (d *display) init(s *session) {
	d.s = s
	d.screen = screen.New(
		screen.Options{Cols: s.size.Cols, Rows: s.size.Rows, Reply: func(p []byte) {
			if len(
				d.answers,
			)+len(
				p,
			) <= maxAnswer { // do not answer a flood of queries
				d.answers = append(d.answers, p...)
			}
		}},
	)
}

// run feeds the screen until the session ends.
func (d *display) run() {
	var seen uint64 // number of statements that were reported
	for {
		// Only this goroutine changes the offset.
		p, err := d.s.log.wait(d.s.ctx, d.fed)
		var lagged *LaggedError
		if err != nil && !errors.As(err, &lagged) {
			return
		}
		p = p[:d.s.answers.askedUpTo(d.fed, len(p))]
		d.mu.Lock()
		private := d.fed < d.veil
		if lagged != nil {
			d.fed += lagged.Missed
		} else {
			_, _ = d.screen.Write(p) // in memory: it cannot fail
			d.fed += uint64(len(p))
		}
		if private {
			// What was drawn after the end of private mode, as in a flood, and a message whose end
			// the cover is. A message of these bytes that is public loses its text.
			d.hushed = d.screen.Notice().Count
		}
		d.calls.Store(d.screen.Call().Count)
		if status, n := d.screen.Status(); n > seen {
			seen = n
			d.said.Store(&track.Statement{Status: status, Count: n, At: d.fed, When: time.Now()})
		}
		answers := d.answers
		d.answers = nil
		if d.wake != nil {
			close(d.wake)
			d.wake = nil
		}
		d.mu.Unlock()
		if len(answers) > 0 {
			d.s.answers.owe(answers, d.fed)
		}
	}
}

// sync waits until the screen is drawn up to log offset off.
func (d *display) sync(ctx context.Context, off uint64) error {
	for {
		d.mu.Lock()
		if d.fed >= off {
			d.mu.Unlock()
			return nil
		}
		if d.wake == nil {
			d.wake = make(chan struct{})
		}
		wake := d.wake
		d.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-d.s.ctx.Done():
			return errClosed
		}
	}
}

func (d *display) resize(cols, rows int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.screen.Resize(cols, rows)
}

// glance returns whether the alternate screen is on, and the last line of text.
func (d *display) glance() (alt bool, last string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, rows := d.screen.Size()
	for y := rows - 1; y >= 0; y-- {
		if line := d.screen.LineText(y); line != "" {
			last = clip(line)
			break
		}
	}
	if d.veiledLocked() {
		last = ""
	}
	return d.screen.Modes().AltScreen, last
}

// modes returns the modes that the program has set.
func (d *display) modes() screen.Modes {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.screen.Modes()
}

// alternate reports whether the alternate screen is on, and whether it shows no character.
func (d *display) alternate() (on, blank bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	on = d.screen.Modes().AltScreen
	return on, on && d.screen.Blank()
}

// notices returns the count of the program's notices.
func (d *display) notices() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.screen.Notice().Count
}

// noticeSince returns the program's last notice after the first n: a bell or message if there is
// one, because a shell's prompt often sets the title. ok is false if there is no notice.
func (d *display) noticeSince(n uint64) (_ screen.Notice, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := d.screen.Call()
	if last.Count <= n {
		last = d.screen.Notice()
	}
	if last.Count <= d.hushed || d.veiledLocked() {
		last.Text = ""
	}
	return last, last.Count > n
}

// prompt returns the text before the cursor: the cursor's line, with the lines that wrapped into
// it.
func (d *display) prompt() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	cur := d.screen.Cursor()
	var b strings.Builder
	for x, cell := range d.screen.Line(cur.Y) {
		if x >= cur.X {
			break
		}
		b.WriteString(cell.Text)
	}
	text := b.String()
	for y := cur.Y - 1; y >= 0 && d.screen.Wrapped(y) && len(text) < maxLine; y-- {
		text = d.screen.LineText(y) + text
	}
	if d.fed < d.veil {
		return ""
	}
	return clip(text)
}

func (d *display) snapshot() *wire.Screen {
	d.mu.Lock()
	defer d.mu.Unlock()
	cols, rows := d.screen.Size()
	cur, modes := d.screen.Cursor(), d.screen.Modes()
	return &wire.Screen{
		Text:      d.screen.Text(),
		Cols:      cols,
		Rows:      rows,
		CursorX:   cur.X,
		CursorY:   cur.Y,
		Visible:   cur.Visible,
		AltScreen: modes.AltScreen,
		Title:     d.screen.Title(),
		Offset:    d.fed,

		BracketedPaste: modes.BracketedPaste,
	}
}

// veiled reports whether the screen shows private output.
func (d *display) veiled() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.veiledLocked()
}

// clip keeps the end of a line, which has the question.
func clip(line string) string {
	if len(line) <= maxLine {
		return line
	}
	line = line[len(line)-maxLine:]
	for len(line) > 0 && line[0]&0xc0 == 0x80 {
		line = line[1:]
	}
	return line
}
