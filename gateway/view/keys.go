package view

import "bytes"

// KeyKind says what a KeyEvent is.
type KeyKind uint8

// The kinds of key events.
const (
	Input   KeyKind = iota // bytes for the program
	Take                   // prefix t: take the keyboard
	Give                   // prefix g: give it back
	Keep                   // prefix n: keep it, and answer a request for it with no
	Private                // prefix p: private mode, on and off
	Detach                 // prefix d: leave
	Help                   // prefix ?
	Pan                    // prefix and an arrow key: move a window that is smaller than the screen
	Follow                 // prefix c: show the part around the cursor again
	Other                  // prefix o: go to another session that asks
	Scroll                 // prefix [: look at earlier output
	Unknown                // prefix and a key without a meaning: show a hint
)

// KeyEvent is one command or piece of input. Bytes is set for Input only and is never empty. The
// receiver may keep it. X and Y are set for Pan only: -1 is left and up, 1 is right and down.
//
// Paste is the number of the paste that the bytes belong to; 0 means typed. All pieces of a paste
// have the same number, and contain nothing else. A receiver that drops one piece drops those that
// follow, so that no paste is typed from its middle.
type KeyEvent struct {
	Kind  KeyKind
	Bytes []byte
	Paste uint64
	X, Y  int
}

// maxHeld is the longest incomplete sequence in bytes that Keys holds until its end arrives.
const maxHeld = 256

// Keys splits a person's input into events. The zero value is ready to use. It discards a
// terminal's answers to queries, because the screen model answers programs. Text inside a bracketed
// paste is never a command. Keys is not safe for concurrent use.
type Keys struct {
	// Prefix is the control character that begins a command. 0 means DefaultPrefix; NoPrefix
	// disables commands. Typed twice, it is sent to the program once. Keys recognises it in the
	// encodings of xterm's and kitty's keyboard protocols, too.
	Prefix byte
	// Focus passes reports of focus in and out on to a program that asked for them.
	Focus bool
	// Brackets passes the brackets around a paste on to a program that asked for them. The terminal
	// always sends them. The value at the start of a paste applies to all of it.
	Brackets bool

	prefix  bool   // the last key was the prefix key
	escaped bool   // the last byte passed on was an ESC
	paste   bool   // between the brackets of a paste
	pastes  uint64 // how many began
	bracket bool   // the brackets of this paste are passed on
	skip    bool   // inside a string (OSC, DCS, APC) that is discarded
	skipEsc bool   // and its last byte was ESC
	held    []byte // an incomplete control sequence, without its ESC when escaped is set
	input   []byte
	events  []KeyEvent
}

// Pasting reports whether a paste has begun and not ended.
func (k *Keys) Pasting() bool { return k.paste }

// Pending reports whether the prefix key was typed and its command has not been typed yet.
func (k *Keys) Pending() bool { return k.prefix }

// Unfinished reports whether Flush may have something to do.
func (k *Keys) Unfinished() bool { return len(k.held) > 0 || k.escaped }

// Flush returns input that Feed holds because it may begin a terminal's answer. Call it about 50 ms
// after the last input; otherwise that input comes with the next key. Inside a paste it returns
// nothing, because the end of the paste may arrive in two parts.
func (k *Keys) Flush() []KeyEvent {
	if k.paste {
		return nil
	}
	if k.prefix && len(k.held) > 0 {
		k.command(0x1b) // the key after the prefix key
	} else {
		k.input = append(k.input, k.held...)
	}
	k.held, k.escaped = nil, false
	return k.take()
}

// Feed parses input of the person's terminal and returns its events in order.
func (k *Keys) Feed(p []byte) []KeyEvent {
	if len(k.held) > 0 {
		p = append(k.held, p...)
		k.held = nil
	}
	for len(p) > 0 {
		p = p[k.next(p):]
	}
	return k.take()
}

// take returns the collected events.
func (k *Keys) take() []KeyEvent {
	k.flushInput()
	events := k.events
	k.events = nil
	return events
}

func (k *Keys) flushInput() {
	if len(k.input) == 0 {
		return
	}
	e := KeyEvent{Kind: Input, Bytes: k.input}
	if k.paste {
		e.Paste = k.pastes
	}
	k.events = append(k.events, e)
	k.input = nil
}

// next handles the beginning of p and returns its length in bytes, at least 1.
func (k *Keys) next(p []byte) int {
	b := p[0]
	switch {
	case k.skip:
		k.skipString(b)
		return 1
	case k.prefix && len(p) > 1 && b == 0x1b && p[1] == '[':
		return k.sequence(p, 2)
	case k.prefix && b == 0x1b && (len(p) == 1 || len(p) == 2 && p[1] == 'O'):
		k.held = append([]byte(nil), p...)
		return len(p)
	case k.prefix && b == 0x1b && p[1] == 'O':
		k.arrow(p[2])
		return 3
	case k.prefix:
		k.command(b)
		return keyLen(p)
	}
	escaped := k.escaped
	k.escaped = false
	switch {
	case escaped && b == '[':
		return k.sequence(p, 1)
	case b == 0x1b && len(p) == 1 && k.paste:
		k.held = []byte{b} // it may begin the closing bracket
		return 1
	case b == 0x1b && len(p) == 1:
		// The Escape key. Pass it on immediately; parse what follows as if it were still here.
		k.escaped = true
	case b == 0x1b && p[1] == '[':
		return k.sequence(p, 2)
	case b == 0x1b && stringAnswer(p[1:]) && !k.paste:
		k.skip, k.skipEsc = true, false
		return 2
	case b == k.prefixByte() && k.Prefix != NoPrefix && !k.paste:
		k.prefix = true
		return 1
	}
	k.input = append(k.input, b)
	return 1
}

// command handles the key after the prefix key.
func (k *Keys) command(b byte) {
	k.prefix = false
	kind := Unknown
	switch b {
	case k.prefixByte():
		k.input = append(k.input, b)
		return
	case 't':
		kind = Take
	case 'g':
		kind = Give
	case 'n':
		kind = Keep
	case 'p':
		kind = Private
	case 'o':
		kind = Other
	case '[':
		kind = Scroll
	case 'c':
		kind = Follow
	case 'd':
		kind = Detach
	case '?':
		kind = Help
	}
	k.flushInput()
	k.events = append(k.events, KeyEvent{Kind: kind})
}

// arrow handles a key after the prefix key that is sent as a sequence with this final byte.
func (k *Keys) arrow(final byte) {
	e := KeyEvent{Kind: Pan}
	switch final {
	case 'A':
		e.Y = -1
	case 'B':
		e.Y = 1
	case 'C':
		e.X = 1
	case 'D':
		e.X = -1
	default:
		k.command(0x1b)
		return
	}
	k.prefix = false
	k.flushInput()
	k.events = append(k.events, e)
}

// keyLen returns the length in bytes of the key that p begins with, which is no sequence.
func keyLen(p []byte) int {
	if p[0] != 0x1b || len(p) == 1 {
		return 1
	}
	return 2
}

// sequence handles a control sequence whose parameters begin at p[start], and returns its length.
// It holds an incomplete sequence unless that is longer than maxHeld.
func (k *Keys) sequence(p []byte, start int) int {
	end := start
	for end < len(p) && p[end] >= 0x20 && p[end] < 0x40 {
		end++
	}
	switch {
	case end == len(p) && end < maxHeld:
		k.held = append([]byte(nil), p...)
		k.escaped = start == 1
		return end
	case end == len(p) || p[end] < 0x40 || p[end] > 0x7e:
		k.prefix = false
		k.input = append(k.input, p[:end]...) // not a sequence: parse the byte that ended it again
		return end
	}
	params, final := p[start:end], p[end]
	switch encoded := k.encodedPrefix(params, final); {
	case k.prefix && encoded:
		k.command(k.prefixByte())
	case k.prefix:
		k.arrow(final)
	case final == '~' && string(params) == "200" && !k.paste:
		k.flushInput()
		k.paste, k.bracket = true, k.Brackets
		k.pastes++
		k.addBracket(p[:end+1])
	case final == '~' && string(params) == "201" && k.paste:
		k.addBracket(p[:end+1])
		k.flushInput()
		k.paste = false
	case !k.paste && encoded:
		k.prefix = true
	case !k.paste && k.answer(params, final):
	default:
		k.input = append(k.input, p[:end+1]...)
	}
	return end + 1
}

func (k *Keys) addBracket(p []byte) {
	if k.bracket {
		k.input = append(k.input, p...)
	}
}

// answer reports whether a control sequence is a terminal's report rather than a key.
func (k *Keys) answer(params []byte, final byte) bool {
	private := len(params) > 0 && params[0] >= '<' && params[0] <= '?'
	switch final {
	case 'c', 'y', 'n', 't': // DA, DECRPM, DSR, window reports
		return true
	case 'R':
		// A cursor position, except 1;2 to 1;16, which are F3 with modifiers. sandboxd asks for no
		// cursor position, so these are keys.
		return private || !modifiedF3(params)
	case 'I', 'O':
		return len(params) == 0 && !k.Focus
	case 'u':
		return private
	}
	return false
}

func modifiedF3(params []byte) bool {
	modifier, ok := bytes.CutPrefix(params, []byte("1;"))
	if !ok {
		return len(params) == 0
	}
	return len(modifier) == 1 && modifier[0] >= '2' && modifier[0] <= '9' ||
		len(modifier) == 2 && modifier[0] == '1' && modifier[1] >= '0' && modifier[1] <= '6'
}

// stringAnswer reports whether p, the bytes after an ESC, begins an OSC, DCS or APC answer. The
// same two characters are Alt with a key, which is never followed by the rest of an answer.
func stringAnswer(p []byte) bool {
	if len(p) < 2 {
		return false
	}
	switch p[0] {
	case ']':
		return p[1] >= '0' && p[1] <= '9'
	case 'P':
		return p[1] == '>' || p[1] == '!' || p[1] >= '0' && p[1] <= '9'
	case '_':
		return p[1] == 'G'
	}
	return false
}

// skipString discards one byte of a string up to its end. Other control characters, such as Ctrl-C,
// end it too, because no answer contains them.
func (k *Keys) skipString(b byte) {
	switch {
	case b == '\a', k.skipEsc && b == '\\', b < 0x20 && b != 0x1b:
		k.skip = false
	}
	k.skipEsc = b == 0x1b
}
