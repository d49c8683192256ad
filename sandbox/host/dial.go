package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox"
)

const (
	dialTimeout = 15 * time.Second
	maxJumps    = 8
)

// dial connects to e: directly, through a command, or through jump hosts, whose passwords come from
// asked. ctx bounds the dial.
func (e endpoint) dial(ctx context.Context, depth int, asked *asking) (net.Conn, error) {
	switch {
	case depth > maxJumps:
		return nil, fmt.Errorf("more than %d jump hosts: check for a loop", maxJumps)
	case e.proxy != "":
		return e.dialCommand()
	case len(e.jumps) > 0:
		return e.dialThrough(ctx, depth, asked)
	}
	ctx, cancel := context.WithTimeoutCause(
		ctx, dialTimeout, fmt.Errorf("no answer within %v", dialTimeout))
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", e.addr())
	if err != nil {
		if errno := syscall.Errno(0); errors.As(err, &errno) {
			err = errno // the address is in the message already
		}
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, fmt.Errorf("connect to %s: %w", e.addr(), err)
	}
	return conn, nil
}

// dialThrough connects from jump host to jump host. Only the first uses its own configuration of a
// connection.
func (e endpoint) dialThrough(ctx context.Context, depth int, asked *asking) (_ net.Conn,
	err error) {
	var hops []*ssh.Client
	end := func() {
		for i := len(hops) - 1; i >= 0; i-- {
			hops[i].Close()
		}
	}
	defer func() {
		if err != nil {
			end()
		}
	}()
	next := func(to endpoint) (net.Conn, error) {
		if len(hops) == 0 {
			return to.dial(ctx, depth+1, asked)
		}
		conn, err := hops[len(hops)-1].DialContext(ctx, "tcp", to.addr())
		if err != nil {
			return nil, fmt.Errorf("connect to %s: %w", to.addr(), err)
		}
		return newPipe(conn, nil), nil
	}
	for _, jump := range e.jumps {
		hop, err := resolve(ctx, jump)
		if err != nil {
			return nil, fmt.Errorf("jump host: %w", err)
		}
		conn, err := next(hop)
		if err != nil {
			return nil, fmt.Errorf("jump host %s: %w", jump, err)
		}
		peer, words, err := hop.peer(conn, sandbox.Host{}, nil)
		if err != nil {
			conn.Close()
			return nil, fmt.Errorf("jump host %s: %w", jump, err)
		}
		with := credentials{words: words}
		if get := asked.of(hop); get != nil {
			with.add(ctx, hop, &peer, get)
		}
		c, err := enter(ctx, hop, peer, with)
		if err != nil {
			return nil, fmt.Errorf("jump host %s: %w", jump, err)
		}
		hops = append(hops, c.Client())
	}
	conn, err := next(e)
	if err != nil {
		return nil, err
	}
	return newPipe(conn, end), nil
}

// dialCommand runs the user's own ProxyCommand, and returns its input and output as a connection.
func (e endpoint) dialCommand() (net.Conn, error) {
	cmd := exec.CommandContext(context.Background(), "/bin/sh", "-c", "exec "+e.expand(e.proxy)) //nolint:gosec // the daemon's user wrote it in their ssh_config
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("proxy command: %w", err)
	}
	return newPipe(struct {
		io.Reader
		io.WriteCloser
	}{out, in}, func() {
		_ = cmd.Process.Kill() // may have ended already
		_ = cmd.Wait()
	}), nil
}

// peer returns how to log in on conn, and describes the credentials in words.
func (e endpoint) peer(conn net.Conn, h sandbox.Host, accepted func(ssh.PublicKey)) (sandbox.Peer,
	string, error) {
	known, algorithms, keys, err := e.hostKeys(h.Keys, h.Accept, accepted)
	if err != nil {
		return sandbox.Peer{}, "", err
	}
	auth, words, err := e.auth(h)
	if err != nil {
		return sandbox.Peer{}, "", err
	}
	return sandbox.Peer{Conn: conn, User: e.user, HostKeys: keys, Auth: auth, Known: known,
		Algorithms: algorithms}, words, nil
}

// pipe is a net.Conn of a stream without deadlines: when a deadline passes, it closes the stream.
// That suffices here, where deadlines only end dead connections.
type pipe struct {
	io.ReadWriteCloser
	end   func() // closes what carries the stream; may be nil
	close sync.Once

	mu    sync.Mutex
	timer *time.Timer // guarded by mu
}

var errPipeClosed = errors.New("connection closed")

func newPipe(rw io.ReadWriteCloser, end func()) *pipe {
	return &pipe{ReadWriteCloser: rw, end: end}
}

func (p *pipe) Close() error {
	err := errPipeClosed
	p.close.Do(func() {
		_ = p.SetDeadline(time.Time{})
		err = p.ReadWriteCloser.Close()
		if p.end != nil {
			p.end()
		}
	})
	return err
}

func (p *pipe) SetDeadline(t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	if !t.IsZero() {
		p.timer = time.AfterFunc(time.Until(t), func() { p.Close() })
	}
	return nil
}

func (p *pipe) SetReadDeadline(t time.Time) error  { return p.SetDeadline(t) }
func (p *pipe) SetWriteDeadline(t time.Time) error { return p.SetDeadline(t) }
func (p *pipe) LocalAddr() net.Addr                { return &net.TCPAddr{IP: net.IPv4zero} }
func (p *pipe) RemoteAddr() net.Addr               { return &net.TCPAddr{IP: net.IPv4zero} }
