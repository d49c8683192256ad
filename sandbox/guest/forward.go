//go:build linux

package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// dialTimeout bounds a dial inside the sandbox.
	dialTimeout = 30 * time.Second
	// maxForwards bounds the listeners of one connection.
	maxForwards = 64
)

// duplex is a connection whose directions can end separately.
type duplex interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// closeTimeout is how long data of a client that closed its channel may take to reach a slow
// program.
const closeTimeout = 10 * time.Second

// join copies both ways until both have ended, and passes on each end, so that a client that has
// sent everything still gets its answer. An error on either way ends both. The client's CLOSE does,
// too, once its earlier data has arrived.
func join(ch *sshconn.Channel, conn duplex) {
	var wg sync.WaitGroup
	way := func(dst, src duplex) {
		if err := copyData(dst, src); err == nil && dst.CloseWrite() == nil {
			return
		}
		ch.Close()
		conn.Close()
	}
	arrived := make(chan struct{})
	wg.Go(func() { way(conn, ch); close(arrived) })
	wg.Go(func() { way(ch, conn) })
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		ch.Drain()
		select {
		case <-arrived:
		case <-time.After(closeTimeout):
		}
		conn.Close()
	}()
	wg.Wait()
	conn.Close()
	ch.Close()
	<-closed
}

// serveDirectTCP dials for direct-tcpip, in the sandbox's network (RFC 4254, section 7.2).
func (c *client) serveDirectTCP(nc *sshconn.NewChannel) {
	var req wire.DirectTCP
	if err := wire.Unmarshal(nc.ExtraData(), &req); err != nil || req.Port > 0xffff {
		_ = nc.Reject(ssh.ConnectionFailed, "malformed request")
		return
	}
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(c.ctx, "tcp",
		net.JoinHostPort(req.Host, strconv.Itoa(int(req.Port))))
	if err != nil {
		_ = nc.Reject(ssh.ConnectionFailed, reason(err))
		return
	}
	c.accept(nc, conn.(*net.TCPConn))
}

// serveDirectUnix dials for direct-streamlocal, with the rights of the session user.
func (c *client) serveDirectUnix(nc *sshconn.NewChannel) {
	var req wire.DirectUnix
	if err := wire.Unmarshal(nc.ExtraData(), &req); err != nil || !socketPath(req.Path) {
		_ = nc.Reject(ssh.ConnectionFailed, "malformed request")
		return
	}
	conn, err := dialUnix(c.g.identity(), req.Path)
	if err != nil {
		_ = nc.Reject(ssh.ConnectionFailed, reason(err))
		return
	}
	c.accept(nc, conn)
}

// accept accepts a channel and joins it to conn.
func (c *client) accept(nc *sshconn.NewChannel, conn duplex) {
	ch, err := nc.Accept()
	if err != nil {
		conn.Close()
		return
	}
	join(ch, conn)
}

// reason returns an error of a dial for display to the client.
func reason(err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		err = op.Err
	}
	if s, ok := errors.AsType[*os.SyscallError](err); ok {
		err = s.Err
	}
	return err.Error()
}

// forward is a listener for a client's request.
type forward struct {
	listeners []net.Listener
	cleanup   func()
}

func (f *forward) close() {
	for _, l := range f.listeners {
		l.Close()
	}
	if f.cleanup != nil {
		f.cleanup()
	}
}

// add stores f under key until it is cancelled or the connection ends. If the key is taken, it
// closes f and returns false.
func (c *client) add(key string, f *forward) bool {
	c.mu.Lock()
	_, taken := c.forward[key]
	ok := !taken && !c.closed && len(c.forward) < maxForwards
	if ok {
		c.forward[key] = f
	}
	c.mu.Unlock()
	if !ok {
		f.close()
	}
	return ok
}

// remove closes the forward under key.
func (c *client) remove(key string) bool {
	c.mu.Lock()
	f := c.forward[key]
	delete(c.forward, key)
	c.mu.Unlock()
	if f == nil {
		return false
	}
	f.close()
	return true
}

// closeForwards ends all listeners; they end with their connection.
func (c *client) closeForwards() {
	c.mu.Lock()
	c.closed = true
	forwards := c.forward
	c.forward = nil
	c.mu.Unlock()
	for _, f := range forwards {
		f.close()
	}
}

// listen accepts from l until it is closed and opens a channel for each connection, on this
// client's own connection.
func (c *client) listen(l net.Listener, channel string, payload func(net.Conn) []byte) {
	c.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
					time.Sleep(50 * time.Millisecond) //nolint:forbidigo // out of descriptors
					continue
				}
				return
			}
			select {
			case c.slots <- struct{}{}:
			default:
				conn.Close()
				continue
			}
			c.wg.Go(func() {
				defer func() { <-c.slots }()
				ch, err := c.conn.Open(c.ctx, channel, payload(conn))
				if err != nil {
					conn.Close()
					return
				}
				join(ch, conn.(duplex))
			})
		}
	})
}

// tcpForward listens for tcpip-forward (RFC 4254, section 7.1), in the sandbox's network.
func (c *client) tcpForward(r *ssh.Request) {
	var req wire.TCPForward
	if err := wire.Unmarshal(r.Payload, &req); err != nil || req.Port > 0xffff || !c.mayListen() {
		reply(r, false, nil)
		return
	}
	listeners, port, err := c.g.listenTCP(c.ctx, req.Host, int(req.Port))
	if err != nil {
		c.g.log.Info("tcpip-forward", "host", req.Host, "port", req.Port, "err", err)
		reply(r, false, nil)
		return
	}
	if !c.add(tcpKey(req.Host, uint32(port)), &forward{listeners: listeners}) {
		reply(r, false, nil)
		return
	}
	var answer []byte
	if req.Port == 0 {
		answer = wire.Marshal(wire.TCPForwardReply{Port: uint32(port)})
	}
	reply(r, true, answer) // before the first channel, which the client could not match otherwise
	for _, l := range listeners {
		c.listen(l, wire.ChannelForwardedTCP, func(conn net.Conn) []byte {
			from := conn.RemoteAddr().(*net.TCPAddr)
			// The host exactly as in the request: clients find the forward by it.
			return wire.Marshal(wire.DirectTCP{Host: req.Host, Port: uint32(port),
				OriginHost: from.IP.String(), OriginPort: uint32(from.Port)})
		})
	}
}

func tcpKey(host string, port uint32) string { return fmt.Sprintf("tcp %d %s", port, host) }

// mayListen reports whether the connection may have one more listener. It is checked before any
// bind.
func (c *client) mayListen() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.closed && len(c.forward) < maxForwards
}

func (c *client) cancelTCP(r *ssh.Request) {
	var req wire.TCPForward
	reply(r, wire.Unmarshal(r.Payload, &req) == nil && c.remove(tcpKey(req.Host, req.Port)), nil)
}

// listenTCP binds the address of a tcpip-forward: "" and "*" mean every address, "localhost" the
// loopback of both families, any other the address itself. All get the same port.
func (g *Guest) listenTCP(ctx context.Context, host string, port int) ([]net.Listener, int, error) {
	type bind struct{ network, addr string }
	var binds []bind
	switch host {
	case "", "*":
		binds = []bind{{"tcp", ""}}
	case "localhost":
		binds = []bind{{"tcp4", "127.0.0.1"}, {"tcp6", "::1"}}
	case "0.0.0.0":
		binds = []bind{{"tcp4", host}}
	default:
		binds = []bind{{"tcp", host}}
	}
	var out []net.Listener
	for i, b := range binds {
		var l net.Listener
		err := g.identity().do(func() (err error) {
			l, err = new(net.ListenConfig).Listen(
				ctx, b.network, net.JoinHostPort(b.addr, strconv.Itoa(port)))
			return err
		})
		if err != nil {
			if i > 0 {
				continue // no IPv6 in the sandbox, or the port is taken there
			}
			return nil, 0, err
		}
		out = append(out, l)
		port = l.Addr().(*net.TCPAddr).Port
	}
	return out, port, nil
}

// socketPath reports whether path can be a socket: absolute, and short enough for an address.
func socketPath(path string) bool {
	return filepath.IsAbs(path) && len(path) < 108 && !strings.ContainsRune(path, 0)
}

// unixForward listens for streamlocal-forward@openssh.com, with the rights of the session user.
func (c *client) unixForward(r *ssh.Request) {
	var req wire.UnixForward
	if err := wire.Unmarshal(r.Payload, &req); err != nil || !socketPath(req.Path) ||
		!c.mayListen() {
		reply(r, false, nil)
		return
	}
	l, remove, err := listenUnix(c.g.identity(), req.Path)
	if err != nil {
		c.g.log.Info("streamlocal-forward", "path", req.Path, "err", err)
		reply(r, false, nil)
		return
	}
	if !c.add("unix "+req.Path, &forward{listeners: []net.Listener{l}, cleanup: remove}) {
		reply(r, false, nil)
		return
	}
	reply(r, true, nil)
	c.listen(l, wire.ChannelForwardedUnix,
		func(net.Conn) []byte { return wire.Marshal(wire.ForwardedUnix{Path: req.Path}) })
}

func (c *client) cancelUnix(r *ssh.Request) {
	var req wire.UnixForward
	reply(r, wire.Unmarshal(r.Payload, &req) == nil && c.remove("unix "+req.Path), nil)
}
