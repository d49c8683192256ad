package record

import (
	"errors"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// BeginPrivate keeps later output out of the record, until EndPrivate: Append records no byte and
// returns ErrPrivate, and events lose the terminal text that they contain. by is the person, as
// wire.Party.String. Private mode is on disk before BeginPrivate returns, so that the record is
// still private when it is opened again after a crash. An error means that this failed; the record
// is private all the same. Beginning twice is not an error. Event does the same for an event of
// kind Private, with By to begin and without to end.
func (w *Writer) BeginPrivate(by string) error {
	w.wmu.Lock()
	defer w.wmu.Unlock()
	return w.beginPrivateLocked(wire.Event{By: by, TimeUnix: time.Now().UnixMilli()})
}

func (w *Writer) beginPrivateLocked(e wire.Event) error {
	if w.Finished() {
		return ErrFinished
	}
	if w.Private() {
		return nil
	}
	err := w.openLocked()
	if err == nil {
		err = w.flushLocked()
	}
	w.mu.Lock()
	w.private = true
	e.Kind, e.Offset = PrivateBegin, w.end
	w.mu.Unlock()
	if err != nil {
		return err
	}
	return errors.Join(w.lineLocked(e), w.syncLocked())
}

// EndPrivate ends private mode: later output is recorded again. Ending it twice is not an error.
func (w *Writer) EndPrivate() error {
	w.wmu.Lock()
	defer w.wmu.Unlock()
	return w.endPrivateLocked(wire.Event{TimeUnix: time.Now().UnixMilli()})
}

func (w *Writer) endPrivateLocked(e wire.Event) error {
	if !w.Private() || w.Finished() {
		return nil
	}
	err := w.openLocked()
	if err == nil {
		err = w.flushLocked()
	}
	w.mu.Lock()
	w.private = false
	n := len(w.gaps)
	e.Kind, e.Offset, e.Missed = Private, w.end, 0
	written := n
	if n == w.written+1 && w.gaps[n-1].Why == WhyPrivate {
		e.Offset, e.Missed = w.gaps[n-1].From, w.end-w.gaps[n-1].From
	} else if err == nil {
		written = w.written // a full disk has prevented an earlier one
	}
	w.mu.Unlock()
	if err != nil {
		return err // the gap is written with those before it
	}
	if err := w.lineLocked(e); err != nil {
		return err
	}
	w.mu.Lock()
	w.written = written
	w.mu.Unlock()
	return w.syncLocked()
}

// Private reports whether later output is kept out of the record.
func (w *Writer) Private() bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.private
}

// skipPrivateLocked counts n bytes as missing if the record is private.
func (w *Writer) skipPrivateLocked(n int) bool {
	w.mu.RLock()
	private := w.private && !w.finished
	w.mu.RUnlock()
	if private {
		w.skipLocked(w.End()+uint64(n), WhyPrivate)
	}
	return private
}

// discreet returns an event without text of the terminal.
func discreet(e wire.Event) wire.Event {
	if e.Kind == wire.EventCommand {
		e.Text = ""
	}
	if e.State != nil {
		s := *e.State
		s.Prompt, s.LastLine, s.Foreground, s.Cwd = "", "", nil, ""
		e.State = &s
	}
	return e
}
