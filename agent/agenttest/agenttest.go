// Package agenttest runs a gateway in the test's own process, for tests of code that uses package
// agent.
package agenttest

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/gateway/gatewaytest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Alice is the agent that owns the sandboxes of a Gateway.
var Alice = gateway.Principal{Name: "alice", Kind: wire.Agent}

// Box is the sandbox that each Gateway has initially.
const Box = "box"

// Gateway is a gateway in memory that Principal uses without SSH. It implements agent.Daemon.
type Gateway struct {
	Hub       *gateway.Hub
	Principal gateway.Principal

	streams *sync.WaitGroup
}

// New runs a gateway with Alice's sandbox Box until t ends.
func New(t testing.TB) *Gateway {
	t.Helper()
	g := &Gateway{Principal: Alice, streams: new(sync.WaitGroup)}
	t.Cleanup(g.streams.Wait) // runs after the hub has ended the remaining streams
	g.Hub = gatewaytest.Hub(t, &gateway.Options{})
	if _, err := g.Hub.Create(t.Context(), Alice, lifecycle.NewSpec{Name: Box}, nil); err != nil {
		t.Fatal(err)
	}
	return g
}

// As returns the same gateway for p.
func (g *Gateway) As(p gateway.Principal) *Gateway {
	return &Gateway{Hub: g.Hub, Principal: p, streams: g.streams}
}

// Dial returns a client of the sandbox name, which the caller closes. It is an error if the
// principal has no access to the sandbox.
func (g *Gateway) Dial(ctx context.Context, name string) (*agent.Client, error) {
	if _, err := g.Hub.Get(ctx, g.Principal, name); err != nil {
		return nil, g.Hub.Public(err)
	}
	return agent.NewClient(name, func(context.Context) (io.ReadWriteCloser, error) {
		near, far, err := sandboxtest.Pipe()
		if err != nil {
			return nil, err
		}
		g.streams.Go(
			func() { _ = g.Hub.Sessions.Stream(context.Background(), g.Principal, name, far) },
		) // ends with near
		return near, nil
	}, func(ctx context.Context) (*connect.Conn,
		error) {
		return g.Hub.Relay.Open(ctx, g.Principal, name, nil)
	}), nil
}

// Command runs one command of the daemon and returns its output, or the error that it printed as
// JSON.
func (g *Gateway) Command(
	ctx context.Context,
	progress io.Writer,
	words ...string,
) ([]byte, error) {
	var out bytes.Buffer
	if progress == nil {
		progress = io.Discard
	}
	env := &command.Env{Hub: g.Hub, Principal: g.Principal, Stdin: strings.NewReader(""),
		Stdout: &out, Stderr: progress}
	code := command.Run(ctx, env, words)
	return out.Bytes(), agent.CommandError(words[0], code, out.Bytes(), "")
}
