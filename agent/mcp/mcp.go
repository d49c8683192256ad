// Package mcp serves package agent to models as tools of the Model Context Protocol (MCP). It works
// over any byte stream, such as standard input and output or an SSH channel, and as an
// http.Handler. Use it for coding agents that work in a sandbox instead of on their own machine.
//
// A tool returns the Result of docs/reference/json.md as structured content, and a text for the
// model. No call hangs: a call returns when a command asks for input, or at the timeout. Output of
// programs and content of files are marked as untrusted data.
//
// The package does not connect to a gateway and does not authenticate: the caller passes an
// agent.Daemon that acts as the principal.
package mcp

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Options configure a Server. Gateway is required.
type Options struct {
	// Gateway is the daemon that the tools use. It acts as the caller's principal.
	Gateway agent.Daemon

	// Sandbox is the default sandbox of calls. If it is empty, Ensure returns the default.
	Sandbox string

	// Ensure creates the default sandbox if it does not exist, and returns its name. It is called
	// when a call first needs it, until it succeeds, and never concurrently. If it is nil, no
	// sandbox is created.
	Ensure func(ctx context.Context) (string, error)

	// Session is the default session of calls. Empty means main.
	Session string

	// Own restricts calls to the default sandbox and to sessions of this Server: session NAME of a
	// call is Session-NAME, and EndSessions ends them all. The Server then has no tools for other
	// sandboxes.
	Own bool

	// Output receives the output of commands of the tool run as it arrives; see
	// [agent.Call.Stdout]. It may be nil.
	Output io.Writer

	// Python configures the tool python.
	Python PythonOptions

	// Version is the version of this program, which is reported to clients.
	Version string
}

// Server serves the tools to one client. Its connections and shells are closed with it; programs in
// the sessions continue.
type Server struct {
	options Options
	gateway *agent.Gateway // Options.Gateway
	server  *sdk.Server
	room    chan struct{} // semaphore: taken by running calls
	places  places
	turns   turns
	tools   []Tool // all tools, in the order of the list

	life context.Context //nolint:containedctx // ends with Close; its cause is errGone
	end  context.CancelCauseFunc

	mu     sync.Mutex
	closed bool           // guarded by mu
	calls  sync.WaitGroup // Add is guarded by mu
}

// errGone ends the calls of a client that has disconnected. Its programs continue.
var errGone = errors.New("the client has disconnected")

const (
	maxCalls   = 32      // running calls of one client; further ones are rejected
	maxMessage = 8 << 20 // bytes of one message of a client
)

// New returns a Server; Serve connects its client. The caller closes it.
func New(o Options) *Server {
	if o.Session == "" {
		o.Session = wire.DefaultSession
	}
	s := &Server{
		options: o,
		gateway: agent.NewGateway(o.Gateway),
		room:    make(chan struct{}, maxCalls),
	}
	s.life, s.end = context.WithCancelCause(context.Background())
	s.places.server = s
	s.server = sdk.NewServer(
		&sdk.Implementation{
			Name:    "sandboxd",
			Title:   "sandboxd: shells in sandboxes",
			Version: o.Version,
		},
		&sdk.ServerOptions{
			Instructions: instructions,
			// The list of tools never changes.
			Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}},
		},
	)
	s.addSession()
	if !o.Own {
		s.addAliases()
	}
	s.addFiles()
	if !o.Own {
		s.addSandboxes()
		s.addPython()
	}
	return s
}

// Serve serves the client at the other end of rw until the client disconnects, ctx ends or the
// client sends invalid MCP. Then it closes rw. A client that closes its sending side still receives
// the replies to its calls. nil means that the client disconnected.
func (s *Server) Serve(ctx context.Context, rw io.ReadWriteCloser) error {
	rw = &closedOnce{ReadWriteCloser: rw}
	defer rw.Close()
	t := &paced{Transport: &sdk.IOTransport{Reader: rw, Writer: rw, MaxLineLength: maxMessage}}
	err := s.server.Run(ctx, t)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// closedOnce closes its stream once, for two users of the stream.
type closedOnce struct {
	io.ReadWriteCloser
	once sync.Once
	err  error
}

func (c *closedOnce) Close() error {
	c.once.Do(func() { c.err = c.ReadWriteCloser.Close() })
	return c.err
}

// Close ends the running calls, waits for them, and closes the client's connections and shells.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end(errGone)
	s.calls.Wait()
	s.places.close()
}

// enter counts a call that begins, leave one that ends.
func (s *Server) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errGone
	}
	select {
	case s.room <- struct{}{}:
	default:
		return &agent.Error{
			Code:    agent.CodeLimitOps,
			Message: "too many calls at the same time",
			Hint:    "wait for the replies to the running calls",
		}
	}
	s.calls.Add(1)
	return nil
}

func (s *Server) leave() {
	<-s.room
	s.calls.Done()
}

// within returns a context that ends with ctx or when the client disconnects.
func (s *Server) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.life, func() { cancel(context.Cause(s.life)) })
	return ctx, func() { stop(); cancel(nil) }
}

// goodbye bounds the clean-up after a call that its client cancelled.
const goodbye = 15 * time.Second
