package record

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// rotateLocked makes room for n bytes by removing the oldest part of the record: at least a quarter
// of the quota, so that it happens rarely. The log keeps its length, with a hole at its beginning.
// The events of that part are removed, except the first one, and one that describes the hole is
// added.
func (w *Writer) rotateLocked(now time.Time, n int64) error {
	if err := w.openLocked(); err != nil {
		return err
	}
	if err := w.flushLocked(); err != nil {
		return err
	}
	if err := w.syncLocked(); err != nil {
		return err
	}
	w.mu.RLock()
	start := w.rotationLocked(uint64(max(w.used+n-w.quota/4*3, 1)))
	w.mu.RUnlock()
	size, err := w.rewriteEventsLocked(now, start)
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	w.mu.Lock()
	w.start = start
	kept := w.gaps[:0:0]
	if start > 0 {
		kept = append(kept, GapError{From: 0, To: start, Why: WhyRotated})
	}
	var missing uint64
	for _, g := range w.gaps {
		if g.To > start {
			g.From = max(g.From, start)
			kept = append(kept, g)
			missing += g.To - g.From
		}
	}
	w.gaps, w.written = kept, len(kept)
	for len(w.sizes) > 1 && w.sizes[1].Offset <= start {
		w.sizes = w.sizes[1:]
	}
	end := w.end
	w.mu.Unlock()
	w.size, w.used = size, size+int64(end-start-min(missing, end-start))
	// Only now: a reader with an older index sees the new events when it has read removed bytes.
	if start > 0 {
		if err := punch(w.log, int64(start)); err != nil {
			return fmt.Errorf("record %s: make a hole: %w", w.dir, err)
		}
	}
	return pruneKeyframes(w.dir, start)
}

// rotationLocked returns the offset at which the record may begin to use free bytes less.
func (w *Writer) rotationLocked(free uint64) uint64 {
	at := w.start
	for _, g := range append(w.gaps[:len(w.gaps):len(w.gaps)], GapError{From: w.end, To: w.end}) {
		if g.From > at {
			if have := g.From - at; have >= free {
				at += free
				break
			} else {
				free -= have
			}
		}
		at = max(at, g.To)
	}
	// A player needs a keyframe to begin with.
	if w.quota >= 8*KeyframeEvery {
		at = (at + KeyframeEvery - 1) / KeyframeEvery * KeyframeEvery
	}
	return min(at, w.end)
}

// rewriteEventsLocked replaces events.ndjson with one without the events before offset start, and
// returns its size.
func (w *Writer) rewriteEventsLocked(now time.Time, start uint64) (size int64, err error) {
	path := filepath.Join(w.dir, EventsFile)
	old, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer old.Close()
	next, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return 0, err
	}
	out := bufio.NewWriterSize(next, 64<<10)
	write := func(e wire.Event) error {
		b, err := marshalLine(e)
		if err == nil {
			size += int64(len(b))
			_, err = out.Write(b)
		}
		return err
	}
	w.mu.RLock()
	begin := w.begin
	var last Size
	for _, s := range w.sizes {
		if s.Offset <= start {
			last = s
		}
	}
	w.mu.RUnlock()
	var seq uint64 // of removed events
	var kept []byte
	flush := func() error {
		size += int64(len(kept))
		_, err := out.Write(kept)
		kept = kept[:0]
		return err
	}
	head := func() error {
		err := write(begin)
		if start > 0 {
			err = errors.Join(err, write(
				wire.Event{Kind: Gap, Seq: seq, Missed: start, TimeUnix: now.UnixMilli(),
					Text: WhyRotated}),
				write(wire.Event{Kind: wire.EventResize, Offset: start, TimeUnix: begin.TimeUnix,
					Cols: last.Cols, Rows: last.Rows}))
		}
		return err
	}
	begun := false
	var failed error // of a write; scan's own error is of a read
	err = scan(io.NewSectionReader(old, 0, w.size), func(line []byte, _ int64, whole bool) bool {
		e, ok := parseLine(line)
		if !whole || !ok || e.Kind == Begin {
			return true
		}
		if before := e.Offset + missedIn(e); !begun && before <= start {
			seq = max(seq, e.Seq)
			return true
		}
		if !begun {
			begun = true
			if failed = head(); failed != nil {
				return false
			}
		}
		if kept = append(append(kept, line...), '\n'); len(kept) > 1<<20 {
			failed = flush()
		}
		return failed == nil
	})
	err = errors.Join(err, failed)
	if err == nil && !begun {
		err = head()
	}
	if err == nil {
		err = errors.Join(flush(), out.Flush(), next.Sync())
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return 0, errors.Join(err, next.Close(), os.Remove(path+".new"))
	}
	_ = w.events.Close() // the new file replaces it
	w.events = next
	return size, nil
}

// missedIn returns how many bytes from its offset on an event reports as missing.
func missedIn(e wire.Event) uint64 {
	if e.Kind == Gap || e.Kind == Private {
		return e.Missed
	}
	return 0
}

// rotated returns the offset before which the record in dir has lost bytes since r read its events.
func (r *Reader) rotated() (uint64, error) {
	f, err := os.Open(filepath.Join(r.dir, EventsFile))
	if err != nil {
		return 0, nil // removed: r's open files stay unchanged
	}
	defer f.Close()
	now, err := f.Stat()
	if err != nil {
		return 0, err
	}
	was, err := r.events.Stat()
	if err != nil || os.SameFile(now, was) {
		return 0, err
	}
	var start uint64
	err = scan(f, func(line []byte, _ int64, whole bool) bool {
		e, ok := parseLine(line)
		if ok && whole && e.Kind == Gap && e.Text == WhyRotated {
			start = e.Missed
		}
		return ok && whole && e.Kind == Begin
	})
	return start, err
}
