// Package expect waits for patterns on a byte stream that has offsets, such as the log of a session.
//
// Reach for it when a program's output is the only thing that tells. To learn that a program waits for input, ask the
// session's state instead.
package expect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"unicode/utf8"
)

// Pattern tells whether text matches. A *regexp.Regexp is one.
type Pattern interface {
	Match(text []byte) bool
}

// Text is a Pattern that matches where these characters stand anywhere.
type Text string

// Match reports whether text has t in it.
func (t Text) Match(text []byte) bool { return bytes.Contains(text, []byte(t)) }

// DefaultSize is the size of a Window that was given none, in bytes.
const DefaultSize = 64 << 10

// Match is what a call of Expect found.
type Match struct {
	Index  int    // which of the patterns matched
	Text   string // from the end of the previous match, or the window's beginning, to the end of this one
	From   uint64 // offset of Text's first byte
	To     uint64 // offset after its last
	Missed uint64 // bytes before From that had left the window unseen
}

// Window holds the tail of a stream that no pattern matched yet. Its methods may be called at once.
type Window struct {
	size int

	mu     sync.Mutex
	buf    []byte        // guarded by mu; unmatched tail
	from   uint64        // guarded by mu; offset of buf[0]
	missed uint64        // guarded by mu; bytes dropped since the last match
	err    error         // guarded by mu; why no more comes
	more   chan struct{} // guarded by mu; closed and replaced when the window changes
}

// NewWindow returns a window of at most size bytes; 0 means DefaultSize. Older bytes leave it unmatched, so a pattern that
// spans more than size bytes is never found.
func NewWindow(size int) *Window {
	if size <= 0 {
		size = DefaultSize
	}
	return &Window{size: size, more: make(chan struct{})}
}

// Write appends the stream's bytes at offset. A gap before them empties the window: nothing matches across it. Bytes
// before what was already written are ignored, as after a resume.
func (w *Window) Write(offset uint64, p []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	end := w.from + uint64(len(w.buf))
	switch {
	case offset > end:
		w.missed += offset - w.from
		w.from, w.buf = offset, w.buf[:0]
	case offset < end:
		if uint64(len(p)) <= end-offset {
			return
		}
		p = p[end-offset:]
	}
	w.buf = append(w.buf, p...)
	if over := len(w.buf) - w.size; over > 0 {
		w.dropLocked(over)
		w.missed += uint64(over)
	}
	w.wakeLocked()
}

// Skip forgets everything before offset: what Expect looks at begins there.
func (w *Window) Skip(offset uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := min(max(offset, w.from)-w.from, uint64(len(w.buf))); n > 0 {
		w.dropLocked(int(n))
	}
	if offset > w.from {
		w.from = offset
	}
	w.missed = 0
}

// Close ends the window: calls of Expect that find nothing in what is there return err.
func (w *Window) Close(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	w.wakeLocked()
}

// Expect waits until one of the patterns matches, and takes the text up to the end of the match out of the window. The
// shortest text that matches is taken, as far as the pattern lets one find it by halving: exact for Text, and for a
// regular expression that still matches when text follows.
func (w *Window) Expect(ctx context.Context, patterns ...Pattern) (Match, error) {
	if len(patterns) == 0 {
		return Match{}, errors.New("expect: no pattern given")
	}
	for {
		w.mu.Lock()
		match, found := w.matchLocked(patterns)
		err, more := w.err, w.more
		w.mu.Unlock()
		switch {
		case found:
			return match, nil
		case err != nil:
			return Match{}, fmt.Errorf("expect: %w", err)
		}
		select {
		case <-more:
		case <-ctx.Done():
			return Match{}, fmt.Errorf("expect: %w", context.Cause(ctx))
		}
	}
}

// first is the index of the first pattern that matches text, else -1.
func first(patterns []Pattern, text []byte) int {
	return slices.IndexFunc(patterns, func(p Pattern) bool { return p.Match(text) })
}

func (w *Window) matchLocked(patterns []Pattern) (Match, bool) {
	index := first(patterns, w.buf)
	if index < 0 {
		return Match{}, false
	}
	low, high := 0, len(w.buf) // the shortest match is in (low, high]
	for high-low > 1 {
		mid := (low + high) / 2
		if i := first(patterns, w.buf[:mid]); i >= 0 {
			index, high = i, mid
		} else {
			low = mid
		}
	}
	// Do not split a character; a longer run of continuation bytes is none.
	for end := high + utf8.UTFMax - 1; high < min(end, len(w.buf)) && !utf8.RuneStart(w.buf[high]); high++ {
	}
	match := Match{Index: index, Text: string(w.buf[:high]), From: w.from, To: w.from + uint64(high), Missed: w.missed}
	w.dropLocked(high)
	w.missed = 0
	return match, true
}

func (w *Window) dropLocked(n int) {
	w.buf = append(w.buf[:0], w.buf[n:]...)
	w.from += uint64(n)
}

func (w *Window) wakeLocked() {
	close(w.more)
	w.more = make(chan struct{})
}
