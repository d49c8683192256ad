package python

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/agent"
)

// Type is the type of an Output.
type Type string

// Types of output.
const (
	Stdout  Type = "stdout"
	Stderr  Type = "stderr"
	Value   Type = "result"  // value of the last expression
	Display Type = "display" // displayed object, such as a plot or a table
	Failure Type = "error"   // uncaught exception
	Clear   Type = "clear"   // clears earlier output; only passed to Call.Output
)

// Output is one item of output: text, a value, a display or an exception.
type Output struct {
	Type Type `json:"type"`

	Chars string `json:"text,omitempty"` // text of Stdout and Stderr

	// Data has the representations of a Value or Display by MIME type, as in Jupyter's JSON. Most
	// are strings; binary ones are strings in base64. See Text and Bytes.
	Data   map[string]json.RawMessage `json:"data,omitempty"`
	ID     string                     `json:"display_id,omitempty"`
	Update bool                       `json:"update,omitempty"` // replaces the display with that ID
	Image  string                     `json:"image,omitempty"`  // ID for Context.Image

	Name      string   `json:"name,omitempty"` // class of the exception of Failure
	Value     string   `json:"value,omitempty"`
	Traceback []string `json:"traceback,omitempty"` // with colour codes for terminals

	Omitted int64 `json:"omitted,omitempty"` // bytes omitted before this output
}

// Text returns the representation of a MIME type as text, or "" if there is none. JSON is returned
// as it is.
func (o Output) Text(mime string) string {
	var s string
	if json.Unmarshal(o.Data[mime], &s) == nil {
		return s
	}
	var lines some[string] // Jupyter's notebooks store text as a list of lines
	if json.Unmarshal(o.Data[mime], &lines) == nil && len(lines) > 0 && lines[0] == '[' {
		return strings.Join(lines.first(maxTextLines), "")
	}
	return string(o.Data[mime])
}

// Bytes returns the bytes of the representation of a MIME type. It decodes base64 of binary types.
// nil means that there is none or that it is not valid base64.
func (o Output) Bytes(mime string) []byte {
	if _, ok := o.Data[mime]; !ok {
		return nil
	}
	text := o.Text(mime)
	if strings.HasPrefix(mime, "text/") || strings.HasSuffix(mime, "+xml") ||
		strings.HasSuffix(mime, "json") ||
		mime == "application/javascript" {
		return []byte(text)
	}
	data, err := base64.StdEncoding.DecodeString(strings.Map(func(r rune) rune {
		if r == '\n' || r == '\r' {
			return -1
		}
		return r
	}, text))
	if err != nil {
		return nil
	}
	return data
}

// Picture returns the best representation of o as a picture. It checks that the bytes match the
// MIME type. mime is empty if o is not a picture.
func (o Output) Picture() (mime string, data []byte) {
	for _, mime := range []string{"image/png", "image/jpeg", "image/gif", "image/webp",
		"image/svg+xml"} {
		if data := o.Bytes(mime); len(data) > 0 && is(mime, data) {
			return mime, data
		}
	}
	return "", nil
}

// is reports whether data begins like a picture of that type.
func is(mime string, data []byte) bool {
	if mime == "image/svg+xml" {
		return bytes.HasPrefix(bytes.TrimLeft(data, "\ufeff \t\r\n"), []byte("<"))
	}
	return http.DetectContentType(data) == mime
}

// Result reports what one call did. Ended is EndedDone, EndedWaiting, EndedDeadline,
// EndedInterrupted or EndedDead.
type Result struct {
	Context string      `json:"context"`
	Ended   agent.Ended `json:"ended"`
	OK      bool        `json:"ok"` // the code ended without an exception
	Count   int         `json:"execution_count,omitempty"`
	Outputs []Output    `json:"outputs"`
	Error   *Exception  `json:"error,omitempty"`

	Prompt string `json:"prompt,omitempty"` // with EndedWaiting: prompt of input()
	// with EndedWaiting: do not echo the answer (getpass)
	Password bool `json:"password,omitempty"`

	// the call ran in a new kernel: variables of earlier calls are lost
	Fresh bool `json:"fresh,omitempty"`
	// the code ignored interrupts and the kernel was ended: the next call has a new kernel
	Restart bool   `json:"restart,omitempty"`
	Why     string `json:"why,omitempty"`     // with EndedDead: the known reason
	Omitted int64  `json:"omitted,omitempty"` // bytes of output omitted from the middle
	Dropped int    `json:"dropped,omitempty"` // omitted displays
	Millis  int64  `json:"elapsed_ms"`        // milliseconds since the code was sent
}

// Exception is an uncaught exception.
type Exception struct {
	Name      string   `json:"name"`
	Value     string   `json:"value"`
	Traceback []string `json:"traceback"`
}

// Text returns all output as text for a terminal: printed text, values and the exception. An image
// is a line with its ID, type and size.
func (r Result) Text() string {
	var b strings.Builder
	for _, o := range r.Outputs {
		if o.Omitted > 0 {
			b.WriteString(omitted(o.Omitted))
		}
		b.WriteString(o.String())
	}
	return b.String()
}

// String returns the output as text for a terminal.
func (o Output) String() string {
	switch o.Type {
	case Stdout, Stderr:
		return o.Chars
	case Failure:
		if len(o.Traceback) == 0 {
			return o.Name + ": " + o.Value + "\n"
		}
		return strings.Join(o.Traceback, "\n") + "\n"
	case Clear:
		return ""
	}
	if o.Image != "" {
		mime, data := o.Picture()
		return "[image " + o.Image + ": " + mime + ", " + itoa(len(data)) + " bytes]\n"
	}
	for _, mime := range []string{"text/plain", "text/markdown", "text/html", "application/json"} {
		if text := o.Text(mime); text != "" {
			return strings.TrimSuffix(text, "\n") + "\n"
		}
	}
	return ""
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

func omitted(n int64) string {
	return "\n[output truncated: " + itoa(int(n)) + " bytes are left out here]\n"
}

// Limits bound the output that a Result keeps. 0 means the default.
type Limits struct {
	Head     int // bytes of text from the begin; default 64 KiB
	Tail     int // bytes of text from the end; default 64 KiB
	Displays int // number of values, displays and exceptions; default 100
	Shown    int // bytes of those; default 32 MiB
	// Images bounds the bytes of pictures that an Interpreter stores for Context.Image. 0 means 64
	// MiB, a negative value none.
	Images int
}

func (l Limits) orDefaults() Limits {
	return Limits{
		Head:     cmp.Or(l.Head, 64<<10),
		Tail:     cmp.Or(l.Tail, 64<<10),
		Displays: cmp.Or(l.Displays, 100),
		Shown:    cmp.Or(l.Shown, 32<<20),
		Images:   cmp.Or(l.Images, maxImageBytes),
	}
}

// maxPieces bounds the alternations of stdout and stderr in head and in tail.
const maxPieces = 1000

// collector keeps the head and the tail of a call's output.
type collector struct {
	limits Limits
	room   place // memory for displays
	head   []piece
	tail   []piece
	text   int // bytes of text in head
	late   int // bytes of text in tail
	texts  int // pieces of text in tail
	shown  int // bytes of displays
	shows  int

	omitted int64
	dropped int
}

// piece is an output that text can be appended to.
type piece struct {
	Output
	text []byte
}

func (c *collector) add(o Output) {
	switch o.Type {
	case Clear:
		return
	case Stdout, Stderr:
		rest := []byte(o.Chars)
		if room := c.limits.Head - c.text; room > 0 && len(c.tail) == 0 && len(c.head) < maxPieces {
			n := min(room, len(rest))
			for n > 0 && n < len(rest) && !utf8.RuneStart(rest[n]) {
				n--
			}
			c.head = grow(c.head, o.Type, rest[:n])
			c.text += n
			rest = rest[n:]
			if len(rest) > 0 {
				c.text = c.limits.Head
			}
		}
		if len(rest) > 0 {
			n := len(c.tail)
			c.tail = grow(c.tail, o.Type, rest)
			c.texts += len(c.tail) - n
			c.late += len(rest)
			c.trim()
		}
		return
	}
	size := o.size()
	if c.shows >= c.limits.Displays || c.shown+size > c.limits.Shown ||
		!c.room.try(int64(c.shown+size-maxFree)) {
		c.dropped++
		c.omitted += int64(size)
		return
	}
	c.shows++
	c.shown += size
	if len(c.tail) > 0 {
		c.tail = append(c.tail, piece{Output: o})
	} else {
		c.head = append(c.head, piece{Output: o})
	}
}

func (o Output) size() int {
	n := len(o.Name) + len(o.Value)
	for kind, data := range o.Data {
		n += len(kind) + len(data)
	}
	for _, line := range o.Traceback {
		n += len(line)
	}
	return n
}

func grow(pieces []piece, kind Type, text []byte) []piece {
	if len(text) == 0 {
		return pieces
	}
	if n := len(pieces); n > 0 && pieces[n-1].Type == kind {
		pieces[n-1].text = append(pieces[n-1].text, text...)
		return pieces
	}
	return append(pieces, piece{Output: Output{Type: kind}, text: slices.Clone(text)})
}

// trim drops the oldest text of the tail, down to its limit.
func (c *collector) trim() {
	for i := 0; c.late > c.limits.Tail || c.texts > maxPieces; {
		p := &c.tail[i]
		if p.Type != Stdout && p.Type != Stderr {
			i++
			continue
		}
		n := len(p.text)
		if c.texts <= maxPieces {
			n = min(n, c.late-c.limits.Tail)
		}
		for n < len(p.text) && !utf8.RuneStart(p.text[n]) {
			n++
		}
		c.late -= n
		c.omitted += int64(n)
		if n < len(p.text) {
			if rest := len(p.text) - n; cap(p.text) > 4*max(rest, c.limits.Tail) {
				p.text = slices.Clone(p.text[n:]) // free the memory of the long text
			} else {
				p.text = append(p.text[:0], p.text[n:]...)
			}
			p.Omitted += int64(n)
			return
		}
		gone := p.Omitted + int64(n)
		c.texts--
		if i == 0 {
			c.tail[0] = piece{}
			// do not move the others: there are many, and each new one drops one
			c.tail = c.tail[1:]
		} else {
			c.tail = slices.Delete(c.tail, i, i+1)
		}
		if i < len(c.tail) {
			c.tail[i].Omitted += gone
		}
	}
}

func (c *collector) outputs() []Output {
	all := make([]Output, 0, len(c.head)+len(c.tail))
	for _, p := range slices.Concat(c.head, c.tail) {
		if p.text != nil {
			p.Chars = string(p.text)
		}
		if n := len(all); n > 0 && p.text != nil && p.Omitted == 0 && all[n-1].Type == p.Type {
			all[n-1].Chars += p.Chars
			continue
		}
		all = append(all, p.Output)
	}
	return all
}

// millis returns the milliseconds since t.
func millis(t time.Time) int64 { return time.Since(t).Milliseconds() }
