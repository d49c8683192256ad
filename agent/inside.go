package agent

import (
	"context"
	"fmt"
	"net"

	"golang.org/x/crypto/ssh"
)

// DialInside connects to what listens in the sandbox, as seen from there: network "tcp" and an address like localhost:8080, or
// "unix" and a path. ctx bounds the dialling, not the connection, which ends with the Client at the latest. What the sandbox
// refuses is an *ssh.OpenChannelError.
func (c *Client) DialInside(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := opened(ctx, c, func(conn *ssh.Client) (net.Conn, error) { return conn.Dial(network, address) })
	if err != nil {
		return nil, public(fmt.Errorf("%s in %s: %w", address, c.name, err))
	}
	return conn, nil
}
