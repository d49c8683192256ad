package httpd

import (
	"net"

	"github.com/sandboxd/sandboxd/gateway/person"
)

// listener lets little wait in the kernel for who does not read: terminals are among its connections.
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
