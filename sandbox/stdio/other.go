//go:build !linux

package stdio

import (
	"context"
	"net"

	"github.com/sandboxd/sandboxd/sandbox/sshconn"
)

// Socket is a connection on a unix socket. On this system it carries no descriptors.
type Socket struct{ *net.UnixConn }

// NewWarySocket returns a Socket on c, which it owns.
func NewWarySocket(c *net.UnixConn) *Socket { return &Socket{c} }

// Programs makes Programs that use the channel for all bytes.
type Programs struct{}

// NewPrograms returns nil.
func NewPrograms(*sshconn.Conn, *Socket) *Programs { return nil }

// Run does nothing.
func (*Programs) Run() {}

// Program makes a Program of channel, a session that has not started a program yet, and owns it.
// The caller must call Release in the end. The error is nil.
func (*Programs) Program(_ context.Context, channel *sshconn.Channel, _ Kind) (*Program, error) {
	return &Program{Channel: channel, release: channel.Drain}, nil
}
