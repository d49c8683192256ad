package session

import (
	"context"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox/session/keyboard"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	keptTyped = 64      // newest commands of people that a handover stores
	maxTyped  = maxTail // bytes of the log that are searched for one
)

// handover is the current period in which people held the keyboard, since an agent last held it.
type handover struct {
	wire.Handover
	begun bool // a period has begun
	over  bool // an agent has held the keyboard since; the next person begins a new period
}

// copy returns the period for a Result, or nil if there is none. A period that is over counts only
// for a call that waited for its end.
func (h *handover) copy(waited bool) *wire.Handover {
	if !h.begun || h.over && !waited {
		return nil
	}
	c := h.Handover
	c.Commands = append([]wire.Typed{}, h.Commands...)
	return &c
}

// handedLocked records that p has received the keyboard.
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

// handedBackLocked records that the keyboard is free again.
func (d *driver) handedBackLocked() {
	s := d.s
	if h := &d.handover; h.begun && !h.over {
		_, h.Until = s.log.bounds()
	}
}

// typedLocked records that the shell has started a command that a person typed at its prompt.
func (c *console) typedLocked(end uint64) {
	s := c.s
	h := &s.keyboard.handover
	if !s.keyboard.HeldByPerson() || !h.begun || c.editAt == 0 || s.keyboard.Private() != nil {
		return
	}
	line, ok := c.lineLocked(end)
	from := max(c.editAt, end-min(end, maxTyped))
	c.editAt = 0
	if !ok { // too long: use its printed end
		p := s.log.tail(from, end)
		if uint64(len(p)) < end-from {
			return // some bytes are private or no longer stored
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

// typedOverLocked records how that command ended.
func (c *console) typedOverLocked(exit int) {
	s := c.s
	if h := &s.keyboard.handover; c.handed && len(h.Commands) > 0 {
		h.Commands[len(h.Commands)-1].ExitCode = &exit
	}
	c.handed = false
}

// waitKeyboard waits until no person other than p holds the keyboard, and returns what people did
// meanwhile.
func (s *session) waitKeyboard(
	ctx context.Context,
	p *party,
	r wire.Request,
) (*wire.Result, error) {
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
