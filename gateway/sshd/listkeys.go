package sshd

import "unicode/utf8"

// listKey is a key of the control host's list: a character, or one of the named ones.
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

// listKeys takes what a terminal sends apart into keys. Sequences that mean nothing here are swallowed whole. The zero value is
// ready.
type listKeys struct {
	held []byte // a sequence that has not ended
}

// maxSequence bounds a sequence that is waited for.
const maxSequence = 64

// pending reports whether a lone ESC, or the beginning of a sequence, waits for more.
func (k *listKeys) pending() bool { return len(k.held) > 0 }

// flush returns what waits as the Escape key.
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

// sequence takes one more byte of a sequence that began with ESC, and returns its key, 0 for none, when it is over.
func (k *listKeys) sequence(b byte) (key listKey, over bool) {
	k.held = append(k.held, b)
	switch {
	case len(k.held) == 2 && (b == '[' || b == 'O'):
		return 0, false
	case len(k.held) == 2 && b == 0x1b:
		k.held = k.held[:1]
		return 0, false
	case len(k.held) == 2:
		return 0, true // Alt with a key
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
