package player

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Bounds of Lines.
const (
	linesOf  = 4 << 20 // bytes of output
	maxLines = 10_000
	maxText  = 1 << 20          // bytes of the lines
	linesFor = 30 * time.Second // of work
)

// Lines returns the last lines of a record, the oldest first: those that scrolled off the screen,
// then those on the screen at the record's end, and after them those of a full-screen program that
// runs then. Lines have their styles as SGR sequences (ECMA-48,
// 8.3.117), each from the default style on, and no other control characters. It looks at the last
// 4 MiB of output, and returns at most 10,000 lines of at most 1 MiB. If that takes longer than
// 30 s, it is an error.
func Lines(ctx context.Context, r *record.Reader) ([]string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, linesFor, &wire.Error{Code: wire.CodeUnavailable,
		Message: "the output takes too long to read", Hint: "use sandboxd log NAME"})
	defer cancel()
	l := lines{}
	var last *screen.Screen
	from := max(r.End(), linesOf) - linesOf
	err := walk(ctx, r, from, func(sc *screen.Screen, _ time.Duration) bool {
		for l.next = max(l.next, sc.Kept()); l.next < sc.Scrolled() && ctx.Err() == nil; l.next++ {
			l.cells = sc.AppendKept(l.cells[:0], l.next)
			l.add()
		}
		last = sc
		return true
	})
	if err != nil || last == nil {
		return nil, err
	}
	var full lines // those of a full-screen program
	if last.Modes().AltScreen {
		full.addScreen(last)
		fmt.Fprint(last, "\x1b[?1049l")
	}
	l.addScreen(last)
	l.all = append(l.all, full.all...)
	if from > 0 && len(l.all) > 0 {
		l.all = l.all[1:] // it may begin in the middle
	}
	return slices.Clone(l.all), nil // without the room of dropped lines
}

// lines collects lines, and drops the oldest ones beyond the bounds.
type lines struct {
	next  uint64 // number of the next line that scrolls off
	all   []string
	size  int
	cells []screen.Cell // the next one to add
	text  []byte        // for reuse
}

// addScreen adds what a screen shows.
func (l *lines) addScreen(sc *screen.Screen) {
	_, rows := sc.Size()
	for rows > 0 && sc.LineText(rows-1) == "" {
		rows--
	}
	for y := range rows {
		l.cells = sc.AppendLine(l.cells[:0], y)
		l.add()
	}
}

func (l *lines) add() {
	l.text = l.text[:0]
	var pen screen.Style
	for _, c := range l.cells {
		l.text = append(c.Style.AppendSGR(l.text, pen), c.Text...)
		pen = c.Style
	}
	l.all = append(l.all, string(l.text))
	l.size += len(l.text)
	for len(l.all) > maxLines || l.size > maxText {
		l.size -= len(l.all[0])
		l.all[0] = "" // so that its memory is free
		l.all = l.all[1:]
	}
}
