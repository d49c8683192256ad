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

// Reader reads a record as it was when it was opened, also while somebody writes it. Its methods may be called at once.
type Reader struct {
	dir    string
	log    *os.File
	events *os.File
	index  *index
	may    func() error // see Guard; nil allows all
}

// OpenReader opens the record in dir for reading. It changes nothing there.
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
	// After the events: what they speak of is in the log by now.
	info, err := r.log.Stat()
	if err != nil {
		return err
	}
	x.settle(info.Size(), info.ModTime())
	r.index = x
	return nil
}

// Guard has may asked before each ReadAt, which returns its error: whoever reads may be let to no
// longer. It is called before the reader is used.
func (r *Reader) Guard(may func() error) { r.may = may }

// Close closes the files.
func (r *Reader) Close() error { return errors.Join(r.log.Close(), r.events.Close()) }

// Begin is the first event: when the session began, its title and size.
func (r *Reader) Begin() wire.Event { return r.index.begin }

// End is the length of the log, with what is missing.
func (r *Reader) End() uint64 { return r.index.end }

// Gaps are the stretches that are missing, in order.
func (r *Reader) Gaps() []GapError { return slices.Clone(r.index.gaps) }

// Sizes are the terminal's sizes, in order.
func (r *Reader) Sizes() []Size { return slices.Clone(r.index.sizes) }

// SizeAt is the terminal's size when the log was off bytes long, and where the next one begins.
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

// Last is when the newest event happened.
func (r *Reader) Last() time.Time { return time.UnixMilli(r.index.last) }

// State is that in which the session ended; nil while it has not, or was not seen to.
func (r *Reader) State() *wire.State {
	if r.index.finish == nil {
		return nil
	}
	return r.index.finish.State
}

// Finished reports whether the record has its last event.
func (r *Reader) Finished() bool { return r.index.finish != nil }

// Stopped says why recording stopped before the session did, or is empty.
func (r *Reader) Stopped() string { return r.index.stopped }

// Damaged counts the lines of the events that cannot be read.
func (r *Reader) Damaged() int { return r.index.damaged }

// ReadAt is Writer.ReadAt.
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
	// The writer tells of a hole before it makes it.
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

// At is the offset that the log had reached at time t.
func (r *Reader) At(t time.Time) uint64 {
	ms := t.UnixMilli()
	i := sort.Search(len(r.index.marks), func(i int) bool { return r.index.marks[i].unix > ms })
	if i == 0 {
		return 0
	}
	return r.index.marks[i-1].offset
}

// Time is when byte off was printed, as finely as the record knows.
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

// Next is the next place after byte off at which the record knows what time it was, and that time; ok is false behind the
// last.
func (r *Reader) Next(off uint64) (to uint64, at time.Time, ok bool) {
	marks := r.index.marks
	i := sort.Search(len(marks), func(i int) bool { return marks[i].offset > off })
	if i == len(marks) {
		return r.index.end, time.UnixMilli(r.index.last), false
	}
	return marks[i].offset, time.UnixMilli(marks[i].unix), true
}

// Events yields the events in order, those that are missing in the file for recovery to find among them last. It stops
// at an error.
func (r *Reader) Events() iter.Seq2[wire.Event, error] {
	return func(yield func(wire.Event, error) bool) {
		end, more := uint64(0), true
		err := scan(io.NewSectionReader(r.events, 0, r.index.whole), func(line []byte, _ int64, whole bool) bool {
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

// Info is one record of a list.
type Info struct {
	Session  string      `json:"session"`
	Run      int         `json:"run"` // 0 is the latest of its session; else 1, 2… in the order of time
	Title    string      `json:"title,omitempty"`
	Begun    time.Time   `json:"begun"`
	Ended    *time.Time  `json:"ended"` // null while the session's shell runs, or was not seen to end
	Bytes    uint64      `json:"bytes"` // length of the log
	Missing  uint64      `json:"missing"`
	State    *wire.State `json:"state,omitempty"` // in which it ended
	Stopped  string      `json:"stopped,omitempty"`
	Damaged  int         `json:"damaged,omitempty"`
	Duration int64       `json:"duration_ms"`
}

// List lists the records in dir, a directory of records, in the order of their beginning. What is no record is left out.
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
	i := Info{Title: x.begin.Text, Begun: time.UnixMilli(x.begin.TimeUnix), Bytes: x.end, Missing: x.gapTotal,
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

// Dir is the directory of a session's record in dir; run as Info.Run.
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
