package connect

import (
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// Ending is a connection for x/crypto to speak SSH on, as either side. It keeps x/crypto from waiting for ever for the answer to a channel
// that is opened while its connection ends. That gives up its channels when reading fails, and what is sent then is lost in two ways: the
// connection is closed later only, and of the first write that fails nobody is told (handshakeTransport.writePacket keeps the error for the
// next one). So before its reader learns of the end the connection is closed, and that first write is made here.
type Ending struct {
	net.Conn

	mu    sync.Mutex
	over  bool     // guarded by mu; reading has failed
	login ssh.Conn // guarded by mu; what it carries, once there is a login
}

// lastWrite bounds the wait for a write on a connection that is closed: it may be behind a key exchange that cannot end.
const lastWrite = 100 * time.Millisecond

func (c *Ending) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.Conn.Close()
		c.mu.Lock()
		c.over = true
		login := c.login
		c.mu.Unlock()
		if login != nil {
			failWrite(login)
		}
	}
	return n, err
}

// Carries says what the connection carries, before channels are opened on that.
func (c *Ending) Carries(login ssh.Conn) {
	c.mu.Lock()
	c.login = login
	over := c.over
	c.mu.Unlock()
	if over {
		failWrite(login)
	}
}

// failWrite has x/crypto find out that it cannot write.
func failWrite(login ssh.Conn) {
	done := make(chan struct{})
	go func() { // ends with the write, or with the reader that waits here
		defer close(done)
		_, _, _ = login.SendRequest("ended@sandboxd", false, nil) // it fails: that is what it is for
	}()
	timer := time.NewTimer(lastWrite)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}
