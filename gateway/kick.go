package gateway

import (
	"context"
	"time"

	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// kickedFor is how long a party that was sent away cannot be the same one again. It is longer than a guest remembers a
// party: that time begins anew when its keyboard is given back.
const kickedFor = 2*rememberedFor + giveWithin

// Kick ends the attachments of a party, named as Parties lists it, on a session of p. It returns how many. They lose the
// keyboard, and the secrets with which they could resume are worth nothing to this daemon any more. Whoever may attach can
// do so again, as another party.
func (h *Hub) Kick(ctx context.Context, p Principal, t wire.Target, party string) (int, error) {
	b, err := h.mine(p, t.Sandbox, "kicking")
	if err != nil {
		return 0, err
	}
	l := b.sessions.Get(t.Session)
	if l == nil {
		return 0, wire.Errorf(wire.CodeNotFound, "no session %s in sandbox %s", t.Session, t.Sandbox)
	}
	n := 0
	var stream live.Member // one of those that may have left the keyboard behind
	stays := make(map[string]bool)
	for _, m := range l.Members() {
		if m.Party().String() != party && m.Party().ID != party {
			stays[m.Party().String()] = true
			continue
		}
		if m.Secret() != "" {
			b.sendAway(m.Secret())
			stream = m
		}
		m.Disconnect(ErrKicked)
		n++
	}
	if n == 0 {
		e := wire.Errorf(wire.CodeNotFound, "no party %s on %s", oneLine(party, 64), t)
		e.Hint = "sandboxd sessions " + t.Sandbox + " lists them"
		return 0, e
	}
	h.journal.add(b.id, "kick", map[string]any{"by": p.Name, "session": t.Session, "party": party})
	// An agent holds the keyboard by name: one who stays may be using it.
	if stream != nil && l.Keyboard() == stream.Party().String() && !stays[stream.Party().String()] {
		if err := b.giveFor(ctx, l.Name(), stream); err != nil {
			h.log.Warn("keyboard of a party that was sent away not given back", "sandbox", b.id, "session", l.Name(), "err", err)
		}
	}
	return n, nil
}

// giveFor gives back the keyboard of a party whose stream was cut off, in its name: the guest would keep it for that party.
func (b *box) giveFor(ctx context.Context, session string, m live.Member) error {
	ctx, cancel := context.WithTimeout(ctx, giveWithin)
	defer cancel()
	c, err := b.control(ctx, nil)
	if err != nil {
		return err
	}
	s, err := c.OpenStream(ctx)
	if err != nil {
		return err
	}
	party := m.Party()
	client, err := wire.Open(ctx, s, wire.Attach{Session: session, Resume: m.Secret(), Party: &party, Quiet: true}, wire.Handler{})
	if err != nil {
		return err
	}
	defer client.Leave()
	_, err = client.Request(ctx, wire.Request{Verb: wire.VerbGive})
	return err
}

// sendAway makes a resume secret worthless for as long as the guest may know it.
func (b *box) sendAway(secret string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.kicked == nil {
		b.kicked = make(map[string]time.Time)
	}
	for old, since := range b.kicked {
		if time.Since(since) > kickedFor {
			delete(b.kicked, old)
		}
	}
	b.kicked[secret] = time.Now()
}

// sentAway reports whether secret is that of a party that was sent away.
func (b *box) sentAway(secret string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	since, ok := b.kicked[secret]
	return ok && time.Since(since) <= kickedFor
}
