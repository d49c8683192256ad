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
	maxAnswer = 4 << 10 // most bytes of answers to the queries that come together
	maxLine   = 512     // bytes of a line that is quoted in a state
)

// display is the session's screen. It follows the log as a reader, so that a flood of output that the model cannot keep
// up with costs the pump nothing; and it answers the queries of programs, as the only one who does.
type display struct {
	s *session

	calls atomic.Uint64                   // count of the last notice that was a bell or a message
	said  atomic.Pointer[track.Statement] // the program's last of itself; nil when there was none

	mu      sync.Mutex
	screen  *screen.Screen // guarded by mu
	fed     uint64         // guarded by mu; the screen shows the log up to here
	answers []byte         // guarded by mu; to the queries in the bytes at hand
	veil    uint64         // guarded by mu; until the screen shows the log up to here, it shows what is private
	hushed  uint64         // guarded by mu; calls for attention up to this one were made in private
	wake    chan struct{}  // guarded by mu; closed when fed grows; nil while nobody waits
}

func (d *display) init(s *session) {
	d.s = s
	d.screen = screen.New(screen.Options{Cols: s.size.Cols, Rows: s.size.Rows, Reply: func(p []byte) {
		if len(d.answers)+len(p) <= maxAnswer { // a flood of queries is a flood, not a conversation
			d.answers = append(d.answers, p...)
		}
	}})
}

// run feeds the screen until the session ends.
func (d *display) run() {
	var told uint64 // how many statements of the program are known
	for {
		// The offset is this goroutine's own; others only look at it.
		p, err := d.s.log.wait(d.s.ctx, d.fed)
		var lagged *LaggedError
		if err != nil && !errors.As(err, &lagged) {
			return
		}
		p = p[:d.s.answers.askedUpTo(d.fed, len(p))]
		d.mu.Lock()
		if lagged != nil {
			d.fed += lagged.Missed
		} else {
			_, _ = d.screen.Write(p) // in memory: it takes everything
			d.fed += uint64(len(p))
		}
		d.calls.Store(d.screen.Call().Count)
		if status, n := d.screen.Status(); n > told {
			told = n
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

// sync waits until the screen shows the log up to off.
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

// modes returns what the program has switched on.
func (d *display) modes() screen.Modes {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.screen.Modes()
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

// prompt returns the text before the cursor: the cursor's line, with the lines that wrapped into it.
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
	cur := d.screen.Cursor()
	return &wire.Screen{Text: d.screen.Text(), Cols: cols, Rows: rows, CursorX: cur.X, CursorY: cur.Y, Visible: cur.Visible,
		AltScreen: d.screen.Modes().AltScreen, Title: d.screen.Title(), Offset: d.fed}
}

// veiled reports whether the screen shows what is not for everybody.
func (d *display) veiled() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.veiledLocked()
}

// clip keeps the end of a line, where a question stands.
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
