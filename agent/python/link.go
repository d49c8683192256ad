package python

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// link is a connection to a kernel.
type link struct {
	conn    *websocket.Conn
	framed  bool // uses the binary subprotocol
	session string
	hello   *run          // ends when the kernel is ready
	read    chan struct{} // closed when the reader has ended
	over    chan struct{} // closed by close
	once    sync.Once
}

// greet waits until the kernel of l is ready: it replies, and its status arrives. A server that
// takes the kernel for busy does not wait until its own subscription to output and status has
// reached the kernel. What the kernel sends before that is lost, so that a request is repeated
// until its status arrives. It is also repeated if there is no reply, in case that it was lost.
func (c *Context) greet(ctx context.Context, l *link) error {
	again := time.NewTicker(repeatHello)
	defer again.Stop()
	var sent time.Time
	for {
		if l.hello.lacksStatus() || time.Since(sent) > repeatUnanswered {
			sent = time.Now()
			err := l.send(ctx, l.hello.id, "kernel_info_request", "shell", struct{}{})
			if err != nil {
				l.hello.die("the connection ended")
			}
		}
		select {
		case <-l.hello.over:
			if l.hello.dead {
				return c.notStarted(errors.New(l.hello.why))
			}
			return nil
		case <-ctx.Done():
			return fmt.Errorf("context %s: its kernel does not answer: %w", c.name,
				context.Cause(ctx))
		case <-again.C:
		}
	}
}

const (
	repeatHello      = 500 * time.Millisecond // how long after a reply its status may arrive
	repeatUnanswered = 2 * time.Second        // how long a reply may take
)

// send sends one message. If ctx ends meanwhile, send returns at the latest after grace.
func (l *link) send(ctx context.Context, id, kind, channel string, content any) error {
	text, err := request(l.framed, l.session, id, kind, channel, content)
	if err != nil {
		return err
	}
	// When the context of a write ends, the library closes the connection. Code that runs already
	// would then continue, and nobody could interrupt it.
	writing, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })()
	return l.conn.Write(writing, l.form(), text)
}

// form returns the WebSocket message type of the connection.
func (l *link) form() websocket.MessageType {
	if l.framed {
		return websocket.MessageBinary
	}
	return websocket.MessageText
}

// close closes the connection, which ends the reader. It may be called repeatedly.
func (l *link) close() {
	l.once.Do(func() { close(l.over) })
	_ = l.conn.CloseNow()
}
