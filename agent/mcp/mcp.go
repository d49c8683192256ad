// Package mcp serves sandboxes to models: the agent library as tools of the Model Context Protocol, over any byte stream (standard
// input and output, an SSH channel) or as an http.Handler. Reach for it where a coding agent is to work in a sandbox instead of on the
// machine that it runs on.
//
// A tool answers with the Result of docs/reference/json.md as structured content and as a text for the model. A command that asks for
// something, or takes long, comes back and says so: no call hangs. What programs printed and files hold is marked as data that nobody
// vouches for.
//
// It knows neither how a gateway is reached nor who calls: the caller hands it a daemon that acts as the principal.
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

// Options are what a Server works with. Gateway is required.
type Options struct {
	// Gateway is what the tools act on, as the principal that called.
	Gateway agent.Daemon

	// Sandbox is the one that a call means which names none. Where it is empty, Ensure says which.
	Sandbox string

	// Ensure makes that sandbox if it is missing and returns its name. It is called when a call first needs it, until it succeeds, and
	// never twice at once. nil: it is not made.
	Ensure func(ctx context.Context) (string, error)

	// Session is the one that a call means which names none; empty is main.
	Session string

	// Own keeps calls to that sandbox, and to sessions of the Server's own: what a call names NAME is Session-NAME, and EndSessions ends
	// them all. There are no tools for other sandboxes then.
	Own bool

	// Output receives what commands of the tool run print, as it comes; see [agent.Call.Stdout]. It may be nil.
	Output io.Writer

	// Python is of the tool python.
	Python PythonOptions

	// Version is what clients are told of this program.
	Version string
}

// Server serves the tools to one client. What the client opened is its own, and closed with the Server: connections and shells, not
// what runs in them.
type Server struct {
	options Options
	gateway *agent.Gateway // Options.Gateway
	server  *sdk.Server
	room    chan struct{} // taken by calls under way
	places  places
	turns   turns
	tools   []Tool // those of the list, in its order

	life context.Context //nolint:containedctx // the client's stay, which no call bounds; its cause is errGone
	end  context.CancelCauseFunc

	mu     sync.Mutex
	closed bool           // guarded by mu
	calls  sync.WaitGroup // Add is guarded by mu
}

// errGone ends what a client that has left was waiting for. What it started goes on.
var errGone = errors.New("the client is gone")

const (
	maxCalls   = 32      // of one client under way; further ones are refused
	maxMessage = 8 << 20 // bytes of one message of a client
)

// New returns a Server without a client. The caller closes it.
func New(o Options) *Server {
	if o.Session == "" {
		o.Session = wire.DefaultSession
	}
	s := &Server{options: o, gateway: agent.NewGateway(o.Gateway), room: make(chan struct{}, maxCalls)}
	s.life, s.end = context.WithCancelCause(context.Background())
	s.places.server = s
	s.server = sdk.NewServer(&sdk.Implementation{Name: "sandboxd", Title: "sandboxd: shells in sandboxes", Version: o.Version}, &sdk.ServerOptions{
		Instructions: instructions,
		Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}}, // which never change
	})
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

// Serve speaks with the client at the other end of rw until it leaves, ctx ends or what it sends is no MCP, and closes rw. One that
// sends nothing more is answered what it asked before. nil means that the client left.
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

// closedOnce is closed by both of its directions.
type closedOnce struct {
	io.ReadWriteCloser
	once sync.Once
	err  error
}

func (c *closedOnce) Close() error {
	c.once.Do(func() { c.err = c.ReadWriteCloser.Close() })
	return c.err
}

// Close ends the calls that are under way, waits for them, and lets go of what the client opened.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end(errGone)
	s.calls.Wait()
	s.places.close()
}

// enter counts a call in, leave out.
func (s *Server) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errGone
	}
	select {
	case s.room <- struct{}{}:
	default:
		return &agent.Error{Code: agent.CodeLimitOps, Message: "too many calls at once", Hint: "wait for the answers of those under way"}
	}
	s.calls.Add(1)
	return nil
}

func (s *Server) leave() {
	<-s.room
	s.calls.Done()
}

// within is ctx, which also ends when the client is gone.
func (s *Server) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.life, func() { cancel(context.Cause(s.life)) })
	return ctx, func() { stop(); cancel(nil) }
}

// goodbye bounds what is done for a call that its client gave up.
const goodbye = 15 * time.Second
