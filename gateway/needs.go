package gateway

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// noteNeedLocked brings what is known of the session's need up to its state, and tells those who watch. It is called with mu
// held, whenever the state or the keyboard may have changed.
func (l *Live) noteNeedLocked() {
	if l.need.Observe(attention.Evidence{Session: l.name, Argv: l.argv, Begun: l.begun, State: l.state, Keyboard: l.keyboard,
		Blocked: l.denials.shown != ""}, time.Now()) {
		l.box.hub.board.Change()
	}
}

// brief is what the session needs, as far as a change of it is reported.
func (l *Live) brief() attention.Brief {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.need.Brief
}

// needed returns what the session needs, without its sandbox. For its last line that looks at the screen.
func (l *Live) needed() attention.Need {
	l.mu.Lock()
	st := l.state
	n := attention.Need{Session: l.name, Needs: l.need.Needs, Want: l.need.Want, Since: l.need.Since,
		Keyboard: plainLine(l.keyboard, 80), Phase: l.need.Phase}
	private := l.private != ""
	denied := l.denials.shown
	l.mu.Unlock()
	if n.Phase == wire.PhaseDead {
		n.ExitCode, n.Signal = st.ExitCode, plainLine(st.Signal, 20)
	}
	if private {
		return n
	}
	if n.Needs == attention.Allow {
		n.LastLine = plainLine(denied, maxLastLine)
	}
	if n.Want != wire.WantPager && n.Want != wire.WantFullscreen && n.Needs == attention.Answer {
		n.LastLine = plainLine(st.Prompt, maxLastLine)
	}
	if n.LastLine == "" {
		n.LastLine = l.lastLine()
	}
	return n
}

const (
	maxLastLine = 200      // characters
	glanceAt    = 16 << 10 // bytes at the end of a log that draw its last line
)

// glance is the last line of a session's screen, as it was at an offset of the log.
type glance struct {
	at   uint64
	line string
}

// lastLine is the last line of text on the session's screen, as far as the end of the log has drawn it.
func (l *Live) lastLine() string {
	l.mu.Lock()
	end := l.replica.end
	if l.glance.at == end {
		defer l.mu.Unlock()
		return l.glance.line
	}
	cols, rows := l.cols, l.rows
	l.mu.Unlock()
	from, tail := l.tail(end)
	if from > 0 { // it may begin in the middle of a sequence
		if i := strings.IndexAny(string(tail), "\n\r\x1b"); i >= 0 {
			tail = tail[i:]
		}
	}
	s := screen.New(screen.Options{Cols: cols, Rows: rows})
	_, _ = s.Write(tail) // in memory: it takes everything
	var line string
	for y := rows - 1; y >= 0 && line == ""; y-- {
		line = plainLine(s.LineText(y), maxLastLine)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.glance = glance{end, line}
	return line
}

// tail reads the end of the log, up to end: of what the memory lacks, as after a restart of the daemon, the record knows. from is where it
// begins, behind the last gap.
func (l *Live) tail(end uint64) (from uint64, tail []byte) {
	from = end - min(end, glanceAt)
	tail = make([]byte, 0, end-from)
	for at := from; at < end; {
		n, _, err := l.readNow(at, tail[len(tail):end-from])
		var lagged *LaggedError
		switch {
		case errors.As(err, &lagged) && lagged.To > at:
			at = lagged.To
			from, tail = at, tail[:0]
		case err != nil || n == 0:
			return at, nil
		default:
			at += uint64(n)
			tail = tail[:len(tail)+n]
		}
	}
	return from, tail
}

// plainLine is text.End of what may be very long: of a question the end is left.
func plainLine(s string, n int) string { return text.End(s[max(0, len(s)-16*n):], n) }

// heed has the guest tell the session's state, on the replica's stream, while somebody watches what it needs. It returns when
// the stream or ctx ends.
func (l *Live) heed(ctx context.Context, client *wire.Client) {
	for {
		wanted, turned := l.watched()
		if !wanted {
			select {
			case <-turned:
				continue
			case <-client.Done():
			case <-ctx.Done():
			}
			return
		}
		asked, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { // ends with asked, or the stream
			_, err := client.Request(asked, wire.Request{Verb: wire.VerbHeed})
			done <- err
		}()
		for wanted {
			select {
			case <-turned:
				wanted, turned = l.watched()
			case err := <-done:
				cancel()
				if ctx.Err() == nil && client.Err() == nil { // a guest of a version that does not know how
					l.box.hub.log.Debug("session is not heeded", "sandbox", l.box.id, "session", l.name, "err", err)
					select {
					case <-client.Done():
					case <-ctx.Done():
					}
				}
				return
			}
		}
		cancel()
		<-done //nolint:errcheck // the end that was just made
	}
}

// watched reports whether somebody watches what the session needs, and returns what is closed when that may have changed.
func (l *Live) watched() (bool, <-chan struct{}) {
	return l.box.hub.board.Watched(l.box.principals())
}

// heeding runs heed beside the reading of a stream, until the returned function ends both.
func (l *Live) heeding(ctx context.Context, client *wire.Client) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { l.heed(ctx, client) })
	return func() {
		cancel()
		client.Close() // the guest may no longer read
		wg.Wait()
	}
}
