package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Stream serves a session stream of an agent on the sandbox called name until it ends, and closes rw. The client's
// frames reach the guest as they are, with p as the party; output comes from the replica, so that nothing is seen that is
// not recorded. nil means that the client ended it. It ends also when the connection to the sandbox breaks: the client
// attaches again, with its resume secret, and is the same party.
func (h *Hub) Stream(ctx context.Context, p Principal, name string, rw io.ReadWriteCloser) error {
	ctx, done := h.tasks.bound(ctx)
	defer done()
	stop := context.AfterFunc(ctx, func() { rw.Close() })
	defer stop()
	defer rw.Close()
	client := wire.NewConn(rw)
	first, err := greet(client)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return fmt.Errorf("session stream: %w", err)
	}
	if first.Type == wire.FrameRequest {
		return h.serveBare(ctx, p, name, client, first)
	}
	var a wire.Attach
	if err := json.Unmarshal(first.Data, &a); err != nil {
		return fmt.Errorf("session stream: attach: %w", err)
	}
	st, err := h.openStream(ctx, p, name, client, a)
	if err != nil {
		return client.WriteJSON(wire.FrameAttached, 0, wire.Attached{State: wire.State{Basis: []wire.Basis{}}, Error: h.Public(err)})
	}
	err = st.serve(ctx)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// greet reads a client's hello, answers it, and returns the frame after it: an attach or a request.
func greet(client *wire.Conn) (wire.Frame, error) {
	if err := client.Welcome(); err != nil {
		return wire.Frame{}, err
	}
	f, err := client.Read()
	if err == nil && f.Type != wire.FrameAttach && f.Type != wire.FrameRequest {
		err = fmt.Errorf("frame type %d where attach was due", f.Type)
	}
	f.Data = slices.Clone(f.Data)
	return f, err
}

// serveBare answers the requests that need no attachment: list and close.
func (h *Hub) serveBare(ctx context.Context, p Principal, name string, client *wire.Conn, f wire.Frame) error {
	for {
		if f.Type != wire.FrameRequest {
			return fmt.Errorf("session stream: frame type %d without an attachment", f.Type)
		}
		r, refused := wire.ReadRequest(f.Data)
		var reply wire.Reply
		var err error
		switch {
		case refused != nil:
			err = refused
		case r.Verb == wire.VerbList:
			reply.Sessions, err = h.Sessions(ctx, p, name)
		case r.Verb == wire.VerbClose:
			err = h.CloseSession(ctx, p, wire.Target{Sandbox: name, Session: r.Session})
		default:
			err = wire.Errorf(wire.CodeUsage, "request %s needs an attachment", oneLine(string(r.Verb), 32))
		}
		reply.Error = h.Public(err)
		if r.Verb != wire.VerbCancel { // which has no reply of its own
			if err := client.WriteJSON(wire.FrameReply, f.ID, reply); err != nil {
				return err
			}
		}
		if f, err = client.Read(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("session stream: %w", err)
		}
	}
}

// openStream attaches p to its session and answers the attach.
func (h *Hub) openStream(ctx context.Context, p Principal, name string, client *wire.Conn, a wire.Attach) (*stream, error) {
	b, p, err := h.reachable(p, name, wire.RightWatch, "")
	if err != nil {
		return nil, err
	}
	if a.Party != nil {
		return nil, wire.Errorf(wire.CodeUsage, "party comes from the login")
	}
	if a.Session == "" && a.Resume == "" {
		a.Session = wire.DefaultSession
	}
	if (a.Create || a.Fresh) && p.rights() == wire.RightWatch {
		return nil, p.mayMake("starting sessions")
	}
	if b.sentAway(a.Resume) {
		return nil, &wire.Error{Code: wire.CodeDenied, Message: "that party was sent away", Hint: "attach by the session's name, as another one"}
	}
	party := p.party(wire.Agent, partyID())
	party.Owner = b.get().owner == p.Name
	var c *connect.Control
	if a.Resume != "" && b.get().state != Paused { // what it was is in the sandbox that runs, or nowhere
		c, err = b.again(ctx)
	} else {
		c, err = b.controlOf(ctx, party, a.Session, a.Create || a.Fresh, nil)
	}
	if err != nil {
		return nil, err
	}
	if l := b.sessions.Get(a.Session); a.Fresh || a.Create && (l == nil || l.Ended()) {
		begun, err := h.mayBegin(b)
		if err != nil {
			return nil, err
		}
		defer begun()
	}
	from, quiet := a.From, a.Quiet
	a.Party, a.Quiet, a.Keep = &party, true, false // that is the daemon's own stream
	ctx, over := b.pauses.within(ctx)
	defer over()
	guest, at, err := attachGuest(ctx, c, a)
	if err != nil {
		err = pausedOr(ctx, err)
		if refused, ok := errors.AsType[*wire.Error](err); ok {
			return nil, live.InboundError(refused)
		}
		return nil, b.reach(err)
	}
	st := &stream{client: client, guest: guest, box: b, party: party, secret: at.Resume, quiet: quiet, shell: at.Shell, more: make(chan struct{}), asked: make(map[uint32]asked), cancel: func() {}}
	if st.live, err = b.session(ctx, c, at.Session, at.Created); err != nil {
		guest.Close()
		return nil, pausedOr(ctx, err)
	}
	switch from.Word {
	case wire.FromStart:
		at.Offset = 0
	case "", wire.FromNow:
	default:
		at.Offset = min(from.N, max(at.Offset, st.live.Len()))
	}
	st.sent, st.heard = at.Offset, at.Seq
	if a.After > 0 || from.Word != "" && from.Word != wire.FromNow {
		st.heard = min(a.After, at.Seq) // the guest tells those behind it again
	}
	st.leave = st.live.Join(st)
	if rights, _ := b.rightsOf(p.Name); rights != wire.RightDrive && rights != party.Rights { // that ended meanwhile
		st.leave()
		guest.Close()
		return nil, h.notFound(name)
	}
	if err := client.WriteJSON(wire.FrameAttached, 0, at); err != nil {
		st.leave()
		guest.Close()
		return nil, err
	}
	return st, nil
}

// attachGuest opens a party's stream to the guest, raw: frames are passed on, not understood.
func attachGuest(ctx context.Context, c *connect.Control, a wire.Attach) (*wire.Conn, wire.Attached, error) {
	ctx, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()
	s, err := c.OpenStream(ctx)
	if err != nil {
		return nil, wire.Attached{}, err
	}
	guest := wire.NewConn(s)
	at, err := guest.AttachWithin(ctx, a)
	if err != nil {
		return nil, at, err
	}
	return guest, at, nil
}
