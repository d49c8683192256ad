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

// stallTime is how long an answer may stand still because its client does not read: what it is made from is held open for it.
const stallTime = time.Minute

// pieceBytes is how much of an answer has that time.
const pieceBytes = 64 << 10

// pacer ends an answer whose client takes nothing of it for a while.
type pacer struct {
	c     *http.ResponseController
	stall time.Duration

	mu    sync.Mutex
	over  bool // guarded by mu; the last deadline is set, or another sets them
	taken bool // guarded by mu; a stream has the connection
}

// soon says that what is written now has to be taken within stall.
func (p *pacer) soon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		_ = p.c.SetWriteDeadline(time.Now().Add(p.stall)) // a writer without one is a test's
	}
}

// last has all that is written from now on taken within answer, and no more read. A stream that took the connection over watches its
// context, and has the time of stream until both ends: it says why it ends, and hears the answer.
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

// takenOver says that a stream has the connection, which sets deadlines of its own.
func (p *pacer) takenOver() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over, p.taken = true, true
}

// wrap is w, paced.
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
			return func() (net.Conn, *bufio.ReadWriter, error) { defer p.takenOver(); return next() }
		},
		Flush: func(next httpsnoop.FlushFunc) httpsnoop.FlushFunc { return func() { p.soon(); next() } },
		// Not sendfile(2), which would be one piece.
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
