package picture

import (
	"bytes"
	"strings"
)

const (
	// askKitty asks whether a picture of one pixel could be drawn (a=q). A terminal that does not
	// know the sequence ignores it, or shows it: see clean.
	askKitty = "\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\"
	// askVersion is XTVERSION: the name of the terminal.
	askVersion = "\x1b[>q"
	// askDevice is DA1, which every terminal answers. It comes last, so that its answer means that
	// no other follows.
	askDevice = "\x1b[c"
	// clean erases questions that a terminal has shown instead of understanding. The cursor is at
	// the beginning of a line.
	clean = "\r\x1b[K"
)

// answers are a terminal's answers.
type answers struct {
	kitty   bool     // it supports kitty's protocol
	version string   // its name and version, empty if unknown
	device  []string // answer to DA1: class, then features; nil until it has answered
}

// read separates the answers from typed keys, which it returns.
func read(p []byte) (a answers, typed []byte) {
	for len(p) > 0 {
		n := 0
		if body, size, ok := enclosed(p, "\x1b_G"); ok {
			id, said, _ := strings.Cut(string(body), ";")
			a.kitty = a.kitty || id == "i=31" && said == "OK"
			n = size
		} else if body, size, ok := enclosed(p, "\x1bP>|"); ok {
			a.version, n = string(body), size
		} else if params, size, ok := device(p); ok {
			a.device, n = params, size
		} else {
			typed = append(typed, p[0])
			n = 1
		}
		p = p[n:]
	}
	return a, typed
}

// maxAnswer bounds answers that are strings: longer ones were typed, or pasted.
const maxAnswer = 256

// enclosed returns the body and the total size of a string that begins with begin and ends with ST
// or BEL.
func enclosed(p []byte, begin string) (body []byte, size int, ok bool) {
	rest, ok := bytes.CutPrefix(p, []byte(begin))
	if !ok {
		return nil, 0, false
	}
	for i := range min(len(rest), maxAnswer) {
		switch {
		case rest[i] == '\a':
			return rest[:i], len(begin) + i + 1, true
		case rest[i] == 0x1b && i+1 < len(rest) && rest[i+1] == '\\':
			return rest[:i], len(begin) + i + 2, true
		case rest[i] < ' ' || rest[i] >= 0x7f:
			return nil, 0, false
		}
	}
	return nil, 0, false
}

// device parses an answer to DA1.
func device(p []byte) (params []string, size int, ok bool) {
	rest, ok := bytes.CutPrefix(p, []byte("\x1b[?"))
	if !ok {
		return nil, 0, false
	}
	n := 0
	for n < min(len(rest), maxAnswer) && strings.IndexByte("0123456789;", rest[n]) >= 0 {
		n++
	}
	if n == len(rest) || rest[n] != 'c' {
		return nil, 0, false
	}
	return strings.Split(string(rest[:n]), ";"), len("\x1b[?") + n + 1, true
}

// sixel is a feature in the answer to DA1, as of the VT340.
func (a answers) sixel() bool {
	for i, ability := range a.device {
		if i > 0 && ability == "4" {
			return true
		}
	}
	return false
}

// drawsITerm2 are the names of programs with iTerm2's protocol. Those older than XTVERSION are
// named in TERM_PROGRAM.
var drawsITerm2 = []string{"iTerm2 ", "WezTerm ", "mintty "}

// protocol returns the protocol of a terminal, from its answers and its environment.
func (a answers) protocol(env func(string) string) Protocol {
	switch {
	case a.device == nil:
		return None
	// The terminal behind it may support more, but not know the position on the screen.
	case multiplexed(env):
	case a.kitty:
		return Kitty
	case a.version == "" && (env("TERM_PROGRAM") == "iTerm.app" ||
		env("TERM_PROGRAM") == "WezTerm"):
		return ITerm2
	default:
		for _, name := range drawsITerm2 {
			if strings.HasPrefix(a.version, name) {
				return ITerm2
			}
		}
	}
	if a.sixel() {
		return Sixel
	}
	return None
}

// multiplexed reports whether tmux or screen is the terminal.
func multiplexed(env func(string) string) bool {
	term := env("TERM")
	return env("TMUX") != "" || env("STY") != "" || strings.HasPrefix(term, "tmux") ||
		strings.HasPrefix(term, "screen")
}

// silent reports whether to ask the terminal nothing: it draws no pictures, and shows the
// questions.
func silent(env func(string) string) bool {
	term := env("TERM")
	return term == "" || term == "dumb" || term == "linux" || strings.HasPrefix(term, "eterm") ||
		env("TERM_PROGRAM") == "Apple_Terminal"
}

// questions returns the questions for a terminal. tmux and screen take kitty's question for a
// title.
func questions(env func(string) string) string {
	if multiplexed(env) {
		return askDevice
	}
	return askKitty + askVersion + askDevice + clean
}
