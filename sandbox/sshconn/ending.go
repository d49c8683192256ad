package sshconn

import (
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// ending is a connection for the library to speak SSH on, which keeps it from waiting indefinitely
// for the answer to what is sent while the connection ends. The library gives up its channels when
// reading fails, and what is sent after that is lost in two ways: the connection is closed only
// later, and the first write that fails reports no error (handshakeTransport.writePacket keeps it
// for the next one). So before the library learns of the end, the connection is closed and that
// first write is made here.
type ending struct {
	net.Conn
	over chan struct{} // closed when reading has failed

	mu    sync.Mutex
	ended bool     // guarded by mu
	login ssh.Conn // guarded by mu; what it carries, once there is a login
}

func newEnding(c net.Conn) *ending { return &ending{Conn: c, over: make(chan struct{})} }

// lastWrite bounds the wait for a write on a closed connection: it may be behind a key exchange
// that cannot end.
const lastWrite = 100 * time.Millisecond

func (c *ending) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.Conn.Close()
		c.mu.Lock()
		if !c.ended {
			c.ended = true
			close(c.over)
		}
		login := c.login
		c.mu.Unlock()
		if login != nil {
			failWrite(login)
		}
	}
	return n, err
}

// carries sets what the connection carries, before channels are opened on that.
func (c *ending) carries(login ssh.Conn) {
	c.mu.Lock()
	c.login = login
	ended := c.ended
	c.mu.Unlock()
	if ended {
		failWrite(login)
	}
}

// failWrite has the library find out that it cannot write.
func failWrite(login ssh.Conn) {
	done := make(chan struct{})
	go func() { // ends with the write, or with the reader that waits here
		defer close(done)
		_, _, _ = login.SendRequest("ended@sandboxd", false, nil) // it fails, on purpose
	}()
	timer := time.NewTimer(lastWrite)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}
