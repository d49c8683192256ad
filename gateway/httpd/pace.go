package httpd

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/felixge/httpsnoop"
)

// stallTime is how long a client may leave an answer unread. The answer's resources stay open
// meanwhile.
const stallTime = time.Minute

// pieceBytes is the part of an answer to which stallTime applies.
const pieceBytes = 64 << 10

// pacer aborts an answer whose client reads nothing for a while.
type pacer struct {
	c     *http.ResponseController
	stall time.Duration

	mu    sync.Mutex
	over  bool // guarded by mu; no more deadlines: the last one is set, or a stream sets its own
	taken bool // guarded by mu; a stream has taken over the connection
}

// soon requires that the client takes the bytes written now within stall.
func (p *pacer) soon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		// The writers of some tests have no deadline.
		_ = p.c.SetWriteDeadline(time.Now().Add(p.stall))
	}
}

// last limits all further writes to the duration answer, and ends reads. A stream that took over
// the connection gets the duration stream for both instead: it watches its context, sends why it
// ends, and reads the client's answer.
func (p *pacer) last(answer, stream time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	now := time.Now()
	if p.taken {
		_, _ = p.c.SetReadDeadline(now.Add(stream)), p.c.SetWriteDeadline(now.Add(stream))
		return
	}
	_, _ = p.c.SetReadDeadline(now), p.c.SetWriteDeadline(now.Add(answer))
}

// takenOver records that a stream has the connection and sets its own deadlines.
func (p *pacer) takenOver() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over, p.taken = true, true
}

// wrap returns w with the pacer's deadlines.
func (p *pacer) wrap(w http.ResponseWriter) http.ResponseWriter {
	write := func(next httpsnoop.WriteFunc) httpsnoop.WriteFunc {
		return func(b []byte) (n int, err error) {
			for {
				p.soon()
				got, err := next(b[n:min(len(b), n+pieceBytes)])
				if n += got; err != nil || n >= len(b) {
					return n, err
				}
			}
		}
	}
	return httpsnoop.Wrap(w, httpsnoop.Hooks{
		Write: write,
		Hijack: func(next httpsnoop.HijackFunc) httpsnoop.HijackFunc {
			return func() (net.Conn, *bufio.ReadWriter,
				error) {
				defer p.takenOver()
				return next()
			}
		},
		Flush: func(next httpsnoop.FlushFunc) httpsnoop.FlushFunc {
			return func() { p.soon(); next() }
		},
		// Do not use sendfile(2): it would write all as one piece.
		ReadFrom: func(httpsnoop.ReadFromFunc) httpsnoop.ReadFromFunc {
			return func(src io.Reader) (int64, error) {
				return io.CopyBuffer(writer{write(w.Write)}, onlyReader{src}, make([]byte, 32<<10))
			}
		},
	})
}

type writer struct{ write httpsnoop.WriteFunc }

func (w writer) Write(p []byte) (int, error) { return w.write(p) }

type onlyReader struct{ io.Reader }
