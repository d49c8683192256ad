package player

import (
	"context"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// Match is a moment of a record.
type Match struct {
	At   time.Duration // since the record's beginning
	Line string        // as the screen shows it then, as printable text, shortened
}

const (
	maxLine   = 200     // characters of a Match
	findPiece = 1 << 10 // bytes between looks at the screen
	findLines = 1100    // more lines than a piece can have
	// Output within this time is looked at together.
	findTogether = 200 * time.Millisecond
	// Of lines of the alternate screen, which leaves the others as they were.
	alternate = 1 << 63
)

// Find returns the moments at which a line with the text appears on the screen of a record, whether
// in upper or lower case. A line that is typed or drawn on in its place counts once. It returns at
// most limit; more says that there are others.
func Find(ctx context.Context, r *record.Reader, sought string, limit int) (all []Match, more bool,
	err error) {
	f := finder{sought: strings.ToLower(sought), has: make(map[uint64]bool),
		known: make(map[uint64]uint64), limit: limit}
	err = walk(ctx, r, 0, func(sc *screen.Screen, at time.Duration) bool {
		f.look(sc, at)
		return len(f.all) <= limit
	})
	if len(f.all) > limit {
		return f.all[:limit], true, err
	}
	return f.all, false, err
}

// walk plays a record from an offset to its end on a screen, and calls look after each piece until
// that returns false. A piece has fewer lines than the screen keeps.
func walk(ctx context.Context, r *record.Reader, at uint64,
	look func(sc *screen.Screen, at time.Duration) bool) error {
	begin := r.Begin()
	sc := screen.New(screen.Options{Cols: begin.Cols, Rows: begin.Rows, Scrollback: findLines})
	buf := make([]byte, findPiece)
	for at < r.End() && ctx.Err() == nil {
		size, next := r.SizeAt(at)
		sc.Resize(size.Cols, size.Rows)
		to, when, more := r.Next(at)
		for soon := when.Add(findTogether); more && to < at+findPiece; {
			later, then, ok := r.Next(to)
			if !ok || then.After(soon) {
				break
			}
			to, when = later, then
		}
		to = min(to, at+findPiece, next, r.End())
		n, err := r.ReadAt(buf[:to-at], at)
		if gap, ok := errors.AsType[*record.GapError](err); ok {
			at = gap.To
			continue
		}
		if err != nil || n == 0 {
			return err
		}
		_, _ = sc.Write(buf[:n]) // in memory: it takes everything
		at += uint64(n)
		if !look(sc, when.Sub(time.UnixMilli(begin.TimeUnix))) {
			return nil
		}
	}
	return context.Cause(ctx)
}

// finder looks for a text on a screen that changes. Lines have the number that they have, or will
// have, among those that scrolled off.
type finder struct {
	sought   string
	limit    int
	scrolled uint64            // at the last look
	known    map[uint64]uint64 // generation of each line at the last look
	has      map[uint64]bool   // lines that had the text at the last look
	all      []Match
	cells    []screen.Cell // of one line, for reuse
}

func (f *finder) look(sc *screen.Screen, at time.Duration) {
	top := sc.Scrolled()
	var line strings.Builder
	for n := max(f.scrolled, sc.Kept()); n < top; n++ {
		line.Reset()
		f.cells = sc.AppendKept(f.cells[:0], n)
		for _, cell := range f.cells {
			line.WriteString(cell.Text)
		}
		f.check(n, line.String(), at)
		delete(f.has, n)
		delete(f.known, n)
	}
	first := top
	if sc.Modes().AltScreen {
		first |= alternate
	}
	_, rows := sc.Size()
	for y := range rows {
		n := first + uint64(y)
		if gen := sc.LineGeneration(y); f.known[n] != gen {
			f.known[n] = gen
			f.check(n, sc.LineText(y), at)
		}
	}
	f.scrolled = top
}

func (f *finder) check(n uint64, line string, at time.Duration) {
	has := strings.Contains(strings.ToLower(line), f.sought)
	if has && !f.has[n] && len(f.all) <= f.limit {
		f.all = append(f.all, Match{max(at, 0), text.Line(around(line, f.sought), maxLine)})
	}
	f.has[n] = has
}

// around returns the part of a long line that has the text.
func around(line, sought string) string {
	from := strings.Index(strings.ToLower(line), sought) - maxLine/2
	if from <= 0 || from >= len(line) {
		return line
	}
	for !utf8.RuneStart(line[from]) {
		from--
	}
	return "…" + line[from:]
}
