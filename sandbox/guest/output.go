package guest

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
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
func copyOutput(file *os.File, dst io.Writer, ended func()) *output {
	o := &output{file: file, dst: dst, done: make(chan struct{})}
	go func() {
		defer close(o.done)
		if err := copyData(dst, file); err == nil || isHangup(err) {
			o.eof = true
			ended()
		}
	}()
	return o
}

// isHangup reports whether a read error is the end of a terminal whose slave nobody has open.
func isHangup(err error) bool {
	return errors.Is(err, unix.EIO)
}

// maxTerminalRest is more than a terminal holds of what its programs wrote: two buffers of 64 KiB and a page.
const maxTerminalRest = 256 << 10

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
	rc, err := o.file.SyscallConn()
	if err != nil {
		return
	}
	rest := maxTerminalRest
	_ = rc.Control(func(fd uintptr) {
		// A pipe says how much is in it now: a background flood is not waited out. On a terminal the number leaves out what
		// is on its way, but a read there first waits for that (tty_buffer_flush_work).
		if n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil && !isTerminal(int(fd)) {
			rest = n
		}
	})
	buf := chunks.Get().(*[chunk]byte)
	defer chunks.Put(buf)
	for rest > 0 {
		var n int
		rerr := rc.Read(func(fd uintptr) bool {
			n, err = unix.Read(int(fd), buf[:min(rest, chunk)])
			return true // one try, however it went
		})
		switch {
		case rerr == nil && errors.Is(err, unix.EINTR):
			continue
		case rerr == nil && err == nil && n == 0, errors.Is(err, unix.EIO):
			o.eof = true
			return
		case rerr != nil || err != nil:
			return // EAGAIN: there is no more
		}
		if _, err := o.dst.Write(buf[:n]); err != nil {
			return
		}
		rest -= n
	}
}

func isTerminal(fd int) bool {
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil
}

// discard closes o's file, at once or when the background children that have it open have closed it. Until then it reads
// and drops, so that they do not die of a broken pipe.
func (g *Guest) discard(o *output) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if o.eof || g.closing {
		o.file.Close()
		return
	}
	g.drains[o.file] = true
	g.wg.Go(func() {
		_ = copyData(io.Discard, o.file) // it ends with the last writer, or with the guest
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.drains, o.file)
		o.file.Close()
	})
}
