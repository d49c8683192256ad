package sshd

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/stdio"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A script is an SSH server written by a test: a sandbox whose sshd is not the guest, or
// misbehaves. It returns when it is done with the connection.
type script func(conn *ssh.ServerConn, chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request)

// scripted is the in-memory backend. A test can replace its sandboxes with a script.
type scripted struct {
	*sandboxtest.Backend
	t      testing.TB
	key    ssh.Signer
	script atomic.Pointer[script]
	delay  atomic.Pointer[chan struct{}] // delays Dial until it is closed

	passing atomic.Bool // the script's sandbox accepts descriptors
}

func (b *scripted) Dial(ctx context.Context, inst sandbox.Instance) (sandbox.Peer, error) {
	if wait := b.delay.Load(); wait != nil {
		select {
		case <-*wait:
		case <-ctx.Done():
			return sandbox.Peer{}, context.Cause(ctx)
		}
	}
	s := b.script.Load()
	if s == nil {
		return b.Backend.Dial(ctx, inst)
	}
	// Not net.Pipe: both SSH peers write before they read.
	near, far, err := sandboxtest.Pipe()
	if err != nil {
		return sandbox.Peer{}, err
	}
	var done sync.WaitGroup
	done.Go(func() { b.serve(far, *s) })
	b.t.Cleanup(func() { far.Close(); done.Wait() })
	return sandbox.Peer{Conn: near, User: "sandbox", HostKeys: []ssh.PublicKey{b.key.PublicKey()}},
		nil
}

func (b *scripted) serve(c net.Conn, s script) {
	defer c.Close()
	config := &ssh.ServerConfig{NoClientAuth: true}
	config.AddHostKey(b.key)
	if !b.passing.Load() {
		// Otherwise the other side gave up.
		if conn, chans, reqs, err := ssh.NewServerConn(c, config); err == nil {
			s(conn, chans, reqs)
		}
		return
	}
	files := stdio.NewSocket(c.(*net.UnixConn))
	defer files.Close()
	conn, chans, reqs, err := ssh.NewServerConn(files, config)
	if err != nil {
		return
	}
	var offers sync.WaitGroup
	defer offers.Wait()
	offers.Go(func() {
		for q := range reqs {
			var answer []byte
			if q.Type == wire.DescriptorsRequest {
				fd, err := unix.Open("/dev/pts/ptmx", unix.O_PATH|unix.O_CLOEXEC, 0)
				if err != nil {
					b.t.Error(err)
				}
				batch, _ := files.Pass(fd) // a closed one is ignored
				answer = wire.Marshal(wire.Descriptors{Batch: batch})
			}
			_ = q.Reply(true, answer)
		}
	})
	s(conn, chans, nil)
}

// playPassing is play for a sandbox that accepts descriptors, with f for each session channel.
func (w *world) playPassing(f func(ch ssh.Channel, reqs <-chan *ssh.Request)) {
	w.backend.passing.Store(true)
	w.play(sessions(f))
}

// play replaces the world's sandboxes with a script.
func (w *world) play(s script) { w.backend.script.Store(&s) }

// sessions returns a script that runs f for each session channel.
func sessions(f func(ch ssh.Channel, reqs <-chan *ssh.Request)) script {
	return func(_ *ssh.ServerConn, chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request) {
		var serving sync.WaitGroup
		defer serving.Wait()
		if reqs != nil { // nil: the script has another reader for them
			serving.Go(func() { ssh.DiscardRequests(reqs) })
		}
		for nc := range chans {
			ch, requests, err := nc.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { f(ch, requests) })
		}
	}
}

// started answers requests until the one that starts a program.
func started(reqs <-chan *ssh.Request) (*ssh.Request, bool) {
	for q := range reqs {
		_ = q.Reply(true, nil)
		switch q.Type {
		case "exec", "shell", "subsystem":
			return q, true
		}
	}
	return nil, false
}
