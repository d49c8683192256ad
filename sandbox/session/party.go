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
	// partyGrace is how long a party whose stream broke keeps its keyboard.
	partyGrace = 30 * time.Second
	// maxGone is how many parties that were cut off are remembered at once; the oldest make room.
	maxGone = 64
)

// party is one attachment. It outlives its stream by partyGrace.
type party struct {
	keyboard.Party
	secret string // with which it resumes

	accepted uint64      // guarded by session.mu; input bytes dealt with
	stream   *stream     // guarded by session.mu; nil while it is cut off
	grace    *time.Timer // guarded by session.mu; runs while it is cut off
	cut      time.Time   // guarded by session.mu; since when it is cut off
	left     bool        // guarded by session.mu; that it left has been reported
}

// parties are those of one session. Its fields are guarded by session.mu.
type parties struct {
	s    *session
	all  map[*party]bool
	gone map[string]*party // those that were cut off, by resume secret
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

// resumeLocked returns the party with that secret, if it is one of the principal who asks, with the
// rights of this login. The comparison takes the same time wherever the secrets differ.
func (g *parties) resumeLocked(secret string, who wire.Party) *party {
	var found *party
	for p := range g.all {
		if subtle.ConstantTimeCompare([]byte(p.secret), []byte(secret)) == 1 {
			found = p
		}
	}
	if found == nil || found.Name != who.Name || found.Kind != who.Kind || found.Rights != who.Rights {
		return nil
	}
	return found
}

// cutOff says that p's stream st has ended. The party stays for a grace, in which it can resume.
func (g *parties) cutOff(p *party, st *stream) {
	s := g.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.stream != st || !g.all[p] { // another stream has taken it over
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
		g.tellLeftLocked(p)
	}
}

// tellLeftLocked tells that p left, once.
func (g *parties) tellLeftLocked(p *party) {
	s := g.s
	if !p.left {
		p.left = true
		s.events.emitLocked(wire.Event{Kind: wire.EventLeave, By: p.String()})
	}
}

// returnLocked makes st the stream of a party that was cut off.
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

// leaveLocked forgets p. The keyboard goes with the last party that shares its key, and calls that
// the shell has not been given yet are not made any more.
func (g *parties) leaveLocked(p *party) {
	s := g.s
	if p.grace != nil {
		p.grace.Stop()
	}
	delete(g.gone, p.secret)
	delete(g.all, p)
	g.tellLeftLocked(p)
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

// othersLocked reports whether a party beside p is attached that may drive.
func (g *parties) othersLocked(p *party) bool {
	for q := range g.all {
		if q.Key != p.Key && q.stream != nil && q.Rights != wire.RightWatch {
			return true
		}
	}
	return false
}

// listLocked lists who is attached, in a stable order.
func (g *parties) listLocked() []wire.Party {
	list := []wire.Party{}
	for p := range g.all {
		if p.stream != nil {
			list = append(list, p.Party.Party)
		}
	}
	// Not slices.SortFunc, here and in List: each is as much code as a small package, in a guest
	// that has to stay small.
	sort.Slice(list, func(i, j int) bool { return list[i].String()+"\x00"+list[i].ID < list[j].String()+"\x00"+list[j].ID })
	return list
}
