package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// The versions of asciicast that Export writes (docs.asciinema.org/manual/asciicast/v2 and v3).
const (
	Asciicast2 = 2
	Asciicast3 = 3
)

// Fidelity says what an export lost. It is in the header under the key "sandboxd": asciicast holds
// text, but a terminal prints bytes.
type Fidelity struct {
	// The original bytes cannot be restored from this file.
	Lossy    bool   `json:"lossy"`
	Replaced uint64 `json:"replaced_bytes"`    // not UTF-8, replaced by U+FFFD
	Missing  uint64 `json:"missing_bytes"`     // not in the record
	Stopped  string `json:"stopped,omitempty"` // why recording ended before the session
}

// Export writes the record to w as an asciicast of the given version. It replaces bytes that are
// not UTF-8; the header says so.
func (r *Reader) Export(w io.Writer, version int) error {
	if version != Asciicast2 && version != Asciicast3 {
		return fmt.Errorf("asciicast version %d: must be 2 or 3", version)
	}
	// The header comes first and describes the rest.
	f := Fidelity{Missing: r.index.gapTotal, Stopped: r.index.stopped}
	if err := r.text(func(int64, []byte) error { return nil }, &f.Replaced); err != nil {
		return err
	}
	f.Lossy = f.Replaced > 0 || f.Missing > 0 || f.Stopped != ""
	c := cast{w: bufio.NewWriter(w), version: version, start: r.index.begin.TimeUnix}
	c.last = c.start
	if err := c.header(r.index.begin, f); err != nil {
		return err
	}
	if err := r.play(&c); err != nil {
		return err
	}
	return c.w.Flush()
}

// play writes events and text in the order of the log.
func (r *Reader) play(c *cast) error {
	t := texts{r: r}
	for e, err := range r.Events() {
		if err != nil {
			return err
		}
		switch e.Kind {
		case Output:
			if err := t.upTo(e.Offset, func(p []byte) error {
				return c.event(e.TimeUnix, "o", string(p))
			}); err != nil {
				return err
			}
			continue
		case wire.EventResize:
			cols, rows := clamp(e.Cols, e.Rows)
			err = c.event(e.TimeUnix, "r", strconv.Itoa(cols)+"x"+strconv.Itoa(rows))
		case wire.EventCommand:
			err = c.event(e.TimeUnix, "m", e.By+": "+e.Text)
		case wire.EventBegun:
			if e.Op == "" {
				err = c.event(e.TimeUnix, "m", e.By+" typed a command")
			}
		case wire.EventKeyboard:
			err = c.event(e.TimeUnix, "m", "keyboard: "+e.Keyboard)
		case Private:
			err = c.event(e.TimeUnix, "m", fmt.Sprintf("private: %d bytes", e.Missed))
		case Gap:
			err = c.event(e.TimeUnix, "m", fmt.Sprintf("%d bytes missing: %s", e.Missed, e.Text))
		case Stopped:
			err = c.event(e.TimeUnix, "m", "recording stopped: "+e.Text)
		case Finish:
			if c.version == Asciicast3 && e.State != nil && e.State.ExitCode != nil {
				err = c.event(e.TimeUnix, "x", strconv.Itoa(*e.State.ExitCode))
			}
		}
		if err != nil {
			return err
		}
	}
	return t.finish(func(p []byte) error { return c.event(c.last, "o", string(p)) })
}

// text calls f with all text, in pieces, and counts the replaced bytes.
func (r *Reader) text(f func(unix int64, p []byte) error, replaced *uint64) error {
	t := texts{r: r}
	for _, m := range r.index.marks {
		if err := t.upTo(m.offset, func(p []byte) error { return f(m.unix, p) }); err != nil {
			return err
		}
	}
	err := t.finish(func(p []byte) error { return f(r.index.last, p) })
	*replaced = t.replaced
	return err
}

// texts reads the log as UTF-8. A character may be split between two pieces.
type texts struct {
	r        *Reader
	at       uint64
	tail     []byte // beginning of a character
	replaced uint64
	buf      []byte
}

const piece = 64 << 10

// upTo reads up to offset end. f's argument is valid during the call.
func (t *texts) upTo(end uint64, f func(p []byte) error) error {
	if t.buf == nil {
		t.buf = make([]byte, piece)
	}
	for t.at < end {
		n := copy(t.buf, t.tail)
		got, err := t.r.ReadAt(t.buf[n:n+int(min(end-t.at, uint64(piece-n)))], t.at)
		var gap *GapError
		switch {
		case errors.As(err, &gap):
			// Bytes after a gap do not complete a character from before it.
			if err := t.finish(f); err != nil {
				return err
			}
			t.at = min(gap.To, end)
			continue
		case err != nil:
			return err
		}
		t.at += uint64(got)
		p := t.buf[:n+got]
		whole := len(p) - unfinished(p)
		t.tail = append(t.tail[:0], p[whole:]...)
		if whole == 0 {
			continue
		}
		if err := f(t.valid(p[:whole])); err != nil {
			return err
		}
	}
	return nil
}

// finish returns the bytes of an incomplete character.
func (t *texts) finish(f func(p []byte) error) error {
	if len(t.tail) == 0 {
		return nil
	}
	tail := t.tail
	t.tail = nil
	return f(t.valid(tail))
}

// valid replaces each byte that is not UTF-8 with U+FFFD, as a terminal shows it.
func (t *texts) valid(p []byte) []byte {
	if utf8.Valid(p) {
		return p
	}
	var out bytes.Buffer
	for len(p) > 0 {
		r, n := utf8.DecodeRune(p)
		if r == utf8.RuneError && n == 1 {
			t.replaced++
		}
		out.WriteRune(r)
		p = p[n:]
	}
	return out.Bytes()
}

// unfinished returns how many bytes at the end of p begin an incomplete character.
func unfinished(p []byte) int {
	for n := 1; n <= min(utf8.UTFMax-1, len(p)); n++ {
		if utf8.RuneStart(p[len(p)-n]) {
			if utf8.FullRune(p[len(p)-n:]) {
				return 0
			}
			return n
		}
	}
	return 0
}

// cast writes the lines of one asciicast.
type cast struct {
	w       *bufio.Writer
	version int
	start   int64 // milliseconds of Unix time
	last    int64
}

func (c *cast) header(begin wire.Event, f Fidelity) error {
	var h any
	begin.Text = label(begin.Text)
	stamp := begin.TimeUnix / 1000
	if c.version == Asciicast2 {
		h = struct {
			Version   int               `json:"version"`
			Width     int               `json:"width"`
			Height    int               `json:"height"`
			Timestamp int64             `json:"timestamp"`
			Title     string            `json:"title,omitempty"`
			Env       map[string]string `json:"env"`
			Fidelity  Fidelity          `json:"sandboxd"`
		}{2, begin.Cols, begin.Rows, stamp, begin.Text, map[string]string{"TERM": "xterm-256color"},
			f}
	} else {
		type term struct {
			Cols int    `json:"cols"`
			Rows int    `json:"rows"`
			Type string `json:"type"`
		}
		h = struct {
			Version   int      `json:"version"`
			Term      term     `json:"term"`
			Timestamp int64    `json:"timestamp"`
			Title     string   `json:"title,omitempty"`
			Fidelity  Fidelity `json:"sandboxd"`
		}{3, term{begin.Cols, begin.Rows, "xterm-256color"}, stamp, begin.Text, f}
	}
	return c.line(h)
}

// event writes one event. Version 2 counts time from the beginning, version 3 from the previous
// event. Time never runs backwards here, even if the clock did.
func (c *cast) event(unix int64, code, data string) error {
	unix = max(unix, c.last)
	since := unix - c.start
	if c.version == Asciicast3 {
		since = unix - c.last
	}
	c.last = unix
	if code == "m" {
		data = label(data)
	}
	return c.line([]any{json.Number(strconv.FormatFloat(
		time.Duration(since*int64(time.Millisecond)).Seconds(), 'f', 3, 64)), code, data})
}

// label returns text for a title or a marker, from us or a command, without what acts on a
// terminal.
func label(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
}

// line writes one line. It escapes characters that HTML interprets: JSON files may be embedded in
// pages.
func (c *cast) line(v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("asciicast: %w", err)
	}
	_, err := c.w.Write(b.Bytes())
	return err
}
