package record

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Writer adds to a record. Append, Skip, Event and Finish are called by one goroutine at a time, in
// the order of the session; the other methods may be called concurrently.
type Writer struct {
	dir   string
	quota int64
	whole bool // rotation is off

	wmu     sync.Mutex  // held while files are written; taken before mu
	log     *os.File    // guarded by wmu; nil while closed
	events  *os.File    // guarded by wmu; nil while closed
	size    int64       // guarded by wmu; of events.ndjson
	used    int64       // guarded by wmu; of the quota
	dirty   bool        // guarded by wmu; written since the last fsync
	wrote   time.Time   // guarded by wmu; last write
	due     *wire.Event // guarded by wmu; Output that Mark writes
	waiting *wire.Event // guarded by wmu; unwritten Output of the newest bytes
	again   time.Time   // guarded by wmu; when to try a full disk again; zero if it is not full

	mu      sync.RWMutex // never held during I/O
	read    *os.File     // guarded by mu; for ReadAt; nil while closed
	gaps    gaps         // guarded by mu
	sizes   sizes        // guarded by mu
	written int          // guarded by mu; number of gaps in events.ndjson
	start   uint64       // guarded by mu; earlier bytes were removed
	// Guarded by mu; output is not recorded; the last gap is this range, once it has a byte.
	private  bool
	end      uint64     // guarded by mu
	seq      uint64     // guarded by mu
	begin    wire.Event // guarded by mu
	stopped  string     // guarded by mu; why recording stopped, or empty
	finished bool       // guarded by mu
}

// Create begins a record in dir. It renames an existing record to dir.1, dir.2 and so on.
func Create(dir string, o Options) (*Writer, error) {
	if err := setAside(dir); err != nil {
		return nil, fmt.Errorf("record %s: %w", dir, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	w := &Writer{dir: dir, quota: o.quota(), whole: o.Whole}
	w.wmu.Lock()
	defer w.wmu.Unlock()
	if err := w.openLocked(); err != nil {
		return nil, err
	}
	if o.Begun.IsZero() {
		o.Begun = time.Now()
	}
	if o.Cols <= 0 || o.Rows <= 0 {
		o.Cols, o.Rows = wire.DefaultCols, wire.DefaultRows
	}
	w.sizes.add(0, o.Cols, o.Rows)
	w.begin = wire.Event{Kind: Begin, TimeUnix: o.Begun.UnixMilli(), Text: o.Title, Cols: o.Cols,
		Rows: o.Rows}
	if err := w.lineLocked(w.begin); err != nil {
		// A record without its first line is invalid.
		return nil, errors.Join(fmt.Errorf("record %s: %w", dir, err), w.closeLocked(),
			os.RemoveAll(dir))
	}
	return w, nil
}

func (o Options) quota() int64 {
	if o.Quota == 0 {
		return defaultQuota
	}
	return o.Quota
}

func (w *Writer) openLocked() error {
	if w.log != nil {
		return nil
	}
	log, err := os.OpenFile(filepath.Join(w.dir, LogFile), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	events, err := os.OpenFile(filepath.Join(w.dir, EventsFile), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		log.Close()
		return fmt.Errorf("record: %w", err)
	}
	w.log, w.events = log, events
	return nil
}

// Append adds output at offset off. It skips bytes that it has, and marks a gap before them. An
// error means that some bytes were not recorded: ErrPrivate, ErrStopped, ErrFinished, or an error
// of the disk. End counts them all the same, and the call need not be repeated.
func (w *Writer) Append(off uint64, p []byte) error {
	end := w.End()
	if off > maxOffset {
		return fmt.Errorf("record %s: offset %d is out of range", w.dir, off)
	}
	if off > end {
		if err := w.Skip(off, WhyLagged); err != nil {
			return err
		}
	} else if n := end - off; n >= uint64(len(p)) {
		return nil
	} else {
		p = p[n:]
	}
	w.wmu.Lock()
	defer w.wmu.Unlock()
	if w.skipPrivateLocked(len(p)) {
		return ErrPrivate
	}
	now := time.Now()
	switch err := w.readyLocked(now, int64(len(p))); {
	case errors.Is(err, ErrFinished):
		return err
	case err != nil:
		w.skipLocked(w.End()+uint64(len(p)), cmp.Or(w.Stopped(), WhyFull))
		return err
	}
	n, err := w.log.WriteAt(p, int64(w.End()))
	w.used += int64(n)
	w.dirty, w.wrote = true, now
	w.mu.Lock()
	w.end += uint64(n)
	end = w.end
	w.mu.Unlock()
	if err != nil {
		w.again = now.Add(retry)
		w.skipLocked(end+uint64(len(p)-n), WhyFull)
		return fmt.Errorf("record: %w", err)
	}
	w.markLocked(now, end)
	return nil
}

// Skip marks the bytes up to offset to as missing.
func (w *Writer) Skip(to uint64, why string) error {
	w.wmu.Lock()
	defer w.wmu.Unlock()
	if w.Finished() {
		return ErrFinished
	}
	if to > maxOffset {
		return fmt.Errorf("record %s: offset %d is out of range", w.dir, to)
	}
	w.skipLocked(to, why)
	return nil
}

// Event adds an event. It skips one that it has, by its Seq. The event's offset is the current end
// of the log, whatever the guest sends. The errors are those of Append.
func (w *Writer) Event(e wire.Event) error {
	w.wmu.Lock()
	defer w.wmu.Unlock()
	w.mu.Lock()
	if e.Seq != 0 && e.Seq <= w.seq {
		w.mu.Unlock()
		return nil
	}
	w.seq = max(w.seq, e.Seq)
	if e.Kind == Private {
		w.mu.Unlock()
		if e.TimeUnix == 0 {
			e.TimeUnix = time.Now().UnixMilli()
		}
		if e.By != "" {
			return w.beginPrivateLocked(e)
		}
		return w.endPrivateLocked(e)
	}
	e.Offset = w.end
	if w.private {
		e = discreet(e)
	}
	if e.Kind == wire.EventResize {
		w.sizes.add(w.end, e.Cols, e.Rows)
	}
	w.mu.Unlock()
	now := time.Now()
	if e.TimeUnix == 0 {
		e.TimeUnix = now.UnixMilli()
	}
	if err := w.readyLocked(now, 0); err != nil {
		return err
	}
	return w.writeLocked(now, e)
}

// Finish adds the last event, with the state in which the session ended, and closes the record.
// ReadAt still works. Finishing twice is not an error.
func (w *Writer) Finish(state wire.State) error {
	w.wmu.Lock()
	defer w.wmu.Unlock()
	if w.Finished() {
		return nil
	}
	now := time.Now()
	w.mu.Lock()
	w.private = false
	w.mu.Unlock()
	err := w.flushLocked()
	if err == nil {
		err = w.lineLocked(wire.Event{Kind: Finish, Offset: w.End(), TimeUnix: now.UnixMilli(),
			State: &state})
	}
	w.mu.Lock()
	w.finished = true
	w.mu.Unlock()
	return errors.Join(err, w.syncLocked(), w.closeLocked())
}

// Tidy makes writes durable, and closes the files of a record without a write for idle. Call it
// regularly; the next Append opens the files again.
func (w *Writer) Tidy(idle time.Duration) error {
	w.wmu.Lock()
	defer w.wmu.Unlock()
	if w.log == nil {
		return w.closeLocked() // a reader may have opened it again
	}
	var err error
	if time.Now().After(w.again) {
		err = w.flushLocked()
	}
	err = errors.Join(err, w.syncLocked())
	if time.Since(w.wrote) >= idle && w.due == nil && w.waiting == nil {
		err = errors.Join(err, w.closeLocked())
	}
	return err
}

// Close makes the record durable and closes its files, without finishing it: Open continues it.
func (w *Writer) Close() error {
	w.wmu.Lock()
	defer w.wmu.Unlock()
	if w.log == nil {
		return w.closeLocked()
	}
	return errors.Join(w.flushLocked(), w.syncLocked(), w.closeLocked())
}

// readyLocked prepares to write n bytes of output: it opens files, writes gaps and enforces the
// quota. An error means that they cannot be written now.
func (w *Writer) readyLocked(now time.Time, n int64) error {
	w.mu.RLock()
	finished, stopped, gaps, private := w.finished, w.stopped, len(w.gaps), w.private
	w.mu.RUnlock()
	switch {
	case finished:
		return ErrFinished
	case stopped != "":
		return ErrStopped
	case w.quota >= 0 && w.used+n > w.quota && !private: // private output needs no space
		if w.whole || n > w.quota/2 {
			return w.stopLocked(now, WhyQuota)
		}
		if now.Before(w.again) {
			return fmt.Errorf("record %s: %s", w.dir, WhyFull)
		}
		switch err := w.rotateLocked(now, n); {
		case errors.Is(err, errors.ErrUnsupported):
			return w.stopLocked(now, WhyQuota) // a file system without holes
		case err != nil:
			w.again = now.Add(retry)
			return err
		}
	case gaps > maxGaps:
		return w.stopLocked(now, "gaps")
	case now.Before(w.again):
		return fmt.Errorf("record %s: %s", w.dir, WhyFull)
	}
	if err := w.openLocked(); err != nil {
		w.again = now.Add(retry)
		return err
	}
	if err := w.flushGapsLocked(now); err != nil {
		return err
	}
	w.again = time.Time{}
	return nil
}

// stopLocked ends the recording of a session that continues. Its event may exceed the quota.
func (w *Writer) stopLocked(now time.Time, why string) error {
	err := w.openLocked()
	if err == nil {
		err = w.flushLocked()
	}
	if err == nil {
		err = w.lineLocked(wire.Event{Kind: Stopped, Offset: w.End(), TimeUnix: now.UnixMilli(),
			Text: why})
	}
	w.mu.Lock()
	w.stopped = why
	w.mu.Unlock()
	return errors.Join(ErrStopped, err)
}

// skipLocked moves the end to offset to, over missing bytes. The gap is written before the next
// output.
func (w *Writer) skipLocked(to uint64, why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.private {
		why = WhyPrivate
	}
	if to <= w.end {
		return
	}
	if n := len(w.gaps); n > w.written && w.gaps[n-1].Why == why && w.gaps[n-1].To == w.end {
		w.gaps[n-1].To = to
	} else {
		w.gaps = append(w.gaps, GapError{From: w.end, To: to, Why: why})
	}
	w.end = to
}

// markLocked records that the log is now end bytes long; bytes that follow shortly share the event.
func (w *Writer) markLocked(now time.Time, end uint64) {
	if w.waiting != nil && now.UnixMilli()-w.waiting.TimeUnix < mark.Milliseconds() {
		w.waiting.Offset = end
		return
	}
	// A failure shows at the next write. The bytes are in the log, and recovery adds a time.
	_ = w.flushDueLocked()
	w.due = w.waiting
	w.waiting = &wire.Event{Kind: Output, Offset: end, TimeUnix: now.UnixMilli()}
}

// Mark writes the time of the bytes before the newest. Append leaves that for later, so that
// readers get their bytes first; without Mark the next Append, Event or Tidy does it.
func (w *Writer) Mark() {
	w.wmu.Lock()
	defer w.wmu.Unlock()
	if w.log != nil && !w.Finished() {
		_ = w.flushDueLocked() // as in markLocked
	}
}

func (w *Writer) flushDueLocked() error {
	e := w.due
	if e == nil {
		return nil
	}
	w.due = nil
	return w.lineLocked(*e)
}

func (w *Writer) flushMarkLocked() error {
	err := w.flushDueLocked()
	e := w.waiting
	if e == nil || err != nil {
		return err
	}
	w.waiting = nil
	return w.lineLocked(*e)
}

// flushGapsLocked writes gaps that are not written yet, except that of private mode in progress.
func (w *Writer) flushGapsLocked(now time.Time) error {
	for {
		w.mu.RLock()
		n := w.written
		some := n < len(w.gaps) && !(w.private && w.gaps[n].Why == WhyPrivate)
		var g GapError
		if some {
			g = w.gaps[n]
		}
		w.mu.RUnlock()
		if !some {
			return nil
		}
		err := w.flushMarkLocked()
		if err == nil {
			err = w.lineLocked(g.event(now.UnixMilli()))
		}
		if err != nil {
			w.again = now.Add(retry)
			return err
		}
		w.mu.Lock()
		w.written++
		w.mu.Unlock()
	}
}

// event returns the event of a gap.
func (e *GapError) event(unix int64) wire.Event {
	if e.Why == WhyPrivate {
		return wire.Event{Kind: Private, Offset: e.From, Missed: e.To - e.From, TimeUnix: unix}
	}
	return wire.Event{Kind: Gap, Offset: e.From, Missed: e.To - e.From, TimeUnix: unix, Text: e.Why}
}

func (w *Writer) flushLocked() error {
	if err := w.openLocked(); err != nil {
		return err
	}
	return errors.Join(w.flushMarkLocked(), w.flushGapsLocked(time.Now()))
}

// writeLocked writes an event after the output before it.
func (w *Writer) writeLocked(now time.Time, e wire.Event) error {
	err := w.flushMarkLocked()
	if err == nil {
		err = w.lineLocked(e)
	}
	if err != nil {
		w.again = now.Add(retry)
	}
	w.wrote = now
	return err
}

// lineLocked adds a line to events.ndjson, or no part of it.
func (w *Writer) lineLocked(e wire.Event) error {
	b, err := marshalLine(e)
	if err != nil {
		return err
	}
	if _, err := w.events.WriteAt(b, w.size); err != nil {
		// Part of a line would corrupt the next one. Truncating needs no space.
		return errors.Join(fmt.Errorf("record: %w", err), w.events.Truncate(w.size))
	}
	w.size += int64(len(b))
	w.used += int64(len(b))
	w.dirty = true
	return nil
}

func (w *Writer) syncLocked() error {
	if !w.dirty || w.log == nil {
		return nil
	}
	w.dirty = false
	return errors.Join(w.log.Sync(), w.events.Sync())
}

func (w *Writer) closeLocked() error {
	w.mu.Lock()
	read := w.read
	w.read = nil
	w.mu.Unlock()
	var errs []error
	for _, f := range []*os.File{w.log, w.events, read} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	w.log, w.events = nil, nil
	return errors.Join(errs...)
}
