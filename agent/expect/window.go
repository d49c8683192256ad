// Package expect waits for patterns on a byte stream that has offsets, such as the log of a
// session.
//
// Use it for programs that report their progress only in their output. The state of a session
// reports without it that a program waits for input.
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

// Pattern reports whether text matches. A *regexp.Regexp is a Pattern.
type Pattern interface {
	Match(text []byte) bool
}

// Text is a Pattern that matches any text that contains it.
type Text string

// Match reports whether text contains t.
func (t Text) Match(text []byte) bool { return bytes.Contains(text, []byte(t)) }

// DefaultSize is the default size of a Window, in bytes.
const DefaultSize = 64 << 10

// Match is the result of Expect.
type Match struct {
	Index int // index of the pattern that matched
	// output from the end of the previous match, or the begin of the window, to the end of this one
	Text   string
	From   uint64 // offset of Text's first byte
	To     uint64 // offset after its last byte
	Missed uint64 // bytes before From that left the window unmatched
}

// Window holds the tail of a stream that no pattern has matched. Its methods are safe for
// concurrent use.
type Window struct {
	size int

	mu     sync.Mutex
	buf    []byte        // guarded by mu; unmatched tail
	from   uint64        // guarded by mu; offset of buf[0]
	missed uint64        // guarded by mu; bytes dropped since the last match
	err    error         // guarded by mu; why the stream ended
	more   chan struct{} // guarded by mu; closed and replaced when the window changes
}

// NewWindow returns a window of at most size bytes; 0 means DefaultSize. Older bytes are dropped,
// so a match longer than size bytes is not found.
func NewWindow(size int) *Window {
	if size <= 0 {
		size = DefaultSize
	}
	return &Window{size: size, more: make(chan struct{})}
}

// Write appends the stream's bytes at offset. A gap before offset empties the window, so that
// nothing matches across the gap. Bytes that were written before are ignored, such as those that a
// resumed stream repeats.
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

// Skip drops the bytes before offset. Expect searches from there.
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

// Close ends the stream. Calls of Expect that find no match in the window return err.
func (w *Window) Close(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	w.wakeLocked()
}

// Expect waits until one of the patterns matches, and removes the text up to the end of the match
// from the window. It finds the shortest matching text by binary search. That is exact for Text,
// and for a regular expression that still matches when more text follows.
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

// first returns the index of the first pattern that matches text, or -1.
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
	// Do not split a UTF-8 character. A longer run of continuation bytes is not a character.
	for end := high + utf8.UTFMax - 1; high < min(end, len(w.buf)) &&
		!utf8.RuneStart(w.buf[high]); high++ {
	}
	match := Match{
		Index:  index,
		Text:   string(w.buf[:high]),
		From:   w.from,
		To:     w.from + uint64(high),
		Missed: w.missed,
	}
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
