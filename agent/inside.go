package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// DialInside connects to a server inside the sandbox. network is "tcp" with an address such as
// localhost:8080, or "unix" with a path. The connection has the rights of the user of the sandbox's
// sessions. ctx bounds the dial, not the connection. The connection has no deadlines, and ends with
// the Client at the latest. If the sandbox rejects the connection, the error is an
// *ssh.OpenChannelError.
func (c *Client) DialInside(ctx context.Context, network, address string) (net.Conn, error) {
	kind, payload, err := direct(network, address)
	var ch *sshconn.Channel
	if err == nil {
		ch, err = c.channel(ctx, kind, payload)
	}
	if err != nil {
		return nil, public(fmt.Errorf("%s in %s: %w", address, c.name, err))
	}
	go ch.Drain() // ends with the channel
	return stream{ch, name{network, address}}, nil
}

// DialUnix is DialInside for a unix socket.
func (c *Client) DialUnix(ctx context.Context, path string) (net.Conn, error) {
	return c.DialInside(ctx, "unix", path)
}

// direct returns the SSH channel that connects to an address: RFC 4254, section 7.2, and section
// 2.4 of OpenSSH's PROTOCOL.
func direct(network, address string) (kind string, payload []byte, err error) {
	switch network {
	case "unix":
		return wire.ChannelDirectUnix, wire.Marshal(wire.DirectUnix{Path: address}), nil
	case "tcp":
		host, text, err := net.SplitHostPort(address)
		if err != nil {
			return "", nil, err
		}
		port, err := strconv.ParseUint(text, 10, 16)
		return wire.ChannelDirectTCP, wire.Marshal(
			wire.DirectTCP{Host: host, Port: uint32(port), OriginHost: "0.0.0.0"},
		), err
	}
	return "", nil, net.UnknownNetworkError(network)
}

// stream is a channel as a net.Conn.
type stream struct {
	*sshconn.Channel
	to name
}

func (s stream) LocalAddr() net.Addr              { return s.to }
func (s stream) RemoteAddr() net.Addr             { return s.to }
func (s stream) SetDeadline(time.Time) error      { return errDeadline }
func (s stream) SetReadDeadline(time.Time) error  { return errDeadline }
func (s stream) SetWriteDeadline(time.Time) error { return errDeadline }

var errDeadline = errors.New("connection into a sandbox: deadlines are not supported")

// name is an address inside a sandbox.
type name struct{ network, address string }

func (n name) Network() string { return n.network }
func (n name) String() string  { return n.address }
