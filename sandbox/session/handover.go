package session

import (
	"context"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox/session/keyboard"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	keptTyped = 64      // commands of people that a hand-over remembers, the newest
	maxTyped  = maxTail // bytes of log that are looked at for one
)

// handover is the present stretch in which people have or had the keyboard, since an agent last
// did.
type handover struct {
	wire.Handover
	begun bool // there is one
	over  bool // an agent has had the keyboard since: the next person begins another
}

// copy is the stretch as a Result shows it; nil when there is none. One that is over counts for who
// waited for its end.
func (h *handover) copy(waited bool) *wire.Handover {
	if !h.begun || h.over && !waited {
		return nil
	}
	c := h.Handover
	c.Commands = append([]wire.Typed{}, h.Commands...)
	return &c
}

// handedLocked notes that p has got the keyboard.
func (d *driver) handedLocked(p *keyboard.Party) {
	s := d.s
	h := &d.handover
	switch {
	case p.Kind == wire.Agent:
		h.over = true
	case !h.begun || h.over:
		_, end := s.log.bounds()
		*h = handover{Handover: wire.Handover{By: p.String(), Offset: end}, begun: true}
	default:
		h.Until = 0
		if !strings.Contains(", "+h.By+",", " "+p.String()+",") {
			h.By += ", " + p.String()
		}
	}
}

// handedBackLocked notes that the keyboard is free again.
func (d *driver) handedBackLocked() {
	s := d.s
	if h := &d.handover; h.begun && !h.over {
		_, h.Until = s.log.bounds()
	}
}

// typedLocked notes that the shell has begun with what was typed at its prompt, if a person did.
func (c *console) typedLocked(end uint64) {
	s := c.s
	h := &s.keyboard.handover
	if !s.keyboard.HeldByPerson() || !h.begun || c.editAt == 0 || s.keyboard.Private() != nil {
		return
	}
	line, ok := c.lineLocked(end)
	from := max(c.editAt, end-min(end, maxTyped))
	c.editAt = 0
	if !ok { // it is long: its end as it was printed
		p := s.log.tail(from, end)
		if uint64(len(p)) < end-from {
			return // some of it is private, or gone
		}
		line.text, _ = text.Render(p, -1)
	}
	shown, _ := text.Cut(strings.TrimSpace(line.text), maxLine)
	if shown == "" {
		return
	}
	if len(h.Commands) == keptTyped {
		h.Commands = h.Commands[1:]
	}
	h.Commands = append(h.Commands, wire.Typed{By: s.keyboard.String(), Command: shown})
	c.handed = true
}

// typedOverLocked notes how that ended.
func (c *console) typedOverLocked(exit int) {
	s := c.s
	if h := &s.keyboard.handover; c.handed && len(h.Commands) > 0 {
		h.Commands[len(h.Commands)-1].ExitCode = &exit
	}
	c.handed = false
}

// waitKeyboard waits until no person but p holds the keyboard, and returns what people did with it
// meanwhile.
func (s *session) waitKeyboard(ctx context.Context, p *party, r wire.Request) (*wire.Result, error) {
	f := s.newCall(r)
	bounded, cancel := bound(ctx, r.TimeoutMS)
	defer cancel()
	ended := wire.Returned
	waited := false
	err := s.until(bounded, func() bool {
		k := &s.keyboard
		free := !k.PrivateEnding() && (!k.HeldByPerson() || k.Holds(&p.Party))
		waited = waited || !free
		return free
	})
	switch {
	case err == nil:
	case ctx.Err() == nil && bounded.Err() != nil:
		ended = wire.Deadline
	default:
		return nil, err
	}
	s.mu.Lock()
	f.handover = s.keyboard.handover.copy(waited)
	_, f.from = s.log.bounds()
	f.upTo = f.from
	if h := f.handover; h != nil {
		f.from = h.Offset
		if h.Until > 0 {
			f.upTo = h.Until
		}
	}
	f.c = s.console
	s.mu.Unlock()
	return f.result(ended), nil
}
