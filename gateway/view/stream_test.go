package view

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// stream makes n pieces of a random program's output, hostile pieces included, for a terminal of a
// size.
func stream(r *rand.Rand, n, cols, rows int) string {
	var b strings.Builder
	texts := []string{
		"a", "hello", "the quick brown fox jumps over the lazy dog", "世界", "e\u0301", "🇩", "🇩🇪",
		"👩‍🚀", "❤️", "👍🏽", "1️⃣", "│─┼", "    ",
		"\u200d", "\u0301", "\xff", "\u009b31m", "\u202e", "한글", "☎", "\t",
	}
	controls := []string{
		"\r\n", "\r\n", "\r\n", "\n", "\r", "\b", "\x1bD", "\x1bM", "\x1b7", "\x1b8", "\x1b[K",
		"\x1b[1K", "\x1b[2K", "\x1b[J", "\x1b[1J", "\x1b[2J", "\x1bc",
		"\x1b[m", "\x1b[1;31m", "\x1b[7m", "\x1b[42m", "\x1b[38;5;200m", "\x1b[48;2;1;2;3m",
		"\x1b[4:3;58;5;9m", "\x1b[22;27m", "\x1b[53;9;2m",
		"\x1b[?25l", "\x1b[?25h", "\x1b[?1049h", "\x1b[?1049l", "\x1b[?7l", "\x1b[?7h", "\x1b[4h",
		"\x1b[4l", "\x1b#8", "\x1b[3 q", "\x1b[?6h", "\x1b[?6l",
		"\x1b[?1000h", "\x1b[?1003;1006h", "\x1b[?1000l", "\x1b[?2004h", "\x1b[?2004l",
		"\x1b[?1h\x1b=", "\x1b[?1l\x1b>", "\x1b[?1004h", "\x1b[?2026h",
		"\x1b]0;title\a", "\x1b]52;c;ZXZpbA==\a", "\x1b]8;;file:///etc/passwd\x1b\\x\x1b]8;;\x1b\\",
		"\x1bPq#0;2;0;0;0#0~~\x1b\\", "\x1b_Gf=100;AAAA\x1b\\",
		"\x1b[21t", "\x1b[5i", "\x1b[c", "\x1b[6n", "\x1b]50;x\a", "\x1bP+q544e\x1b\\",
		"\x1b(0lqk\x1b(B", "\x0e", "\x0f", "\x05", "\a", "\x1b[!p",
	}
	for range n {
		switch r.IntN(6) {
		case 0, 1:
			b.WriteString(texts[r.IntN(len(texts))])
		case 2, 3:
			b.WriteString(controls[r.IntN(len(controls))])
		case 4:
			fmt.Fprintf(&b, "\x1b[%d;%dH", r.IntN(rows+2), r.IntN(cols+2))
		case 5:
			fmt.Fprintf(&b, "\x1b[%d%c", r.IntN(rows), "ABCDEFGLMPSTX@dbr"[r.IntN(17)])
		}
	}
	return b.String()
}
