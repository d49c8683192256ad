package text

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// WriteJSON writes v and a newline in one Write. A terminal may be shown it, whatever v holds: what
// it would obey or hide – controls, also those of 8 bits, marks of direction, what has no width –
// is written as \u and four digits, which means the same. See JSONWriter.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(JSONWriter(w))
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// JSONWriter returns a writer to w that escapes what is not printed, as strconv.IsPrint has it.
// What is written to it is JSON, in whole characters: there such ones are in strings alone. Line
// ends, which are not, stay as they are; a byte that is not UTF-8 becomes U+FFFD, as JSON readers
// take it.
func JSONWriter(w io.Writer) io.Writer { return jsonWriter{w} }

type jsonWriter struct{ to io.Writer }

func (w jsonWriter) Write(p []byte) (int, error) {
	var out []byte
	begun := 0 // what is in out already
	for i := 0; i < len(p); {
		r, n := utf8.DecodeRune(p[i:])
		if r != '\n' && (!strconv.IsPrint(r) || r == utf8.RuneError && n == 1) {
			out = appendEscape(append(out, p[begun:i]...), r)
			begun = i + n
		}
		i += n
	}
	if begun == 0 {
		return w.to.Write(p)
	}
	if _, err := w.to.Write(append(out, p[begun:]...)); err != nil {
		return 0, err // how much of p was written is nothing that anybody asks
	}
	return len(p), nil
}

// appendEscape appends r as JSON escapes it (RFC 8259, section 7).
func appendEscape(to []byte, r rune) []byte {
	if r <= 0xffff {
		return fmt.Appendf(to, `\u%04x`, r)
	}
	high, low := utf16.EncodeRune(r)
	return fmt.Appendf(to, `\u%04x\u%04x`, high, low)
}
