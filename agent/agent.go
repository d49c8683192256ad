// Package agent runs commands in sandboxes and drives their terminals, for programs that do work there: coding agents, test
// runners, scripts.
//
// A sandbox is a Linux machine of its own, such as a container, with a name. A gateway – the sandboxd daemon – makes sandboxes and
// decides who may use them. A session is a terminal in a sandbox with a shell, which keeps its directory and variables; it outlives
// connections, and people may watch it or type in it. The package reaches all of them over SSH.
//
//	c, err := agent.Dial(ctx, "ssh://demo@localhost:2222", agent.Options{Create: true})
//	sh, err := c.Shell(ctx, "main")
//	res, err := sh.Run(ctx, "apt-get install toilet") // res.Ended == agent.EndedWaiting, res.Prompt is the question
//	res, err = sh.Type(ctx, "y")                      // res.Ended == agent.EndedDone
//	code, ok := res.Code()                            // 0, true
//
// Where to begin:
//
//   - [DialGateway] makes, lists and removes sandboxes.
//   - [Dial] connects to one sandbox, or to any machine with an SSH server, as a [Client].
//   - [Client.Shell] attaches to a session, as a [Shell]: Run, Type, Answer, Keys, Wait, Expect, Screen.
//   - [Client.Exec] runs a command without a session, with separate outputs; [Client.Files] opens the files.
//
// No call hangs: a command that asks a question, or runs longer than its caller waits, returns a [Result] that says so, and goes on.
// An error is about the connection or a mistake of the caller, and is an [*Error] where there is something to branch on. What the
// terminal did is in the Result.
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
