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

// chunk is the size of copies; larger ones are no faster through SSH.
const chunk = 32 << 10

var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

// copyData copies until src ends or either side breaks. The error is nil at the end of src.
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

// output copies what a program writes, and can tell when everything has arrived that it wrote before it ended – which the
// end of the pipe does not say while a background child holds it open.
type output struct {
	file *os.File // non-blocking
	dst  io.Writer
	done chan struct{} // closed when the copying goroutine has ended
	eof  bool          // the far side is closed; set before done
}

// copyOutput starts copying file to dst. The caller calls finish, and closes file after it.
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

// isHangup reports whether a read error is the end of a terminal whose slave nobody has open.
func isHangup(err error) bool {
	return errors.Is(err, unix.EIO)
}

// finish is called when the program has ended. It returns when what the program wrote before has been passed on, or
// nobody takes it any more. It does not wait for what others may yet write.
func (o *output) finish() {
	// The copier stops between two reads: one that is in a write finishes it.
	if err := o.file.SetReadDeadline(time.Unix(1, 0)); err != nil {
		return // closed already
	}
	<-o.done
	if o.eof || o.file.SetReadDeadline(time.Time{}) != nil {
		return
	}
	rest, err := stdio.NewRest(o.file)
	if err != nil {
		return
	}
	_ = copyData(o.dst, rest) // nobody takes it, or nobody is left to write it
	o.eof = rest.Closed
}

// discard closes a file that a program wrote to, at once or, unless closed says that nobody has it open, when the background children that
// do have closed it. Until then it reads and drops, so that they do not die of a broken pipe.
func (g *Guest) discard(file *os.File, closed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if closed || g.closing {
		file.Close()
		return
	}
	g.drains[file] = true
	g.wg.Go(func() {
		_ = copyData(io.Discard, file) // it ends with the last writer, or with the guest
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.drains, file)
		file.Close()
	})
}
