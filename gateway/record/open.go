package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// Open continues the record in dir. It first repairs the damage of a crash: it drops an incomplete
// last line of the events, adds events for bytes of the log without one, and adds a gap for bytes
// that are in the events and not in the log. Private mode that did not end continues: see
// Writer.Private.
func Open(dir string, o Options) (*Writer, error) {
	w := &Writer{dir: dir, quota: o.quota(), whole: o.Whole}
	w.wmu.Lock()
	defer w.wmu.Unlock()
	if _, err := os.Stat(filepath.Join(dir, EventsFile)); err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	if err := w.openLocked(); err != nil {
		return nil, err
	}
	if err := w.recoverLocked(); err != nil {
		return nil, errors.Join(fmt.Errorf("record %s: recover: %w", dir, err), w.closeLocked())
	}
	if w.Finished() {
		return w, w.closeLocked()
	}
	return w, nil
}

func (w *Writer) recoverLocked() error {
	f, err := os.Open(filepath.Join(w.dir, EventsFile))
	if err != nil {
		return err
	}
	defer f.Close()
	x, err := readIndex(f)
	if err != nil {
		return err
	}
	if x.torn {
		if err := w.events.Truncate(x.whole); err != nil {
			return err
		}
	}
	info, err := w.log.Stat()
	if err != nil {
		return err
	}
	size, mtime := info.Size(), info.ModTime()
	found := x.reconcile(size, mtime)
	w.size = x.whole
	w.used = x.whole + max(0, size-int64(min(x.gapTotal, uint64(size))))
	w.wrote = mtime
	if x.finish == nil && x.stopped == "" {
		for _, e := range found {
			// On a full disk the next Open finds them again.
			if err := w.lineLocked(e); err != nil {
				break
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sizes = x.sizes
	w.gaps, w.end, w.seq, w.begin, w.stopped, w.finished = x.gaps, x.end, x.seq, x.begin, x.stopped,
		x.finish != nil
	w.written, w.private = len(w.gaps), x.private
	if len(w.gaps) > 0 && w.gaps[0].Why == WhyRotated {
		w.start = w.gaps[0].To
	}
	return nil
}

// setAside renames the record in dir, if there is one, to the first unused of dir.1, dir.2 and so
// on: higher numbers are newer.
func setAside(dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	for n := 1; ; n++ {
		old := dir + "." + strconv.Itoa(n)
		if _, err := os.Lstat(old); errors.Is(err, fs.ErrNotExist) {
			return os.Rename(dir, old)
		} else if err != nil {
			return err
		}
	}
}
