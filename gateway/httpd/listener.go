package httpd

import (
	"net"

	"github.com/sandboxd/sandboxd/gateway/person"
)

// listener limits the output that the kernel buffers for a client that does not read. Terminals are
// among its connections.
type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok {
		if raw, err := tcp.SyscallConn(); err == nil {
			person.LimitBacklog(raw)
		}
	}
	return c, err
}
