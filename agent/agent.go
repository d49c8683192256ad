// Package agent drives sandboxes over nothing but SSH: sessions that know what their terminal is doing, commands without a
// terminal, and files. A sandbox is behind a gateway, or it is a machine that answers SSH: [Dial] takes either.
//
//	c, err := agent.Dial(ctx, "ssh://demo@localhost:2222", agent.Options{Create: true})
//	sh, err := c.Shell(ctx, "main")
//	res, err := sh.Run(ctx, "apt-get install toilet") // res.Ended == agent.EndedWaiting, res.Prompt is the question
//	res, err = sh.Type(ctx, "y")                      // res.Ended == agent.EndedDone, *res.ExitCode == 0
//
// An error is about the transport or a mistake of the caller; what the terminal did is in the Result.
package agent

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Client is a connection to one sandbox or host. It reconnects by itself when the link breaks. Its methods may be called at once.
type Client struct {
	name    string // of the sandbox
	session string // that is meant where none is named

	// open makes a new session stream. It is the one thing that differs between a client over SSH and one in the
	// gateway's own process.
	open func(ctx context.Context) (io.ReadWriteCloser, error)

	machine *machine                                 // nil through a gateway
	dial    func(ctx context.Context) (*link, error) // nil where there is no SSH connection to be had
	dialing chan struct{}                            // semaphore of who dials

	life context.Context //nolint:containedctx // the client's own life, which no call bounds; its cause is errClientClosed
	end  context.CancelCauseFunc

	mu   sync.Mutex
	link *link // guarded by mu; nil when there is none
}

var errClientClosed = errors.New("client is closed")

func newClient(name, session string) *Client {
	c := &Client{name: name, session: session, dialing: make(chan struct{}, 1)}
	c.life, c.end = context.WithCancelCause(context.Background())
	return c
}

// NewClient returns a client whose session streams come from open, for callers that are in the gateway's own process. login makes
// an SSH connection to the sandbox, which the client closes; with nil there is none: Exec and Files are unavailable then. name is the
// sandbox that both reach.
func NewClient(name string, open func(ctx context.Context) (io.ReadWriteCloser, error), login func(ctx context.Context) (*connect.Conn, error)) *Client {
	c := newClient(name, wire.DefaultSession)
	c.open = open
	if login != nil {
		c.dial = func(ctx context.Context) (*link, error) {
			conn, err := login(ctx)
			if err != nil {
				return nil, err
			}
			return newLink(conn), nil
		}
	}
	return c
}

// Sandbox is the name of the sandbox; of a machine that was dialled without a gateway the host of its URI.
func (c *Client) Sandbox() string { return c.name }

// Close ends the connection. Sessions, and what runs in them, go on; shells of this client are detached. On a host of another
// tier than guest sessions are in this process, and end.
func (c *Client) Close() error {
	c.end(errClientClosed)
	c.mu.Lock()
	l := c.link
	c.link = nil
	c.mu.Unlock()
	if l != nil {
		l.close()
	}
	if c.machine != nil {
		return c.machine.close()
	}
	return nil
}
