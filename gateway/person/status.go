package person

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/gateway/view"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// key is how a command of the prefix is written, such as "^]t take". Without a prefix there are only the commands of the lobby.
func (p *Person) key(letter, does string) string {
	prefix := view.PrefixName(p.prefix)
	if prefix == "" {
		return ""
	}
	return prefix + letter + " " + does
}

// help lists what the prefix does.
func (p *Person) help() string {
	prefix := view.PrefixName(p.prefix)
	if prefix == "" {
		return ""
	}
	return strings.TrimPrefix(Words(p.key("t", "take"), p.key("g", "give"), p.key("n", "not now"), p.key("p", "private"), p.key("d", "detach"),
		prefix+prefix+" sends "+prefix), " ")
}

// stand is what the status line says something of.
type stand struct {
	live.Situation
	holds bool
}

// stand is how things are now.
func (p *Person) stand() stand {
	return stand{Situation: p.at.Situation(), holds: p.at.Holds()}
}

// status is the status line: where, who types, what one is oneself, and what to do about it. clipped is what else there is to
// say, or empty. brief are its shorter forms: who types outlives everything else.
func (p *Person) status(s stand, notice, clipped string) (line string, brief []string) {
	where := Full(p.at.Target())
	var private string
	if s.Private != "" {
		private = "PRIVATE"
	}
	if notice != "" { // the news; the rest can wait
		return Words(where, private, notice), []string{Words(private, notice), Words(notice)}
	}
	self := p.at.Party()
	var others, typing, last string
	if s.Others > 0 {
		others = fmt.Sprintf("%d more here", s.Others)
	}
	switch {
	case !s.holds && s.Keyboard != "":
		typing = s.Keyboard + " typing"
	case s.Keyboard == "" && s.Typed != "":
		last = "last: " + s.Typed
	}
	you, key := "you: watching", p.key("t", "take")
	switch {
	case s.holds && s.Asking != "":
		you, key = s.Asking+" asks for the keyboard", Words(p.key("g", "give"), p.key("n", "not now"))[1:]
	case s.holds && s.Private != "":
		you, key = "you: typing", p.key("p", "ends it")
	case s.holds:
		you, key = "you: typing", p.key("g", "give")
	case self.Rights == wire.RightWatch:
		key = p.key("d", "leave")
	case p.hasAsked():
		you, key = "you: asked", p.key("g", "never mind")
	case s.Keyboard == "":
		key = "type, or " + key
		if p.prefix == view.NoPrefix {
			key = "type"
		}
	case strings.HasPrefix(s.Keyboard, string(wire.Person)+":") && !self.Owner:
		key = p.key("t", "ask")
	}
	who := typing
	if who == "" {
		who = you
	}
	return Words(where, private, typing, last, others, you, key, clipped, waits(s), stops(s)), []string{
		Words(where, private, typing, last, others, you, key, clipped, waits(s)),
		Words(where, private, typing, others, you, key, clipped), Words(where, private, typing, others, you, key),
		Words(where, private, typing, you, key), Words(where, private, who, key), Words(private, who, key), Words(private, who)}
}

// waits says that somebody has to answer.
func waits(s stand) string {
	switch {
	case s.holds || s.State.Phase != wire.PhaseWaiting:
		return ""
	case s.State.Want == wire.WantPassword:
		return "waits for a password"
	}
	return "waits for an answer"
}

// stops says that the sandbox does not outlive their leaving for long.
func stops(s stand) string {
	if s.Idle == 0 {
		return ""
	}
	return "idle: stops " + gateway.Span(s.Idle) + " after you leave"
}

// Words are those that there are, as a status line.
func Words(all ...string) string {
	return " " + strings.Join(slices.DeleteFunc(all, func(w string) bool { return w == "" }), "   ")
}

// notes are what a person has been told of, or knows from having done it.
type notes struct {
	held    bool   // they had the keyboard
	gave    bool   // they gave it back
	asked   bool   // they have asked for it
	private string // who had a private stretch
	undone  uint64 // the newest command that took the place of their line
	denials uint64 // the newest connection that was refused
}

// news tells what has happened to a person's keyboard and screen without their doing, and returns how things are now.
func (p *Person) news() stand {
	self := p.at.Party().String()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stand()
	was := p.notes
	now := notes{held: s.holds, gave: was.gave && !s.holds, asked: was.asked && s.unanswered(self), private: s.Private}
	if was.held && !s.holds && s.Keyboard == self {
		now.held = true // who has it is not known here yet
	}
	by, undone := p.at.Undone()
	now.undone, now.denials = undone, s.Denials
	p.notes = now
	p.dropOldLocked(s)
	switch {
	case was.undone != undone:
		p.sayLocked("your unsent line was cleared by a command of " + by)
	case !was.held && s.holds && was.asked:
		p.sayOfLocked(self, Words("the keyboard is yours", p.key("g", "give"))[1:])
	case was.asked && !now.asked && !s.holds:
		p.sayOfLocked(s.Keyboard, s.Keyboard+" keeps the keyboard for now")
	case was.held && !now.held && !was.gave && s.Keyboard != "" && !(p.cut && p.notice != ""):
		p.sayOfLocked(s.Keyboard, Words(s.Keyboard+" took the keyboard", p.key("t", "take"))[1:])
	case s.Private != "" && was.private == "" && !s.holds:
		p.sayLocked(s.Private + " began a private stretch: what you see is from before")
	case was.denials != s.Denials && s.Denied != "":
		p.sayLocked("network refused " + plain(s.Denied))
	}
	return s
}

// unanswered reports whether self, who has asked for the keyboard, has no answer yet. That they hold it may be heard of here before it is
// known which of their terminals does.
func (s stand) unanswered(self string) bool {
	return !s.holds && (s.Asking == self || s.Keyboard == self)
}

// asked notes that they have asked the holder for the keyboard, and says how that stands: the answer may have come already.
func (p *Person) asked(holder string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stand()
	p.notes.asked = s.unanswered(p.at.Party().String())
	switch {
	case p.notes.asked:
		p.sayOfLocked(holder, Words("you asked "+holder+" for the keyboard", p.key("g", "never mind"))[1:])
	case s.holds:
		p.sayOfLocked(p.at.Party().String(), Words("the keyboard is yours", p.key("g", "give"))[1:])
	default:
		p.sayOfLocked(holder, holder+" keeps the keyboard for now")
	}
}

// hasAsked reports whether they wait for the keyboard.
func (p *Person) hasAsked() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.notes.asked
}

// did notes something that they have done.
func (p *Person) did(change func(*notes)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.notes)
}
