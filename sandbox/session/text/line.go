package text

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Line is text of a sandbox as it may stand on a line of a person's terminal or of a log. What is
// not printable becomes a space: what a terminal obeys, and what breaks a line. What turns the
// direction of the text around it is written out, as Mark does. Of what is longer than n
// characters then the beginning is left, with an ellipsis.
func Line(s string, n int) string {
	line := replace(Begin(s, n+1), false)
	if utf8.RuneCountInString(line) > n {
		return Begin(line, n-1) + "…"
	}
	return line
}

// Lines is Line for text of several lines, of any length.
func Lines(s string) string { return replace(s, true) }

// Begin is the beginning of s, n characters of it.
func Begin(s string, n int) string {
	for i := range s {
		if n--; n < 0 {
			return s[:i]
		}
	}
	return s
}

// End is Line, but of what is too long the end is left.
func End(s string, n int) string {
	s = strings.TrimSpace(replace(s, false))
	if r := []rune(s); len(r) > n {
		return "…" + string(r[len(r)-n+1:])
	}
	return s
}

func replace(s string, newlines bool) string {
	return Mark(strings.Map(func(r rune) rune {
		if strconv.IsPrint(r) && r != utf8.RuneError || r == '\n' && newlines || turns(r) {
			return r
		}
		return ' '
	}, s))
}

// Mark returns s with the characters that turn the direction of the text around them written out,
// such as <U+202E>: they make a line read otherwise than it is, and who reads it is to know.
func Mark(s string) string {
	if strings.IndexFunc(s, turns) < 0 {
		return s
	}
	var out []byte
	for _, r := range s {
		out = appendMarked(out, r)
	}
	return string(out)
}

// turns says whether r is a control of the bidirectional algorithm (Unicode, property
// Bidi_Control).
func turns(r rune) bool {
	return r == 0x61c || r|1 == 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069
}

func appendMarked(to []byte, r rune) []byte {
	if !turns(r) {
		return utf8.AppendRune(to, r)
	}
	const digits = "0123456789ABCDEF"
	return append(to, '<', 'U', '+', digits[r>>12&15], digits[r>>8&15], digits[r>>4&15],
		digits[r&15], '>')
}
