// Package jupyter passes on the API of the Jupyter server in a sandbox, for programs that speak it: JSON, and the WebSockets of kernels.
// Nothing else of the server is served: what a browser would show, files and pages of a sandbox, needs an origin of its own. The server is
// hostile: none of its headers, cookies and redirects reach a client, and its answers are JSON or none.
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

// Root is the path below which sandboxes are: /jupyter/NAME is the address of a server, for clients that ask for one.
const Root = "/jupyter/"

// Options are what a Door needs.
type Options struct {
	Hub     *gateway.Hub
	Tokens  *token.Registry
	Kernels *kernels.Pool
}

// Door serves the API. Make one with New. Whom Admit lets in may ask for their own sandboxes.
type Door struct {
	hub     *gateway.Hub
	tokens  *token.Registry
	kernels *kernels.Pool
	limits  limits

	mu      sync.Mutex
	sockets map[string]int // guarded by mu; open, by principal
}

// limits of what a server may send, which tests make smaller.
type limits struct {
	answer  int64         // bytes of a JSON answer
	within  time.Duration // until it has come
	message int64         // bytes of a WebSocket message of the server
	stall   time.Duration // how long one may not be taken
}

var defaultLimits = limits{answer: 32 << 20, within: 2 * time.Minute, message: 64 << 20, stall: time.Minute}

const (
	maxSent    = 16 << 20 // bytes of a client's message
	maxSockets = 64       // of a principal
	dialWithin = 30 * time.Second
)

// New makes a Door.
func New(o Options) *Door {
	return &Door{hub: o.Hub, tokens: o.Tokens, kernels: o.Kernels, limits: defaultLimits, sockets: make(map[string]int)}
}

// Mount serves what is below Root.
func (d *Door) Mount(mux *http.ServeMux) {
	mux.HandleFunc(Root+"{sandbox}/api", d.serve)
	mux.HandleFunc(Root+"{sandbox}/api/{path...}", d.serve)
	mux.HandleFunc("GET "+Root+"{sandbox}/login", d.form)
	mux.HandleFunc("POST "+Root+"{sandbox}/login", d.login)
	mux.HandleFunc(Root, func(w http.ResponseWriter, r *http.Request) {
		rest.Fail(w, r, nil, &wire.Error{Code: wire.CodeNotFound, Message: "of a Jupyter server, only its API is served: " + Root + "NAME/api/",
			Hint: "files are had by SFTP, and pages by a port of the sandbox that is forwarded over SSH"})
	})
}

// Covers reports whether a request is for a Door.
func Covers(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, Root) }

// Open reports whether a path needs no token: where one is given in exchange for a cookie.
func Open(urlPath string) bool {
	name, ok := strings.CutPrefix(urlPath, Root)
	name, login := strings.CutSuffix(name, "/login")
	return ok && login && !strings.Contains(name, "/")
}

// Cookies of clients that log in by a password, as the server's own are named or not.
const (
	xsrfCookie  = "_xsrf"
	tokenCookie = "sandboxd_jupyter"
	xsrfHeader  = "X-XSRFToken"
)

// Admit says whose token a request shows: by Authorization: token, as Jupyter's clients send it, by Authorization: Bearer, or by the cookie of
// login beside a header that no page of others can have sent. live ends with the token.
func (d *Door) Admit(r *http.Request) (t token.Token, live context.Context, err error) {
	const hint = "send Authorization: token TOKEN; a token is made by: sandboxd token new"
	if r.URL.Query().Has("token") {
		return t, nil, rest.WithStatus(http.StatusBadRequest, &wire.Error{Code: wire.CodeUsage, Message: "a token in a URL is not taken: URLs are logged and remembered",
			Hint: "send Authorization: token TOKEN; a client that cannot, such as Open WebUI, gives the token as a password"})
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
		return t, nil, rest.WithStatus(http.StatusUnauthorized, &wire.Error{Code: wire.CodeDenied, Message: "a token is needed", Hint: hint})
	}
	t, live, err = d.tokens.Verify(secret)
	if why, unbacked := errors.AsType[*wire.Error](err); unbacked {
		return t, nil, rest.WithStatus(http.StatusUnauthorized, why)
	}
	if err != nil {
		return t, nil, rest.WithStatus(http.StatusUnauthorized, &wire.Error{Code: wire.CodeDenied, Message: "this token is not known here", Hint: hint})
	}
	return t, live, nil
}

// doubled reports whether given is what the request's own cookie has: only who may read the cookie can say it elsewhere, too.
func doubled(r *http.Request, given string) bool {
	c, err := r.Cookie(xsrfCookie)
	return err == nil && len(c.Value) >= 16 && subtle.ConstantTimeCompare([]byte(c.Value), []byte(given)) == 1
}

// Refuse answers a request that Admit has not let in.
func (d *Door) Refuse(w http.ResponseWriter, _ *http.Request, err error) { d.fail(w, err) }

func (d *Door) fail(w http.ResponseWriter, err error) {
	p := rest.NewProblem(d.hub, err)
	text := p.Detail
	if p.Hint != "" {
		text += " (" + p.Hint + ")"
	}
	rest.WriteJSON(w, p.Status, problem{Message: text, Reason: string(p.Code)})
}

// problem is an error as the server's own are.
type problem struct {
	Message string `json:"message"`
	Reason  string `json:"reason,omitempty"`
}

// form answers with what a login has to repeat. There is no page.
func (d *Door) form(w http.ResponseWriter, r *http.Request) {
	d.setCookie(w, r, &http.Cookie{Name: xsrfCookie, Value: rand.Text()})
	rest.WriteJSON(w, http.StatusOK, problem{Message: "POST password=TOKEN and _xsrf, for a cookie"})
}

// login gives a cookie for a token that came as a password. Which sandbox it is for is not looked at: the token is good for all of its owner's.
func (d *Door) login(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(rest.BodyTime))
	r.Body = http.MaxBytesReader(w, r.Body, 16<<10)
	if err := r.ParseForm(); err != nil {
		d.fail(w, wire.Errorf(wire.CodeUsage, "the form did not arrive"))
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	secret := strings.TrimSpace(r.PostForm.Get("password"))
	_, _, err := d.tokens.Verify(secret)
	if why, unbacked := errors.AsType[*wire.Error](err); unbacked {
		d.fail(w, rest.WithStatus(http.StatusUnauthorized, why))
		return
	}
	if err != nil || !doubled(r, r.PostForm.Get(xsrfCookie)) {
		d.fail(w, rest.WithStatus(http.StatusUnauthorized, &wire.Error{Code: wire.CodeDenied, Message: "the password is no token that is known here", Hint: "sandboxd token new makes one"}))
		return
	}
	d.setCookie(w, r, &http.Cookie{Name: tokenCookie, Value: secret, HttpOnly: true})
	rest.WriteJSON(w, http.StatusOK, problem{Message: "logged in"})
}

func (d *Door) setCookie(w http.ResponseWriter, r *http.Request, c *http.Cookie) {
	c.Path, c.SameSite, c.Secure = strings.TrimSuffix(r.URL.Path, "/login"), http.SameSiteStrictMode, r.TLS != nil
	http.SetCookie(w, c)
}

// server is the Jupyter server of a sandbox.
type server interface {
	http.RoundTripper
	Broken() // it is not the one any more that it was
	Release()
}

// serve passes a request on to the server of its sandbox.
func (d *Door) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Security-Policy", "sandbox; default-src 'none'; frame-ancestors 'none'")
	below := r.PathValue("path")
	if p := "/api/" + below; below != "" && path.Clean(p) != strings.TrimSuffix(p, "/") || strings.ContainsAny(below, "\x00\\") {
		d.fail(w, wire.Errorf(wire.CodeNotFound, "no such path"))
		return
	}
	p, name := rest.Principal(r.Context()), r.PathValue("sandbox")
	if err := mayWork(p); err != nil {
		d.fail(w, err)
		return
	}
	info, err := d.hub.Get(r.Context(), p, name)
	if err == nil && info.Owner != p.Name { // what is shared is not handed over
		err = wire.Errorf(wire.CodeNotFound, "no sandbox %s for you", name)
	}
	if err != nil {
		d.fail(w, err)
		return
	}
	lease := func(ctx context.Context) (server, error) {
		l, err := d.kernels.Lease(ctx, p, info)
		if err != nil {
			return nil, kernels.Reason(d.hub, err)
		}
		return l, nil
	}
	if r.Header.Get("Upgrade") != "" {
		err = d.socket(w, r, p.Name, below, lease)
	} else {
		err = d.relay(w, r, below, lease)
	}
	if err != nil && r.Context().Err() == nil {
		d.fail(w, err)
	}
}

func mayWork(p gateway.Principal) error {
	if p.Rights == wire.RightWatch {
		return &wire.Error{Code: wire.CodeDenied, Message: "this token may only watch", Hint: "kernels need one that was made without --watch"}
	}
	return nil
}

// errServer is what is said of a server that breaks its own protocol.
func errServer(format string, args ...any) error {
	return rest.WithStatus(http.StatusBadGateway, &wire.Error{Code: wire.CodeUnavailable, Message: "the Jupyter server in the sandbox " + fmt.Sprintf(format, args...)})
}

// unreached says that a server did not answer.
func unreached(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return rest.WithStatus(http.StatusGatewayTimeout, wire.Errorf(wire.CodeUnavailable, "the Jupyter server in the sandbox does not answer"))
	}
	return errServer("does not answer")
}
