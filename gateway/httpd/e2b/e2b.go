// Package e2b serves what the SDKs of E2B ask for, unmodified: the control plane, which makes, lists and ends sandboxes, envd, by
// which they run commands and move files in one, and the code interpreter, by which they run Python that remembers. All answer below one path; a sandbox is an ordinary one of the hub's, and what is
// done in it is done over SSH, so that it knows of no second way in.
//
// What the SDKs can ask for and this cannot do is refused by name. docs/e2b.md lists it.
package e2b

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/httpd/kernels"
	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Prefix is the path below which everything is served: E2B_API_URL and E2B_SANDBOX_URL are the door's address with it.
const Prefix = "/e2b"

// envdVersion is the envd whose abilities the SDKs take for granted here. Older ones make them send a user with each request.
const envdVersion = "0.6.4"

// Options are what a Server needs.
type Options struct {
	Hub    *gateway.Hub
	Tokens *token.Registry
	// Secret makes the access tokens of sandboxes: at least 32 random bytes, the same after a restart.
	Secret []byte
	// Templates are images by the names that callers have for them. "base", unless it is listed, is the daemon's default image.
	Templates map[string]string
	// Kernels are the Python of sandboxes.
	Kernels *kernels.Pool
	Log     *slog.Logger
}

// Server serves E2B's shape. Make one with New, and let Run run while it serves.
type Server struct {
	hub       *gateway.Hub
	tokens    *token.Registry
	secret    []byte
	templates map[string]string
	kernels   *kernels.Pool
	log       *slog.Logger

	tasks sync.WaitGroup // of places; Run waits for them
	ended chan struct{}  // closed when Run is about to return

	mu     sync.Mutex
	places map[string]*place // guarded by mu; by the sandbox's ID
	closed bool              // guarded by mu
}

// New makes a Server.
func New(o Options) (*Server, error) {
	if o.Hub == nil || o.Tokens == nil || o.Kernels == nil || len(o.Secret) < 32 {
		return nil, errors.New("e2b: Hub, Tokens, Kernels and a Secret of 32 bytes are required")
	}
	return &Server{hub: o.Hub, tokens: o.Tokens, secret: o.Secret, templates: maps.Clone(o.Templates), kernels: o.Kernels,
		log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)), places: make(map[string]*place), ended: make(chan struct{})}, nil
}

// Handler serves what is below Prefix, for requests that were let in: those for which IsEnvd holds by Admit, all others by a token.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	s.control(mux)
	s.envd(mux)
	s.interpreter(mux)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, &apiError{http.StatusNotImplemented, r.Method + " " + strings.TrimPrefix(r.URL.Path, Prefix) + " is not in this version"})
	})
	return http.StripPrefix(Prefix, mux)
}

// placesEvery is how often connections are looked for that nobody uses.
const placesEvery = 5 * time.Second

// Run ends what nobody uses any more, and everything when ctx ends. It returns when nothing of the Server runs.
func (s *Server) Run(ctx context.Context) {
	tick := time.NewTicker(placesEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
			s.tidy()
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	s.closed = true
	all := s.places
	s.places = nil
	s.mu.Unlock()
	close(s.ended)
	for _, pl := range all {
		pl.close()
	}
	s.tasks.Wait()
}

// tidy closes the connections that nobody uses, and forgets the places of sandboxes that are gone.
func (s *Server) tidy() {
	s.mu.Lock()
	all := maps.Clone(s.places)
	s.mu.Unlock()
	for id, pl := range all {
		if !pl.rest() {
			continue
		}
		s.mu.Lock()
		if s.places[id] == pl && pl.unused() {
			delete(s.places, id)
		}
		s.mu.Unlock()
	}
}

// start runs f, which ends soon after its place is closed.
func (s *Server) start(f func()) { s.tasks.Go(f) }

// errClosed ends what is under way when the daemon does.
var errClosed = &wire.Error{Code: wire.CodeUnavailable, Message: "the daemon is ending"}
