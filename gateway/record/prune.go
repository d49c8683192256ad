package record

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// PruneOptions say which records to remove.
type PruneOptions struct {
	Total int64         // most bytes on disk of all records in the directory; 0 is unlimited
	Keep  time.Duration // age since the last change after which a record is removed; 0 is unlimited
	Now   time.Time
	// Live reports whether the newest record of a session belongs to a running one. Nil means that
	// no session runs, even if its record has no end.
	Live func(session string) bool
}

// Prune removes records in dir, a directory of records, the oldest first, and returns their names.
// A record without an end stays, unless Live is nil or its session has a newer one.
func Prune(dir string, o PruneOptions) (removed []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("records: %w", err)
	}
	type old struct {
		name, path string
		bytes      int64
		changed    time.Time
		ended      func() bool
	}
	var all []old
	var total int64
	for _, e := range entries {
		session, run, ok := parseDir(e.Name())
		if !ok || !e.IsDir() {
			continue
		}
		path := filepath.Join(dir, e.Name())
		size, changed, err := onDiskSize(path)
		if err != nil {
			continue // it is being removed
		}
		total += size
		all = append(all, old{e.Name(), path, size, changed, func() bool {
			return run > 0 || o.Live == nil || !o.Live(session) && hasEnd(path)
		}})
	}
	slices.SortFunc(all, func(a, b old) int { return a.changed.Compare(b.changed) })
	for _, r := range all {
		tooOld := o.Keep > 0 && o.Now.Sub(r.changed) > o.Keep
		tooMuch := o.Total > 0 && total > o.Total
		// Checked only now: the session may have started again while others were removed.
		if !tooOld && !tooMuch || !r.ended() {
			continue
		}
		if err := os.RemoveAll(r.path); err != nil {
			return removed, fmt.Errorf("record: %w", err)
		}
		total -= r.bytes
		removed = append(removed, r.name)
	}
	return removed, nil
}

// onDiskSize returns the disk space of a record, without holes, and when its events changed.
func onDiskSize(dir string) (size int64, changed time.Time, err error) {
	info, err := os.Stat(filepath.Join(dir, EventsFile))
	if err != nil {
		return 0, changed, err
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return 0, changed, err
	}
	for _, f := range files {
		if info, err := f.Info(); err == nil {
			size += occupied(info)
		}
	}
	return size, info.ModTime(), nil
}

// hasEnd reports whether the last line of the record's events is its end.
func hasEnd(dir string) bool {
	f, err := os.Open(filepath.Join(dir, EventsFile))
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return false
	}
	const most = 256 << 10 // the last event has a state, which the gateway bounds
	b, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-most), most))
	if err != nil {
		return false
	}
	b = bytes.TrimSuffix(b, []byte("\n"))
	e, ok := parseLine(b[bytes.LastIndexByte(b, '\n')+1:])
	return ok && e.Kind == Finish
}
