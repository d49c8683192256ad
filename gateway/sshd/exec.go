package sshd

import (
	"context"
	"errors"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/stdio"
	"github.com/sandboxd/sandboxd/sandbox/wire"
	"golang.org/x/crypto/ssh"
)

// relay relays the channel to the sandbox's SSH server: a command, a shell without a terminal, or a
// subsystem.
func (s *session) relay(ctx context.Context) {
	c := s.client
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	u, channel, err := c.open(dialing, wire.ChannelSession, nil, s.progress())
	cancel()
	switch {
	case u == nil:
		s.fail(err)
		return
	case err != nil:
		s.fail(wire.Errorf(wire.CodeUnavailable, "sandbox %s: cannot open a session: %s",
			c.target.Sandbox, plain(err.Error())))
		return
	}
	defer s.takeBack(u)
	kind := stdio.Pipes
	if s.ask.pty != nil {
		kind = stdio.Terminal
	}
	program, err := u.conn.Program(ctx, channel, kind)
	if err != nil {
		s.fail(err)
		return
	}
	defer program.Release()
	r := relay{client: s.channel, sandbox: program.Channel, meter: c.meter, session: true,
		kill: u.close, careless: isCareless(c.conn.ClientVersion())}
	term, err := s.start(ctx, u, program)
	if err != nil {
		_ = program.Close()
		if errors.Is(err, errAnswered) && s.ask.isFiles() {
			s.files(ctx, u)
			return
		}
		if errors.Is(err, errAnswered) {
			// Answer as the sandbox did: the client has its own message for that.
			s.settle(nil, nil)
			_ = s.final.Reply(false, nil)
			return
		}
		s.fail(err)
		return
	}
	switch {
	case term != nil:
		r.tap = term
	case s.ask.isFiles():
		r.tap = &greeting{say: s.say}
	}
	record := c.hub().Relay.Recorder(c.grant.Principal, c.target.Sandbox)
	r.lost = func() { s.sayLost(ctx, u) }
	r.allow = func(q *ssh.Request) bool { return s.allowLater(q, u, term) }
	both := [...]ssh.Channel{s.channel, r.sandbox}
	stop := context.AfterFunc(ctx, func() {
		if e := accessOver(ctx); e != nil {
			s.say(e.Message)
			for _, end := range both {
				_ = end.Close()
			}
		}
	})
	r.run()
	stop()
	if term != nil {
		term.Close(r.exit)
	}
	command := s.ask.arg
	if s.ask.kind == wire.RequestSubsystem {
		command = "subsystem " + command
	}
	record(gateway.ExecEvent{Command: command, Exit: r.exit, Bytes: r.bytes})
}

// sayLost reports why a command ended without an exit status, if the connection to its sandbox was
// lost.
func (s *session) sayLost(ctx context.Context, u *upstream) {
	if _, _, err := u.conn.SendRequest(wire.GlobalKeepalive, true, nil); err == nil ||
		ctx.Err() != nil {
		return
	}
	c := s.client
	s.sayError(c.hub().Relay.Lost(ctx, c.grant.Principal, c.target.Sandbox))
}

// errAnswered means that the sandbox refused the request of the channel.
var errAnswered = errors.New("the sandbox refused")

// start repeats the client's requests at the sandbox, and answers those that wait. Without a
// terminal it returns a nil record.
func (s *session) start(ctx context.Context, u *upstream, to ssh.Channel) (*gateway.Terminal,
	error) {
	name := s.client.target.Sandbox
	if p := s.ask.pty; p != nil {
		ok, err := to.SendRequest(wire.RequestPty, true, wire.Marshal(*p))
		if err != nil {
			return nil, closedBy(s.client.target.Sandbox)
		}
		if !ok {
			return nil, wire.Errorf(wire.CodeUnavailable, "sandbox %s refused a terminal", name)
		}
	}
	for _, e := range s.ask.env {
		if _, err := to.SendRequest(wire.RequestEnv, false, wire.Marshal(e)); err != nil {
			break // later requests fail, too
		}
	}
	s.settle(to, u)

	var term *gateway.Terminal
	if p := s.ask.pty; p != nil {
		var err error
		if term, err = s.client.hub().Relay.Terminal(ctx, s.client.grant.Principal, name, s.ask.arg,
			int(p.Cols), int(p.Rows)); err != nil {
			return nil, err
		}
	}
	var payload []byte
	switch s.ask.kind {
	case wire.RequestExec:
		payload = wire.Marshal(wire.Exec{Command: s.ask.arg})
	case wire.RequestSubsystem:
		payload = wire.Marshal(wire.Subsystem{Name: s.ask.arg})
	}
	ok, err := to.SendRequest(s.ask.kind, true, payload)
	if err == nil && ok {
		_ = s.final.Reply(true, nil)
		return term, nil
	}
	if term != nil {
		term.Close(-1)
	}
	if err != nil {
		return nil, closedBy(s.client.target.Sandbox)
	}
	return nil, errAnswered
}

// closedBy is the error of a channel that ended before the sandbox answered.
func closedBy(sandbox string) error {
	return wire.Errorf(wire.CodeLost, "sandbox %s closed the channel", sandbox)
}

// allowLater decides on a client's request while the channel is relayed.
func (s *session) allowLater(q *ssh.Request, u *upstream, term *gateway.Terminal) bool {
	switch q.Type {
	case wire.RequestPty:
		return false // too late
	case wire.RequestEnv:
		var e wire.Env
		return s.allowEnv(q.Payload, &e)
	case wire.RequestWindowChange:
		w, ok := parseWindow(q.Payload)
		if !ok || s.ask.pty == nil {
			return false
		}
		if term != nil {
			term.Resize(int(w.Cols), int(w.Rows))
		}
		q.Payload = wire.Marshal(w)
		return true
	}
	if !s.mayRequest(q) {
		return false
	}
	s.expect(q.Type, u)
	return true
}

// expect allows the sandbox to open the channels that a request asks for, until this channel ends.
func (s *session) expect(request string, u *upstream) {
	what := map[string]string{wire.RequestAgent: wire.ChannelAgent,
		wire.RequestX11: wire.ChannelX11}[request]
	if what == "" {
		return
	}
	u.expect(what, 1)
	s.granted = append(s.granted, what)
}

func (s *session) takeBack(u *upstream) {
	for _, what := range s.granted {
		u.expect(what, -1)
	}
	s.granted = nil
}
