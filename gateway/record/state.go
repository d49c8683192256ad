package record

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"time"
)

// End returns the length of the log, including missing bytes.
func (w *Writer) End() uint64 {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.end
}

// Seq returns the highest Seq of the session's events in the record.
func (w *Writer) Seq() uint64 {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.seq
}

// Begun returns when the session began.
func (w *Writer) Begun() time.Time {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return time.UnixMilli(w.begin.TimeUnix)
}

// Sizes returns the terminal's sizes, in order.
func (w *Writer) Sizes() []Size {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return slices.Clone(w.sizes)
}

// Finished reports whether the record has its last event.
func (w *Writer) Finished() bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.finished
}

// Stopped returns why recording stopped, or "".
func (w *Writer) Stopped() string {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.stopped
}

// ReadAt reads recorded bytes from offset off on: fewer than fit p at a gap or the end, io.EOF at
// the end, *GapError in a gap.
func (w *Writer) ReadAt(p []byte, off uint64) (int, error) {
	for {
		w.mu.RLock()
		n, err := w.gaps.limit(len(p), off, w.end)
		f := w.read
		w.mu.RUnlock()
		if err != nil || n == 0 {
			return 0, err
		}
		if f == nil {
			if f, err = w.openRead(); err != nil {
				return 0, err
			}
		}
		got, err := f.ReadAt(p[:n], int64(off))
		if errors.Is(err, os.ErrClosed) {
			continue // Tidy closed it meanwhile
		}
		if errors.Is(err, io.EOF) {
			// The file is shorter than the record: it was truncated outside the daemon.
			err = io.ErrUnexpectedEOF
		}
		w.mu.RLock()
		gone := off < w.start
		w.mu.RUnlock()
		if gone {
			continue // removed meanwhile
		}
		if got > 0 {
			err = nil
		}
		return got, err
	}
}

func (w *Writer) openRead() (*os.File, error) {
	f, err := os.Open(filepath.Join(w.dir, LogFile))
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.read != nil {
		f.Close()
		return w.read, nil
	}
	w.read = f
	return f, nil
}

// gaps are in order and do not overlap.
type gaps []GapError

// limit returns how many of n bytes at off can be read, in a log of end bytes.
func (g gaps) limit(n int, off, end uint64) (int, error) {
	if off >= end {
		return 0, io.EOF
	}
	if uint64(n) > end-off {
		n = int(end - off)
	}
	i := sort.Search(len(g), func(i int) bool { return g[i].To > off })
	switch {
	case i == len(g) || g[i].From >= off+uint64(n):
		return n, nil
	case g[i].From > off:
		return int(g[i].From - off), nil
	}
	gap := g[i]
	gap.From = off
	return 0, &gap
}
