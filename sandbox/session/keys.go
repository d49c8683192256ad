package session

import (
	"strings"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// namedKeys is what a terminal sends for a key (xterm, ctlseqs).
var namedKeys = map[string]string{
	"enter": "\r", "return": "\r", "tab": "\t", "btab": "\x1b[Z", "escape": "\x1b", "esc": "\x1b", "space": " ",
	"backspace": "\x7f", "bspace": "\x7f", "delete": "\x1b[3~", "insert": "\x1b[2~", "pageup": "\x1b[5~", "pagedown": "\x1b[6~",
	"f1": "\x1bOP", "f2": "\x1bOQ", "f3": "\x1bOR", "f4": "\x1bOS", "f5": "\x1b[15~", "f6": "\x1b[17~", "f7": "\x1b[18~",
	"f8": "\x1b[19~", "f9": "\x1b[20~", "f10": "\x1b[21~", "f11": "\x1b[23~", "f12": "\x1b[24~",
}

// cursorKeys differ by the application cursor mode: CSI and the letter, or SS3 and the letter.
var cursorKeys = map[string]byte{"up": 'A', "down": 'B', "right": 'C', "left": 'D', "home": 'H', "end": 'F'}

// keyBytes is what a key sends: a name (Enter, Up, F1…), ^X or C-x, M-x, or plain text. app is whether the program has
// switched on the application cursor mode.
func keyBytes(name string, app bool) (string, error) {
	lower := strings.ToLower(name)
	if k, ok := namedKeys[lower]; ok {
		return k, nil
	}
	if c, ok := cursorKeys[lower]; ok {
		if app {
			return "\x1bO" + string(c), nil
		}
		return "\x1b[" + string(c), nil
	}
	switch {
	case name == "":
		return "", wire.Errorf(wire.CodeUsage, "a key without a name")
	case !utf8.ValidString(name):
		return "", wire.Errorf(wire.CodeUsage, "key %q is not valid UTF-8", name)
	case len(name) == 2 && name[0] == '^':
		return control(name, name[1])
	case len(name) > 2 && strings.EqualFold(name[:2], "C-"):
		if lower == "c-space" {
			return "\x00", nil
		}
		if len(name) != 3 {
			return "", unknownKey(name)
		}
		return control(name, name[2])
	case len(name) > 2 && strings.EqualFold(name[:2], "M-"):
		rest := name[2:]
		if _, named := namedKeys[strings.ToLower(rest)]; !named && utf8.RuneCountInString(rest) != 1 && !strings.EqualFold(rest[:min(2, len(rest))], "C-") {
			return "", unknownKey(name)
		}
		k, err := keyBytes(rest, app)
		if err != nil {
			return "", err
		}
		return "\x1b" + k, nil
	}
	return name, nil
}

func control(name string, c byte) (string, error) {
	switch {
	case c >= 'a' && c <= 'z':
		return string(rune(c - 'a' + 1)), nil
	case c >= '@' && c <= '_':
		return string(rune(c - '@')), nil
	case c == '?':
		return "\x7f", nil
	}
	return "", unknownKey(name)
}

func unknownKey(name string) error {
	return &wire.Error{Code: wire.CodeUsage, Message: "key " + name + " is not known",
		Hint: "use Enter, Tab, BTab, Escape, Space, Backspace, Delete, Insert, Up, Down, Left, Right, Home, End, PageUp, PageDown, F1 to F12, ^C, C-x, M-x, or text"}
}
