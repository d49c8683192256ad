// Package httpd is the HTTP server of the gateway. It authenticates each request by its token and
// checks Host and Origin, also on loopback. Handlers are in packages of their own, and see only
// admitted requests.
package httpd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/agent/python"
	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/httpd/agentrun"
	"github.com/sandboxd/sandboxd/gateway/httpd/e2b"
	"github.com/sandboxd/sandboxd/gateway/httpd/jupyter"
	"github.com/sandboxd/sandboxd/gateway/httpd/kernels"
	"github.com/sandboxd/sandboxd/gateway/httpd/page"
	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/gateway/view"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Limits of the server.
const (
	headerTime     = 5 * time.Second  // to receive a request's header
	idleTime       = 2 * time.Minute  // for a connection without a request
	headerBytes    = 32 << 10         // size of a request's header
	maxConnections = 4096             // open connections, except WebSockets; see connTracker
	backedEvery    = time.Second / 4  // interval between checks of the tokens in use
	closeTime      = 10 * time.Second // for requests under way when the daemon stops
)

// Options configure a Server.
type Options struct {
	Hub    *gateway.Hub
	Tokens *token.Registry
	// Hosts are more names of this server, such as that of a proxy in front of it. localhost and IP
	// addresses are always accepted. Requests for other hosts are rejected: they may come from DNS
	// rebinding.
	Hosts []string
	E2B   E2B
	// Version of the daemon, for the API description.
	Version string
	// Prefix is the prefix key of the dashboard's terminals, such as ctrl-a. Empty means ctrl-].
	Prefix string
	// AgentRun configures POST /v1/run/. An empty Dir disables that route. Hub and Log need not be
	// set.
	AgentRun agentrun.Options
	// Python configures the kernels that HTTP clients use.
	Python python.Options
	// MCP serves authenticated requests to /mcp. nil disables that route.
	MCP http.Handler
	Log *slog.Logger
}

// E2B configures the E2B-compatible API.
type E2B struct {
	Secret    []byte            // at least 32 random bytes, the same after a restart
	Templates map[string]string // template name to image
}

// Server is the HTTP server. Create one with New.
type Server struct {
	hub     *gateway.Hub
	tokens  *token.Registry
	log     *slog.Logger
	guard   *guard
	page    *page.Handler
	e2b     *e2b.Server
	server  *http.Server
	conns   *connTracker
	kernels *kernels.Pool
	jupyter *jupyter.Handler
	runner  *agentrun.Runner // nil: disabled

	metrics *metrics
}

// New returns a Server. It serves nothing until Serve is called.
func New(o Options) (*Server, error) {
	if o.Hub == nil || o.Tokens == nil || o.Log == nil {
		return nil, errors.New("httpd: Hub, Tokens and Log are required")
	}
	s := &Server{hub: o.Hub, tokens: o.Tokens, log: o.Log}
	prefix, err := view.ParsePrefix(cmp.Or(o.Prefix, "ctrl-]"))
	if err != nil {
		return nil, fmt.Errorf("httpd: %w", err)
	}
	s.page = page.New(page.Options{Hub: o.Hub, Tokens: o.Tokens, Prefix: prefix, Log: o.Log})
	s.guard = newGuard(o.Hosts, o.Tokens, o.Hub, o.Log)
	s.metrics = newMetrics()
	s.guard.metrics = s.metrics
	s.kernels = kernels.New(o.Hub, o.Python)
	if s.e2b, err = e2b.New(e2b.Options{Hub: o.Hub, Tokens: o.Tokens, Kernels: s.kernels,
		Secret: o.E2B.Secret, Templates: o.E2B.Templates}); err != nil {
		return nil, err
	}
	s.jupyter = jupyter.New(jupyter.Options{Hub: o.Hub, Tokens: o.Tokens, Kernels: s.kernels})
	s.guard.gates = []gate{
		{page.Covers, s.page.Ports.Admit, s.page.Ports.Refuse},
		{jupyter.Covers, s.jupyter.Admit, s.jupyter.Refuse},
		{e2b.Misplaced, e2b.NoPlace, s.e2b.Refuse},
		{e2b.IsEnvd, s.e2b.Admit, s.e2b.Refuse},
		{func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, e2b.Prefix+"/") },
			s.guard.caller, s.e2b.Refuse},
	}
	if o.AgentRun.Dir != "" {
		o.AgentRun.Hub, o.AgentRun.Log, o.AgentRun.Ended = o.Hub, o.Log, s.metrics.call
		if s.runner, err = agentrun.New(o.AgentRun); err != nil {
			return nil, err
		}
	}
	routes, err := s.routes(o)
	if err != nil {
		return nil, err
	}
	s.conns = newConnTracker(maxConnections)
	s.server = &http.Server{
		ConnContext:       s.conns.connContext,
		ConnState:         s.conns.connState,
		Handler:           s.guard.wrap(s.split(routes)),
		ReadHeaderTimeout: headerTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    headerBytes,
		ErrorLog:          slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// Serve answers on l until ctx ends. It then closes streams at once and gives other requests up to
// closeTime to finish.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	base, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(lifecycle.ErrClosed)
	s.server.BaseContext = func(net.Listener) context.Context { return base }
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	var tasks sync.WaitGroup
	tasks.Go(func() { s.e2b.Run(running) })
	tasks.Go(func() { s.kernels.Run(running) })
	tasks.Go(func() { s.endUnbacked(running) })
	if s.runner != nil {
		tasks.Go(func() {
			if err := s.runner.Run(running); err != nil {
				s.log.Warn("closing the artifact store failed", "err", err)
			}
		})
	}
	defer tasks.Wait()
	defer stop()
	defer s.page.Ports.Close()
	done := make(chan error, 1)
	go func() { done <- s.server.Serve(listener{l}) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	end(lifecycle.ErrClosed)
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	if err := s.server.Shutdown(grace); err != nil {
		_ = s.server.Close() // close what is left
	}
	<-done //nolint:errcheck // http.ErrServerClosed
	stop() // handlers that wait for a sandbox return
	ended := make(chan struct{})
	go func() { // ends with the last handler
		defer close(ended)
		s.guard.running.Wait()
	}()
	select {
	case <-ended: // http.Server does not track hijacked connections
	case <-grace.Done():
		s.log.Warn("http handlers still running after shutdown")
	}
	return nil
}

// endUnbacked ends the use of tokens whose key is no longer valid, until ctx ends.
func (s *Server) endUnbacked(ctx context.Context) {
	tick := time.NewTicker(backedEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.tokens.EndUnbacked()
		case <-ctx.Done():
			return
		}
	}
}

// split passes requests for ports of sandboxes to their proxy, and others to next.
func (s *Server) split(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if page.Covers(r) {
			s.page.Ports.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// routes returns a handler for all routes. Paths that open reports need no token.
func (s *Server) routes(o Options) (http.Handler, error) {
	mux := http.NewServeMux()
	api := newAPI(newAdapter(mux), o.Version)
	s.sandboxes(api)
	s.records(mux, api)
	if s.runner != nil {
		s.runner.Routes(mux, api)
	}
	openapi, err := description(api)
	if err != nil {
		return nil, err
	}
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/openapi+json")
		_, _ = w.Write(openapi)
	})
	if err := docs(mux, api); err != nil {
		return nil, err
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		rest.WriteJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", s.ready)
	mux.HandleFunc("GET /metrics", s.serveMetrics)
	s.page.Mount(mux)
	s.jupyter.Mount(mux)
	mux.Handle(e2b.Prefix+"/", s.e2b.Handler())
	if o.MCP != nil {
		mux.Handle("/mcp", asBearer(o.MCP))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		rest.Fail(w, r, nil, nothingHere(w, mux, r))
	})
	return mux, nil
}

// nothingHere returns the error for a request that matches no route of mux. It names the mistake
// where a similar route exists.
func nothingHere(w http.ResponseWriter, mux *http.ServeMux, r *http.Request) error {
	served := func(method, path string) bool {
		_, pattern := mux.Handler(&http.Request{Method: method, URL: &url.URL{Path: path},
			Host: r.Host})
		return pattern != "" && pattern != "/"
	}
	if path := strings.TrimRight(r.URL.Path, "/"); path != r.URL.Path && served(r.Method, path) {
		return &wire.Error{Code: wire.CodeNotFound, Message: "no such route",
			Hint: "remove the slash at the end"}
	}
	var others []string
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		if served(method, r.URL.Path) {
			others = append(others, method)
		}
	}
	if len(others) == 0 {
		return &wire.Error{Code: wire.CodeNotFound, Message: "no such route",
			Hint: "GET /docs lists the routes"}
	}
	allowed := strings.Join(others, ", ")
	w.Header().Set("Allow", allowed)
	return rest.WithStatus(http.StatusMethodNotAllowed, &wire.Error{Code: wire.CodeUsage,
		Message: "method " + cutMethod(r.Method) + " not allowed; allowed: " + allowed,
		Hint:    "to create or change sandboxes, use SSH commands: sandboxd help"})
}

// asBearer copies a token from X-API-Key to Authorization, because the MCP library reads only that.
func asBearer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if key := r.Header.Get("X-API-Key"); key != "" &&
			!strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ") {
			r = r.Clone(r.Context())
			r.Header.Set("Authorization", "Bearer "+key)
		}
		next.ServeHTTP(w, r)
	})
}

// cutMethod shortens a method for an error text. A client can send any word as the method.
func cutMethod(m string) string { return m[:min(len(m), 16)] }

// ready reports whether the hub has recovered the sandboxes after a start.
func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), time.Second)
	defer cancel()
	if err := s.hub.Ready(ctx); err != nil {
		rest.Fail(w, r, s.hub, &wire.Error{Code: wire.CodeUnavailable,
			Message: "the daemon is starting", Hint: "try again in a second"})
		return
	}
	rest.WriteJSON(w, http.StatusOK, map[string]string{"status": "ready"})
}
