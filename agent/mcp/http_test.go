package mcp_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/agenttest"
	"github.com/sandboxd/sandboxd/agent/mcp"
)

// bearer sends a token with every request.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

// serveHTTP runs a Handler for callers with a token in live.
func serveHTTP(t *testing.T, live map[string]context.Context) string {
	t.Helper()
	g := agenttest.New(t)
	h := mcp.NewHandler(func(r *http.Request) (mcp.Caller, error) {
		name := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if live[name] == nil || live[name].Err() != nil {
			return mcp.Caller{}, errors.New("unknown")
		}
		return mcp.Caller{
			ID:      name,
			Live:    live[name],
			Options: mcp.Options{Gateway: g, Sandbox: "box"},
		}, nil
	})
	server := httptest.NewServer(h)
	t.Cleanup(func() {
		h.Close()
		server.CloseClientConnections()
		server.Close()
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	return server.URL
}

func connectHTTP(t *testing.T, url, token string) (*sdk.ClientSession, error) {
	c, err := sdk.NewClient(&sdk.Implementation{Name: "test"}, nil).
		Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: url,
			HTTPClient: &http.Client{Transport: bearer(token)}, MaxRetries: -1}, nil)
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

func TestHTTP(t *testing.T) {
	revoked, revoke := context.WithCancel(context.Background())
	url := serveHTTP(
		t,
		map[string]context.Context{
			"alice": context.Background(),
			"bob":   context.Background(),
			"eve":   revoked,
		},
	)
	if _, err := connectHTTP(t, url, "nobody"); err == nil {
		t.Error("a token that nobody has is let in")
	}
	c, err := connectHTTP(t, url, "alice")
	if err != nil {
		t.Fatal(err)
	}
	if r, _ := result(t, c, "run", args{"command": "cd /usr; echo here"}); ended(
		t,
		r,
		agent.EndedDone,
	).Output != "here\n" {
		t.Errorf("%+v", r)
	}
	if c.ID() == "" {
		t.Fatal("the client has no session")
	}

	// The session of another caller is not found.
	for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
		r, err := http.NewRequestWithContext(
			t.Context(),
			method,
			url,
			strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`),
		)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Mcp-Session-Id", c.ID())
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		res, err := (&http.Client{Transport: bearer("bob")}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		said, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != http.StatusForbidden && res.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s %s", method, res.Status, said)
		}
	}

	// A web page whose name resolves to this address is rejected.
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "evil.example"
	res, err := (&http.Client{Transport: bearer("alice")}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusForbidden {
		t.Errorf("another host: %s", res.Status)
	}

	// Revoking a token ends its sessions immediately.
	e, err := connectHTTP(t, url, "eve")
	if err != nil {
		t.Fatal(err)
	}
	result(t, e, "run", args{"command": "true", "session": "eve"})
	called := make(chan error, 1)
	go func() {
		_, err := e.CallTool(
			t.Context(),
			&sdk.CallToolParams{
				Name:      "run",
				Arguments: args{"command": "sleep 30", "session": "eve"},
			},
		)
		called <- err
	}()
	waiting, _ := result(t, c, "wait", args{"session": "eve", "timeout_s": 0.1})
	for waiting.Phase != agent.PhaseRunning {
		waiting, _ = result(t, c, "wait", args{"session": "eve", "timeout_s": 0.1})
	}
	revoke()
	select {
	case <-called:
	case <-time.After(patience):
		t.Error("a call goes on whose token was revoked")
	}
	if r, _ := result(t, c, "wait", args{"session": "eve",
		"timeout_s": 0.1}); r.Phase != agent.PhaseRunning {
		t.Errorf("what it started ended: %+v", r)
	}
	result(t, c, "interrupt", args{"session": "eve"})
}
