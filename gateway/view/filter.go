package view

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// Filter passes to a person's terminal only what a Renderer may write. It is for clients that do
// not trust their gateway. It drops sequences that are not on the list of this package, and shows
// characters that change the direction of text as escapes. It buffers at most one sequence.
type Filter struct {
	to    io.Writer
	rest  []byte // beginning of a sequence, or of a character
	on    map[string]bool
	sends string // final bytes of the passed sequences
}

// NewFilter returns a Filter for a terminal in raw mode. Its owner closes it.
func NewFilter(to io.Writer) *Filter { return &Filter{to: to, on: make(map[string]bool)} }

const maxSequence = 128

var (
	// listed matches the sequences of the package's documentation, and CSI J and CSI 2 J: erase
	// below the cursor, and erase all.
	listed = regexp.MustCompile(`^\x1b(\[(\d+(;\d+)?)?H|\[\d*[CLM]|\[[0-6] q|\[[\d;:]*m` +
		`|\[[KJ]|\[2[JX]|\[(\d+;\d+)?r|[=>]|\[\?(1|7|9|25|1000|1002|1003|1004|1005|1006|1015|1049|2004)[hl])$`)
	mode = regexp.MustCompile(`^\x1b\[\?(\d+)([hl])$`)
)

// Write takes a server's output, in pieces of any size. Its error is that of the terminal.
func (f *Filter) Write(p []byte) (int, error) {
	n := len(p)
	p = append(f.rest, p...)
	f.rest = nil
	var out []byte
	for len(p) > 0 {
		size, whole := measure(p)
		if !whole && len(p) < maxSequence {
			f.rest = bytes.Clone(p)
			break
		}
		out = f.appendSafe(out, p[:size])
		p = p[size:]
	}
	if len(out) == 0 {
		return n, nil
	}
	if _, err := f.to.Write(out); err != nil {
		return 0, err
	}
	return n, nil
}

// measure returns the length of the sequence or character at the beginning of p, and whether it is
// complete.
func measure(p []byte) (size int, whole bool) {
	switch {
	case p[0] != 0x1b:
		_, size = utf8.DecodeRune(p)
		return size, utf8.FullRune(p)
	case len(p) == 1:
		return 1, false
	case p[1] != '[' && p[1] >= ' ' && p[1] < 0x7f:
		return 2, true
	case p[1] != '[':
		return 1, true
	}
	for i := 2; i < len(p); i++ {
		switch c := p[i]; {
		case c >= 0x40 && c < 0x7f:
			return i + 1, true
		case c < ' ' || c >= 0x7f:
			return i, true // interrupted: the interrupting byte comes next
		}
	}
	return 1, false
}

// appendSafe appends one sequence or character to out, if it is safe for a person's terminal.
func (f *Filter) appendSafe(out, one []byte) []byte {
	if one[0] == 0x1b {
		if !listed.Match(one) {
			return out
		}
		if m := mode.FindSubmatch(one); m != nil {
			f.on[string(m[1])] = m[2][0] == 'h'
		}
		if last := one[len(one)-1:]; !strings.Contains(f.sends, string(last)) {
			f.sends += string(last)
		}
		return append(out, one...)
	}
	r, _ := utf8.DecodeRune(one)
	switch {
	case r == '\r', r == '\n':
	case unicode.IsControl(r), unicode.In(r, unicode.Zl, unicode.Zp):
		return out
	}
	return append(out, text.Mark(string(r))...)
}

// Close restores the parts of the terminal that the server has not restored: colours, scroll
// region, modes.
func (f *Filter) Close() error {
	if f.sends == "" {
		return nil
	}
	out := []byte("\x1b[m")
	for _, one := range []struct{ sent, usual string }{
		{"r", "\x1b7\x1b[r\x1b8\x1b[m"}, // it moves the cursor
		{"=", "\x1b>"},
		{"q", "\x1b[0 q"},
	} {
		if strings.Contains(f.sends, one.sent) {
			out = append(out, one.usual...)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(f.on)) {
		// Wrapping and the cursor are on by default; all others are off.
		if usual := n == "7" || n == "25"; f.on[n] != usual {
			letter := 'l'
			if usual {
				letter = 'h'
			}
			out = fmt.Appendf(out, "\x1b[?%s%c", n, letter)
		}
	}
	_, err := f.to.Write(out)
	return err
}
