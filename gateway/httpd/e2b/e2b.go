// Package e2b is the E2B-compatible API, for E2B's own SDKs. It serves the control plane, which
// creates, lists and removes sandboxes; envd, for commands and files; and the code interpreter, for
// stateful Python. Its sandboxes are ordinary ones of the hub, which it uses over SSH.
//
// Unsupported requests are rejected by name; docs/reference/e2b.md lists them.
package e2b

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"strings"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/httpd/kernels"
	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Prefix is the path of the API. E2B_API_URL and E2B_SANDBOX_URL are the server's address followed
// by it.
const Prefix = "/e2b"

// envdVersion is the envd version that the SDKs see. For older ones they name a user in each
// request.
const envdVersion = "0.6.4"

// Options configure a Server.
type Options struct {
	Hub    *gateway.Hub
	Tokens *token.Registry
	// Secret signs the access tokens of sandboxes. It has at least 32 random bytes and must not
	// change at a restart.
	Secret []byte
	// Templates maps template names to images. Without an entry, "base" is the daemon's default
	// image.
	Templates map[string]string
	// Kernels run the stateful Python of sandboxes.
	Kernels *kernels.Pool
}

// Server serves the E2B-compatible API. Create one with New, and run Run while it serves.
type Server struct {
	*access
	hub         *gateway.Hub
	problems    *problems
	places      *places
	control     *controlPlane
	interpreter *interpreter
}

// New returns a Server.
func New(o Options) (*Server, error) {
	if o.Hub == nil || o.Tokens == nil || o.Kernels == nil || len(o.Secret) < 32 {
		return nil, errors.New("e2b: Hub, Tokens, Kernels and a Secret of 32 bytes are required")
	}
	s := &Server{hub: o.Hub, access: &access{hub: o.Hub, tokens: o.Tokens, secret: o.Secret},
		problems: &problems{o.Hub}}
	s.places = newPlaces(o.Hub, s.access, s.problems)
	s.control = &controlPlane{hub: o.Hub, access: s.access, problems: s.problems,
		templates: maps.Clone(o.Templates)}
	s.interpreter = &interpreter{hub: o.Hub, kernels: o.Kernels, problems: s.problems,
		places: s.places}
	return s, nil
}

// Handler serves the paths below Prefix. Its caller authenticates requests first: with Admit if
// IsEnvd reports true, otherwise with an API token.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	s.control.routes(mux)
	s.envd(mux)
	s.interpreter.routes(mux)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.problems.fail(w, r, &apiError{http.StatusNotImplemented,
			r.Method + " " + strings.TrimPrefix(r.URL.Path, Prefix) + " is not supported"})
	})
	return http.StripPrefix(Prefix, mux)
}

// Run closes unused connections, and everything when ctx ends. It then returns once all goroutines
// of the Server have ended.
func (s *Server) Run(ctx context.Context) { s.places.run(ctx) }

// errClosed ends requests when the daemon shuts down.
var errClosed = &wire.Error{Code: wire.CodeUnavailable, Message: "the daemon is stopping"}
