package sshd

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"github.com/sandboxd/sandboxd/sandbox/wire"
	"golang.org/x/crypto/ssh"
)

// session is a session channel of a client. It is confirmed before its purpose is known: only its
// requests say whether it has a terminal and what it is for.
type session struct {
	client  *client
	channel *sshconn.Channel

	ask     ask
	final   *ssh.Request    // shell, exec or subsystem
	pending []pending       // requests without an answer yet
	backlog sshconn.Backlog // of pending
	// Channel types that the sandbox may open because of this channel, until it ends.
	granted []string
	envs    int
	typed   *turns // the client's input, if several readers take turns; otherwise nil

	visiting visiting

	ending sync.Mutex // held while stderr is written and while EOF is sent
}

// pending is a request before the final one whose answer waits, because answers are sent in order.
type pending struct {
	q       *ssh.Request
	relay   bool // the sandbox answers
	ok      bool // otherwise the answer
	assumed bool // the client got its answer before the sandbox was asked
}

// holdFor is how long a request that only the sandbox can answer waits for the final request.
// OpenSSH sends them all at once. For a client that waits for each answer, the request is then
// granted.
const holdFor = 100 * time.Millisecond

// session serves a session channel until it ends.
func (c *client) session(ctx context.Context, nc *sshconn.NewChannel) {
	s := &session{client: c}
	channel, err := nc.Accept()
	if err != nil {
		c.endSession()
		return
	}
	counted := &place{Channel: channel.Channel, leave: sync.OnceFunc(c.endSession)}
	channel.Channel = counted
	s.channel = channel
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // ends with the channel
		<-channel.Closed
		counted.leave()
		cancel(errClientGone)
	}()
	defer channel.Drain() // until the client has closed it, too
	defer channel.Close()
	if !s.listen() {
		return
	}
	if c.grant != nil && c.grant.Options.Command != "" {
		s.ask.kind, s.ask.arg = wire.RequestExec, c.grant.Options.Command
	}
	if c.wrong != nil {
		s.fail(c.wrong)
		return
	}
	to, err := decide(c.grant, c.target, s.ask)
	if to == tools && c.server.options.MCP == nil {
		to, err = refuse, wire.Errorf(wire.CodeUnavailable, "subsystem mcp is not available")
	}
	c.log.Debug("session", "user", c.conn.User(), "kind", s.ask.kind, "pty", s.ask.pty != nil,
		"route", to.String())
	if to != refuse {
		if err := await(ctx, nc.Await); err != nil {
			s.fail(err)
			return
		}
	}

	switch to {
	case refuse:
		s.fail(err)
	case own, relayed:
		s.relay(ctx)
	case stream:
		s.stream(ctx)
	case tools:
		s.tools(ctx)
	case controlHost:
		s.controlHost(ctx)
	case join:
		s.join(ctx, c.target, false)
	case raw:
		s.raw(ctx, c.target, false)
	case fresh:
		s.raw(ctx, c.target, true)
	}
}

// place is a session channel that counts for its connection until it is closed. A client that has
// seen CLOSE may open another at once, and must find room.
type place struct {
	ssh.Channel
	leave func() // may be called more than once
}

func (p *place) Close() error {
	p.leave()
	return p.Channel.Close()
}

// listen receives requests up to the final one. It returns false if there was none.
func (s *session) listen() bool {
	var timer <-chan time.Time
	for {
		select {
		case q, ok := <-s.channel.Requests:
			switch {
			case !ok:
				return false
			case s.take(q):
				return true
			case timer == nil && s.waits():
				timer = time.After(holdFor)
			}
		case <-timer:
			timer = nil
			s.assume()
		}
	}
}

// take handles one request, and reports whether it is the final one.
func (s *session) take(q *ssh.Request) bool {
	switch q.Type {
	case wire.RequestPty:
		p, ok := parsePty(q.Payload)
		if ok = ok && s.ask.pty == nil && !s.grant().Options.NoPty; ok {
			s.ask.pty = p
		}
		s.answer(q, ok)
	case wire.RequestEnv:
		var e wire.Env
		ok := s.allowEnv(q.Payload, &e)
		if ok {
			s.ask.env = append(s.ask.env, e)
		}
		s.answer(q, ok)
	case wire.RequestWindowChange:
		w, ok := parseWindow(q.Payload)
		if ok = ok && s.ask.pty != nil; ok {
			s.ask.pty.Cols, s.ask.pty.Rows, s.ask.pty.Width, s.ask.pty.Height = w.Cols, w.Rows,
				w.Width, w.Height
		}
		s.answer(q, ok)
	case wire.RequestShell:
		s.final, s.ask.kind = q, q.Type
		return true
	case wire.RequestExec:
		var e wire.Exec
		if wire.Unmarshal(q.Payload, &e) == nil {
			s.final, s.ask.kind, s.ask.arg = q, q.Type, e.Command
			return true
		}
		s.answer(q, false)
	case wire.RequestSubsystem:
		var e wire.Subsystem
		if wire.Unmarshal(q.Payload, &e) == nil {
			s.final, s.ask.kind, s.ask.arg = q, q.Type, e.Name
			return true
		}
		s.answer(q, false)
	default:
		if !s.mayRequest(q) {
			s.answer(q, false)
			return false
		}
		s.keep(pending{q: q, relay: true})
	}
	return false
}

// noGrant is the grant of a connection with an invalid user name.
var noGrant grant

func (s *session) grant() *grant {
	if s.client.grant == nil {
		return &noGrant
	}
	return s.client.grant
}

// waits reports whether the client waits for an answer.
func (s *session) waits() bool {
	return slices.ContainsFunc(s.pending, func(p pending) bool { return !p.assumed })
}

// answer answers q, after earlier requests.
func (s *session) answer(q *ssh.Request, ok bool) {
	if !s.waits() {
		_ = q.Reply(ok, nil)
		return
	}
	s.keep(pending{q: q, ok: ok})
}

// keep makes a request wait for the final one, also after assume. The final one may never come, so
// a client with too many waiting requests loses the connection.
func (s *session) keep(p pending) {
	if s.backlog.Add(p.q) {
		s.pending = append(s.pending, p)
		return
	}
	s.client.conn.Close()
}

// assume answers waiting requests as if the sandbox had granted them.
func (s *session) assume() {
	for i := range s.pending {
		p := &s.pending[i]
		if p.assumed {
			continue
		}
		_ = p.q.Reply(p.ok || p.relay, nil)
		p.assumed = true
	}
	s.pending = slices.DeleteFunc(s.pending, func(p pending) bool {
		if !p.relay {
			s.backlog.Remove(p.q)
		}
		return !p.relay
	})
}

// settle answers waiting requests. Those for the sandbox are sent there, with to on u. If to is
// nil, they are refused.
func (s *session) settle(to ssh.Channel, u *upstream) {
	for _, p := range s.pending {
		ok := p.ok
		if p.relay && to != nil {
			s.expect(p.q.Type, u)
			var err error
			ok, err = to.SendRequest(p.q.Type, p.q.WantReply, p.q.Payload)
			ok = ok && err == nil
		}
		if !p.assumed {
			_ = p.q.Reply(ok, nil)
		}
	}
	s.pending = nil
}

// begin grants the final request.
func (s *session) begin() {
	s.settle(nil, nil)
	_ = s.final.Reply(true, nil)
	s.final.WantReply = false // a request has one reply (RFC 4254, section 5.4)
}

func (s *session) allowEnv(payload []byte, e *wire.Env) bool {
	if wire.Unmarshal(payload, e) != nil || s.envs >= maxEnv || !allowEnv(*e) {
		return false
	}
	s.envs++
	return true
}

// mayRequest reports whether a request of another type may go to the sandbox.
func (s *session) mayRequest(q *ssh.Request) bool {
	g := s.grant()
	switch {
	case ours(q.Type), g.Rights == wire.RightWatch:
		return false
	case q.Type == wire.RequestAgent:
		return !g.Options.NoAgent
	case q.Type == wire.RequestX11:
		return !g.Options.NoX11
	}
	return true
}

// fail ends the channel with a one-line error and exit status 255. Without a terminal the line goes
// to stderr, because standard output belongs to the program.
func (s *session) fail(err error) {
	s.begin()
	s.sayError(err)
	s.exit(wire.ExitTransport)
}

// sayError writes one line with what the client may see of err.
func (s *session) sayError(err error) {
	e := s.client.public(err)
	line := plain(e.Message)
	if e.Hint != "" {
		line += "; " + plain(e.Hint)
	}
	s.say(line)
}

// say writes a line of the gateway.
func (s *session) say(line string) {
	if s.ask.pty != nil {
		_, _ = fmt.Fprintf(s.channel, "sandboxd: %s\r\n", line)
		return
	}
	_, _ = fmt.Fprintf(s.channel.Stderr(), "sandboxd: %s\n", line)
}

// exit ends the channel: exit-status, EOF, CLOSE (RFC 4254, section 6.10).
func (s *session) exit(status int) {
	_, _ = s.channel.SendRequest(wire.RequestExitStatus, false,
		wire.Marshal(wire.ExitStatus{Status: uint32(status)}))
	s.ending.Lock()
	defer s.ending.Unlock()
	_ = s.channel.CloseWrite()
	_ = s.channel.Close()
}

// input returns the client's input.
func (s *session) input() io.Reader { return s.inputUntil(context.Background()) }

// inputUntil returns the client's input. If readers take turns, it ends with ctx.
func (s *session) inputUntil(ctx context.Context) io.Reader {
	if s.typed != nil {
		return &turn{ctx: ctx, from: s.typed}
	}
	return s.client.meter.Source(s.channel)
}

// progress returns a function that reports slow steps to a person. Without a terminal it returns
// nil.
func (s *session) progress() func(string) {
	if s.ask.pty == nil {
		return nil
	}
	return func(line string) { s.say(plain(line)) }
}
