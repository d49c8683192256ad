package host

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/sandboxd/sandboxd/sandbox/sshconn"
)

// full is a channel to a machine that accepts no data.
type full struct {
	ssh.Channel
	once   sync.Once
	closed chan struct{}
}

func (f *full) Write([]byte) (int, error) {
	<-f.closed
	return 0, io.EOF
}

func (f *full) Close() error {
	f.once.Do(func() { close(f.closed) })
	return nil
}

// A send to a machine that accepts no data ends with ctx.
func TestSendBounded(t *testing.T) {
	ended := make(chan struct{})
	close(ended)
	c := &channel{Channel: &sshconn.Channel{Channel: &full{closed: make(chan struct{})}},
		ended: ended}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := c.send(ctx, []byte("x")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
}

// An agent that does not answer does not delay a login indefinitely.
func TestSilentAgent(t *testing.T) {
	socket := filepath.Join(shortDir(t), "agent")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := dialAgent(socket, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if keys, err := agent.NewClient(conn).List(); err == nil {
		t.Errorf("got %v of an agent that says nothing", keys)
	}
}
