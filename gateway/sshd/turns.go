package sshd

import (
	"bytes"
	"context"
	"io"
)

// turns is a client's input on a channel where readers take turns: the list of the control host,
// and sessions joined from it. One goroutine reads the channel, so that a reader takes no input of
// the next.
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

// maxAhead is the number of keystrokes that wait for a command. Further ones are dropped.
const maxAhead = 256

// watch reads src to its end without waiting for a reader. ^C calls interrupt and is removed.
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

// turn reads until ctx ends, then returns EOF.
type turn struct {
	ctx  context.Context //nolint:containedctx // an io.Reader has no ctx parameter
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
