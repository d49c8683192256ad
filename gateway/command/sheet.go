package command

import (
	"fmt"
	"io"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// Sheet shows lines on a terminal in raw mode. It draws only the lines that changed, to avoid
// flicker.
type Sheet struct {
	To         io.Writer // the terminal
	Cols, Rows int       // its size

	shown []string
}

// Enter switches to the alternate screen, and turns off the cursor and wrapping.
func (s *Sheet) Enter() error { return s.write("\x1b[?1049h\x1b[?7l\x1b[?25l\x1b[m\x1b[H\x1b[2J") }

// Leave restores the terminal.
func (s *Sheet) Leave() { _ = s.write("\x1b[?25h\x1b[?7h\x1b[?1049l") } // fails if it is gone

func (s *Sheet) write(text string) error {
	_, err := io.WriteString(s.To, text)
	return err
}

// Resize sets the size of the terminal. The next Draw draws all lines.
func (s *Sheet) Resize(cols, rows int) {
	s.Cols, s.Rows = cols, rows
	s.shown = nil
}

// Draw shows lines of plain text.
func (s *Sheet) Draw(lines []string) error {
	var out strings.Builder
	if s.shown == nil {
		out.WriteString("\x1b[H\x1b[2J")
	}
	now := make([]string, min(len(lines), max(s.Rows, 1)))
	for y := range max(len(now), len(s.shown)) {
		var line string
		if y < len(now) {
			line = text.Begin(lines[y], s.Cols)
			now[y] = line
		}
		if y < len(s.shown) && s.shown[y] == line || y >= len(s.shown) && line == "" {
			continue
		}
		fmt.Fprintf(&out, "\x1b[%d;1H\x1b[K%s", y+1, line)
	}
	s.shown = now
	if out.Len() == 0 {
		return nil
	}
	return s.write(out.String())
}
