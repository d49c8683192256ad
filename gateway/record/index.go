package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// index is the content of a record's events, about its log.
type index struct {
	begin    wire.Event
	marks    []timed
	gaps     gaps
	sizes    sizes
	end      uint64
	seq      uint64
	stopped  string
	ended    *wire.Event // end of the session's shell; nil if an event followed
	finish   *wire.Event
	last     int64 // TimeUnix of the newest event
	whole    int64 // size of complete lines in bytes
	torn     bool  // text follows the last complete line
	damaged  int   // complete lines that are not events
	gapTotal uint64
	private  bool // private mode has begun and not ended
	commands []Command
	open     []int  // indexes of the commands that have not ended
	over     bool   // the newest command has had its EventOver, which ends its output
	prompt   uint64 // offset of the shell's newest prompt
	typist   string // who typed last
}

// timed is an offset, and when the log reached it.
type timed struct {
	offset uint64
	unix   int64 // milliseconds
}

// readIndex reads all events. It counts and skips lines that are not events; only a read error is
// an error.
func readIndex(r io.Reader) (*index, error) {
	x := &index{}
	err := scan(r, func(line []byte, size int64, whole bool) bool {
		if !whole {
			x.torn = true
			return true
		}
		x.whole += size
		e, ok := parseLine(line)
		if !ok {
			x.damaged++
			return true
		}
		x.add(e)
		return true
	})
	return x, err
}

// parseLine parses a line of events.ndjson. Most lines are output events in the form in which they
// were written. They need no JSON parser, so a long record opens ten times as fast.
func parseLine(line []byte) (e wire.Event, ok bool) {
	if rest, is := bytes.CutPrefix(line, []byte(outputLine)); is {
		off, rest, is := digits(rest)
		if rest, is2 := bytes.CutPrefix(rest, []byte(outputTime)); is && is2 {
			if ms, rest, is := digits(rest); is && string(rest) == "}" {
				return wire.Event{Kind: Output, Offset: off, TimeUnix: int64(ms)}, true
			}
		}
	}
	err := json.Unmarshal(line, &e)
	return e, err == nil && e.Kind != ""
}

const (
	outputLine = `{"seq":0,"kind":"output","offset":`
	outputTime = `,"time_unix_ms":`
)

// digits reads a number of at most 18 digits.
func digits(p []byte) (n uint64, rest []byte, ok bool) {
	i := 0
	for i < len(p) && i < 18 && p[i] >= '0' && p[i] <= '9' {
		n = n*10 + uint64(p[i]-'0')
		i++
	}
	return n, p[i:], i > 0 && (i == 1 || p[0] != '0')
}

// scan calls f with each line, without its newline, and with the line's size in the file, until f
// returns false. The last one may be incomplete. A line that is too long for an event is passed as
// an empty one.
func scan(r io.Reader, f func(line []byte, size int64, whole bool) bool) error {
	br := bufio.NewReaderSize(r, 64<<10)
	var line []byte
	for {
		part, err := br.ReadSlice('\n')
		line = append(line, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			if len(line) > maxLine {
				n, err := skipLine(br)
				if size := int64(len(line)) + n; !f(nil, size, err == nil) || err != nil {
					return ignoreEOF(err)
				}
				line = line[:0]
			}
			continue
		}
		if err != nil {
			if len(line) > 0 {
				f(line, int64(len(line)), false)
			}
			return ignoreEOF(err)
		}
		if !f(line[:len(line)-1], int64(len(line)), true) {
			return nil
		}
		line = line[:0]
	}
}

// skipLine reads to the end of the line and returns the number of bytes.
func skipLine(br *bufio.Reader) (int64, error) {
	var n int64
	for {
		part, err := br.ReadSlice('\n')
		n += int64(len(part))
		if !errors.Is(err, bufio.ErrBufferFull) {
			return n, err
		}
	}
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (x *index) add(e wire.Event) {
	x.seq = max(x.seq, e.Seq)
	x.last = max(x.last, e.TimeUnix)
	x.command(e)
	switch e.Kind {
	case wire.EventEnded:
		x.ended = &e
	case wire.EventState, wire.EventCommand, Output:
		x.ended = nil // started again
	}
	switch e.Kind {
	case Begin:
		if x.begin.Kind == "" {
			x.begin = e
			x.sizes.add(0, e.Cols, e.Rows)
		}
	case wire.EventResize:
		x.sizes.add(x.end, e.Cols, e.Rows)
	case Output:
		if e.Offset > x.end && e.Offset <= maxOffset {
			x.end = e.Offset
			x.marks = append(x.marks, timed{e.Offset, e.TimeUnix})
		}
	case Gap:
		if e.Offset <= maxOffset && e.Missed <= maxOffset-e.Offset {
			x.addGap(GapError{From: e.Offset, To: e.Offset + e.Missed, Why: e.Text})
			x.end = max(x.end, e.Offset+e.Missed)
		}
	case PrivateBegin:
		x.private = true
	case Private:
		x.private = false
		if e.Offset <= maxOffset && e.Missed <= maxOffset-e.Offset {
			x.addGap(GapError{From: e.Offset, To: e.Offset + e.Missed, Why: WhyPrivate})
			x.end = max(x.end, e.Offset+e.Missed)
		}
	case Stopped:
		x.stopped = e.Text
	case Finish:
		x.finish = &e
	}
}

// addGap adds the part of g that is not in a gap yet. Gaps come in order, except those that
// recovery found.
func (x *index) addGap(g GapError) {
	if g.From >= g.To {
		return
	}
	if n := len(x.gaps); n == 0 || x.gaps[n-1].To <= g.From {
		x.gaps = append(x.gaps, g)
		x.gapTotal += g.To - g.From
		return
	}
	var pieces gaps
	for _, old := range x.gaps {
		if old.To <= g.From || old.From >= g.To {
			continue
		}
		if old.From > g.From {
			pieces = append(pieces, GapError{From: g.From, To: old.From, Why: g.Why})
		}
		g.From = min(old.To, g.To)
	}
	if g.From < g.To {
		pieces = append(pieces, g)
	}
	for _, p := range pieces {
		x.gapTotal += p.To - p.From
	}
	x.gaps = append(x.gaps, pieces...)
	slices.SortFunc(x.gaps, func(a, b GapError) int {
		if a.From < b.From {
			return -1
		}
		return 1
	})
}

// reconcile compares the events with a log of size bytes, last written at mtime. It returns the
// missing events: for bytes without a time, and for lost bytes.
func (x *index) reconcile(size int64, mtime time.Time) []wire.Event {
	var found []wire.Event
	if x.begin.Kind == "" {
		x.begin = wire.Event{Kind: Begin, TimeUnix: mtime.UnixMilli(), Cols: wire.DefaultCols,
			Rows: wire.DefaultRows}
		if x.whole == 0 {
			found = append(found, x.begin)
		}
	}
	x.begin.Cols, x.begin.Rows = clamp(x.begin.Cols, x.begin.Rows)
	have := uint64(max(size, 0))
	switch {
	case have > x.end && x.finish == nil && x.stopped == "" && have <= maxOffset:
		found = append(found, wire.Event{Kind: Output, Offset: have,
			TimeUnix: max(mtime.UnixMilli(), x.last)})
	case have < x.end:
		before := slices.Clone(x.gaps)
		x.addGap(GapError{From: have, To: x.end, Why: WhyCrash})
		for _, g := range x.gaps {
			if !slices.Contains(before, g) {
				found = append(found, wire.Event{Kind: Gap, Offset: g.From, Missed: g.To - g.From,
					TimeUnix: mtime.UnixMilli(), Text: WhyCrash})
			}
		}
	}
	for _, e := range found {
		x.add(e)
	}
	return found
}

// sizes are in order of offset.
type sizes []Size

// maxSizes bounds the stored sizes: a guest that resizes without end displaces only its own.
const maxSizes = 10_000

func (s *sizes) add(off uint64, cols, rows int) {
	cols, rows = clamp(cols, rows)
	if n := len(*s); n > 0 && (*s)[n-1].Offset == off {
		(*s)[n-1] = Size{off, cols, rows}
		return
	}
	if len(*s) >= maxSizes {
		*s = append((*s)[:0:0], (*s)[maxSizes/2:]...)
	}
	*s = append(*s, Size{off, cols, rows})
}

func clamp(cols, rows int) (int, int) {
	return wire.ClampSize(uint32(max(cols, 0)), uint32(max(rows, 0)))
}

// marshalLine returns e as a line of events.ndjson.
func marshalLine(e wire.Event) ([]byte, error) {
	var v any = e
	if e.Kind == Private {
		v = privateLine{e, e.Offset, e.Offset + e.Missed}
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("record: event: %w", err)
	}
	return append(b, '\n'), nil
}

type privateLine struct {
	wire.Event
	From uint64 `json:"from"`
	To   uint64 `json:"to"`
}
