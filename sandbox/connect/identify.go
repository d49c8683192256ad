package connect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
)

// Identification is the SSH identification string of the daemon and the guest.
const Identification = "SSH-2.0-sandboxd"

// identifyTimeout bounds the wait for an identification string, which OpenSSH sends immediately.
const identifyTimeout = handshakeTimeout

// Identify reads the identification string of the SSH server on conn (RFC 4253, section 4.2). It
// returns the string without its line end, and a connection that reads it again. The string can be
// trusted after the handshake: the server signs it, so that a changed string fails the handshake
// before the login. Lines before the string are skipped. ctx bounds the wait. On an error conn is
// closed.
func Identify(ctx context.Context, conn net.Conn) (string, net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(
		ctx,
		identifyTimeout,
		fmt.Errorf("no identification string within %v: is it an SSH server?", identifyTimeout),
	)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	line, err := identification(conn)
	if !stop() {
		return "", nil, context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return "", nil, err
	}
	return strings.TrimRight(string(line), "\r\n"), &identified{Conn: conn, again: line}, nil
}

// identification reads exactly up to the end of the identification string.
func identification(r io.Reader) ([]byte, error) {
	const maxFront, maxLine = 8 << 10, 255
	var line, front []byte
	for b := make([]byte, 1); ; {
		if _, err := io.ReadFull(r, b); err != nil {
			said := printable(strings.TrimSpace(string(append(front, line...))), 200)
			switch {
			case said != "": // "Exceeded MaxStartups", "Not allowed at this time"
				return nil, fmt.Errorf("it sent %q instead of an identification string: %w", said,
					err)
			case errors.Is(err, io.EOF):
				return nil, errors.New("it closed the connection before the identification string")
			}
			return nil, err
		}
		line = append(line, b[0])
		ssh := bytes.HasPrefix(line, []byte("SSH-"))
		switch {
		case ssh && b[0] == '\n':
			return line, nil
		case ssh && len(line) > maxLine, len(front)+len(line) > maxFront:
			return nil, fmt.Errorf(
				"not an SSH server: it begins with %q",
				printable(string(append(front, line...)), 60),
			)
		case b[0] == '\n':
			front, line = append(front, line...), nil
		}
	}
}

// identified is a connection that reads its first line again.
type identified struct {
	net.Conn
	again []byte // rest of the line
}

func (c *identified) Read(p []byte) (int, error) {
	if len(c.again) > 0 {
		n := copy(p, c.again)
		c.again = c.again[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}
