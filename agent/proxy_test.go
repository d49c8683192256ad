package agent_test

import (
	"io"
	"net"
	"sync"
	"testing"
)

// proxy is a network between an agent and the gateway that tests can cut.
type proxy struct {
	listener net.Listener
	to       string
	wg       sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]bool // guarded by mu
	closed bool              // guarded by mu; all connections are closed
	down   bool              // guarded by mu; new connections are closed immediately
	total  int               // guarded by mu; connections so far
}

func newProxy(t testing.TB, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, to: to, conns: make(map[net.Conn]bool)}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		l.Close()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", p.to)
		if err != nil {
			near.Close()
			continue
		}
		p.mu.Lock()
		p.total++
		if p.down || p.closed {
			near.Close()
			far.Close()
		} else {
			p.conns[near], p.conns[far] = true, true
		}
		p.mu.Unlock()
		p.wg.Go(func() { p.copy(near, far) })
		p.wg.Go(func() { p.copy(far, near) })
	}
}

func (p *proxy) copy(dst, src net.Conn) {
	_, _ = io.Copy(dst, src) // ends with either
	dst.Close()
	src.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, src)
}

// cut resets all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, not an end
		}
		c.Close()
	}
}

// setDown sets whether the network is down.
func (p *proxy) setDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

// connections returns the number of connections so far.
func (p *proxy) connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total
}
