package view

import (
	"fmt"
	"strconv"
	"strings"
)

// The chord, a control character.
const (
	DefaultChord = 0x1d // Ctrl-]
	NoChord      = 0xff // none: every key goes on
)

// ParseChord reads the name of a chord: ctrl-] or ^] or C-], with a letter or one of \ ] ^ _ in the place of ], or none, which is NoChord. Keys
// that keyboards have under another name are refused: Tab (i), Enter (j, m), Escape ([) and Backspace (h).
func ParseChord(name string) (byte, error) {
	lower := strings.ToLower(strings.TrimSpace(name))
	if lower == "none" {
		return NoChord, nil
	}
	for _, prefix := range []string{"ctrl-", "ctrl+", "c-", "^"} {
		key, ok := strings.CutPrefix(lower, prefix)
		if !ok || len(key) != 1 {
			continue
		}
		switch c := key[0]; {
		case strings.IndexByte("hijm[", c) >= 0:
			return 0, fmt.Errorf("chord %q is what Tab, Enter, Escape or Backspace sends; want another letter, or one of \\ ] ^ _", name)
		case c >= 'a' && c <= 'z', c >= '\\' && c <= '_':
			return c & 0x1f, nil
		}
	}
	return 0, fmt.Errorf("chord %q is no control key; want ctrl- and a letter or one of \\ ] ^ _, as in ctrl-], or none", name)
}

// ChordName is how a chord is written for people, such as ^]; empty for NoChord.
func ChordName(chord byte) string {
	switch chord {
	case NoChord:
		return ""
	case 0:
		chord = DefaultChord
	}
	return "^" + string(rune(chord&0x1f|0x40))
}

func (k *Keys) chordByte() byte {
	if k.Chord == 0 {
		return DefaultChord
	}
	return k.Chord
}

// encodedChord reports whether a control sequence is the chord as xterm writes it with modifyOtherKeys, or kitty with its protocol. Programs are
// given neither, but a terminal may have been left in it.
func (k *Keys) encodedChord(params []byte, final byte) bool {
	chord := k.chordByte()
	if chord == NoChord {
		return false
	}
	code := int(chord) | 0x40
	if chord <= 26 {
		code |= 0x20 // the key without Shift
	}
	n := strconv.Itoa(code)
	switch final {
	case '~':
		return string(params) == "27;5;"+n
	case 'u':
		p, _ := strings.CutSuffix(string(params), ":1") // pressed
		return p == n+";5"
	}
	return false
}
