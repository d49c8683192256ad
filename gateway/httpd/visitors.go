package httpd

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"
)

// visitors are the connections to the door. There is room for so many; where that is full, the one goes that has waited longest without a
// request that was let in: whoever has no token keeps nobody out who has one.
type visitors struct {
	most int

	mu      sync.Mutex
	all     map[net.Conn]*visitor // guarded by mu
	waiting list.List             // guarded by mu; those without such a request under way, the longest first
}

// visitor is one connection.
type visitor struct {
	of   *visitors
	conn net.Conn
	at   *list.Element // guarded by of.mu; nil while a request that was let in is under way
}

type visitorKey struct{}

func newVisitors(most int) *visitors {
	return &visitors{most: most, all: make(map[net.Conn]*visitor)}
}

// meet is an http.Server's ConnContext: it makes room for c, or closes it.
func (v *visitors) meet(ctx context.Context, c net.Conn) context.Context {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := &visitor{of: v, conn: c}
	if len(v.all) >= v.most {
		first := v.waiting.Front()
		if first == nil {
			_ = c.Close() // all others are at work
			return ctx
		}
		v.forgetLocked(first.Value.(*visitor)).Close()
	}
	v.all[c] = n
	n.at = v.waiting.PushBack(n)
	return context.WithValue(ctx, visitorKey{}, n)
}

// changed is an http.Server's ConnState.
func (v *visitors) changed(c net.Conn, state http.ConnState) {
	if state != http.StateClosed && state != http.StateHijacked { // who takes one over counts it in a way of its own
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if n := v.all[c]; n != nil {
		v.forgetLocked(n)
	}
}

// forgetLocked is called with mu held.
func (v *visitors) forgetLocked(n *visitor) net.Conn {
	delete(v.all, n.conn)
	if n.at != nil {
		v.waiting.Remove(n.at)
		n.at = nil
	}
	return n.conn
}

// letIn notes that a request of ctx's connection was let in, until done is called. It is false if the connection had to go meanwhile.
func letIn(ctx context.Context) (done func(), ok bool) {
	n, _ := ctx.Value(visitorKey{}).(*visitor)
	if n == nil { // a test's
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
