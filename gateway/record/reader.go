package record

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Reader reads a record as of its opening, also while a Writer adds to it. Its methods may be
// called concurrently.
type Reader struct {
	dir    string
	log    *os.File
	events *os.File
	index  *index
	may    func() error // see Guard; nil allows all
}

// OpenReader opens the record in dir for reading, and changes nothing there.
func OpenReader(dir string) (*Reader, error) {
	events, err := os.Open(filepath.Join(dir, EventsFile))
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	log, err := os.Open(filepath.Join(dir, LogFile))
	if err != nil {
		events.Close()
		return nil, fmt.Errorf("record: %w", err)
	}
	r := &Reader{dir: dir, log: log, events: events}
	if err := r.load(); err != nil {
		r.Close()
		return nil, fmt.Errorf("record %s: %w", dir, err)
	}
	return r, nil
}

func (r *Reader) load() error {
	x, err := readIndex(r.events)
	if err != nil {
		return err
	}
	// After the events: the log has all bytes that they describe by now.
	info, err := r.log.Stat()
	if err != nil {
		return err
	}
	x.reconcile(info.Size(), info.ModTime())
	r.index = x
	return nil
}

// Guard makes each ReadAt call may first and return its error: the reader may lose its permission.
// It is called before the first use.
func (r *Reader) Guard(may func() error) { r.may = may }

// Close closes the files.
func (r *Reader) Close() error { return errors.Join(r.log.Close(), r.events.Close()) }

// Begin returns the first event: when the session began, its title and size.
func (r *Reader) Begin() wire.Event { return r.index.begin }

// End returns the length of the log, including missing bytes.
func (r *Reader) End() uint64 { return r.index.end }

// Gaps returns the missing ranges, in order.
func (r *Reader) Gaps() []GapError { return slices.Clone(r.index.gaps) }

// Sizes returns the terminal's sizes, in order.
func (r *Reader) Sizes() []Size { return slices.Clone(r.index.sizes) }

// SizeAt returns the terminal's size at offset off, and the offset of the next size.
func (r *Reader) SizeAt(off uint64) (s Size, next uint64) {
	sizes := r.index.sizes
	i := sort.Search(len(sizes), func(i int) bool { return sizes[i].Offset > off })
	next = math.MaxUint64
	if i < len(sizes) {
		next = sizes[i].Offset
	}
	if i == 0 {
		cols, rows := clamp(r.index.begin.Cols, r.index.begin.Rows)
		return Size{Cols: cols, Rows: rows}, next
	}
	return sizes[i-1], next
}

// Last returns the time of the newest event.
func (r *Reader) Last() time.Time { return time.UnixMilli(r.index.last) }

// State returns the state in which the session ended; nil if it has not ended, or its end was not
// recorded.
func (r *Reader) State() *wire.State {
	if r.index.finish == nil {
		return nil
	}
	return r.index.finish.State
}

// Finished reports whether the record has its last event.
func (r *Reader) Finished() bool { return r.index.finish != nil }

// Stopped returns why recording stopped before the session did, or "".
func (r *Reader) Stopped() string { return r.index.stopped }

// Damaged returns the number of lines of the events that cannot be read.
func (r *Reader) Damaged() int { return r.index.damaged }

// ReadAt is like Writer.ReadAt.
func (r *Reader) ReadAt(p []byte, off uint64) (int, error) {
	if r.may != nil {
		if err := r.may(); err != nil {
			return 0, err
		}
	}
	n, err := r.index.gaps.limit(len(p), off, r.index.end)
	if err != nil || n == 0 {
		return 0, err
	}
	got, err := r.log.ReadAt(p[:n], int64(off))
	// The writer records a hole before it makes it.
	if start, err := r.rotated(); err != nil {
		return 0, fmt.Errorf("record: %w", err)
	} else if off < start {
		return 0, &GapError{From: off, To: min(start, r.index.end), Why: WhyRotated}
	}
	if got > 0 {
		return got, nil
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return 0, err
}

// At returns the offset that the log had reached at time t.
func (r *Reader) At(t time.Time) uint64 {
	ms := t.UnixMilli()
	i := sort.Search(len(r.index.marks), func(i int) bool { return r.index.marks[i].unix > ms })
	if i == 0 {
		return 0
	}
	return r.index.marks[i-1].offset
}

// Time returns when byte off was printed, as exactly as the record shows.
func (r *Reader) Time(off uint64) time.Time {
	marks := r.index.marks
	i := sort.Search(len(marks), func(i int) bool { return marks[i].offset > off })
	switch {
	case i < len(marks):
		return time.UnixMilli(marks[i].unix)
	case len(marks) > 0:
		return time.UnixMilli(marks[len(marks)-1].unix)
	}
	return time.UnixMilli(r.index.begin.TimeUnix)
}

// Next returns the next offset after off whose time the record has, and that time; ok is false
// after the last one.
func (r *Reader) Next(off uint64) (to uint64, at time.Time, ok bool) {
	marks := r.index.marks
	i := sort.Search(len(marks), func(i int) bool { return marks[i].offset > off })
	if i == len(marks) {
		return r.index.end, time.UnixMilli(r.index.last), false
	}
	return marks[i].offset, time.UnixMilli(marks[i].unix), true
}

// Events yields the events in order, and last those that recovery would add. It stops at an error.
func (r *Reader) Events() iter.Seq2[wire.Event, error] {
	return func(yield func(wire.Event, error) bool) {
		end, more := uint64(0), true
		err := scan(io.NewSectionReader(r.events, 0, r.index.whole),
			func(line []byte, _ int64, whole bool) bool {
				e, ok := parseLine(line)
				if !whole || !ok {
					return true
				}
				if e.Kind == Output {
					end = max(end, e.Offset)
				}
				more = yield(e, nil)
				return more
			})
		switch {
		case !more:
		case err != nil:
			yield(wire.Event{}, fmt.Errorf("record: events: %w", err))
		case len(r.index.marks) > 0:
			if last := r.index.marks[len(r.index.marks)-1]; last.offset > end {
				yield(wire.Event{Kind: Output, Offset: last.offset, TimeUnix: last.unix}, nil)
			}
		}
	}
}

// Info describes one record of a list.
type Info struct {
	Session string    `json:"session"`
	Run     int       `json:"run"` // 0 is the latest of its session; else 1, 2… in order of time
	Title   string    `json:"title,omitempty"`
	Begun   time.Time `json:"begun"`
	// Null while the session's shell runs, or if its end was not recorded.
	Ended    *time.Time  `json:"ended"`
	Bytes    uint64      `json:"bytes"` // length of the log
	Missing  uint64      `json:"missing"`
	State    *wire.State `json:"state,omitempty"` // in which it ended
	Stopped  string      `json:"stopped,omitempty"`
	Damaged  int         `json:"damaged,omitempty"`
	Duration int64       `json:"duration_ms"`
}

// List lists the records in dir, a directory of records, in order of their beginning. It skips
// entries that are not records.
func List(dir string) ([]Info, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("records: %w", err)
	}
	var all []Info
	for _, e := range entries {
		session, run, ok := parseDir(e.Name())
		if !ok || !e.IsDir() {
			continue
		}
		r, err := OpenReader(filepath.Join(dir, e.Name()))
		if err != nil {
			continue
		}
		info := r.info()
		info.Session, info.Run = session, run
		r.Close()
		all = append(all, info)
	}
	slices.SortStableFunc(all, func(a, b Info) int { return a.Begun.Compare(b.Begun) })
	return all, nil
}

func (r *Reader) info() Info {
	x := r.index
	i := Info{Title: x.begin.Text, Begun: time.UnixMilli(x.begin.TimeUnix), Bytes: x.end,
		Missing: x.gapTotal,
		Stopped: x.stopped, Damaged: x.damaged, Duration: max(0, x.last-x.begin.TimeUnix)}
	last := x.finish
	if last == nil {
		last = x.ended
	}
	if last != nil {
		ended := time.UnixMilli(last.TimeUnix)
		i.Ended, i.State = &ended, last.State
	}
	return i
}

// Dir returns the directory of a session's record in dir; run is as Info.Run.
func Dir(dir, session string, run int) string {
	if run == 0 {
		return filepath.Join(dir, session)
	}
	return filepath.Join(dir, session+"."+strconv.Itoa(run))
}

// parseDir is the inverse of Dir. Session names have no dot.
func parseDir(name string) (session string, run int, ok bool) {
	session, number, found := strings.Cut(name, ".")
	if found {
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || strconv.Itoa(n) != number {
			return "", 0, false
		}
		run = n
	}
	if _, err := wire.ParseLabel("session name", session); err != nil {
		return "", 0, false
	}
	return session, run, true
}
