package python

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Context is a named kernel with the variables, imports and working directory of its calls. It runs
// one call at a time: while a call runs, another one is rejected with not_prompt. Calls of other
// clients on the same context queue in the kernel. Its methods are safe for concurrent use.
type Context struct {
	in       *Interpreter
	name     string
	pictures int // guarded by gallery.mu; number of displayed pictures

	mu     sync.Mutex
	kernel string    // guarded by mu; ID of the kernel; empty before the first
	link   *link     // guarded by mu; nil when there is none
	run    *run      // guarded by mu; the running call
	fence  *fence    // guarded by mu; the pending fence; nil if none
	lost   bool      // guarded by mu; a kernel died, and no Result has reported it
	broken bool      // guarded by mu; the kernel died and must be replaced
	heard  time.Time // guarded by mu; time of the last message; zero while the kernel shuts down
	ended  bool      // guarded by mu; disconnect was called
}

// Name returns the name of the context.
func (c *Context) Name() string { return c.name }

// within bounds the work after the end of a call.
const within = 10 * time.Second

// ready connects to the kernel and starts it if there is none.
func (c *Context) ready(ctx context.Context) error {
	_, err := c.connected(ctx)
	return err
}

// connected returns the live connection, or opens one.
func (c *Context) connected(ctx context.Context) (*link, error) {
	ctx, cancel := c.in.bound(ctx, "a kernel's start")
	defer cancel()
	c.mu.Lock()
	l, ended, quiet := c.link, c.ended, time.Since(c.heard)
	c.mu.Unlock()
	if ended {
		return nil, errClosed
	}
	if l != nil {
		if quiet < c.in.quiet() || c.alive(ctx) {
			return l, nil
		}
		c.drop(l) // the kernel ended while idle, which the server does not report
	}
	if err := c.replace(ctx); err != nil {
		return nil, err
	}
	l = &link{
		session: wire.NewOp(),
		hello:   newRun(nil, Limits{}, nil),
		read:    make(chan struct{}),
		over:    make(chan struct{}),
	}
	kernel, err := c.dial(ctx, l)
	if err != nil {
		return nil, err
	}
	l.framed = l.conn.Subprotocol() == subprotocol
	l.conn.SetReadLimit(-1) // read drops the excess itself
	c.mu.Lock()
	if c.ended || c.link != nil {
		other := c.link
		c.mu.Unlock()
		l.close()
		if other == nil {
			return nil, errClosed
		}
		return other, nil
	}
	if c.kernel != "" && c.kernel != kernel {
		c.lost = true
	}
	c.kernel, c.link, c.heard = kernel, l, time.Now()
	c.mu.Unlock()
	go c.read(l) // ends with the connection; disconnect and drop wait for it

	if err := c.greet(ctx, l); err != nil {
		c.drop(l)
		return nil, err
	}
	return l, nil
}

// dial starts the kernel if none runs, connects l to it and returns its ID. If the server ends
// between the two, because it was idle, dial starts it again, once.
func (c *Context) dial(ctx context.Context, l *link) (kernel string, err error) {
	for again := false; ; again = true {
		var s session
		if err := c.in.call(ctx, http.MethodPost, "/api/sessions", map[string]any{
			"path":   prefix + c.name,
			"name":   c.name,
			"type":   "console",
			"kernel": map[string]string{"name": "python3"},
		}, &s); err != nil {
			return "", fmt.Errorf("context %s: ask for its kernel: %w", c.name, err)
		}
		var resp *http.Response
		l.conn, resp, err = websocket.Dial( //nolint:bodyclose // the connection is the body
			ctx,
			"http://localhost/api/kernels/"+url.PathEscape(s.Kernel.ID)+"/channels?session_id="+
				l.session,
			&websocket.DialOptions{
				HTTPClient:      c.in.http,
				CompressionMode: websocket.CompressionDisabled,
				Subprotocols:    []string{subprotocol},
			},
		)
		switch {
		case err == nil:
			return s.Kernel.ID, nil
		case ctx.Err() != nil:
			return "", fmt.Errorf("context %s: connect to its kernel: %w", c.name,
				context.Cause(ctx))
		case again || resp != nil:
			return "", c.notStarted(err)
		}
	}
}

// notStarted is the error of a kernel that does not start.
func (c *Context) notStarted(err error) error {
	return &agent.Error{
		Code:    agent.CodeUnavailable,
		Message: fmt.Sprintf("context %s: its kernel does not start: %v", c.name, err),
		Hint: "check the server's log in the sandbox, /tmp/.sandboxd-python-UID/log, or create a " +
			"sandbox with Jupyter: sandboxd new --image sandboxd/python NAME",
	}
}

// alive reports whether the server responds and has the kernel.
func (c *Context) alive(ctx context.Context) bool {
	state, err := c.state(ctx)
	return err == nil && state != dead
}

const dead = "dead"

// state returns the server's state of the kernel. The error is errGone if the server does not have
// the kernel.
func (c *Context) state(ctx context.Context) (string, error) {
	c.mu.Lock()
	id := c.kernel
	c.mu.Unlock()
	var k struct {
		State string `json:"execution_state"`
	}
	err := c.in.call(ctx, http.MethodGet, "/api/kernels/"+url.PathEscape(id), nil, &k)
	return k.State, err
}

// replace deletes a kernel that died. The server restarts the process of a dead kernel, and then
// disconnects clients that connected meanwhile. A new kernel ID avoids that.
func (c *Context) replace(ctx context.Context) error {
	c.mu.Lock()
	broken := c.broken
	c.mu.Unlock()
	if !broken {
		return nil
	}
	// During the restart the server returns an internal error; before it, the server still lists
	// the kernel.
	late, tick := time.After(within), time.NewTicker(50*time.Millisecond)
	defer tick.Stop()
	for {
		err := c.order(ctx, http.MethodDelete, "")
		if err == nil || errors.Is(err, errGone) {
			break
		}
		select {
		case <-tick.C:
		case <-late:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = false
	return nil
}

// Settle deletes a kernel that died in a call. Call it before the client disconnects: otherwise the
// server restarts the kernel, and clients that connect meanwhile can lose messages. It does nothing
// if no kernel died.
func (c *Context) Settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return c.replace(ctx)
}

// read passes messages on until the connection ends.
func (c *Context) read(l *link) {
	defer close(l.read)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // ends with l, at the latest at the end of this
		<-l.over
		cancel()
	}()
	understand := parse
	if l.framed {
		understand = unframe
	}
	for small := make([]byte, 0, maxFree); ; {
		kind, r, err := l.conn.Reader(context.Background())
		if err != nil {
			break
		}
		at := place{of: c.in.room}
		text, more, err := c.take(ctx, r, small, &at)
		switch {
		case err != nil:
		// with JSON messages, the other type has buffers of widgets, which are not supported
		case kind != l.form():
		case more > 0:
			c.tooLong(l, text, int64(len(text))+more)
		default:
			if m, err := understand(text); err == nil {
				c.handle(l, &m)
			}
		}
		at.leave()
		if err != nil {
			break
		}
	}
	c.mu.Lock()
	r := c.run
	if c.link == l {
		c.link = nil
	} else {
		// the code that removed the link reported why; c.run may be a call of the next link
		r = nil
	}
	c.mu.Unlock()
	l.close()
	l.hello.die("the connection to the kernel ended")
	if r != nil {
		r.die("the connection to the kernel ended")
	}
}

// take reads a message into small, or into larger memory that it reserves with at. more is the
// number of dropped bytes, of a message that is too long or for which there is no memory.
func (c *Context) take(
	ctx context.Context,
	r io.Reader,
	small []byte,
	at *place,
) (text []byte, more int64, err error) {
	text = small[:0]
	for {
		if len(text) == cap(text) {
			size := min(2*cap(text), maxMessage)
			if size == cap(text) {
				break
			}
			if !at.grow(ctx, copies*int64(size)) {
				// Others that wait for memory have this now: the rest may take long to arrive.
				more = int64(len(text) - copy(small[:cap(small)], text))
				text = small[:int64(len(text))-more]
				at.leave()
				break
			}
			text = append(make([]byte, 0, size), text...)
		}
		n, err := r.Read(text[len(text):cap(text)])
		text = text[:len(text)+n]
		c.mu.Lock()
		c.heard = time.Now()
		c.mu.Unlock()
		if errors.Is(err, io.EOF) {
			return text, 0, nil
		}
		if err != nil {
			return nil, 0, err
		}
	}
	rest, err := io.Copy(io.Discard, r)
	return text, more + rest, err
}

// handle passes a message of l to its call. It releases m's text before it calls Output.
func (c *Context) handle(l *link, m *message) {
	c.mu.Lock()
	r := c.run
	c.mu.Unlock()
	// The kernel ends because a client asked for it, or because it was idle.
	if m.Header.Type == "shutdown_reply" && m.Channel == "iopub" {
		c.part(r, "the kernel was ended", false)
		return
	}
	if m.Parent.Type == "shutdown_request" {
		// The server may not have the kernel any more, although it has just sent a message.
		c.mu.Lock()
		c.heard = time.Time{}
		c.mu.Unlock()
	}
	if m.Header.Type == "status" {
		var s struct {
			State string `json:"execution_state"`
		}
		if json.Unmarshal(m.Content, &s) == nil && (s.State == "restarting" || s.State == dead) {
			// The process of the kernel has ended. The next call asks for a new kernel.
			c.part(r, "the kernel's process ended", true)
			return
		}
	}
	if m.Parent.ID == l.hello.id {
		l.hello.handle(*m)
		return
	}
	if c.passed(*m) {
		return
	}
	if r == nil || m.Parent.ID != r.id {
		return // of no call, of an earlier call, or of another client
	}
	if o, ok := c.output(m); ok {
		*m = message{}
		r.print(o)
		return
	}
	r.handle(*m)
}

// output returns the output in m, if m has any.
func (c *Context) output(m *message) (o Output, ok bool) {
	if m.Channel != "iopub" {
		return o, false
	}
	if len(m.Content) > 1<<20 {
		// The holder only computes, so that this wait is short.
		_ = opening.Acquire(context.Background(), 1)
		defer opening.Release(1)
	}
	if o, ok = m.output(); ok {
		c.in.gallery.add(c, &o)
	}
	return o, ok
}

// passed reports whether m belongs to the fence, and ends the fence with the last such message.
func (c *Context) passed(m message) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fence == nil || m.Parent.ID != c.fence.id {
		return false
	}
	if m.Header.Type == "status" &&
		bytes.Contains(m.Content[:min(len(m.Content), 100)], []byte(`"idle"`)) {
		close(c.fence.passed)
		c.fence = nil
	}
	return true
}

// part closes the connection to a kernel that has ended, and ends the call r on it.
func (c *Context) part(r *run, why string, broken bool) {
	c.mu.Lock()
	l := c.link
	c.link, c.lost, c.broken = nil, true, c.broken || broken
	c.mu.Unlock()
	if r != nil {
		r.die(why)
	}
	if l != nil {
		l.close()
	}
}

// tooLong counts a dropped message of l, if it belongs to the running call.
func (c *Context) tooLong(l *link, begin []byte, size int64) {
	c.mu.Lock()
	r := c.run
	c.mu.Unlock()
	if r == nil {
		return
	}
	content, ok := cutOff(l.framed, begin, r.id)
	if !ok {
		return
	}
	if o, n := beginning(content, c.in.o.Limits.Head); n > 0 {
		r.print(o)
		size -= n
	}
	r.drop(size)
}

// detach stops passing messages to r.
func (c *Context) detach(r *run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.run == r {
		c.run = nil
	}
}

// drop closes a connection and waits for its reader.
func (c *Context) drop(l *link) {
	c.mu.Lock()
	if c.link == l {
		c.link = nil
	}
	c.mu.Unlock()
	l.close()
	<-l.read
}

// unused reports whether the context has neither a connection nor a call.
func (c *Context) unused() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.link == nil && (c.run == nil || c.run.finished())
}

// disconnect closes the connection and ends the call. The kernel keeps running.
func (c *Context) disconnect() {
	c.mu.Lock()
	l, r := c.link, c.run
	c.ended, c.link = true, nil
	c.mu.Unlock()
	if l != nil {
		c.drop(l)
	}
	if r != nil {
		r.die("the context was closed")
	}
}

// Interrupt raises KeyboardInterrupt in the running code. Execute then returns.
func (c *Context) Interrupt(ctx context.Context) error {
	return c.order(ctx, http.MethodPost, "/interrupt")
}

// Restart starts a new kernel without the variables of earlier calls. A running call ends with
// EndedDead.
func (c *Context) Restart(ctx context.Context) error {
	c.mu.Lock()
	l, r := c.link, c.run
	c.link, c.run = nil, nil
	c.mu.Unlock()
	if l != nil {
		c.drop(l)
	}
	if r != nil {
		r.die("the kernel was restarted")
	}
	if err := c.replace(ctx); err != nil {
		return err
	}
	err := c.order(ctx, http.MethodPost, "/restart")
	if errors.Is(err, errGone) {
		err = nil // connected starts a new kernel
	}
	if err != nil {
		return err
	}
	if err := c.ready(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	c.lost = false
	c.mu.Unlock()
	return nil
}

// Close ends the kernel, whose variables are lost. The server keeps running for other contexts.
func (c *Context) Close(ctx context.Context) error {
	err := c.order(ctx, http.MethodDelete, "")
	if errors.Is(err, errGone) {
		err = nil
	}
	c.disconnect()
	c.in.gallery.forget(c)
	c.in.mu.Lock()
	if c.in.contexts[c.name] == c {
		delete(c.in.contexts, c.name)
	}
	c.in.mu.Unlock()
	return err
}

// order sends a request about the kernel to the server.
func (c *Context) order(ctx context.Context, method, what string) error {
	c.mu.Lock()
	id := c.kernel
	c.mu.Unlock()
	if err := c.in.call(ctx, method, "/api/kernels/"+url.PathEscape(id)+what, nil,
		nil); err != nil {
		verb := cmp.Or(strings.TrimPrefix(what, "/"), "end")
		return fmt.Errorf("context %s: %s its kernel: %w", c.name, verb, err)
	}
	return nil
}

// busy returns the error of a call that is rejected because r runs.
func (c *Context) busy(r *run) error {
	if r.asks() {
		return &agent.Error{
			Code:    agent.CodeNotPrompt,
			Message: "context " + c.name + " waits for input",
			Hint:    "answer it, or interrupt it",
		}
	}
	return &agent.Error{
		Code:    agent.CodeNotPrompt,
		Message: "context " + c.name + " runs a call",
		Hint:    "wait for it, interrupt it, or use another context",
	}
}
