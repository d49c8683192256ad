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

// Type says what an Output is.
type Type string

// The types of output.
const (
	Stdout  Type = "stdout"
	Stderr  Type = "stderr"
	Value   Type = "result"  // of the last expression
	Display Type = "display" // what code shows: a plot, a table
	Failure Type = "error"   // an exception that nobody caught
	Clear   Type = "clear"   // what was shown before is to go; only told as it comes
)

// Output is one thing that code printed or showed.
type Output struct {
	Type Type `json:"type"`

	Chars string `json:"text,omitempty"` // of Stdout and Stderr

	// Data is of Value and Display: the same thing in several forms, by MIME type, each as Jupyter has it in JSON. Of most forms that
	// is a string, of binary ones in base64; see Text and Bytes.
	Data   map[string]json.RawMessage `json:"data,omitempty"`
	ID     string                     `json:"display_id,omitempty"`
	Update bool                       `json:"update,omitempty"` // of what has that display_id
	Image  string                     `json:"image,omitempty"`  // by which Context.Image has it

	Name      string   `json:"name,omitempty"` // of Failure: the exception's class
	Value     string   `json:"value,omitempty"`
	Traceback []string `json:"traceback,omitempty"` // with colours, as for a terminal

	Omitted int64 `json:"omitted,omitempty"` // bytes that are left out in front of this output
}

// Text is the form of that MIME type as text; empty where there is none. JSON is itself.
func (o Output) Text(mime string) string {
	var s string
	if json.Unmarshal(o.Data[mime], &s) == nil {
		return s
	}
	var lines some[string] // Jupyter's notebooks have texts as lines
	if json.Unmarshal(o.Data[mime], &lines) == nil && len(lines) > 0 && lines[0] == '[' {
		return strings.Join(lines.first(maxTextLines), "")
	}
	return string(o.Data[mime])
}

// Bytes is the form of that MIME type, which is binary or text. nil where there is none, or it is no base64.
func (o Output) Bytes(mime string) []byte {
	if _, ok := o.Data[mime]; !ok {
		return nil
	}
	text := o.Text(mime)
	if strings.HasPrefix(mime, "text/") || strings.HasSuffix(mime, "+xml") || strings.HasSuffix(mime, "json") || mime == "application/javascript" {
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

// Picture is the best form of o as a picture, of which the bytes are what the type says; the type is empty where it is none.
func (o Output) Picture() (mime string, data []byte) {
	for _, mime := range []string{"image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml"} {
		if data := o.Bytes(mime); len(data) > 0 && is(mime, data) {
			return mime, data
		}
	}
	return "", nil
}

// is reports whether data begins as a picture of that type does: who shows it goes by the type.
func is(mime string, data []byte) bool {
	if mime == "image/svg+xml" {
		return bytes.HasPrefix(bytes.TrimLeft(data, "\ufeff \t\r\n"), []byte("<"))
	}
	return http.DetectContentType(data) == mime
}

// Result is what one call did. Ended is EndedDone, EndedWaiting, EndedDeadline, EndedInterrupted or
// EndedDead.
type Result struct {
	Context string      `json:"context"`
	Ended   agent.Ended `json:"ended"`
	OK      bool        `json:"ok"` // it is done, and nothing was raised
	Count   int         `json:"execution_count,omitempty"`
	Outputs []Output    `json:"outputs"`
	Error   *Exception  `json:"error,omitempty"`

	Prompt   string `json:"prompt,omitempty"`   // of waiting: what input() asks
	Password bool   `json:"password,omitempty"` // of waiting: what is answered is not to be shown (getpass)

	Fresh   bool   `json:"fresh,omitempty"`   // the call ran in a new kernel: what former calls made is gone
	Restart bool   `json:"restart,omitempty"` // code that no interrupt ended was ended with its kernel: the next call has a new one
	Why     string `json:"why,omitempty"`     // of dead: what is known
	Omitted int64  `json:"omitted,omitempty"` // bytes of output that are left out, in the middle
	Dropped int    `json:"dropped,omitempty"` // displays that are left out
	Millis  int64  `json:"elapsed_ms"`        // since the code was sent
}

// Exception is what code raised and nobody caught.
type Exception struct {
	Name      string   `json:"name"`
	Value     string   `json:"value"`
	Traceback []string `json:"traceback"`
}

// Text is what was printed, the value of the last expression, and the exception, as a person would read them in a terminal; images are
// named.
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

// String is the output as a person would read it in a terminal.
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

// Limits bound what a Result keeps. 0 is the default.
type Limits struct {
	Head     int // bytes of text from the beginning; default 64 KiB
	Tail     int // and from the end; default 64 KiB
	Displays int // values, displays and exceptions; default 100
	Shown    int // bytes of them; default 32 MiB
	Images   int // bytes of pictures that an Interpreter remembers for Context.Image; default 64 MiB, negative is none
}

func (l Limits) orDefaults() Limits {
	return Limits{Head: cmp.Or(l.Head, 64<<10), Tail: cmp.Or(l.Tail, 64<<10), Displays: cmp.Or(l.Displays, 100), Shown: cmp.Or(l.Shown, 32<<20), Images: cmp.Or(l.Images, maxImageBytes)}
}

// maxPieces bounds the changes between stdout and stderr that head and tail keep, each.
const maxPieces = 1000

// collector keeps head and tail of what a call prints.
type collector struct {
	limits Limits
	room   place // for what is shown
	head   []piece
	tail   []piece
	text   int // bytes of text in head
	late   int // bytes of text in tail
	texts  int // pieces of text in tail
	shown  int // bytes of what is shown
	shows  int

	omitted int64
	dropped int
}

// piece is an output whose text grows.
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
	if c.shows >= c.limits.Displays || c.shown+size > c.limits.Shown || !c.room.try(int64(c.shown+size-maxFree)) {
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
				p.text = slices.Clone(p.text[n:]) // not all the memory of what was long
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
			c.tail = c.tail[1:] // not moved: there are many, and one goes with each that comes
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

// millis since.
func millis(t time.Time) int64 { return time.Since(t).Milliseconds() }
