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

// key formats a command of the prefix key, such as "^]t take". Without a prefix key only commands
// of the control host exist.
func (p *Person) key(letter, does string) string {
	prefix := view.PrefixName(p.prefix)
	if prefix == "" {
		return ""
	}
	return prefix + letter + " " + does
}

// help lists the commands of the prefix key.
func (p *Person) help() string {
	prefix := view.PrefixName(p.prefix)
	if prefix == "" {
		return ""
	}
	var other, scroll string
	if p.o.Record != nil {
		scroll = p.key("[", "scroll")
	}
	if p.o.Others != nil {
		other = p.key("o", "other")
	}
	return strings.TrimPrefix(Words(p.key("t", "take"), p.key("g", "give"), p.key("n", "not now"),
		p.key("p", "private"), p.key("arrows", "pan"), scroll, other, p.key("d", "detach"),
		prefix+prefix+" sends "+prefix), " ")
}

// asking says that other sessions ask.
func (p *Person) asking() string {
	if p.o.Others == nil {
		return ""
	}
	n, _ := p.o.Others()
	switch n {
	case 0:
		return ""
	case 1:
		return Words("1 other asks", p.key("o", "go"))[1:]
	}
	return Words(fmt.Sprintf("%d others ask", n), p.key("o", "go"))[1:]
}

// situation is what the status line describes.
type situation struct {
	live.Situation
	holds bool
}

// situation returns the current situation.
func (p *Person) situation() situation {
	return situation{Situation: p.at.Situation(), holds: p.at.Holds()}
}

// status returns the status line: where, who types, this person's role, and what they can do.
// clipped is a further remark, or empty. brief are shorter forms, which keep who types the longest.
func (p *Person) status(s situation, notice, clipped string) (line string, brief []string) {
	where := Full(p.at.Target())
	var private string
	if s.Private != "" {
		private = "PRIVATE"
	}
	if notice != "" { // the notice first; the rest can wait
		return Words(where, private, notice), []string{Words(private, notice), Words(notice)}
	}
	self := p.at.Party()
	var others, typing, last string
	if s.Others > 0 {
		others = fmt.Sprintf("%d more attached", s.Others)
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
		you, key = s.Asking+" asks for the keyboard",
			Words(p.key("g", "give"), p.key("n", "not now"))[1:]
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
	ask := p.asking()
	return Words(where, private, typing, last, others, you, key, ask, clipped, waits(s), stops(s)),
		[]string{
			Words(where, private, typing, last, others, you, key, ask, clipped, waits(s)),
			Words(where, private, typing, others, you, key, ask, clipped),
			Words(where, private, typing, others, you, key, ask),
			Words(where, private, typing, you, key, ask),
			Words(where, private, typing, you, key), Words(where, private, who, key),
			Words(private, who, key), Words(private, who)}
}

// urgent says what a person has to know, whatever they look at. others says that other sessions
// ask.
func urgent(s situation, others string) string {
	var private, asks string
	if s.Private != "" {
		private = "PRIVATE"
	}
	if s.holds && s.Asking != "" {
		asks = s.Asking + " asks for the keyboard"
	}
	return strings.TrimLeft(Words(private, asks, waits(s), others), " ")
}

// waits says that a program waits for an answer.
func waits(s situation) string {
	switch {
	case s.holds || s.State.Phase != wire.PhaseWaiting:
		return ""
	case s.State.Want == wire.WantPassword:
		return "waits for a password"
	}
	return "waits for an answer"
}

// stops says that the sandbox stops soon after they leave.
func stops(s situation) string {
	if s.Idle == 0 {
		return ""
	}
	return "idle: stops " + gateway.Span(s.Idle) + " after you leave"
}

// Words joins the non-empty parts to a status line.
func Words(all ...string) string {
	return " " + strings.Join(slices.DeleteFunc(all, func(w string) bool { return w == "" }), "   ")
}

// notes are what a person already knows, from notices or from their own actions.
type notes struct {
	held    bool   // they had the keyboard
	gave    bool   // they gave it back
	asked   bool   // they have asked for it
	private string // who was in private mode
	undone  uint64 // the newest command that replaced their line
	denials uint64 // the newest connection that was blocked
}

// news shows what has happened to a person's keyboard and screen without their doing, and returns
// the current situation.
func (p *Person) news() situation {
	self := p.at.Party().String()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.situation()
	was := p.notes
	now := notes{held: s.holds, gave: was.gave && !s.holds, asked: was.asked && s.unanswered(self),
		private: s.Private}
	if was.held && !s.holds && s.Keyboard == self {
		now.held = true // the holder is not known here yet
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
		p.sayLocked(s.Private + " started private mode: your screen is from before")
	case was.denials != s.Denials && s.Denied != "":
		p.sayLocked("network blocked " + plain(s.Denied))
	}
	return s
}

// unanswered reports whether self, who has asked for the keyboard, has no answer yet. The news that
// self holds it may arrive before the news which of their terminals does.
func (s situation) unanswered(self string) bool {
	return !s.holds && (s.Asking == self || s.Keyboard == self)
}

// asked records that they have asked the holder for the keyboard, and shows the answer if it has
// already come.
func (p *Person) asked(holder string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.situation()
	p.notes.asked = s.unanswered(p.at.Party().String())
	switch {
	case p.notes.asked:
		p.sayOfLocked(holder, Words("you asked "+holder+" for the keyboard",
			p.key("g", "never mind"))[1:])
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

// did records an action of theirs.
func (p *Person) did(change func(*notes)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.notes)
}
