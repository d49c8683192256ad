package svg

import (
	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// bar is the line below the terminal. Equal values look equal.
type bar struct {
	title    string
	keyboard string // who has it, as wire.Party.String; empty for nobody
	waiting  bool   // the program waits for an answer
	prompt   string // what it asks
	private  bool
}

// event updates the bar.
func (b *bar) event(e wire.Event) {
	switch e.Kind {
	case wire.EventKeyboard:
		b.keyboard = e.Keyboard
	case wire.EventState, wire.EventEnded:
		if e.State != nil {
			b.waiting, b.prompt = e.State.Phase == wire.PhaseWaiting, e.State.Prompt
		}
	case record.PrivateBegin:
		b.private = true
	case record.Private:
		b.private = false
	}
}

// maxName is how many characters of a name the bar shows.
const maxName = 40

// left returns what the bar shows on the left: the session and who types.
func (b bar) left() string {
	line := text.Line(b.title, maxName)
	if b.keyboard != "" {
		line += "   " + text.Line(b.keyboard, maxName) + " typing"
	}
	return line
}

// right returns what the bar shows on the right, in at most n characters: what the program waits
// for.
func (b bar) right(n int) string {
	switch {
	case n < 8: // no room
		return ""
	case b.private:
		return text.Line("private: not recorded", n)
	case b.waiting && b.prompt != "" && n >= 24:
		return text.Line("waiting: "+b.prompt, n)
	case b.waiting:
		return text.Line("waiting", n)
	}
	return ""
}
