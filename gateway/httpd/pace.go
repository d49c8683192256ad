package httpd

import (
	"io"
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

	mu   sync.Mutex
	over bool // guarded by mu; the last deadline is set
}

// soon says that what is written now has to be taken within stall.
func (p *pacer) soon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		_ = p.c.SetWriteDeadline(time.Now().Add(p.stall)) // a writer without one is a test's
	}
}

// last has all that is written from now on taken within d.
func (p *pacer) last(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	_ = p.c.SetWriteDeadline(time.Now().Add(d))
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
