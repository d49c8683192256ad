package session

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"sort"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/keyboard"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// partyGrace is how long a party keeps its keyboard after its stream broke.
	partyGrace = 30 * time.Second
	// maxGone limits the stored disconnected parties. The oldest are dropped.
	maxGone = 64
)

// party is one attachment. It outlives its stream by partyGrace.
type party struct {
	keyboard.Party
	secret string // secret to resume it

	accepted uint64      // guarded by session.mu; handled input bytes
	stream   *stream     // guarded by session.mu; nil while disconnected
	grace    *time.Timer // guarded by session.mu; runs while disconnected
	cut      time.Time   // guarded by session.mu; time of the disconnect
	left     bool        // guarded by session.mu; its leave was reported
}

// parties are the parties of one session. Its fields are guarded by session.mu.
type parties struct {
	s    *session
	all  map[*party]bool
	gone map[string]*party // disconnected parties by resume secret
}

func newParty(p wire.Party) *party {
	var secret [16]byte
	rand.Read(secret[:]) // never fails
	id := hex.EncodeToString(secret[:])
	rand.Read(secret[:])
	return &party{Party: keyboard.NewParty(p, id), secret: hex.EncodeToString(secret[:])}
}

// joinLocked adds a party of stream st.
func (g *parties) joinLocked(p *party, st *stream) {
	s := g.s
	g.all[p] = true
	p.stream = st
	s.events.emitLocked(wire.Event{Kind: wire.EventJoin, By: p.String()})
}

// resumeLocked returns the party with that secret, if it belongs to the same principal, with the
// rights of this login. The comparison of secrets takes constant time.
func (g *parties) resumeLocked(secret string, who wire.Party) *party {
	var found *party
	for p := range g.all {
		if subtle.ConstantTimeCompare([]byte(p.secret), []byte(secret)) == 1 {
			found = p
		}
	}
	if found == nil || found.Name != who.Name || found.Kind != who.Kind ||
		found.Rights != who.Rights {
		return nil
	}
	return found
}

// cutOff disconnects p, whose stream st has ended. It can be resumed for partyGrace.
func (g *parties) cutOff(p *party, st *stream) {
	s := g.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.stream != st || !g.all[p] { // another stream has resumed it
		return
	}
	p.stream, p.Away, p.cut = nil, true, time.Now()
	if s.closed {
		return
	}
	if len(g.gone) >= maxGone {
		var oldest *party
		for _, q := range g.gone {
			if oldest == nil || q.cut.Before(oldest.cut) {
				oldest = q
			}
		}
		g.leaveLocked(oldest)
	}
	g.gone[p.secret] = p
	p.grace = time.AfterFunc(partyGrace, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if p.stream == nil && g.all[p] && !s.closed && time.Since(p.cut) >= partyGrace {
			g.leaveLocked(p)
		}
	})
	if !s.keyboard.Holds(&p.Party) {
		g.reportLeftLocked(p)
	}
}

// reportLeftLocked reports the leave of p, once.
func (g *parties) reportLeftLocked(p *party) {
	s := g.s
	if !p.left {
		p.left = true
		s.events.emitLocked(wire.Event{Kind: wire.EventLeave, By: p.String()})
	}
}

// returnLocked makes st the stream of a disconnected party.
func (g *parties) returnLocked(p *party, st *stream) {
	s := g.s
	if p.stream == nil {
		p.grace.Stop()
		delete(g.gone, p.secret)
		if p.left {
			p.left = false
			s.events.emitLocked(wire.Event{Kind: wire.EventJoin, By: p.String()})
		}
	}
	p.stream, p.Away = st, false
}

// leaveLocked removes p. The last party with its key also frees the keyboard and cancels calls that
// have typed nothing.
func (g *parties) leaveLocked(p *party) {
	s := g.s
	if p.grace != nil {
		p.grace.Stop()
	}
	delete(g.gone, p.secret)
	delete(g.all, p)
	g.reportLeftLocked(p)
	s.keyboard.applyLocked(s.keyboard.Withdraw(&p.Party))
	for q := range g.all {
		if q.Key == p.Key {
			return
		}
	}
	for _, o := range s.ops.all {
		if o.key == p.Key {
			o.abandonLocked()
		}
	}
	if s.keyboard.Holds(&p.Party) {
		s.keyboard.applyLocked(s.keyboard.Leave(&p.Party))
		s.resizeLocked(s.keyboard.RestoreSize(), "")
	}
}

// othersLocked reports whether another party with the right to drive is attached.
func (g *parties) othersLocked(p *party) bool {
	for q := range g.all {
		if q.Key != p.Key && q.stream != nil && q.Rights != wire.RightWatch {
			return true
		}
	}
	return false
}

// listLocked returns the attached parties in a stable order.
func (g *parties) listLocked() []wire.Party {
	list := []wire.Party{}
	for p := range g.all {
		if p.stream != nil {
			list = append(list, p.Party.Party)
		}
	}
	// Not slices.SortFunc, here and in List: each adds much code to the guest, which must stay
	// small.
	name := func(p wire.Party) string { return p.String() + "\x00" + p.ID }
	sort.Slice(list, func(i, j int) bool { return name(list[i]) < name(list[j]) })
	return list
}
