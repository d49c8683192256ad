package marks

import (
	"bytes"
	"cmp"
	"strconv"
	"strings"
)

const (
	introducer = "\x1b]7337;"

	// maxCwd limits the cwd in a mark: PATH_MAX, doubled because a terminal prints a newline as two
	// bytes, with some reserve.
	maxCwd = 2*4096 + 64
	// maxFields limits the fields of every other kind.
	maxFields = 64
	// patience is how many calls of Flush keep an unfinished sequence with the right nonce. Only
	// the shell can have begun it, so the rest will follow. A slow machine should not make the
	// nonce appear in a log.
	patience = 20
)

// phase is the position of the shell in its cycle of prompt and command, by its marks.
type phase int

const (
	fresh   phase = iota // no mark yet
	prompt               // PromptStart seen
	ready                // PromptEnd seen
	command              // CommandStart seen
	running              // CommandStart with Run seen
	ended                // CommandEnd seen
)

// Parser removes the marks of one shell from its output. Only one goroutine at a time may use it.
// Output that looks like a mark is delayed only while it is the exact beginning of a mark with the
// right nonce.
type Parser struct {
	nonce   string // with a semicolon on both sides
	held    []byte // an unfinished sequence, from its ESC on
	flushed int    // bytes of held that Flush has returned
	flushes int    // calls of Flush since held was last extended
	phase   phase
	counter uint64 // of the last PromptStart
	exit    int    // of the last CommandEnd
	status  int    // of the last PromptStart
	forged  bool
}

// NewParser returns a parser for marks with the nonce n.
func NewParser(n Nonce) *Parser { return &Parser{nonce: ";" + n.String() + ";"} }

// Parse returns the bytes held back by earlier calls followed by in, without marks, and the marks
// in order. It holds back a possible beginning of a mark. All other bytes are returned exactly and
// in order. The result does not depend on how the output is split into calls. It does not alias in.
//
// A mark whose beginning Flush has returned is a mark nevertheless. Its other bytes are returned
// before it, so that terminals find the end of the sequence.
//
// Each CommandStart without Run is followed by exactly one CommandEnd before the next PromptStart,
// also for shells that do not print one. An empty line or ^C at the prompt returns neither. Several
// lines pasted into bash at once count as one command. A prompt that is redrawn (^L, a resize)
// returns only PromptAgain.
func (p *Parser) Parse(in []byte) (out []byte, marks []Mark) {
	if len(p.held) == 0 && bytes.IndexByte(in, 0x1b) < 0 {
		return bytes.Clone(in), nil
	}
	buf, before := in, p.flushed
	if len(p.held) > 0 {
		buf = append(p.held, in...)
		p.held, p.flushed, p.flushes = nil, 0, 0
	}
	// out begins with the bytes that Flush has returned; rest leaves them out.
	out = make([]byte, 0, len(buf))
	rest := func() ([]byte, []Mark) {
		for i := range marks {
			marks[i].At -= before
		}
		return out[min(before, len(out)):], marks
	}
	for len(buf) > 0 {
		i := bytes.IndexByte(buf, 0x1b)
		if i < 0 {
			break
		}
		out, buf = append(out, buf[:i]...), buf[i:]
		seq, n, verdict := p.scan(buf)
		shown := 0 // bytes of a mark that are returned
		if len(out) < before {
			shown = n
		}
		switch {
		case verdict == partial:
			p.held, p.flushed = bytes.Clone(buf), max(before-len(out), 0)
			return rest()
		case verdict == whole && p.accept(seq, len(out)+shown, &marks):
			out, buf = append(out, buf[:shown]...), buf[n:]
		default:
			// Only the ESC is known to be ordinary: a mark may begin right after it.
			out, buf = append(out, buf[0]), buf[1:]
		}
	}
	out = append(out, buf...)
	return rest()
}

// Pending reports whether bytes are held back because they may be the beginning of a mark. If no
// output follows for a few milliseconds, the caller calls Flush, again and again while Pending is
// true.
func (p *Parser) Pending() bool { return len(p.held) > p.flushed }

// Forged reports whether one mark contradicted another: it ended an ended command or began the
// current prompt with another status, or it belonged to an earlier prompt. A shell never prints
// such marks. So another program knows the nonce, and no mark of this shell is proof any more.
func (p *Parser) Forged() bool { return p.forged }

// Flush returns the bytes held back, as ordinary output. It keeps a sequence with the right nonce
// for some more calls.
func (p *Parser) Flush() []byte {
	if len(p.held) > len(introducer)+1+len(p.nonce) && p.flushes < patience {
		p.flushes++
		return nil
	}
	b := bytes.Clone(p.held[p.flushed:])
	p.flushed, p.flushes = len(p.held), 0
	return b
}

// sequence is a mark as printed, not yet checked against the phase.
type sequence struct {
	kind    byte
	counter uint64
	exit    int
	cwd     string
	run     bool
	number  uint64
	shell   string
}

type verdict int

const (
	other   verdict = iota // not a mark of this shell
	partial                // the beginning of a mark of this shell
	whole
)

// scan parses the sequence at the start of buf, which is an ESC, and returns it and its length.
func (p *Parser) scan(buf []byte) (seq sequence, n int, v verdict) {
	rest, v := literal(buf, introducer)
	if v != whole {
		return seq, 0, v
	}
	if len(rest) == 0 {
		return seq, 0, partial
	}
	seq.kind = rest[0]
	if !strings.ContainsRune("ABCDERUX", rune(seq.kind)) {
		return seq, 0, other
	}
	if rest, v = literal(rest[1:], p.nonce); v != whole {
		return seq, 0, v
	}

	// The sequence has the right nonce, so the shell printed it.
	var fields []byte
	if seq.kind == 'A' {
		// The cwd is the last field and may contain any byte, so the nonce ends it.
		end := p.nonce[:len(p.nonce)-1]
		i := bytes.Index(rest, []byte(end))
		switch {
		case i > maxFields+maxCwd, i < 0 && len(rest) > maxFields+maxCwd+len(end):
			return seq, 0, other
		case i < 0:
			return seq, 0, partial
		}
		fields, rest = rest[:i], rest[i+len(end):]
	} else {
		i := bytes.IndexAny(rest, "\a\x1b")
		switch {
		case i > maxFields, i < 0 && len(rest) > maxFields:
			return seq, 0, other
		case i < 0:
			return seq, 0, partial
		}
		fields, rest = rest[:i], rest[i:]
	}
	if rest, v = terminator(rest); v != whole {
		return seq, 0, v
	}
	if !seq.parse(string(fields)) {
		return seq, 0, other
	}
	return seq, len(buf) - len(rest), whole
}

// literal removes want from the front of buf.
func literal(buf []byte, want string) (rest []byte, v verdict) {
	if len(buf) < len(want) {
		if strings.HasPrefix(want, string(buf)) {
			return nil, partial
		}
		return nil, other
	}
	if string(buf[:len(want)]) != want {
		return nil, other
	}
	return buf[len(want):], whole
}

// terminator removes BEL or ST from the front of buf.
func terminator(buf []byte) (rest []byte, v verdict) {
	switch {
	case len(buf) == 0 || len(buf) == 1 && buf[0] == 0x1b:
		return nil, partial
	case buf[0] == '\a':
		return buf[1:], whole
	case buf[0] == 0x1b && buf[1] == '\\':
		return buf[2:], whole
	}
	return nil, other
}

// parse parses the fields after the nonce: the counter, then for each kind
//
//	A: exit status, an unused field, cwd
//	C: "run" and the command's number, if the command came from CommandFD
//	D: exit status
//	R: the name of the shell
func (s *sequence) parse(text string) bool {
	f := strings.SplitN(text, ";", 4)
	var err error
	if s.counter, err = strconv.ParseUint(f[0], 10, 63); err != nil {
		return false
	}
	switch s.kind {
	case 'A':
		if len(f) != 4 {
			return false
		}
		// The terminal's output processing turned every LF into CR LF.
		s.cwd = strings.ReplaceAll(f[3], "\r\n", "\n")
		s.exit, err = strconv.Atoi(f[1])
	case 'C':
		if len(f) == 1 {
			return true
		}
		if s.run = len(f) == 3 && f[1] == "run"; !s.run {
			return false
		}
		s.number, err = strconv.ParseUint(f[2], 10, 63)
	case 'D':
		if len(f) != 2 {
			return false
		}
		s.exit, err = strconv.Atoi(f[1])
	case 'R':
		if len(f) != 2 {
			return false
		}
		switch s.shell = cmp.Or(f[1], "ash"); s.shell {
		case "bash", "zsh", "ksh", "ash":
		default:
			return false
		}
	default:
		return len(f) == 1
	}
	return err == nil && 0 <= s.exit && s.exit <= 255
}

// accept reports whether to remove the sequence from the output. It adds the mark, if any, to
// marks.
func (p *Parser) accept(s sequence, at int, marks *[]Mark) bool {
	report := func(m Mark) { m.At = at; *marks = append(*marks, m) }
	atPrompt := p.phase == prompt || p.phase == ready

	busy := p.phase == command || p.phase == running

	// After a forged counter, which is too high, the shell's own lower counter is accepted again.
	if s.kind == 'A' && (s.counter > p.counter || p.forged && s.counter < p.counter) {
		if busy {
			report(Mark{Kind: CommandEnd, Exit: s.exit})
		}
		p.phase, p.counter, p.status = prompt, s.counter, s.exit
		report(Mark{Kind: PromptStart, Exit: s.exit, Cwd: s.cwd})
		return true
	}
	// After a syntax error inside eval, bash prints the PS1 that it expanded for the previous
	// prompt. PROMPT_COMMAND has printed the prompt-start mark of the current one before that.
	stale := p.phase == prompt && s.counter+1 == p.counter && (s.kind == 'A' || s.kind == 'B')
	// After ^C at its prompt, bash expands PS1, which increases the counter. But readline may find
	// the same prompt on the screen, and then prints none of its marks.
	if p.phase == ready && s.counter > p.counter && (s.kind == 'C' || s.kind == 'D') {
		p.counter = s.counter
	}
	// For lines pasted at once, bash shows one prompt, but it expands PS1 for each line, which
	// increases the counter.
	ahead := busy && s.counter > p.counter && (s.kind == 'C' || s.kind == 'D')
	if s.kind == 'R' && p.phase == fresh {
		report(Mark{Kind: Ready, Shell: s.shell})
		return true
	}
	if p.counter == 0 || s.counter != p.counter && !stale && !ahead {
		p.forged = p.forged || s.counter < p.counter && (s.kind == 'A' || s.kind == 'D')
		return false
	}
	switch s.kind {
	case 'A': // redrawn
		p.forged = p.forged || s.counter == p.counter && s.cwd != "" && s.exit != p.status
		return atPrompt
	case 'B':
		if p.phase == prompt {
			p.phase = ready
			report(Mark{Kind: PromptEnd})
			return true
		}
		if p.phase == ready {
			report(Mark{Kind: PromptAgain})
		}
		return p.phase == ready
	case 'C':
		if ahead {
			return true
		}
		if !atPrompt && !(p.phase == command && s.run) {
			return false
		}
		p.phase = command
		if s.run {
			p.phase = running
		}
		report(Mark{Kind: CommandStart, Run: s.run, Number: s.number})
		return true
	case 'D':
		if !busy {
			p.forged = p.forged || p.phase == ended && s.exit != p.exit
			// There was no command: an empty line, or ^C. Or zsh printed the mark twice.
			return atPrompt || p.phase == ended
		}
		p.phase, p.exit = ended, s.exit
		report(Mark{Kind: CommandEnd, Exit: s.exit})
		return true
	case 'E':
		if atPrompt {
			report(Mark{Kind: Continuation})
		}
		return atPrompt
	case 'U':
		if atPrompt || busy {
			report(Mark{Kind: Unread})
		}
		return atPrompt || busy
	case 'X':
		if p.phase != command {
			return false
		}
		p.phase = ready
		report(Mark{Kind: Refused})
		return true
	}
	return false
}
