package attach

import (
	"context"
	"errors"

	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Serve serves a session stream of an agent on sb until the stream ends. client has sent a as its
// first frame. Its frames go to the guest unchanged, except that party is the party. Output comes
// from the copy, so that the client sees only recorded output. Serve returns nil if the client
// ended the stream. The stream also ends when the connection to the sandbox breaks. The client then
// attaches again with its resume secret, as the same party.
func (all *Attachments) Serve(ctx context.Context, sb Sandbox, party wire.Party, client *wire.Conn,
	a wire.Attach) error {
	st, err := all.openStream(ctx, sb, party, client, a)
	if err != nil {
		return Refuse(client, all.options.Public(err))
	}
	err = st.serve(ctx)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// Refuse answers the first frame of a rejected stream.
func Refuse(client *wire.Conn, why *wire.Error) error {
	return client.WriteJSON(wire.FrameAttached, 0,
		wire.Attached{State: wire.State{Basis: []wire.Basis{}}, Error: why})
}

// openStream attaches party to its session and answers the attach.
func (all *Attachments) openStream(ctx context.Context, sb Sandbox, party wire.Party,
	client *wire.Conn, a wire.Attach) (st *stream, err error) {
	if a.Party != nil {
		return nil, wire.Errorf(wire.CodeUsage, "party comes from the login")
	}
	if a.Session == "" && a.Resume == "" {
		a.Session = wire.DefaultSession
	}
	if all.isBanned(a.Resume) {
		return nil, &wire.Error{Code: wire.CodeDenied, Message: "that party was sent away",
			Hint: "attach by the session's name, as another one"}
	}
	var c *connect.Control
	if a.Resume != "" && !sb.IsPaused() { // only a running sandbox can know the party
		c, err = sb.Again(ctx)
	} else {
		c, err = sb.Control(ctx, party, a.Session, a.Create || a.Fresh, nil)
	}
	if err != nil {
		return nil, err
	}
	if l := sb.Sessions().Get(a.Session); a.Fresh || a.Create && (l == nil || l.Ended()) {
		begun, err := sb.MayBegin()
		if err != nil {
			return nil, err
		}
		defer begun()
	}
	from, quiet := a.From, a.Quiet
	a.Party, a.Quiet, a.Keep = &party, true, false // these are for the daemon's own stream
	ctx, over := sb.Within(ctx)
	defer over()
	guest, at, err := attachGuest(ctx, c, a)
	if err != nil {
		err = interrupt.FrozenOr(ctx, err)
		if refused, ok := errors.AsType[*wire.Error](err); ok {
			return nil, live.InboundError(refused)
		}
		return nil, sb.Reach(err)
	}
	st = &stream{all: all, client: client, guest: guest, sandbox: sb, party: party,
		secret: at.Resume, quiet: quiet, shell: at.Shell, more: make(chan struct{}),
		asked: make(map[uint32]asked), cancel: func() {}}
	if st.live, err = sb.Session(ctx, c, at.Session, at.Created); err != nil {
		guest.Close()
		return nil, interrupt.FrozenOr(ctx, err)
	}
	if party.Rights != wire.RightWatch && (a.Fresh || a.Create && a.Resume == "") {
		st.live.Unseen.Store(false) // the client asks for a shell, which may be new
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
		st.heard = min(a.After, at.Seq) // the guest repeats the events after it
	}
	st.leave = st.live.Join(st)
	if err := sb.MayStay(party); err != nil { // its rights ended meanwhile
		st.leave()
		guest.Close()
		return nil, err
	}
	if err := client.WriteJSON(wire.FrameAttached, 0, at); err != nil {
		st.leave()
		guest.Close()
		return nil, err
	}
	return st, nil
}

// attachGuest opens a party's stream to the guest. Its frames are passed on without decoding.
func attachGuest(ctx context.Context, c *connect.Control, a wire.Attach) (*wire.Conn, wire.Attached,
	error) {
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
