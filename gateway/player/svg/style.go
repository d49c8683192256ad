package svg

import (
	"fmt"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
)

// Colors of the terminal and of the bar below it.
const (
	foreground = "#d6deeb"
	background = "#0d1117"
	barColor   = "#1f2937"
	barText    = "#9fb0c3"
	waitColor  = "#f5b83d"
)

// basic are the sixteen colors that a theme may choose.
var basic = [16]string{
	"#3b4252", "#ff6b6b", "#5fd38d", "#f5b83d", "#6cb6ff", "#c792ea", "#4dd0e1", "#d6deeb",
	"#66738a", "#ff8f8f", "#86e6ab", "#ffd479", "#94ccff", "#dbb2f5", "#80e3f0", "#ffffff",
}

// hex returns c as #rrggbb, and fallback for the terminal's own color.
func hex(c screen.Color, fallback string) string {
	if r, g, b, ok := c.RGB(); ok {
		return fmt.Sprintf("#%02x%02x%02x", r, g, b)
	}
	i, ok := c.Index()
	switch {
	case !ok:
		return fallback
	case i < 16:
		return basic[i]
	case i >= 232:
		v := 8 + 10*int(i-232)
		return fmt.Sprintf("#%02x%02x%02x", v, v, v)
	}
	level := func(n int) int { // of xterm's color cube
		if n == 0 {
			return 0
		}
		return 55 + 40*n
	}
	n := int(i) - 16
	return fmt.Sprintf("#%02x%02x%02x", level(n/36), level(n/6%6), level(n%6))
}

// colors returns the text and background color of a style; no background is "".
func colors(st screen.Style) (fg, bg string) {
	if st.Attr&screen.Inverse != 0 {
		return hex(st.Bg, background), hex(st.Fg, foreground)
	}
	return hex(st.Fg, foreground), hex(st.Bg, "")
}

// css returns the declarations of a text style, without the background.
func css(st screen.Style) string {
	fg, _ := colors(st)
	var b strings.Builder
	b.WriteString("fill:" + fg)
	for _, a := range []struct {
		attr screen.Attr
		css  string
	}{
		{screen.Bold, ";font-weight:700"},
		{screen.Faint, ";opacity:.6"},
		{screen.Italic, ";font-style:italic"},
	} {
		if st.Attr&a.attr != 0 {
			b.WriteString(a.css)
		}
	}
	var lines []string
	if st.Underline != screen.NoUnderline {
		lines = append(lines, "underline")
	}
	if st.Attr&screen.Strike != 0 {
		lines = append(lines, "line-through")
	}
	if st.Attr&screen.Overline != 0 {
		lines = append(lines, "overline")
	}
	if len(lines) > 0 {
		b.WriteString(";text-decoration:" + strings.Join(lines, " "))
	}
	return b.String()
}

// marks reports whether a style shows something in an empty cell, besides its background.
func marks(st screen.Style) bool {
	return st.Underline != screen.NoUnderline || st.Attr&(screen.Strike|screen.Overline) != 0
}
