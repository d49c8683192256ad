// Package agent runs commands in sandboxes and drives their terminals, for coding agents, test
// runners and scripts.
//
// A sandbox is an isolated Linux machine with a name, such as a container. A gateway – the sandboxd
// daemon – creates sandboxes and decides who may use them. A session is a terminal in a sandbox
// that runs a shell. The shell keeps its working directory and variables, and the session outlives
// connections. People can watch it or type in it. The package reaches all of them over SSH.
//
//	c, err := agent.Dial(ctx, "ssh://demo@localhost:2222", agent.Options{Create: true})
//	sh, err := c.Shell(ctx, "main")
//	res, err := sh.Run(ctx, "apt-get install toilet") // res.Ended == agent.EndedWaiting
//	fmt.Println(res.Prompt)                           // Do you want to continue? [Y/n]
//	res, err = sh.Type(ctx, "y")                      // res.Ended == agent.EndedDone
//	code, ok := res.Code()                            // 0, true
//
// Where to begin:
//
//   - [DialGateway] connects to a gateway, to create, list and remove sandboxes.
//   - [Dial] connects to one sandbox, or to any machine with an SSH server. It returns a [Client].
//   - [Client.Shell] attaches to a session. It returns a [Shell]: Run, Type, Answer, Keys, Wait,
//     Expect, Screen.
//   - [Client.Exec] runs a command without a session, with separate stdout and stderr.
//     [Client.Files] opens an SFTP connection.
//
// No call hangs. When a command asks a question, or still runs at the call's timeout, the call
// returns a [Result] that says so. The command continues. An error reports a failed connection or a
// mistake of the caller. It is an [*Error] if it has a code to branch on. What the terminal did is
// in the Result.
package agent

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Client is a connection to one sandbox or host. It reconnects automatically when the connection
// breaks. Its methods are safe for concurrent use.
type Client struct {
	name    string // of the sandbox or host
	session string // used when the caller names none

	// open opens a new session stream: over SSH, or inside the gateway's own process.
	open func(ctx context.Context) (io.ReadWriteCloser, error)

	machine *machine                                 // set for a host; nil for a sandbox
	dial    func(ctx context.Context) (*link, error) // nil if there is no SSH connection
	dialing chan struct{}                            // semaphore: one goroutine dials at a time

	life context.Context //nolint:containedctx // ends with Close; its cause is errClientClosed
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

// NewClient returns a client for callers inside the gateway's own process. name is the sandbox, and
// open opens a session stream to it. login opens an SSH connection to the sandbox, which the client
// closes. If login is nil, Exec and Files return an error with code unavailable.
func NewClient(
	name string,
	open func(ctx context.Context) (io.ReadWriteCloser, error),
	login func(ctx context.Context) (*connect.Conn, error),
) *Client {
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

// Sandbox returns the name of the sandbox. For a host it returns the host name or address of its
// URI.
func (c *Client) Sandbox() string { return c.name }

// Close ends the connection and detaches the client's shells. Sessions and their programs continue.
// On a host of tier marks or screen, sessions run in this process, so Close ends them.
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
