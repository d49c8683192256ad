package page

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Ports shows people the web servers in their sandboxes: a reverse proxy with a host name for each
// port of each sandbox, PORT--NAME--ID.localhost, which browsers resolve to their own machine. So a
// page from a sandbox is of another origin and another site than the dashboard and every other
// port: they share no cookies, storage or service workers. A new sandbox with an old name has
// another ID.
//
// The dashboard gives its user a link with a ticket, which is valid once. The name then has a
// cookie of its own, which stands for the user's token as long as that is valid.
type Ports struct {
	hub       *gateway.Hub
	tokens    *token.Registry
	log       *slog.Logger
	transport *http.Transport

	mu      sync.Mutex
	tickets map[string]visit // guarded by mu; by ticket
	visits  map[string]visit // guarded by mu; by cookie
}

// visit is the use of one port by one token.
type visit struct {
	token   string // ID
	sandbox string
	id      string // of the sandbox
	port    int
	host    string // lower case, without the daemon's port
	ends    time.Time
}

const (
	ticketTime = time.Minute
	visitTime  = 12 * time.Hour
	// Of one token; a further one ends the oldest.
	maxVisits = 64

	enterPath    = "/.sandboxd/enter"
	portCookie   = "sandboxd_visit"
	maxPortConns = 64 // of one visit to its sandbox, WebSockets included
	maxHeader    = 256 << 10
	idlePort     = 15 * time.Second
	dialTime     = 15 * time.Second
)

func newPorts(o Options) *Ports {
	p := &Ports{hub: o.Hub, tokens: o.Tokens, log: o.Log, tickets: make(map[string]visit),
		visits: make(map[string]visit)}
	p.transport = &http.Transport{DialContext: p.dial, MaxConnsPerHost: maxPortConns,
		IdleConnTimeout: idlePort, MaxResponseHeaderBytes: maxHeader, DisableCompression: true}
	return p
}

// Close closes unused connections to sandboxes.
func (p *Ports) Close() { p.transport.CloseIdleConnections() }

var portHost = regexp.MustCompile(`^[0-9]{1,5}--[a-z0-9-]{1,56}\.localhost$`)

// hostOf returns the host of a request, without its port.
func hostOf(r *http.Request) string {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(host)
}

// Covers reports whether a request is for a port of a sandbox. Its path is then not the daemon's.
func Covers(r *http.Request) bool { return portHost.MatchString(hostOf(r)) }

var notLetters = regexp.MustCompile(`[^a-z0-9-]+`)

// hostFor returns the host name of a port. It is at most 63 characters before the dot (RFC 1035
// §2.3.4).
func hostFor(port int, name, id string) string {
	name = notLetters.ReplaceAllString(strings.ToLower(name), "-")
	sum := sha256.Sum256([]byte(id))
	return fmt.Sprintf("%d--%s--%x.localhost", port, name[:min(len(name), 40)], sum[:5])
}

// open answers with a link to a port of a running sandbox.
func (p *Ports) open(w http.ResponseWriter, r *http.Request) {
	link, err := p.link(r)
	if err != nil {
		rest.Fail(w, r, p.hub, err)
		return
	}
	rest.WriteJSON(w, http.StatusOK, map[string]string{"url": link})
}

func (p *Ports) link(r *http.Request) (string, error) {
	caller, name := rest.Caller(r.Context()), r.PathValue("sandbox")
	port, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
	if err != nil || port == 0 {
		return "", &wire.Error{Code: wire.CodeUsage,
			Message: fmt.Sprintf("%q is not a port", r.PathValue("port")),
			Hint:    "use a number from 1 to 65535"}
	}
	if caller.Kind != wire.Person {
		return "", errProgram
	}
	if addr, err := netip.ParseAddr(strings.Trim(hostOf(r), "[]")); hostOf(r) != "localhost" &&
		(err != nil || !addr.IsLoopback()) {
		return "", &wire.Error{Code: wire.CodeUnavailable,
			Message: "ports open only if the dashboard is at localhost or 127.0.0.1",
			Hint: "forward the daemon's port with ssh -L PORT:127.0.0.1:PORT, and open the " +
				"dashboard at http://127.0.0.1:PORT"}
	}
	info, conn, err := reach(r.Context(), p.hub, caller.AsPrincipal(), name)
	if err != nil { // such as for a watcher
		return "", err
	}
	conn.Close()
	v := visit{token: caller.ID, sandbox: name, id: info.ID, port: int(port),
		host: hostFor(int(port), name, info.ID)}
	address := url.URL{Scheme: "http", Host: v.host, Path: enterPath,
		RawQuery: "ticket=" + p.add(p.tickets, v, ticketTime)}
	if _, daemon, err := net.SplitHostPort(r.Host); err == nil {
		address.Host = net.JoinHostPort(v.host, daemon)
	}
	if strings.HasPrefix(r.Header.Get("Origin"), "https://") { // a TLS proxy is in front
		address.Scheme = "https"
	}
	return address.String(), nil
}

// add returns a new secret for v.
func (p *Ports) add(to map[string]visit, v visit, last time.Duration) (secret string) {
	secret = rand.Text()
	now := time.Now()
	v.ends = now.Add(last)
	p.mu.Lock()
	defer p.mu.Unlock()
	var own []string
	for key, had := range to {
		switch {
		case !now.Before(had.ends):
			delete(to, key)
		case had.token == v.token:
			own = append(own, key)
		}
	}
	if len(own) >= maxVisits {
		delete(to, slices.MinFunc(own, func(a, b string) int {
			return to[a].ends.Compare(to[b].ends)
		}))
	}
	to[secret] = v
	return secret
}

// visit returns the visit of a request, and the secret for it.
func (p *Ports) visit(r *http.Request) (secret string, v visit, ok bool) {
	from := p.visits
	if r.URL.Path == enterPath {
		secret, from = r.URL.Query().Get("ticket"), p.tickets
	} else if cookie, err := r.Cookie(portCookie); err == nil {
		secret = cookie.Value
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	v, ok = from[secret]
	return secret, v, ok && v.host == hostOf(r) && time.Now().Before(v.ends)
}

var errNoVisit = rest.WithStatus(http.StatusUnauthorized, &wire.Error{Code: wire.CodeDenied,
	Message: "this link is not valid any more",
	Hint:    "open the port from the dashboard again"})

// Admit returns the token for which the dashboard gave the link.
func (p *Ports) Admit(r *http.Request) (token.Token, context.Context, error) {
	_, v, ok := p.visit(r)
	if !ok {
		return token.Token{}, nil, errNoVisit
	}
	t, live, err := p.tokens.ByID(v.token)
	if err != nil {
		return t, nil, errNoVisit
	}
	return t, live, nil
}

// Refuse answers with an error as text: a person reads it.
func (p *Ports) Refuse(w http.ResponseWriter, _ *http.Request, err error) {
	public := p.hub.Public(err)
	text := public.Message
	if public.Hint != "" {
		text += "\n" + public.Hint
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(rest.Status(err))
	_, _ = w.Write([]byte(text + "\n"))
}

// ServeHTTP passes an admitted request to the port, and its answer back. Both may take over the
// connection.
func (p *Ports) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secret, v, ok := p.visit(r)
	if !ok { // it has ended since Admit
		p.Refuse(w, r, errNoVisit)
		return
	}
	if r.URL.Path == enterPath {
		p.enter(w, r, secret, v)
		return
	}
	caller := rest.Principal(r.Context())
	info, err := running(r.Context(), p.hub, caller, v.sandbox)
	if err == nil {
		err = v.of(info)
	}
	if err == nil {
		err = p.hub.Relay.Wake(r.Context(), caller, v.sandbox)
	}
	if err != nil {
		p.Refuse(w, r, err)
		return
	}
	for _, ours := range []string{"X-Content-Type-Options", "Referrer-Policy", "Cache-Control",
		"Content-Security-Policy", "Cross-Origin-Resource-Policy"} {
		w.Header().Del(ours) // the page has its own
	}
	proxy := &httputil.ReverseProxy{
		Transport: p.transport,
		ErrorLog:  slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
		Rewrite: func(q *httputil.ProxyRequest) {
			q.Out.URL.Scheme, q.Out.URL.Host = "http", secret // its own connections
			q.Out.Host = q.In.Host
			q.SetXForwarded()
			dropCookie(q.Out)
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() != nil {
				panic(http.ErrAbortHandler)
			}
			p.Refuse(w, r, portError(v, err))
		},
	}
	proxy.ServeHTTP(w, r)
}

// of returns an error if info is of another sandbox, which has got the name.
func (v visit) of(info lifecycle.Info) error {
	if info.ID != v.id {
		return wire.Errorf(wire.CodeNotFound, "sandbox %s was removed", v.sandbox)
	}
	return nil
}

// forget ends the visits of a token.
func (p *Ports) forget(token string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := func(_ string, v visit) bool { return v.token == token }
	maps.DeleteFunc(p.tickets, of)
	maps.DeleteFunc(p.visits, of)
}

// enter exchanges a ticket for the cookie.
func (p *Ports) enter(w http.ResponseWriter, r *http.Request, ticket string, v visit) {
	p.mu.Lock()
	_, unused := p.tickets[ticket]
	delete(p.tickets, ticket)
	p.mu.Unlock()
	if !unused {
		p.Refuse(w, r, errNoVisit)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: portCookie, Value: p.add(p.visits, v, visitTime),
		Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode})
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// dropCookie removes the cookie of the visit: the sandbox must not have it.
func dropCookie(r *http.Request) {
	all := r.Cookies()
	r.Header.Del("Cookie")
	for _, c := range all {
		if c.Name != portCookie {
			r.AddCookie(c)
		}
	}
}

// portError names what failed for v.
func portError(v visit, err error) error {
	if known, ok := errors.AsType[*wire.Error](err); ok {
		return known
	}
	return rest.WithStatus(http.StatusBadGateway, &wire.Error{Code: wire.CodeUnavailable,
		Message: fmt.Sprintf("no web server answers on port %d of %s: %s", v.port, v.sandbox,
			strings.ToValidUTF8(err.Error(), "�")),
		Hint: "start one there, then reload this page"})
}

// dial connects to the port of the visit with the secret that address names.
func (p *Ports) dial(ctx context.Context, _, address string) (net.Conn, error) {
	secret, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	v := p.visits[secret]
	p.mu.Unlock()
	t, live, err := p.tokens.ByID(v.token)
	if err != nil {
		return nil, err
	}
	// The transport's context outlives the request.
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	defer context.AfterFunc(live, cancel)()
	info, conn, err := reach(ctx, p.hub, t.AsPrincipal(), v.sandbox)
	if err != nil {
		return nil, err
	}
	if err := v.of(info); err != nil {
		conn.Close()
		return nil, err
	}
	for _, host := range []string{"127.0.0.1", "::1"} {
		var c net.Conn
		c, err = conn.Client().DialContext(ctx, "tcp",
			net.JoinHostPort(host, strconv.Itoa(v.port)))
		if err == nil {
			return portConn{c, conn}, nil
		}
	}
	conn.Close()
	return nil, errors.New("it refuses connections")
}

// portConn is a connection to a port of a sandbox. It owns its connection to the sandbox.
type portConn struct {
	net.Conn
	sandbox *connect.Conn
}

func (c portConn) Close() error {
	err := c.Conn.Close()
	c.sandbox.Close()
	return err
}
