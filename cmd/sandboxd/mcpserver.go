package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/mcp"
	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// serveMCP serves MCP to a client that logged in by SSH.
func (d *daemon) serveMCP(ctx context.Context, p gateway.Principal, t wire.Target,
	rw io.ReadWriteCloser) error {
	g := &hubGateway{daemon: d, principal: p}
	defer g.streams.Wait() // they end when s closes its shells
	s := mcp.New(mcp.Options{Gateway: g, Sandbox: t.Sandbox, Session: t.Session,
		Version: build.Version, Python: d.pythonTool()})
	defer s.Close()
	return s.Serve(ctx, rw)
}

// newMCP returns the handler of MCP over HTTP. The caller is the owner of the token, which may be
// revoked meanwhile.
func (d *daemon) newMCP() *mcp.Handler {
	return mcp.NewHandler(func(r *http.Request) (mcp.Caller, error) {
		t := rest.Caller(r.Context())
		t, live, err := d.tokens.ByID(t.ID)
		if err != nil {
			return mcp.Caller{}, err
		}
		name := r.URL.Query().Get("sandbox")
		if name != "" {
			if _, err := wire.ParseSandbox(name); err != nil {
				return mcp.Caller{}, err
			}
		}
		g := &hubGateway{daemon: d, principal: t.AsPrincipal()}
		return mcp.Caller{ID: t.ID, Live: live, Options: mcp.Options{Gateway: g, Sandbox: name,
			Version: build.Version, Python: d.pythonTool()}}, nil
	})
}

// hubGateway gives MCP tools of one client direct access to the hub.
type hubGateway struct {
	daemon    *daemon
	principal gateway.Principal
	streams   sync.WaitGroup
}

// Dial connects to a sandbox. Its session streams are those of the agent library, without SSH.
func (g *hubGateway) Dial(ctx context.Context, name string) (*agent.Client, error) {
	hub := g.daemon.hub
	if _, err := hub.Get(ctx, g.principal, name); err != nil {
		return nil, hub.Public(err)
	}
	open := func(context.Context) (io.ReadWriteCloser, error) {
		near, far, err := connect.Pipe()
		if err != nil {
			return nil, err
		}
		g.streams.Go(func() {
			// it ends with near
			if err := hub.Sessions.Stream(context.WithoutCancel(ctx), g.principal, name,
				far); err != nil {
				g.daemon.log.Debug("session stream ended", "sandbox", name, "err", err)
			}
		})
		return near, nil
	}
	login := func(ctx context.Context) (*connect.Conn, error) {
		conn, err := hub.Relay.Open(ctx, g.principal, name, nil)
		if err != nil {
			return nil, hub.Public(err)
		}
		hub.Relay.Recorder(g.principal, name)(gateway.ExecEvent{Command: "subsystem " +
			wire.SubsystemMCP + ": files"})
		return conn, nil
	}
	return agent.NewClient(name, open, login), nil
}

// Command runs one command as the client.
func (g *hubGateway) Command(ctx context.Context, progress io.Writer, words ...string) ([]byte,
	error) {
	var out, said bytes.Buffer
	stderr := io.Writer(&said)
	if progress != nil {
		stderr = io.MultiWriter(&said, progress)
	}
	env := &command.Env{Hub: g.daemon.hub, Principal: g.principal, Stdin: strings.NewReader(""),
		Stdout: &out, Stderr: stderr,
		Gateway: g.daemon.address.gateway(), Tokens: g.daemon.tokens, Python: g.daemon.python}
	code := command.Run(ctx, env, words)
	return out.Bytes(), agent.CommandError(words[0], code, out.Bytes(), said.String())
}
