package view

import (
	"fmt"
	"strconv"
	"strings"
)

// Values of the prefix key, a control character.
const (
	DefaultPrefix = 0x1d // Ctrl-]
	NoPrefix      = 0xff // no prefix key: all input goes to the program
)

// ParsePrefix parses the name of a prefix key: ctrl-K, ^K or C-K, where K is a letter or one of
// \ ] ^ _, or none, which returns NoPrefix. It rejects keys that keyboards send under another name:
// Tab (i), Enter (j, m), Escape ([) and Backspace (h).
func ParsePrefix(name string) (byte, error) {
	lower := strings.ToLower(strings.TrimSpace(name))
	if lower == "none" {
		return NoPrefix, nil
	}
	for _, prefix := range []string{"ctrl-", "ctrl+", "c-", "^"} {
		key, ok := strings.CutPrefix(lower, prefix)
		if !ok || len(key) != 1 {
			continue
		}
		switch c := key[0]; {
		case strings.IndexByte("hijm[", c) >= 0:
			return 0,
				fmt.Errorf(
					"prefix key %q is what Tab, Enter, Escape or Backspace sends; use another "+
						"letter, "+
						"or one of \\ ] ^ _", name)
		case c >= 'a' && c <= 'z', c >= '\\' && c <= '_':
			return c & 0x1f, nil
		}
	}
	return 0,
		fmt.Errorf(
			"prefix key %q is not a control key; use ctrl- and a letter or one of \\ ] ^ _, "+
				"as in ctrl-], or none", name)
}

// PrefixName returns a prefix key as people write it, such as ^]. It is empty for NoPrefix.
func PrefixName(prefix byte) string {
	switch prefix {
	case NoPrefix:
		return ""
	case 0:
		prefix = DefaultPrefix
	}
	return "^" + string(rune(prefix&0x1f|0x40))
}

func (k *Keys) prefixByte() byte {
	if k.Prefix == 0 {
		return DefaultPrefix
	}
	return k.Prefix
}

// encodedPrefix reports whether a control sequence is the prefix key in the encoding of xterm's
// modifyOtherKeys or of kitty's keyboard protocol. sandboxd enables neither, but another program
// may have left the terminal in one of them.
func (k *Keys) encodedPrefix(params []byte, final byte) bool {
	prefix := k.prefixByte()
	if prefix == NoPrefix {
		return false
	}
	code := int(prefix) | 0x40
	if prefix <= 26 {
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
