package sshconn

import (
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// ending is the network connection below the library. It prevents calls that wait indefinitely for
// a reply while the connection ends. When reading fails, the library closes its channels, but a
// later request is lost in two ways: the connection is closed only later, and the first failed
// write reports no error (handshakeTransport.writePacket returns it from the next write). So ending
// closes the connection and makes that first write before it reports the end to the library.
type ending struct {
	net.Conn
	over chan struct{} // closed when reading has failed

	mu    sync.Mutex
	ended bool     // guarded by mu
	login ssh.Conn // guarded by mu; the SSH connection on it; nil before the login
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

// carries sets the SSH connection, before channels are opened on it.
func (c *ending) carries(login ssh.Conn) {
	c.mu.Lock()
	c.login = login
	ended := c.ended
	c.mu.Unlock()
	if ended {
		failWrite(login)
	}
}

// failWrite makes the library detect that it cannot write.
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
