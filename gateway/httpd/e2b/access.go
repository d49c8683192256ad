package e2b

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// accessPrefix begins access tokens. Each opens one sandbox, for the owner of the token that it
// was issued for.
const accessPrefix = "sbe_"

// Headers by which the SDKs name a sandbox and authenticate.
const (
	sandboxHeader = "E2b-Sandbox-Id"
	portHeader    = "E2b-Sandbox-Port"
	accessHeader  = "X-Access-Token"
	// Carries the same token; SDKs send only this one for contexts of the code interpreter.
	trafficHeader = "E2b-Traffic-Access-Token"
)

// access decides who may use a sandbox.
type access struct {
	hub    *gateway.Hub
	tokens *token.Registry
	secret []byte // of access tokens and idempotent names
}

// Access returns the token that opens the sandbox with that ID, as long as the token called by is
// valid. It is derived, not stored.
func (ac *access) Access(id, by string) string {
	mac := hmac.New(sha256.New, ac.secret)
	mac.Write([]byte("e2b access\x00" + id + "\x00" + by))
	return accessPrefix + by + "_" + hex.EncodeToString(mac.Sum(nil)[:16])
}

// envdPaths are the paths of requests to a sandbox. Other paths manage sandboxes.
var envdPaths = append([]string{"/health", "/files", "/process.Process/", "/filesystem.Filesystem/",
	"/metrics", "/envs", "/init"}, interpreterPaths...)

// interpreterPaths are the paths of the code interpreter.
var interpreterPaths = []string{"/execute", "/contexts"}

func isInterpreter(r *http.Request) bool {
	path := strings.TrimPrefix(r.URL.Path, Prefix)
	return below(path, interpreterPaths[0]) || below(path, interpreterPaths[1])
}

// IsEnvd reports whether a request is for a sandbox, which only its access token opens.
func IsEnvd(r *http.Request) bool {
	path, ok := strings.CutPrefix(r.URL.Path, Prefix)
	if !ok {
		return false
	}
	for _, p := range envdPaths {
		if below(path, p) {
			return true
		}
	}
	return false
}

// Admit returns the token that a request to a sandbox is made with; live ends with that token. A
// token of another sandbox gets the error for a missing sandbox.
func (ac *access) Admit(r *http.Request) (t token.Token, live context.Context, err error) {
	name, shown := r.Header.Get(sandboxHeader), r.Header.Get(accessHeader)
	if r.URL.Query().Has("signature") {
		return t, nil, errSigned
	}
	if shown == "" && isInterpreter(r) {
		shown = r.Header.Get(trafficHeader)
	}
	if shown == "" {
		return t, nil, &apiError{http.StatusUnauthorized, "access token required in " +
			accessHeader + "; Sandbox.create and Sandbox.connect return it"}
	}
	by, _, _ := strings.Cut(strings.TrimPrefix(shown, accessPrefix), "_")
	t, live, denied := ac.tokens.ByID(by)
	if denied != nil && !errors.Is(denied, token.ErrUnbacked) {
		return t, nil, notFound(name)
	}
	info, err := ac.mine(r.Context(), t.AsPrincipal(), name)
	if err != nil || !hmac.Equal([]byte(ac.Access(info.ID, by)), []byte(shown)) {
		return t, nil, notFound(name)
	}
	if denied != nil {
		return t, nil, &apiError{http.StatusUnauthorized, denied.Error()}
	}
	return t, live, nil
}

// Refuse answers a request that Admit denied.
func (s *Server) Refuse(w http.ResponseWriter, r *http.Request, err error) {
	s.problems.fail(w, r, err)
}

// notFound is the error that the SDKs interpret as an ended sandbox.
func notFound(name string) error {
	if _, err := wire.ParseSandbox(name); err != nil {
		name = "of that name"
	}
	return &apiError{http.StatusBadGateway, "the sandbox " + name + " was not found"}
}

// mine returns p's own sandbox called name. Shared sandboxes are not found: this API is for
// owners.
func (ac *access) mine(ctx context.Context, p gateway.Principal, name string) (lifecycle.Info,
	error) {
	info, err := ac.hub.Get(ctx, p, name)
	if err == nil && info.Owner != p.Name {
		err = wire.Errorf(wire.CodeNotFound, "no sandbox %s for you", name)
	}
	return info, err
}

// target returns the running sandbox that a request is for.
func (ps *places) target(r *http.Request) (*visit, error) {
	p := rest.Principal(r.Context())
	info, err := ps.access.mine(r.Context(), p, r.Header.Get(sandboxHeader))
	if err != nil {
		return nil, notFound(r.Header.Get(sandboxHeader))
	}
	// Checked for each request: connections are shared by all programs of the owner.
	if err := mayWork(p); err != nil {
		return nil, err
	}
	if info.State != lifecycle.Running {
		return nil, &apiError{http.StatusBadGateway, "the sandbox " + info.Name +
			" was not found: it is " + string(info.State) + "; resume it with Sandbox.connect"}
	}
	pl := ps.place(info)
	if pl == nil {
		return nil, errClosed
	}
	user, _, _ := r.BasicAuth()
	if name := r.URL.Query().Get("username"); user == "" {
		user = name
	}
	return &visit{place: pl, who: p, disk: info.Limits.Disk, user: user}, nil
}

// mayWork denies principals that are read-only: an access token allows more.
func mayWork(p gateway.Principal) error {
	if p.Rights == wire.RightWatch {
		return &wire.Error{Code: wire.CodeDenied, Message: "this token is read-only",
			Hint: "create one without --watch"}
	}
	return nil
}

// visit is one request to a sandbox.
type visit struct {
	*place
	who  gateway.Principal
	disk int64  // disk limit in bytes; 0: none
	user string // account that the request names; empty: the sandbox's default
}

type visitKey struct{}

// visitOf returns the visit of a request's context.
func visitOf(ctx context.Context) *visit {
	v, _ := ctx.Value(visitKey{}).(*visit)
	return v
}

// inside wraps next for requests to a running sandbox.
func (ps *places) inside(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, err := ps.target(r)
		if err != nil {
			ps.problems.fail(w, r, err)
			return
		}
		leave, err := v.enter()
		if err != nil {
			ps.problems.fail(w, r, err)
			return
		}
		defer leave()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), visitKey{}, v)))
	})
}
