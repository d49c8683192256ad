package session

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// local is the party of untrusted streams.
var local = wire.Party{Name: "local", Kind: wire.Agent, Rights: wire.RightDrive}

// attach handles an attach. A rejected attach ends the stream.
func (st *stream) attach(ctx context.Context, data []byte) error {
	var a wire.Attach
	err := json.Unmarshal(data, &a)
	if err != nil {
		err = &wire.Error{Code: wire.CodeUsage, Message: "attach: " + err.Error()}
	} else {
		var attached wire.Attached
		if attached, err = st.join(ctx, a); err == nil {
			return st.conn.WriteJSON(wire.FrameAttached, 0, attached)
		}
	}
	refusal := publicError(st.set, "attach", err)
	if werr := st.conn.WriteJSON(wire.FrameAttached, 0,
		wire.Attached{Error: refusal}); werr != nil {
		return werr
	}
	return fmt.Errorf("attach: %w", refusal)
}

// who returns the party of a stream. Only a trusted stream may claim one.
func (st *stream) who(claimed *wire.Party) (wire.Party, error) {
	if !st.trusted {
		if claimed != nil {
			return wire.Party{}, &wire.Error{
				Code:    wire.CodeDenied,
				Message: "a client cannot set the party",
				Hint:    "the login does",
			}
		}
		return local, nil
	}
	if claimed == nil {
		return local, nil
	}
	p := *claimed
	switch {
	case p.Name == "":
		return p, wire.Errorf(wire.CodeUsage, "a party without a name")
	case p.Kind != wire.Agent && p.Kind != wire.Person:
		return p, wire.Errorf(wire.CodeUsage, "party kind %.40q is not known", p.Kind)
	case p.Rights != wire.RightDrive && p.Rights != wire.RightWatch:
		return p, wire.Errorf(wire.CodeUsage, "party rights %.40q are not known", p.Rights)
	}
	return p, nil
}

func (st *stream) join(ctx context.Context, a wire.Attach) (wire.Attached, error) {
	who, err := st.who(a.Party)
	if err != nil {
		return wire.Attached{}, err
	}
	if a.Resume != "" {
		return st.resume(ctx, a, who)
	}
	s, created, err := st.set.open(ctx, a)
	if err != nil {
		return wire.Attached{}, err
	}
	p := newParty(who)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return wire.Attached{}, s.goneError()
	}
	if a.Start != nil && a.Start.Cols > 0 && a.Start.Rows > 0 {
		p.Size = clampSize(a.Start.Cols, a.Start.Rows)
	}
	s.parties.joinLocked(p, st)
	at := st.beginLocked(s, p, a)
	at.Created = created
	return at, nil
}

// resume attaches the stream to an earlier party. It first ends the party's previous stream, after
// the input of that stream is handled.
func (st *stream) resume(
	ctx context.Context,
	a wire.Attach,
	who wire.Party,
) (wire.Attached, error) {
	for _, s := range st.set.all() {
		if a.Session != "" && a.Session != s.name {
			continue
		}
		for {
			s.mu.Lock()
			p := s.parties.resumeLocked(a.Resume, who)
			if p == nil || s.closed {
				s.mu.Unlock()
				break
			}
			old := p.stream
			if old == nil {
				s.parties.returnLocked(p, st)
				at := st.beginLocked(s, p, a)
				at.Resumed = true
				s.mu.Unlock()
				return at, nil
			}
			s.mu.Unlock()
			old.conn.Close()
			select {
			case <-old.over:
			case <-ctx.Done():
				return wire.Attached{}, context.Cause(ctx)
			}
		}
	}
	return wire.Attached{}, &wire.Error{
		Code:    wire.CodeNotFound,
		Message: "no party of this principal has that secret",
		Hint:    "attach by the session's name",
	}
}

// beginLocked makes st the stream of p, from the position in log and events that a asks for.
func (st *stream) beginLocked(s *session, p *party, a wire.Attach) wire.Attached {
	end := s.log.shown()
	st.session, st.party, st.quiet, st.expected = s, p, a.Quiet, p.accepted
	st.offset, st.seq = end, s.events.seq
	switch a.From.Word {
	case "", wire.FromNow:
		if a.After > 0 {
			st.seq = min(a.After, s.events.seq)
		}
	case wire.FromStart:
		st.offset, st.seq = 0, min(a.After, s.events.seq)
	default:
		st.offset, st.seq = min(a.From.N, end), min(a.After, s.events.seq)
	}
	if a.Keep && st.trusted {
		s.log.keep(st, st.offset)
	}
	return wire.Attached{
		Private:     s.private.byLocked(),
		Session:     s.name,
		Resume:      p.secret,
		Offset:      st.offset,
		Accepted:    p.accepted,
		State:       s.stateLocked(),
		Keyboard:    s.keyboard.String(),
		Cols:        s.size.Cols,
		Rows:        s.size.Rows,
		Seq:         s.events.seq,
		Shell:       s.console.stack.own().kind,
		Parties:     s.parties.listLocked(),
		Incarnation: s.incarnationLocked(),
	}
}
