package agent

import (
	"context"
	"fmt"
	"sync"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// complete replaces the output of r, which was limited by the size of a frame, with up to
// wire.MaxWhole bytes of the log. It reads the log on a separate stream. If it cannot, r keeps its
// output and gets a note.
func (s *Shell) complete(ctx context.Context, r *wire.Result, maxOutput int) {
	w := &whole{
		to:   min(r.To, r.From+wire.MaxWhole),
		at:   r.From,
		text: text.NewWriter(maxOutput),
		done: make(chan struct{}),
	}
	if err := s.read(ctx, r.From, w); err != nil {
		r.Unreadable(err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.any && w.missing != nil {
		r.Unreadable(w.missing)
		return
	}
	r.Complete(w.text.String(), w.text.Truncated(), w.to, w.missing)
}

// read copies the session's log from an offset to w, until w is complete.
func (s *Shell) read(ctx context.Context, from uint64, w *whole) error {
	ctx, done := within(ctx, s.life)
	defer done()
	rw, err := s.client.open(ctx)
	if err != nil {
		return err
	}
	stream, err := wire.Open(
		ctx,
		rw,
		wire.Attach{Session: s.Session(), From: wire.At(from)},
		wire.Handler{Output: w.output, Event: w.event},
	)
	if err != nil {
		return err
	}
	defer stream.Close()
	select {
	case <-w.done:
		return nil
	case <-stream.Done():
		return stream.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// whole renders a part of a log as it arrives.
type whole struct {
	to   uint64        // end of the part
	done chan struct{} // closed when the part is complete

	mu   sync.Mutex
	at   uint64       // guarded by mu; offset of the next byte
	text *text.Writer // guarded by mu
	any  bool         // guarded by mu; some bytes have arrived
	// guarded by mu; the last gap that private mode does not explain
	missing error
}

func (w *whole) output(offset uint64, p []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.at >= w.to {
		return
	}
	if offset > w.at { // the session no longer stores the bytes before
		w.missLocked(offset, "no longer stored")
	}
	if end := offset + uint64(len(p)); w.at < w.to && end > w.at {
		end = min(end, w.to)
		_, _ = w.text.Write(p[w.at-offset : end-offset]) // in memory: it cannot fail
		w.at, w.any = end, true
	}
	w.endLocked()
}

func (w *whole) event(e wire.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.Kind != wire.EventLagged || e.Offset <= w.at || w.at >= w.to {
		return
	}
	w.missLocked(e.Offset, e.Text)
	w.endLocked()
}

// missLocked records that the bytes up to an offset are missing.
func (w *whole) missLocked(to uint64, why string) {
	to = min(to, w.to)
	said := fmt.Sprintf("[%d bytes are missing: %s]", to-w.at, why)
	if why == wire.WhyPrivate {
		said = fmt.Sprintf("[private: %d bytes]", to-w.at)
	} else {
		w.missing = fmt.Errorf("bytes %d to %d are missing: %s", w.at, to, why)
	}
	_, _ = fmt.Fprintf(w.text, "%s\r\n", said)
	w.at = to
}

func (w *whole) endLocked() {
	if w.at >= w.to {
		close(w.done)
	}
}
