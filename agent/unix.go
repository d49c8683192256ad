package agent

import (
	"context"
	"fmt"
	"net"

	"golang.org/x/crypto/ssh"
)

// DialUnix connects to a unix socket in the sandbox, with the rights of its sessions' user (direct-streamlocal@openssh.com in OpenSSH's
// PROTOCOL). ctx bounds the dial, not the connection, which the caller closes; it has no deadlines.
func (c *Client) DialUnix(ctx context.Context, path string) (net.Conn, error) {
	conn, err := opened(ctx, c, func(conn *ssh.Client) (net.Conn, error) { return conn.Dial("unix", path) })
	if err != nil {
		return nil, public(fmt.Errorf("socket %s in %s: %w", path, c.name, err))
	}
	return conn, nil
}
