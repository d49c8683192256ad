package e2b

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// A sandbox that opens no channel does not block a caller whose context has ended.
func TestOpenWithoutAnswer(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	// Not net.Pipe: both SSH peers write before they read.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		config := &ssh.ServerConfig{NoClientAuth: true}
		config.AddHostKey(signer)
		conn, _, requests, err := ssh.NewServerConn(c, config) // never accepts its channels
		if err == nil {
			go ssh.DiscardRequests(requests)
			_ = conn.Wait()
		}
		served <- err
	}()
	client, err := ssh.Dial("tcp", l.Addr().String(),
		&ssh.ClientConfig{User: "x", HostKeyCallback: ssh.FixedHostKey(signer.PublicKey())})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		client.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	lk := &link{client: client}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if ch, _, err := lk.open(ctx); ch != nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, %v", ch, err)
	}
}
