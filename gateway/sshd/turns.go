package sshd

import (
	"bytes"
	"context"
	"io"
)

// turns is what a client types on a channel where several read in turn: the list of the control host,
// and the sessions that are joined from it. One goroutine reads the channel, so that a reader whose turn
// is over takes nothing that is meant for the next.
type turns struct{ chunks chan []byte }

// fill reads src to its end, or until gone is closed.
func (t *turns) fill(src io.Reader, gone <-chan struct{}) {
	defer close(t.chunks)
	buf := make([]byte, 4<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			select {
			case t.chunks <- append([]byte(nil), buf[:n]...):
			case <-gone:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// maxAhead is how many keystrokes wait for a command; one that reads nothing loses the rest.
const maxAhead = 256

// watch reads src to its end, at once. ^C calls interrupt and goes no further.
func (t *turns) watch(src io.Reader, interrupt func()) {
	defer close(t.chunks)
	buf := make([]byte, 4<<10)
	for {
		n, err := src.Read(buf)
		if bytes.IndexByte(buf[:n], 0x03) >= 0 {
			interrupt()
		}
		if b := bytes.ReplaceAll(buf[:n], []byte{0x03}, nil); len(b) > 0 {
			select {
			case t.chunks <- b:
			default:
			}
		}
		if err != nil {
			return
		}
	}
}

// turn reads until ctx ends: then it is at its end.
type turn struct {
	ctx  context.Context //nolint:containedctx // an io.Reader takes none
	from *turns
	rest []byte
}

func (r *turn) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		if r.ctx.Err() != nil {
			return 0, io.EOF
		}
		select {
		case b, ok := <-r.from.chunks:
			if !ok {
				return 0, io.EOF
			}
			r.rest = b
		case <-r.ctx.Done():
			return 0, io.EOF
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
