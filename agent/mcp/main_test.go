package mcp_test

import (
	"context"
	"encoding/json"
	"io"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/agenttest"
	"github.com/sandboxd/sandboxd/agent/mcp"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var alice = agenttest.Alice

// serve runs a Server for one client at the other end of the connection that it returns.
func serve(t testing.TB, o mcp.Options) io.ReadWriteCloser {
	t.Helper()
	near, far, err := sandboxtest.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := mcp.New(o)
	served := make(chan struct{})
	go func() {
		defer close(served)
		defer s.Close()
		_ = s.Serve(context.Background(), far) // ends with near
	}()
	t.Cleanup(func() {
		near.Close()
		<-served
	})
	return near
}

// client connects an MCP client to a Server for box.
func client(t testing.TB, g agent.Daemon, o *sdk.ClientOptions) *sdk.ClientSession {
	t.Helper()
	rw := serve(t, mcp.Options{Gateway: g, Sandbox: "box", Version: "test"})
	c, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, o).
		Connect(t.Context(), &sdk.IOTransport{Reader: rw, Writer: rw}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// args are the arguments of a call.
type args = map[string]any

// patience bounds a call, so that one that hangs says where.
const patience = 60 * time.Second

// call calls a tool and returns its structured content and its text.
func call(
	t testing.TB,
	c *sdk.ClientSession,
	tool string,
	a any,
) (object args, text string, failed bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	res, err := c.CallTool(ctx, &sdk.CallToolParams{Name: tool, Arguments: a})
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	if len(res.Content) != 1 {
		t.Fatalf("%s: %d contents", tool, len(res.Content))
	}
	object, _ = res.StructuredContent.(args)
	return object, res.Content[0].(*sdk.TextContent).Text, res.IsError
}

// result is call for tools that answer with a Result.
func result(t testing.TB, c *sdk.ClientSession, tool string, a any) (agent.Result, string) {
	t.Helper()
	object, said, _ := call(t, c, tool, a)
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	var r agent.Result
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	return r, said
}

// ended checks why a call came back.
func ended(t testing.TB, r agent.Result, want agent.Ended) agent.Result {
	t.Helper()
	if r.Ended != want {
		t.Fatalf("ended %s, want %s: %+v, error %+v", r.Ended, want, r, r.Error)
	}
	return r
}
