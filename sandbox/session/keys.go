package session

import (
	"strings"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// namedKeys has the bytes that a terminal sends for a key (xterm, ctlseqs).
var namedKeys = map[string]string{
	"enter": "\r", "return": "\r", "tab": "\t", "btab": "\x1b[Z", "escape": "\x1b", "esc": "\x1b",
	"space":     " ",
	"backspace": "\x7f", "bspace": "\x7f", "delete": "\x1b[3~", "insert": "\x1b[2~",
	"pageup": "\x1b[5~", "pagedown": "\x1b[6~",
	"f1": "\x1bOP", "f2": "\x1bOQ", "f3": "\x1bOR", "f4": "\x1bOS", "f5": "\x1b[15~",
	"f6": "\x1b[17~", "f7": "\x1b[18~",
	"f8": "\x1b[19~", "f9": "\x1b[20~", "f10": "\x1b[21~", "f11": "\x1b[23~", "f12": "\x1b[24~",
}

// cursorKeys depend on the application cursor mode: CSI and the letter, or SS3 and the letter.
var cursorKeys = map[string]byte{
	"up":    'A',
	"down":  'B',
	"right": 'C',
	"left":  'D',
	"home":  'H',
	"end":   'F',
}

// keyBytes returns the bytes of a key: a name (Enter, Up, F1…), ^X or C-x, M-x, or one character.
// app is the application cursor mode.
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
		if _, named := namedKeys[strings.ToLower(rest)]; !named &&
			utf8.RuneCountInString(rest) != 1 &&
			!strings.EqualFold(rest[:min(2, len(rest))], "C-") {
			return "", unknownKey(name)
		}
		k, err := keyBytes(rest, app)
		if err != nil {
			return "", err
		}
		return "\x1b" + k, nil
	case utf8.RuneCountInString(name) > 1:
		return "", unknownKey(name)
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

// keyNames are the suggested names, one for each key.
var keyNames = []string{
	"Enter",
	"Tab",
	"BTab",
	"Escape",
	"Space",
	"Backspace",
	"Delete",
	"Insert",
	"Up",
	"Down",
	"Left",
	"Right",
	"Home",
	"End",
	"PageUp",
	"PageDown",
	"F1",
	"F2",
	"F3",
	"F4",
	"F5",
	"F6",
	"F7",
	"F8",
	"F9",
	"F10",
	"F11",
	"F12",
}

// maxKeyShown limits the text of a key in an error.
const maxKeyShown = 40

func unknownKey(name string) error {
	e := wire.Errorf(wire.CodeUsage, "key %.*q is not known", maxKeyShown, name)
	e.Hint = "keys are " + strings.Join(
		keyNames[:16],
		", ",
	) + ", F1 to F12, ^C, C-x, M-x, or one character; text is typed with type"
	if near := nearestKeys(name); len(near) > 0 {
		e.Hint = "did you mean " + strings.Join(
			near[:min(len(near), 3)],
			" or ",
		) + "? " + strings.ToUpper(
			e.Hint[:1],
		) + e.Hint[1:]
	}
	return e
}

// nearestKeys returns the keys with the most similar names, with up to two wrong letters; none for
// a longer text.
func nearestKeys(name string) []string {
	lower := strings.ToLower(name)
	if rest, ok := strings.CutPrefix(lower, "ctrl"); ok && len(rest) == 2 &&
		(rest[0] == '-' || rest[0] == '+') {
		return []string{"^" + strings.ToUpper(rest[1:])}
	}
	if len(name) > len("Backspace")+2 {
		return nil
	}
	var near []string
	best := min(2, (len(name)+1)/3)
	for _, key := range keyNames {
		switch d := text.Distance(lower, strings.ToLower(key)); {
		case d < best:
			near, best = []string{key}, d
		case d == best:
			near = append(near, key)
		}
	}
	return near
}
