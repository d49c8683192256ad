package httpd

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"
)

// connTracker tracks the open connections and limits their number. At the limit, it closes the
// connection that has waited longest without an admitted request. So clients without a token cannot
// lock out clients that have one.
type connTracker struct {
	most int

	mu  sync.Mutex
	all map[net.Conn]*trackedConn // guarded by mu
	// Guarded by mu; without an admitted request under way, the longest first.
	waiting list.List
}

// trackedConn is one connection.
type trackedConn struct {
	of   *connTracker
	conn net.Conn
	at   *list.Element // guarded by of.mu; nil while an admitted request is under way
}

type connKey struct{}

func newConnTracker(most int) *connTracker {
	return &connTracker{most: most, all: make(map[net.Conn]*trackedConn)}
}

// connContext is the ConnContext of an http.Server. It makes room for c, or closes it.
func (v *connTracker) connContext(ctx context.Context, c net.Conn) context.Context {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := &trackedConn{of: v, conn: c}
	if len(v.all) >= v.most {
		first := v.waiting.Front()
		if first == nil {
			_ = c.Close() // all others serve admitted requests
			return ctx
		}
		v.forgetLocked(first.Value.(*trackedConn)).Close()
	}
	v.all[c] = n
	n.at = v.waiting.PushBack(n)
	return context.WithValue(ctx, connKey{}, n)
}

// connState is the ConnState of an http.Server.
func (v *connTracker) connState(c net.Conn, state http.ConnState) {
	// Hijacked connections have limits of their own.
	if state != http.StateClosed && state != http.StateHijacked {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if n := v.all[c]; n != nil {
		v.forgetLocked(n)
	}
}

// forgetLocked removes n and returns its connection. The caller holds mu.
func (v *connTracker) forgetLocked(n *trackedConn) net.Conn {
	delete(v.all, n.conn)
	if n.at != nil {
		v.waiting.Remove(n.at)
		n.at = nil
	}
	return n.conn
}

// admitted records an admitted request on ctx's connection until done is called. It returns false
// if the connection was closed meanwhile.
func admitted(ctx context.Context) (done func(), ok bool) {
	n, _ := ctx.Value(connKey{}).(*trackedConn)
	if n == nil { // in a test without a server
		return func() {}, true
	}
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	if n.of.all[n.conn] != n {
		return nil, false
	}
	if n.at != nil {
		n.of.waiting.Remove(n.at)
		n.at = nil
	}
	return func() {
		n.of.mu.Lock()
		defer n.of.mu.Unlock()
		if n.of.all[n.conn] == n {
			n.at = n.of.waiting.PushBack(n)
		}
	}, true
}
