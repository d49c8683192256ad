package sshd

import "unicode/utf8"

// listKey is a key of the control host's list: a character, or a named key.
type listKey rune

// Named keys are beyond all characters.
const (
	keyUp listKey = utf8.MaxRune + 1 + iota
	keyDown
	keyPageUp
	keyPageDown
	keyHome
	keyEnd
	keyEnter
	keyEscape
	keyBackspace
	keyInterrupt // ^C, ^D
)

// listKeys parses terminal input into keys. It discards unknown escape sequences. The zero value is
// ready to use.
type listKeys struct {
	held []byte // an incomplete sequence
}

// maxSequence limits the length of a sequence.
const maxSequence = 64

// pending reports whether a lone ESC, or an incomplete sequence, waits for more input.
func (k *listKeys) pending() bool { return len(k.held) > 0 }

// flush returns pending input as the Escape key.
func (k *listKeys) flush() []listKey {
	if !k.pending() {
		return nil
	}
	k.held = nil
	return []listKey{keyEscape}
}

func (k *listKeys) feed(p []byte) (keys []listKey) {
	for _, b := range p {
		if len(k.held) > 0 {
			if key, over := k.sequence(b); over {
				k.held = nil
				if key != 0 {
					keys = append(keys, key)
				}
			}
			continue
		}
		switch {
		case b == 0x1b:
			k.held = append(k.held, b)
		case b == '\r' || b == '\n':
			keys = append(keys, keyEnter)
		case b == 3 || b == 4:
			keys = append(keys, keyInterrupt)
		case b == 8 || b == 0x7f:
			keys = append(keys, keyBackspace)
		case b >= ' ' && b < 0x7f: // names and commands are ASCII
			keys = append(keys, listKey(b))
		}
	}
	return keys
}

// sequence adds a byte to a sequence that began with ESC. At its end it returns its key, or 0 for
// none.
func (k *listKeys) sequence(b byte) (key listKey, over bool) {
	k.held = append(k.held, b)
	switch {
	case len(k.held) == 2 && (b == '[' || b == 'O'):
		return 0, false
	case len(k.held) == 2 && b == 0x1b:
		k.held = k.held[:1]
		return 0, false
	case len(k.held) == 2:
		return 0, true // Alt and a key
	case b >= 0x20 && b < 0x40 && len(k.held) < maxSequence:
		return 0, false
	}
	switch string(k.held[2:]) {
	case "A":
		key = keyUp
	case "B":
		key = keyDown
	case "H", "1~", "7~":
		key = keyHome
	case "F", "4~", "8~":
		key = keyEnd
	case "5~":
		key = keyPageUp
	case "6~":
		key = keyPageDown
	}
	return key, true
}
