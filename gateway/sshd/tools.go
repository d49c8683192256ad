package sshd

import (
	"context"
	"io"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// tools serves MCP on the channel, for the sandbox that the client logged in to. A client needs
// only ssh. A missing sandbox is an error before any MCP message.
func (s *session) tools(ctx context.Context) {
	c := s.client
	if _, err := c.hub().Get(ctx, c.grant.Principal, c.target.Sandbox); err != nil {
		s.fail(err)
		return
	}
	s.begin()
	go refuseAll(s.channel.Requests) // ends with the channel
	err := c.server.options.MCP(ctx, c.grant.Principal, c.target, held{s.input(), s.channel})
	if s.expelled(ctx) {
		return
	}
	if err != nil && ctx.Err() == nil {
		c.log.Debug("mcp ended", "sandbox", c.target.Sandbox, "err", err)
		s.say("invalid MCP message")
		s.exit(wire.ExitTransport)
		return
	}
	s.exit(0)
}

// held is a channel that its user cannot close, because its exit status comes first.
type held struct {
	io.Reader
	io.Writer
}

func (held) Close() error { return nil }
