package httpd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/gatewaytest"
	"github.com/sandboxd/sandboxd/gateway/httpd/agentrun"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// world is an HTTP server on loopback, a hub and in-memory sandboxes that run the real guest.
type world struct {
	t         testing.TB
	hub       *gateway.Hub
	tokens    *token.Registry
	addr      string
	server    *Server
	gone      atomic.Value // the principal who can no longer log in
	records   string       // directory
	artifacts string       // directory
	log       *syncBuffer
	end       func() // stops the server

	alice, bob, watch string // tokens: two owners, and a read-only one of alice
	client            *http.Client
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, log: new(syncBuffer), client: &http.Client{Timeout: time.Minute}}
	log := slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", w.log)
		}
	})
	dir := t.TempDir()
	o := gateway.Options{Options: lifecycle.Options{Log: log}}
	w.hub = gatewaytest.Hub(t, &o)
	w.records = o.Records
	var err error
	if w.tokens, err = token.Open(t.Context(), o.Store, func(t token.Token) error {
		if t.Principal == w.gone.Load() {
			return errors.New("its key is gone")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.tokens.Close)
	w.alice, _ = w.token(token.Token{Principal: "alice"})
	w.bob, _ = w.token(token.Token{Principal: "bob"})
	w.watch, _ = w.token(token.Token{Principal: "alice", Rights: wire.RightWatch})

	w.artifacts = filepath.Join(dir, "artifacts")
	w.serve()
	t.Cleanup(w.client.CloseIdleConnections)
	return w
}

// serve starts a server, after the end of the previous one and at its address.
func (w *world) serve() {
	w.t.Helper()
	runs := agentrun.Defaults()
	runs.Dir = w.artifacts
	server, err := New(Options{AgentRun: runs, E2B: E2B{Secret: make([]byte, 32)}, Hub: w.hub,
		Tokens: w.tokens, Hosts: []string{"box.example"},
		Log: slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		w.t.Fatal(err)
	}
	l, err := net.Listen("tcp", cmp.Or(w.addr, "127.0.0.1:0"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.addr, w.server = l.Addr().String(), server
	w.end = background(w.t, func(ctx context.Context) error { return server.Serve(ctx, l) })
}

// background runs run until the test ends or end is called.
func background(t testing.TB, run func(context.Context) error) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("it ended with %v", err)
		}
	})
	t.Cleanup(end)
	return end
}

func (w *world) token(t token.Token) (secret, id string) {
	w.t.Helper()
	secret, made, err := w.tokens.Create(w.t.Context(), t)
	if err != nil {
		w.t.Fatal(err)
	}
	return secret, made.ID
}

// answer is a response with its body.
type answer struct {
	status int
	header http.Header
	body   string
}

// call requests path with a token; edit changes the request first.
func (w *world) call(method, path, secret, body string, edit ...func(*http.Request)) answer {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, "http://"+w.addr+path,
		strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if secret != "" {
		r.Header.Set("Authorization", "Bearer "+secret)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, e := range edit {
		e(r)
	}
	resp, err := w.client.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(text)}
}

// syncBuffer is a bytes.Buffer for concurrent use.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (w *world) hubLog() *slog.Logger { return slog.New(slog.NewTextHandler(w.log, nil)) }

// newServer serves h until the test ends.
func newServer(t *testing.T, h http.Handler) (addr string) {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}
