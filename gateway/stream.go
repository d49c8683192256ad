package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Stream serves an agent's session stream on the sandbox called name until it ends, and closes rw.
// It passes the client's frames to the guest, with p as the party. Output comes from the replica,
// so that a client sees only what is recorded. It returns nil when the client ends the stream. The
// stream also ends when the connection to the sandbox breaks; the client then attaches again with
// its resume secret and stays the same party.
func (s *Sessions) Stream(ctx context.Context, p Principal, name string,
	rw io.ReadWriteCloser) error {
	ctx, done := s.hub.registry.Bound(ctx)
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
		return s.serveBare(ctx, p, name, client, first)
	}
	var a wire.Attach
	if err := json.Unmarshal(first.Data, &a); err != nil {
		return fmt.Errorf("session stream: attach: %w", err)
	}
	sb, here, err := s.hub.reachable(p, name, wire.RightWatch, "")
	if err == nil && (a.Create || a.Fresh) {
		err = s.mayStart(p, name)
	}
	if err != nil {
		return attach.Refuse(client, s.hub.Public(err))
	}
	return s.hub.attachments.Serve(ctx, sb.Guest(), partyOf(sb, here, wire.Agent), client, a)
}

// greet reads a client's hello, answers it, and returns the next frame: an attach or a request.
func greet(client *wire.Conn) (wire.Frame, error) {
	if err := client.Welcome(); err != nil {
		return wire.Frame{}, err
	}
	f, err := client.Read()
	if err == nil && f.Type != wire.FrameAttach && f.Type != wire.FrameRequest {
		err = fmt.Errorf("frame type %d instead of attach", f.Type)
	}
	f.Data = slices.Clone(f.Data)
	return f, err
}

// serveBare answers the requests that need no attachment: list and close.
func (s *Sessions) serveBare(ctx context.Context, p Principal, name string, client *wire.Conn,
	f wire.Frame) error {
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
			reply.Sessions, err = s.List(ctx, p, name)
		case r.Verb == wire.VerbClose:
			err = s.Close(ctx, p, wire.Target{Sandbox: name, Session: r.Session})
		default:
			err = wire.Errorf(wire.CodeUsage, "request %s needs an attachment",
				oneLine(string(r.Verb), 32))
		}
		reply.Error = s.hub.Public(err)
		if r.Verb != wire.VerbCancel { // cancel has no reply
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
