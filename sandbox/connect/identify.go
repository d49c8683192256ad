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

// Identification is what the daemon and the guest call themselves as SSH servers.
const Identification = "SSH-2.0-sandboxd"

// identifyTimeout bounds how long a server may take to say what it is: OpenSSH's does so as soon as it has forked.
const identifyTimeout = handshakeTimeout

// Identify reads the identification string of the SSH server on conn (RFC 4253, section 4.2), and returns it without its line
// end and with a connection on which it is read again. What is decided by it holds: the string is part of what the server
// signs, so SSH fails, before anything is tried to log in, unless the owner of the host key has said so. Lines in front of it
// are left out. ctx bounds the wait. On an error conn is closed.
func Identify(ctx context.Context, conn net.Conn) (string, net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, identifyTimeout, fmt.Errorf("it has said nothing for %v: is that an SSH server?", identifyTimeout))
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

// identification reads up to the end of the identification string, and not a byte more.
func identification(r io.Reader) ([]byte, error) {
	const maxFront, maxLine = 8 << 10, 255
	var line, front []byte
	for b := make([]byte, 1); ; {
		if _, err := io.ReadFull(r, b); err != nil {
			said := printable(strings.TrimSpace(string(append(front, line...))), 200)
			switch {
			case said != "": // "Exceeded MaxStartups", "Not allowed at this time"
				return nil, fmt.Errorf("it said %q and not what it is: %w", said, err)
			case errors.Is(err, io.EOF):
				return nil, errors.New("it hung up before it said what it is")
			}
			return nil, err
		}
		line = append(line, b[0])
		ssh := bytes.HasPrefix(line, []byte("SSH-"))
		switch {
		case ssh && b[0] == '\n':
			return line, nil
		case ssh && len(line) > maxLine, len(front)+len(line) > maxFront:
			return nil, fmt.Errorf("it is no SSH server: it begins with %q", printable(string(append(front, line...)), 60))
		case b[0] == '\n':
			front, line = append(front, line...), nil
		}
	}
}

// identified is a connection whose first line is read again.
type identified struct {
	net.Conn
	again []byte // of the reader
}

func (c *identified) Read(p []byte) (int, error) {
	if len(c.again) > 0 {
		n := copy(p, c.again)
		c.again = c.again[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}
