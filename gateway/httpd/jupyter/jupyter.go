// Package jupyter is the Jupyter-compatible API of the gateway. It passes the JSON API and the
// kernel WebSockets of the Jupyter server in a sandbox to clients. It does not serve the files and
// pages of that server, which would need an origin of their own. The server is not trusted: clients
// get none of its headers, cookies and redirects, and only JSON answers.
package jupyter

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/httpd/kernels"
	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Root is the prefix of all paths: /jupyter/NAME is the server address for clients of the sandbox
// NAME.
const Root = "/jupyter/"

// Options configure a Handler.
type Options struct {
	Hub     *gateway.Hub
	Tokens  *token.Registry
	Kernels *kernels.Pool
}

// Handler serves the API. Create one with New. Clients that Admit accepts can use their own
// sandboxes only.
type Handler struct {
	hub     *gateway.Hub
	tokens  *token.Registry
	kernels *kernels.Pool
	limits  limits

	mu      sync.Mutex
	sockets map[string]int // guarded by mu; number of open sockets, by principal
}

// limits apply to the server in a sandbox. Tests make them smaller.
type limits struct {
	answer  int64         // bytes of a JSON answer
	within  time.Duration // time for a whole answer
	message int64         // bytes of a WebSocket message of the server
	stall   time.Duration // time for the receiver to take a piece of a message
}

var defaultLimits = limits{answer: 32 << 20, within: 2 * time.Minute, message: 64 << 20,
	stall: time.Minute}

const (
	maxSent    = 16 << 20 // bytes of a client's message
	maxSockets = 64       // of a principal
	dialWithin = 30 * time.Second
)

// New returns a Handler.
func New(o Options) *Handler {
	return &Handler{hub: o.Hub, tokens: o.Tokens, kernels: o.Kernels, limits: defaultLimits,
		sockets: make(map[string]int)}
}

// Mount adds the routes below Root to mux.
func (h *Handler) Mount(mux *http.ServeMux) {
	mux.HandleFunc(Root+"{sandbox}/api", h.serve)
	mux.HandleFunc(Root+"{sandbox}/api/{path...}", h.serve)
	mux.HandleFunc("GET "+Root+"{sandbox}/login", h.form)
	mux.HandleFunc("POST "+Root+"{sandbox}/login", h.login)
	mux.HandleFunc(Root, func(w http.ResponseWriter, r *http.Request) {
		rest.Fail(w, r, nil, &wire.Error{Code: wire.CodeNotFound,
			Message: "no such route: only the API of a Jupyter server is available, at " + Root +
				"NAME/api/",
			Hint: "use SFTP for files, and SSH port forwarding for pages"})
	})
}

// Covers reports whether a request is for a Handler.
func Covers(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, Root) }

// Open reports whether a path needs no token. That is the login, which exchanges a token for a
// cookie.
func Open(urlPath string) bool {
	name, ok := strings.CutPrefix(urlPath, Root)
	name, login := strings.CutSuffix(name, "/login")
	return ok && login && !strings.Contains(name, "/")
}

// Cookies and header of clients that log in with a password. _xsrf and X-XSRFToken are Jupyter's
// own names.
const (
	xsrfCookie  = "_xsrf"
	tokenCookie = "sandboxd_jupyter"
	xsrfHeader  = "X-XSRFToken"
)

// Admit returns the token of a request. It comes from Authorization: token, which Jupyter clients
// send, from Authorization: Bearer, or from the login cookie. The cookie also needs the XSRF
// header, which no foreign page can send. live ends with the token.
func (h *Handler) Admit(r *http.Request) (t token.Token, live context.Context, err error) {
	const hint = "send Authorization: token TOKEN; create one with: sandboxd token new"
	if r.URL.Query().Has("token") {
		return t, nil, rest.WithStatus(http.StatusBadRequest, &wire.Error{Code: wire.CodeUsage,
			Message: "tokens in URLs are rejected, because URLs are logged",
			Hint: "send Authorization: token TOKEN; clients that cannot, such as Open WebUI, use " +
				"the token as the password"})
	}
	secret := ""
	scheme, shown, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	switch {
	case strings.EqualFold(scheme, "token") || strings.EqualFold(scheme, "Bearer"):
		secret = strings.TrimSpace(shown)
	case doubled(r, r.Header.Get(xsrfHeader)):
		if c, err := r.Cookie(tokenCookie); err == nil {
			secret = c.Value
		}
	}
	if secret == "" {
		return t, nil, rest.WithStatus(http.StatusUnauthorized,
			&wire.Error{Code: wire.CodeDenied, Message: "a token is needed", Hint: hint})
	}
	t, live, err = h.tokens.Verify(secret)
	if why, unbacked := errors.AsType[*wire.Error](err); unbacked {
		return t, nil, rest.WithStatus(http.StatusUnauthorized, why)
	}
	if err != nil {
		return t, nil, rest.WithStatus(http.StatusUnauthorized,
			&wire.Error{Code: wire.CodeDenied,
				Message: "unknown token: expired, revoked, incomplete, or made by another daemon",
				Hint:    hint})
	}
	return t, live, nil
}

// doubled reports whether given equals the XSRF cookie of the request. Only a page that can read
// the cookie knows its value.
func doubled(r *http.Request, given string) bool {
	c, err := r.Cookie(xsrfCookie)
	return err == nil && len(c.Value) >= 16 &&
		subtle.ConstantTimeCompare([]byte(c.Value), []byte(given)) == 1
}

// Refuse answers a request that Admit rejected.
func (h *Handler) Refuse(w http.ResponseWriter, _ *http.Request, err error) { h.fail(w, err) }

func (h *Handler) fail(w http.ResponseWriter, err error) {
	p := rest.NewProblem(h.hub, err)
	text := p.Detail
	if p.Hint != "" {
		text += " (" + p.Hint + ")"
	}
	rest.WriteJSON(w, p.Status, problem{Message: text, Reason: string(p.Code)})
}

// problem is an error in the format of a Jupyter server.
type problem struct {
	Message string `json:"message"`
	Reason  string `json:"reason,omitempty"`
}

// form sets the XSRF cookie, which a login must repeat. It serves no HTML.
func (h *Handler) form(w http.ResponseWriter, r *http.Request) {
	h.setCookie(w, r, &http.Cookie{Name: xsrfCookie, Value: rand.Text()})
	rest.WriteJSON(w, http.StatusOK, problem{Message: "to log in, POST password=TOKEN and _xsrf"})
}

// login exchanges a token, sent as the password, for a cookie. It does not check the sandbox: the
// token is valid for all sandboxes of its owner.
func (h *Handler) login(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(rest.BodyTime))
	r.Body = http.MaxBytesReader(w, r.Body, 16<<10)
	if err := r.ParseForm(); err != nil {
		h.fail(w, wire.Errorf(wire.CodeUsage, "the form is incomplete or too large"))
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	secret := strings.TrimSpace(r.PostForm.Get("password"))
	_, _, err := h.tokens.Verify(secret)
	if why, unbacked := errors.AsType[*wire.Error](err); unbacked {
		h.fail(w, rest.WithStatus(http.StatusUnauthorized, why))
		return
	}
	if err != nil || !doubled(r, r.PostForm.Get(xsrfCookie)) {
		h.fail(w, rest.WithStatus(http.StatusUnauthorized,
			&wire.Error{Code: wire.CodeDenied, Message: "unknown token, or wrong _xsrf",
				Hint: "the password is a token; create one with sandboxd token new"}))
		return
	}
	h.setCookie(w, r, &http.Cookie{Name: tokenCookie, Value: secret, HttpOnly: true})
	rest.WriteJSON(w, http.StatusOK, problem{Message: "logged in"})
}

func (h *Handler) setCookie(w http.ResponseWriter, r *http.Request, c *http.Cookie) {
	c.Path, c.SameSite, c.Secure = strings.TrimSuffix(r.URL.Path, "/login"),
		http.SameSiteStrictMode, r.TLS != nil
	http.SetCookie(w, c)
}

// server is the Jupyter server of a sandbox.
type server interface {
	http.RoundTripper
	Broken() // the server was replaced or does not work
	Release()
}

// serve passes a request on to the server of its sandbox.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Security-Policy", "sandbox; default-src 'none'; frame-ancestors 'none'")
	below := r.PathValue("path")
	if p := "/api/" + below; below != "" && path.Clean(p) != strings.TrimSuffix(p, "/") ||
		strings.ContainsAny(below, "\x00\\") {
		h.fail(w, wire.Errorf(wire.CodeNotFound, "no such path"))
		return
	}
	p, name := rest.Principal(r.Context()), r.PathValue("sandbox")
	if err := mayWork(p); err != nil {
		h.fail(w, err)
		return
	}
	info, err := h.hub.Get(r.Context(), p, name)
	if err == nil && info.Owner != p.Name { // sharing does not include kernels
		err = wire.Errorf(wire.CodeNotFound, "no sandbox %s for you", name)
	}
	if err != nil {
		h.fail(w, err)
		return
	}
	lease := func(ctx context.Context) (server, error) {
		l, err := h.kernels.Lease(ctx, p, info)
		if err != nil {
			return nil, kernels.Reason(h.hub, err)
		}
		return l, nil
	}
	if r.Header.Get("Upgrade") != "" {
		err = h.socket(w, r, p.Name, below, lease)
	} else {
		err = h.relay(w, r, below, lease)
	}
	if err != nil && r.Context().Err() == nil {
		h.fail(w, err)
	}
}

func mayWork(p gateway.Principal) error {
	if p.Rights == wire.RightWatch {
		return &wire.Error{Code: wire.CodeDenied, Message: "this token is read-only",
			Hint: "create one without --watch"}
	}
	return nil
}

// errServer is the error of a server that violates the protocol.
func errServer(format string, args ...any) error {
	return rest.WithStatus(http.StatusBadGateway, &wire.Error{Code: wire.CodeUnavailable,
		Message: "the Jupyter server in the sandbox " + fmt.Sprintf(format, args...)})
}

// unreached is the error of a server that did not answer.
func unreached(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return rest.WithStatus(http.StatusGatewayTimeout,
			wire.Errorf(wire.CodeUnavailable, "the Jupyter server in the sandbox does not answer"))
	}
	return errServer("does not answer")
}
