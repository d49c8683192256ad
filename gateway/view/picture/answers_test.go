package picture

import (
	"bytes"
	"testing"
)

// env returns an environment.
type env map[string]string

func (e env) get(name string) string { return e[name] }

// Answers of terminals to the three questions, according to their sources and to users.
var terminals = []struct {
	name   string
	answer string
	env    env
	want   Protocol
}{
	{"kitty", "\x1b_Gi=31;OK\x1b\\\x1bP>|kitty(0.39.1)\x1b\\\x1b[?62;c", env{"TERM": "xterm-kitty"}, Kitty},
	{"ghostty", "\x1b_Gi=31;OK\x1b\\\x1bP>|ghostty 1.2.0\x1b\\\x1b[?62;22c", env{"TERM": "xterm-ghostty"}, Kitty},
	{"konsole", "\x1b_Gi=31;OK\x1b\\\x1bP>|Konsole 24.12.3\x1b\\\x1b[?62;1;4c", env{"TERM": "xterm-256color"}, Kitty},
	{"kitty's protocol, but not this way", "\x1b_Gi=31;ENOTSUPPORTED:no\x1b\\\x1b[?62;c", env{"TERM": "xterm"}, None},
	{"an answer to another question", "\x1b_Gi=7;OK\x1b\\\x1b[?62;c", env{"TERM": "xterm"}, None},
	{"iTerm2", "\x1bP>|iTerm2 3.5.10\x1b\\\x1b[?64;1;2;4;6;17;18;21;22c", env{"TERM": "xterm-256color"}, ITerm2},
	{"iTerm2 before XTVERSION", "\x1b[?62;4c", env{"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, ITerm2},
	{"another that was started in iTerm2", "\x1bP>|XTerm(379)\x1b\\\x1b[?64;1;2c", env{"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, None},
	{"WezTerm", "\x1bP>|WezTerm 20240203-110809-5046fc22\x1b\\\x1b[?65;4;6;18;22c", env{"TERM": "xterm-256color", "TERM_PROGRAM": "WezTerm"}, ITerm2},
	{"mintty", "\x1bP>|mintty 3.7.6\x1b\\\x1b[?64;1;2;4;6;9;11;15;21;22;28;29c", env{"TERM": "xterm"}, ITerm2},
	{"xterm as a VT340", "\x1bP>|XTerm(379)\x1b\\\x1b[?63;1;2;4;6;9;15;22c", env{"TERM": "xterm-256color"}, Sixel},
	{"xterm", "\x1bP>|XTerm(379)\x1b\\\x1b[?64;1;2;6;9;15;16;17;18;21;22;28c", env{"TERM": "xterm-256color"}, None},
	{"foot", "\x1bP>|foot(1.16.2)\x1b\\\x1b[?62;4;22c", env{"TERM": "foot"}, Sixel},
	{"VS Code with images", "\x1bP>|xterm.js(5.6.0)\x1b\\\x1b[?62;4;9;22c", env{"TERM": "xterm-256color", "TERM_PROGRAM": "vscode"}, Sixel},
	{"VS Code", "\x1bP>|xterm.js(5.6.0)\x1b\\\x1b[?1;2c", env{"TERM": "xterm-256color", "TERM_PROGRAM": "vscode"}, None},
	{"VTE", "\x1bP>|VTE(7600)\x1b\\\x1b[?65;1;9c", env{"TERM": "xterm-256color"}, None},
	{"a class is no ability", "\x1b[?4c", env{"TERM": "xterm"}, None},
	{"tmux", "\x1b[?1;2c", env{"TERM": "tmux-256color", "TMUX": "/tmp/t,1,0"}, None},
	{"tmux with sixel", "\x1b[?1;2;4c", env{"TERM": "screen-256color", "TMUX": "/tmp/t,1,0"}, Sixel},
	{"tmux in iTerm2", "\x1b[?1;2c", env{"TERM": "screen", "TERM_PROGRAM": "iTerm.app"}, None},
	{"screen", "\x1b[?1;2c", env{"TERM": "screen", "STY": "1.pts"}, None},
	{"no fence", "\x1b_Gi=31;OK\x1b\\", env{"TERM": "xterm"}, None},
}

func TestProtocol(t *testing.T) {
	for _, tt := range terminals {
		a, typed := read([]byte(tt.answer))
		if got := a.protocol(tt.env.get); got != tt.want || len(typed) > 0 {
			t.Errorf("%s: %s, and %q was typed, want %s", tt.name, got, typed, tt.want)
		}
	}
}

// Keys that are typed between the answers are kept, complete and in order.
func TestTyped(t *testing.T) {
	for _, tt := range []struct{ came, typed string }{
		{"ls\n\x1b[?62;4c", "ls\n"},
		{"l\x1b_Gi=31;OK\x1b\\s\x1bP>|kitty\x1b\\ -l\x1b[?62c\n", "ls -l\n"},
		{"\x1b[A\x1bOP\x1b[?1;2", "\x1b[A\x1bOP\x1b[?1;2"},
		{"\x1b[?25l\x1b_Gi=31;OK", "\x1b[?25l\x1b_Gi=31;OK"},
		{"grüße\x1bP>|a\nb\x1b\\", "grüße\x1bP>|a\nb\x1b\\"},
	} {
		if _, typed := read([]byte(tt.came)); string(typed) != tt.typed {
			t.Errorf("%q: %q was typed, want %q", tt.came, typed, tt.typed)
		}
	}
}

// No byte is invented or moved, and the same bytes without the typed ones give the same answers.
func FuzzRead(f *testing.F) {
	for _, tt := range terminals {
		f.Add([]byte(tt.answer))
	}
	f.Add([]byte("ls\x1b[?\x1b[?62;4c\x1b_G;\a\x1bP>|"))
	f.Fuzz(func(t *testing.T, came []byte) {
		a, typed := read(came)
		a.protocol(env{"TERM": "xterm"}.get)
		if a.device == nil && !a.kitty && a.version == "" && bytes.Count(came, []byte{0x1b}) == 0 &&
			!bytes.Equal(typed, came) {
			t.Errorf("%q: %q was typed", came, typed)
		}
		rest := came
		for _, c := range typed { // typed bytes are part of the input, in order
			i := bytes.IndexByte(rest, c)
			if i < 0 {
				t.Fatalf("%q: %q was typed", came, typed)
			}
			rest = rest[i+1:]
		}
	})
}
