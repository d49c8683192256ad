package view

import "bytes"

// KeyKind says what a KeyEvent is.
type KeyKind uint8

// The kinds of key events.
const (
	Input   KeyKind = iota // bytes for the program
	Take                   // chord t: take the keyboard
	Give                   // chord g: give it back
	Keep                   // chord n: keep it, although somebody asks for it
	Private                // chord p: a private stretch, on and off
	Detach                 // chord d: leave
	Help                   // chord ?
	Unknown                // the chord and a key that means nothing: show a hint
)

// KeyEvent is one thing that a person's input asks for. Bytes is set for Input only, never empty, and the receiver's to keep.
//
// Paste is the number of the paste that the bytes are a piece of, 0 for what was typed. All pieces of a paste have the same number, and no
// piece has anything else in it: who cannot take one of them drops the ones that follow, so that no paste is typed from its middle on.
type KeyEvent struct {
	Kind  KeyKind
	Bytes []byte
	Paste uint64
}

// maxHeld bounds an incomplete sequence that is kept until its end comes.
const maxHeld = 256

// Keys takes a person's input apart. The zero value is ready. Answers that a terminal gives to queries are swallowed: a
// program gets its answers from the screen model, and a person's terminal is asked nothing. Text inside a bracketed paste never is a
// command. It is not safe for concurrent use.
type Keys struct {
	// Chord is the control character that begins a command; 0 means DefaultChord, NoChord that there is none. Typed twice it is sent on. It
	// is also known as the keyboard protocols of xterm and kitty write it.
	Chord byte
	// Focus lets the reports of focus in and out through, for a program that asked for them.
	Focus bool
	// Brackets lets the brackets around a paste through, for a program that asked for them. The terminal sends them in any case. What is true
	// when a paste begins holds for all of it.
	Brackets bool

	chord   bool   // the chord character was the last key
	escaped bool   // the last byte that went on was an ESC
	paste   bool   // between the brackets of a paste
	pastes  uint64 // how many began
	bracket bool   // the brackets of this one go on
	skip    bool   // in a string (OSC, DCS, APC) that is swallowed
	skipEsc bool   // and its last byte was ESC
	held    []byte // a control sequence whose end has not come yet, without its ESC when escaped is set
	input   []byte
	events  []KeyEvent
}

// Pasting reports whether a paste has begun and not ended.
func (k *Keys) Pasting() bool { return k.paste }

// Pending reports whether the chord character was typed and its command is awaited.
func (k *Keys) Pending() bool { return k.chord }

// Unfinished reports whether Flush may have something to do.
func (k *Keys) Unfinished() bool { return len(k.held) > 0 || k.escaped }

// Flush returns what Feed keeps back because it may be the beginning of a terminal's answer. A caller that has a timer calls it some 50 ms
// after the last input; without it such input comes with the next key. In a paste there is nothing to wait for but its end, which a slow
// connection may bring in two parts.
func (k *Keys) Flush() []KeyEvent {
	if k.paste {
		return nil
	}
	if k.chord && len(k.held) > 0 {
		k.command(0x1b) // the key after the chord
	} else {
		k.input = append(k.input, k.held...)
	}
	k.held, k.escaped = nil, false
	return k.take()
}

// Feed takes what the person's terminal sent and returns what it asks for, in order.
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

// next handles the beginning of p and returns how many bytes that was, at least one.
func (k *Keys) next(p []byte) int {
	b := p[0]
	switch {
	case k.skip:
		k.skipString(b)
		return 1
	case k.chord && len(p) > 1 && b == 0x1b && p[1] == '[':
		return k.sequence(p, 2)
	case k.chord && len(p) == 1 && b == 0x1b:
		k.held = append([]byte(nil), b)
		return 1
	case k.chord:
		k.command(b)
		return keyLen(p)
	}
	escaped := k.escaped
	k.escaped = false
	switch {
	case escaped && b == '[':
		return k.sequence(p, 1)
	case b == 0x1b && len(p) == 1 && k.paste:
		k.held = []byte{b} // it may begin the end
		return 1
	case b == 0x1b && len(p) == 1:
		// The Escape key. It goes on at once; what follows is judged as if it were here.
		k.escaped = true
	case b == 0x1b && p[1] == '[':
		return k.sequence(p, 2)
	case b == 0x1b && stringAnswer(p[1:]) && !k.paste:
		k.skip, k.skipEsc = true, false
		return 2
	case b == k.chordByte() && k.Chord != NoChord && !k.paste:
		k.chord = true
		return 1
	}
	k.input = append(k.input, b)
	return 1
}

// command is the key after the chord character.
func (k *Keys) command(b byte) {
	k.chord = false
	kind := Unknown
	switch b {
	case k.chordByte():
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
	case 'd':
		kind = Detach
	case '?':
		kind = Help
	}
	k.flushInput()
	k.events = append(k.events, KeyEvent{Kind: kind})
}

// keyLen is how many bytes the key takes that p begins with.
func keyLen(p []byte) int {
	switch {
	case p[0] != 0x1b || len(p) == 1:
		return 1
	case p[1] == 'O':
		return min(3, len(p))
	}
	return 2
}

// sequence handles a control sequence whose parameters begin at p[start], and returns its length. One without an end is
// held, unless it is too long to be one.
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
		k.chord = false
		k.input = append(k.input, p[:end]...) // no sequence: what stopped it is looked at afresh
		return end
	}
	params, final := p[start:end], p[end]
	switch encoded := k.encodedChord(params, final); {
	case k.chord && encoded:
		k.command(k.chordByte())
	case k.chord:
		k.command(0x1b)
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
		k.chord = true
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

// answer reports whether a control sequence is a terminal's report and not a key.
func (k *Keys) answer(params []byte, final byte) bool {
	private := len(params) > 0 && params[0] >= '<' && params[0] <= '?'
	switch final {
	case 'c', 'y', 'n', 't': // DA, DECRPM, DSR, window reports
		return true
	case 'R':
		// A cursor position, but 1;2 to 1;16 is F3 with modifiers, which a person presses and a terminal that is asked nothing never reports.
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

// stringAnswer reports whether p, what follows an ESC, begins an OSC, DCS or APC answer. The same two characters are Alt with a
// key, which never has the rest of an answer right behind it.
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

// skipString swallows one byte of a string up to its end. Ctrl-C and the like end it too: no answer has them.
func (k *Keys) skipString(b byte) {
	switch {
	case b == '\a', k.skipEsc && b == '\\', b < 0x20 && b != 0x1b:
		k.skip = false
	}
	k.skipEsc = b == 0x1b
}
