package mcp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/mcp"
	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var alice = gateway.Principal{Name: "alice", Kind: wire.Agent}

// hubGateway is a hub on sandboxes that run the real guest in this process.
type hubGateway struct {
	hub       *gateway.Hub
	principal gateway.Principal
	running   *sync.WaitGroup
}

// newGateway runs a hub with alice's sandbox box until t ends.
func newGateway(t testing.TB) *hubGateway {
	t.Helper()
	check := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	memory := sandboxtest.New(t, sandboxtest.Options{})
	state, records := filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "records")
	check(os.Mkdir(state, 0o700))
	check(os.Mkdir(records, 0o700))
	db, err := store.Open(t.Context(), state)
	check(err)
	t.Cleanup(func() { db.Close() })
	hub, err := gateway.New(gateway.Options{Store: db, Backends: map[string]sandbox.Backend{sandboxtest.Name: memory}, Records: records, Owner: "alice", StopGrace: time.Second})
	check(err)
	g := &hubGateway{hub: hub, principal: alice, running: new(sync.WaitGroup)}
	life, end := context.WithCancel(context.Background())
	t.Cleanup(func() {
		end()
		g.running.Wait()
	})
	g.running.Go(func() {
		if err := hub.Run(life); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("hub: %v", err)
		}
	})
	check(hub.Ready(t.Context()))
	_, err = hub.Create(t.Context(), alice, gateway.NewSpec{Name: "box"}, nil)
	check(err)
	return g
}

func (g *hubGateway) Dial(ctx context.Context, name string) (*agent.Client, error) {
	if _, err := g.hub.Get(ctx, g.principal, name); err != nil {
		return nil, g.hub.Public(err)
	}
	return agent.NewClient(name, func(context.Context) (io.ReadWriteCloser, error) {
		near, far, err := sandboxtest.Pipe()
		if err != nil {
			return nil, err
		}
		g.running.Go(func() { _ = g.hub.Stream(context.Background(), g.principal, name, far) }) // ends with near
		return near, nil
	}, func(ctx context.Context) (*connect.Conn, error) { return g.hub.Upstream(ctx, g.principal, name, nil) }), nil
}

func (g *hubGateway) Command(ctx context.Context, words ...string) ([]byte, error) {
	var out bytes.Buffer
	if code := command.Run(ctx, &command.Env{Hub: g.hub, Principal: g.principal, Stdin: strings.NewReader(""), Stdout: &out, Stderr: io.Discard}, words); code != 0 {
		var failed struct{ Error *agent.Error }
		if err := json.Unmarshal(out.Bytes(), &failed); err != nil || failed.Error == nil {
			return nil, errors.New("exit without a reason: " + out.String())
		}
		return nil, failed.Error
	}
	return out.Bytes(), nil
}

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
func client(t testing.TB, g mcp.Gateway, o *sdk.ClientOptions) *sdk.ClientSession {
	t.Helper()
	rw := serve(t, mcp.Options{Gateway: g, Sandbox: "box", Version: "test"})
	c, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, o).Connect(t.Context(), &sdk.IOTransport{Reader: rw, Writer: rw}, nil)
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
func call(t testing.TB, c *sdk.ClientSession, tool string, a any) (object args, text string, failed bool) {
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
func ended(t testing.TB, r agent.Result, want wire.Ended) agent.Result {
	t.Helper()
	if r.Ended != want {
		t.Fatalf("ended %s, want %s: %+v, error %+v", r.Ended, want, r, r.Error)
	}
	return r
}
