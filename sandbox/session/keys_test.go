package session

import (
	"errors"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestKeyBytes(t *testing.T) {
	for _, tt := range []struct {
		key  string
		app  bool
		want string
	}{
		{"Enter", false, "\r"}, {"enter", false, "\r"}, {"Tab", false, "\t"},
		{"BTab", false, "\x1b[Z"}, {"Escape", false, "\x1b"},
		{"Backspace", false, "\x7f"}, {"Delete", false, "\x1b[3~"}, {"Insert", false, "\x1b[2~"},
		{"Space", false, " "},
		{"Up", false, "\x1b[A"}, {"Up", true, "\x1bOA"}, {"Left", false, "\x1b[D"},
		{"Home", true, "\x1bOH"}, {"End", false, "\x1b[F"},
		{"PageUp", true, "\x1b[5~"}, {"PageDown", false, "\x1b[6~"}, {"F1", false, "\x1bOP"},
		{"F5", false, "\x1b[15~"}, {"F12", false, "\x1b[24~"},
		{"^C", false, "\x03"}, {"^c", false, "\x03"}, {"^D", false, "\x04"}, {"^[", false, "\x1b"},
		{"^?", false, "\x7f"}, {"^@", false, "\x00"},
		{"C-x", false, "\x18"}, {"c-X", false, "\x18"}, {"C-Space", false, "\x00"},
		{"M-x", false, "\x1bx"}, {"M-X", false, "\x1bX"},
		{"M-Enter", false, "\x1b\r"}, {"M-C-x", false, "\x1b\x18"}, {"M-é", false, "\x1bé"},
		{"a", false, "a"}, {"^", false, "^"}, {"é", false, "é"}, {"€", false, "€"},
	} {
		if got, err := keyBytes(tt.key, tt.app); got != tt.want || err != nil {
			t.Errorf("keyBytes(%q, %v) = %q, %v, want %q", tt.key, tt.app, got, err, tt.want)
		}
	}
	for _, key := range []string{"", "\xff", "^é"[:2], "^1", "C-xy", "C-1", "M-xy", "M-", "C-",
		"hello world", ":wq", "ab", "Entr"} {
		if got, err := keyBytes(key, false); codeOf(err) != wire.CodeUsage {
			t.Errorf("keyBytes(%q) = %q, %v", key, got, err)
		}
	}
}

// TestUnknownKeys checks that an almost correct key name suggests the correct one.
func TestUnknownKeys(t *testing.T) {
	for name, want := range map[string]string{
		"Entr": "did you mean Enter?", "Retunr": "is not known", "Eneter": "did you mean Enter?",
		"PgeUp": "did you mean PageUp?", "Dwon": "did you mean Down?",
		"Ctrl-C": "did you mean ^C?", "ctrl+x": "did you mean ^X?", "F13": "did you mean F1 or F3",
		"Esacpe":      "did you mean Escape?",
		"hello world": `key "hello world" is not known`, ":wq": `key ":wq" is not known`, "ls": `key "ls" is not known`,
	} {
		_, err := keyBytes(name, false)
		e := new(wire.Error)
		if !errors.As(err, &e) || !strings.Contains(e.Message+"; "+e.Hint, want) ||
			!strings.Contains(e.Hint, "typed with type") {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
	if _, err := keyBytes(strings.Repeat("x", 10_000), false); err == nil ||
		len(err.Error()) > 200 {
		t.Errorf("a long one: %v", err)
	}
}
