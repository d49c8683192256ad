package text

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Line is text of a sandbox as it may stand on a line of a person's terminal or of a log. What is not printable becomes a
// space: what a terminal obeys, what breaks a line, and what turns the direction of the text around it. Of what is longer
// than n characters the beginning is left, with an ellipsis.
func Line(s string, n int) string {
	if short := Begin(s, n-1); len(short) < len(s) && utf8.RuneCountInString(s[len(short):]) > 1 {
		return replace(short, false) + "…"
	}
	return replace(s, false)
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
	return strings.Map(func(r rune) rune {
		if strconv.IsPrint(r) && r != utf8.RuneError || r == '\n' && newlines {
			return r
		}
		return ' '
	}, s)
}
