package session

import (
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestKeyBytes(t *testing.T) {
	for _, tt := range []struct {
		key  string
		app  bool
		want string
	}{
		{"Enter", false, "\r"}, {"enter", false, "\r"}, {"Tab", false, "\t"}, {"BTab", false, "\x1b[Z"}, {"Escape", false, "\x1b"},
		{"Backspace", false, "\x7f"}, {"Delete", false, "\x1b[3~"}, {"Insert", false, "\x1b[2~"}, {"Space", false, " "},
		{"Up", false, "\x1b[A"}, {"Up", true, "\x1bOA"}, {"Left", false, "\x1b[D"}, {"Home", true, "\x1bOH"}, {"End", false, "\x1b[F"},
		{"PageUp", true, "\x1b[5~"}, {"PageDown", false, "\x1b[6~"}, {"F1", false, "\x1bOP"}, {"F5", false, "\x1b[15~"}, {"F12", false, "\x1b[24~"},
		{"^C", false, "\x03"}, {"^c", false, "\x03"}, {"^D", false, "\x04"}, {"^[", false, "\x1b"}, {"^?", false, "\x7f"}, {"^@", false, "\x00"},
		{"C-x", false, "\x18"}, {"c-X", false, "\x18"}, {"C-Space", false, "\x00"}, {"M-x", false, "\x1bx"}, {"M-X", false, "\x1bX"},
		{"M-Enter", false, "\x1b\r"}, {"M-C-x", false, "\x1b\x18"}, {"M-é", false, "\x1bé"},
		{"a", false, "a"}, {"hello world", false, "hello world"}, {"^", false, "^"}, {"M-", false, "M-"}, {"C-", false, "C-"}, {"é", false, "é"},
	} {
		if got, err := keyBytes(tt.key, tt.app); got != tt.want || err != nil {
			t.Errorf("keyBytes(%q, %v) = %q, %v, want %q", tt.key, tt.app, got, err, tt.want)
		}
	}
	for _, key := range []string{"", "\xff", "^é"[:2], "^1", "C-xy", "C-1", "M-xy"} {
		if got, err := keyBytes(key, false); codeOf(err) != wire.CodeUsage {
			t.Errorf("keyBytes(%q) = %q, %v", key, got, err)
		}
	}
}
