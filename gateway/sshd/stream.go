package sshd

import (
	"context"
	"io"

	"golang.org/x/crypto/ssh"
)

// stream passes the channel to the hub, which serves the session stream on it. Its frames name the
// session; the login identifies the client. An error is a frame of the stream, too.
func (s *session) stream(ctx context.Context) {
	c := s.client
	s.begin()
	go refuseAll(s.channel.Requests) // ends with the channel
	rw := streamEnd{Reader: s.input(), Channel: s.channel}
	if err := c.hub().Sessions.Stream(ctx, c.grant.Principal, c.target.Sandbox, rw); err != nil {
		c.log.Debug("session stream ended", "sandbox", c.target.Sandbox, "err", err)
	}
	rw.Close()
}

// streamEnd is a channel whose reads are metered.
type streamEnd struct {
	io.Reader
	ssh.Channel
}

func (e streamEnd) Read(p []byte) (int, error) { return e.Reader.Read(p) }

// refuseAll refuses all further requests.
func refuseAll(requests <-chan *ssh.Request) {
	for q := range requests {
		_ = q.Reply(false, nil)
	}
}
