package sshd

import (
	"net"
	"sync"
)

// stopped is a client's connection that can stop reading its socket until goOn is called.
type stopped struct {
	net.Conn
	mu   sync.Mutex
	wait chan struct{} // guarded by mu; closed by goOn
}

func (c *stopped) Read(p []byte) (int, error) {
	c.mu.Lock()
	wait := c.wait
	c.mu.Unlock()
	if wait != nil {
		<-wait
	}
	return c.Conn.Read(p)
}

func (c *stopped) stop() (goOn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wait = make(chan struct{})
	return sync.OnceFunc(func() { close(c.wait) })
}
