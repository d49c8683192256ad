//go:build linux

package guest

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/stdio"
)

// chunk is the size of copies; larger ones are no faster over SSH.
const chunk = 32 << 10

var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

// copyData copies until src ends or either side fails. The error is nil at the end of src.
func copyData(dst io.Writer, src io.Reader) error {
	buf := chunks.Get().(*[chunk]byte)
	defer chunks.Put(buf)
	for {
		n, err := src.Read(buf[:])
		if n > 0 {
			if _, werr := dst.Write(buf[:n]); werr != nil {
				return werr
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// output copies a program's output, and knows when all output from before the program's end has
// arrived. The end of the pipe does not show that while a background child holds it open.
type output struct {
	file *os.File // non-blocking
	dst  io.Writer
	done chan struct{} // closed when the copying goroutine has ended
	eof  bool          // the write end is closed; set before done
}

// copyOutput starts to copy file to dst. The caller calls finish, and then closes file.
func copyOutput(file *os.File, dst io.Writer) *output {
	o := &output{file: file, dst: dst, done: make(chan struct{})}
	go func() {
		defer close(o.done)
		if err := copyData(dst, file); err == nil || isHangup(err) {
			o.eof = true
		}
	}()
	return o
}

// isHangup reports whether a read error means that no process has the terminal's slave open.
func isHangup(err error) bool {
	return errors.Is(err, unix.EIO)
}

// finish is called when the program has ended. It returns when the program's output has been passed
// on, or the receiver has gone. It does not wait for output of other processes.
func (o *output) finish() {
	// The copier stops between two reads: it completes a write first.
	if err := o.file.SetReadDeadline(time.Unix(1, 0)); err != nil {
		return // already closed
	}
	<-o.done
	if o.eof || o.file.SetReadDeadline(time.Time{}) != nil {
		return
	}
	rest, err := stdio.NewRest(o.file)
	if err != nil {
		return
	}
	_ = copyData(o.dst, rest) // no receiver is left, or no writer
	o.eof = rest.Closed
}

// discard closes a file that a program wrote to. If closed is false, background children may have
// it open: then discard reads and drops their output until they have closed it, so that they do not
// die of a broken pipe.
func (g *Guest) discard(file *os.File, closed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if closed || g.closing {
		file.Close()
		return
	}
	g.drains[file] = true
	g.wg.Go(func() {
		_ = copyData(io.Discard, file) // ends with the last writer, or with the guest
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.drains, file)
		file.Close()
	})
}
