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

// Filter passes to a person's terminal what a Renderer writes, and nothing else. It is for clients
// of a gateway that they do not trust. Sequences that are not on the list of this package go, and
// what turns the direction of text is written out. It holds no more than one sequence.
type Filter struct {
	to    io.Writer
	rest  []byte // the beginning of a sequence, or of a character
	on    map[string]bool
	sends string // final bytes of the sequences that were passed on
}

// NewFilter returns a Filter to a terminal in raw mode. Its owner closes it.
func NewFilter(to io.Writer) *Filter { return &Filter{to: to, on: make(map[string]bool)} }

const maxSequence = 128

var (
	// listed are the sequences of the package's documentation, and CSI J and CSI 2 J: erasing below
	// the cursor, and all.
	listed = regexp.MustCompile(`^\x1b(\[\d*(;\d+)?H|\[\d*[CLM]|\[[0-6] q|\[[\d;:]*m` +
		`|\[[KJ]|\[2[JX]|\[(\d+;\d+)?r|[=>]|\[\?(1|7|9|25|1000|1002|1003|1004|1005|1006|1015|1049|2004)[hl])$`)
	mode = regexp.MustCompile(`^\x1b\[\?(\d+)([hl])$`)
)

// Write takes what a server sent, in pieces of any size. Its error is that of the terminal.
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

// measure returns how long the sequence or character is with which p begins, and whether it is
// whole.
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
			return i, true // cut off: what cuts it comes next
		}
	}
	return 1, false
}

// appendSafe appends one sequence or character to out, if a person's terminal may have it.
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

// Close gives the terminal back as it was, where the server did not: colours, scroll region, modes.
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
		// Wrapping and the cursor are on by themselves; all others are off.
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
