package screen

import "unicode/utf8"

// The parser is the state machine of the DEC terminals (vt100.net/emu/dec_ansi_parser), with UTF-8
// instead of 8-bit controls.

type parserState uint8

const (
	ground      parserState = iota
	escape                  // after ESC
	escapeInter             // after ESC and an intermediate byte
	csi                     // in parameters
	csiInter                // after an intermediate byte
	csiIgnore               // until the final byte of a malformed sequence
	str                     // in OSC, DCS, APC, PM or SOS
)

const (
	maxParams   = 32
	maxParam    = 65535
	maxString   = 4096 // limit of an OSC or DCS in bytes; longer ones are ignored
	maxUTF8Held = utf8.UTFMax - 1
)

// parser is the state of an incomplete sequence.
type parser struct {
	state parserState

	utf8    [maxUTF8Held]byte // start of a character that a Write ended in
	utf8Len int

	private byte // '<', '=', '>', '?' or 0
	inter   byte // the intermediate byte, 0 for none, 0xff for several
	params  [maxParams]int
	sub     [maxParams]bool // a colon precedes the parameter
	nparams int             // 0 if there was no parameter byte
	full    bool            // there were more parameters

	kind    byte // introducer of the string: ']', 'P', '_', '^' or 'X'
	str     []byte
	dropped bool // the string is longer than maxString
}

// Write processes output of the program. It always accepts all of p.
func (s *Screen) Write(p []byte) (int, error) {
	n, ps := len(p), &s.parser
	if ps.utf8Len > 0 {
		p = ps.completeRune(s, p)
	}
	for i := 0; i < len(p); {
		if s.intern.full() {
			s.collect()
		}
		switch b, st := p[i], ps.state; {
		case st == ground && b >= 0x20 && b < 0x7f:
			end := i + 1
			for end < len(p) && p[end]-0x20 < 0x5f {
				end++
			}
			s.printASCII(p[i:end])
			i = end
		case b < 0x80 || st == str:
			ps.step(s, b)
			i++
		case !utf8.FullRune(p[i:]):
			ps.utf8Len = copy(ps.utf8[:], p[i:])
			return n, nil
		default:
			r, size := utf8.DecodeRune(p[i:])
			ps.character(s, r)
			i += size
		}
	}
	return n, nil
}

// character processes a rune beyond ASCII. No sequence contains one: it ends the sequence, and both
// are dropped.
func (ps *parser) character(s *Screen, r rune) {
	switch ps.state {
	case ground:
		s.print(r)
	case csiIgnore:
	default:
		ps.state = ground
	}
}

// completeRune prints the character that an earlier Write ended in, and returns the rest of p.
func (ps *parser) completeRune(s *Screen, p []byte) []byte {
	for ps.utf8Len > 0 {
		held := ps.utf8Len
		var buf [2 * utf8.UTFMax]byte
		n := copy(buf[:], ps.utf8[:held])
		n += copy(buf[n:n+min(len(p), utf8.UTFMax-held)], p)
		if !utf8.FullRune(buf[:n]) {
			ps.utf8Len = copy(ps.utf8[:], buf[:n])
			return nil
		}
		r, size := utf8.DecodeRune(buf[:n])
		ps.character(s, r)
		if size >= held {
			ps.utf8Len = 0
			return p[size-held:]
		}
		// Each byte of a malformed character is one replacement character, however the output is
		// split.
		ps.utf8Len = copy(ps.utf8[:], ps.utf8[size:held])
	}
	return p
}

// step processes one byte of a sequence, or a control character.
func (ps *parser) step(s *Screen, b byte) {
	switch ps.state {
	case str:
		ps.stepString(s, b)
		return
	}
	switch {
	case b == 0x1b:
		ps.enterEscape()
	case b == 0x18 || b == 0x1a: // CAN, SUB
		ps.state = ground
	case b < 0x20:
		s.control(b)
	case b == 0x7f:
	case ps.state == escape || ps.state == escapeInter:
		ps.stepEscape(s, b)
	default:
		ps.stepCSI(s, b)
	}
}

func (ps *parser) enterEscape() {
	ps.state = escape
	ps.inter, ps.private = 0, 0
}

func (ps *parser) stepEscape(s *Screen, b byte) {
	if b < 0x30 {
		if ps.state == escapeInter {
			b = 0xff
		}
		ps.inter, ps.state = b, escapeInter
		return
	}
	if ps.state == escape {
		switch b {
		case '[':
			ps.state = csi
			ps.params[0], ps.sub[0], ps.nparams, ps.full = 0, false, 0, false
			return
		case ']', 'P', '_', '^', 'X':
			ps.state, ps.kind, ps.dropped = str, b, false
			ps.str = ps.str[:0]
			return
		}
	}
	ps.state = ground
	s.escapeDispatch(ps.inter, b)
}

func (ps *parser) stepCSI(s *Screen, b byte) {
	switch {
	case b >= 0x40:
		if ps.state != csiIgnore {
			ps.state = ground
			s.csiDispatch(b)
		}
		ps.state = ground
	case ps.state == csiIgnore:
	case b < 0x30:
		if ps.state == csiInter {
			b = 0xff
		}
		ps.inter, ps.state = b, csiInter
	case ps.state == csiInter:
		ps.state = csiIgnore
	case b >= 0x3c:
		if ps.nparams > 0 || ps.private != 0 {
			ps.state = csiIgnore
			return
		}
		ps.private = b
	case b == ';' || b == ':':
		ps.nparams = max(ps.nparams, 1)
		if ps.full = ps.nparams == maxParams; ps.full {
			return // ignore further parameters
		}
		ps.params[ps.nparams], ps.sub[ps.nparams] = 0, b == ':'
		ps.nparams++
	case ps.full:
	default:
		ps.nparams = max(ps.nparams, 1)
		v := &ps.params[ps.nparams-1]
		*v = min(*v*10+int(b-'0'), maxParam)
	}
}

func (ps *parser) stepString(s *Screen, b byte) {
	switch {
	case b == 0x1b: // with a backslash it is ST, which has no further effect
		ps.endString(s)
		ps.enterEscape()
	case b == 0x18 || b == 0x1a:
		ps.state = ground
	case b == 0x07 && ps.kind == ']':
		ps.state = ground
		ps.endString(s)
	case b < 0x20:
	case ps.kind == '_' || ps.kind == '^' || ps.kind == 'X': // ignore APC, PM and SOS
	case len(ps.str) == maxString:
		ps.dropped = true
	default:
		ps.str = append(ps.str, b)
	}
}

// endString executes a complete OSC or DCS.
func (ps *parser) endString(s *Screen) {
	s.interrupted()
	if !ps.dropped {
		switch ps.kind {
		case ']':
			s.osc(ps.str)
		case 'P':
			s.dcs(ps.str)
		}
	}
	if cap(ps.str) > 256 {
		ps.str = nil // release the memory of a long string
	}
}

// dropSubs removes the parameters after a colon, which only SGR has.
func (ps *parser) dropSubs() {
	n := 0
	for i := range ps.nparams {
		if !ps.sub[i] {
			ps.params[n], ps.sub[n] = ps.params[i], false
			n++
		}
	}
	ps.nparams = n
}

// param returns parameter i, or def if it is missing or zero.
func (ps *parser) param(i, def int) int {
	if i < ps.nparams && ps.params[i] != 0 {
		return ps.params[i]
	}
	return def
}
