package httpd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/felixge/httpsnoop"
	"golang.org/x/time/rate"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/httpd/jupyter"
	"github.com/sandboxd/sandboxd/gateway/httpd/page"
	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// After a token is revoked, an answer under way gets lastWord to finish, and a stream that took
// over its connection gets lastFrames.
const (
	lastWord   = time.Second
	lastFrames = 5 * time.Second
)

// Rate limit of one token: above what normal programs need, below what would slow others.
const (
	perSecond = 200
	burst     = 1000
)

// maxUnderWay limits the concurrent requests of one principal, streams included, over all of its
// tokens. It leaves connections for other principals.
const maxUnderWay = maxConnections / 4

// open reports whether a request needs no token. What is served at its path is public.
func open(r *http.Request) bool {
	path := r.URL.Path
	return !page.Covers(r) && (slices.Contains(
		[]string{"/healthz", "/readyz", "/docs", "/docs.css", "/openapi.json"}, path) ||
		page.Open(path) || jupyter.Open(path))
}

// gate authenticates requests for one API. The first gate that covers a request decides.
type gate struct {
	covers func(r *http.Request) bool
	// Returns the token of the request, as Registry.Verify does.
	admit func(r *http.Request) (by token.Token, live context.Context, err error)
	// Answers with an error in the format of the API.
	refuse func(w http.ResponseWriter, r *http.Request, err error)
}

// guard authenticates and limits requests before a handler sees them.
type guard struct {
	hosts  []string
	tokens *token.Registry
	hub    *gateway.Hub
	log    *slog.Logger

	burst   int            // requests that a token may make in a burst
	stall   time.Duration  // see stallTime
	metrics *metrics       // nil: no metrics
	running sync.WaitGroup // admitted requests, including those that took over their connection
	gates   []gate         // other paths need a token, and return problem documents

	mu    sync.Mutex
	rates map[string]*rate.Limiter // guarded by mu; by token ID
	at    map[string]int           // guarded by mu; requests under way, by principal
}

func newGuard(hosts []string, tokens *token.Registry, hub *gateway.Hub, log *slog.Logger) *guard {
	return &guard{hosts: append([]string{"localhost"}, hosts...), tokens: tokens, hub: hub,
		log: log, burst: burst, stall: stallTime, rates: make(map[string]*rate.Limiter),
		at: make(map[string]int)}
}

// wrap returns next, protected by the guard.
func (g *guard) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Context().Err() != nil {
			// The token of an earlier request on this connection ended, and net/http then cancels
			// all requests on it.
			w.Header().Set("Connection", "close")
			rest.WriteJSON(w, http.StatusServiceUnavailable,
				rest.NewProblem(nil, &wire.Error{Code: wire.CodeUnavailable,
					Message: "connection closed: its token ended",
					Hint:    "send the request again on a new connection"}))
			return
		}
		began := time.Now()
		pacer := &pacer{c: http.NewResponseController(w), stall: g.stall}
		pacer.soon()
		defer pacer.soon() // for output that is still buffered
		w = pacer.wrap(w)
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		defer g.recovered(w, r)
		err := g.from(r)
		verify, refuse := g.caller, func(w http.ResponseWriter, r *http.Request,
			err error) {
			rest.Fail(w, r, nil, err)
		}
		for _, gate := range g.gates {
			if gate.covers(r) {
				verify, refuse = gate.admit, gate.refuse
				break
			}
		}
		var caller token.Token
		var live context.Context
		if err == nil && !open(r) {
			caller, live, err = verify(r)
		}
		if _, link := gateway.LinkOf(caller.Principal); err == nil && link &&
			!strings.HasPrefix(r.URL.Path, page.Root) && !page.Stream(r) {
			err = &wire.Error{Code: wire.CodeDenied,
				Message: "the token of a link is for the dashboard only"}
		}
		part := "" // a page of a sandbox takes none of the dashboard's share
		if page.Covers(r) {
			part = " port"
		}
		if err == nil && live != nil && !g.rate(live, caller.ID+part).Allow() {
			err = rest.WithStatus(http.StatusTooManyRequests,
				wire.Errorf(wire.CodeDenied, "rate limit: %d requests per second for each token",
					perSecond))
		}
		if err == nil && live != nil {
			var leave func()
			if leave, err = g.enter(r.Context(), caller.Principal+part); err == nil {
				defer leave()
			}
		}
		if err != nil {
			if rest.Status(err) == http.StatusUnauthorized {
				h.Set("WWW-Authenticate", `Bearer realm="sandboxd"`)
			}
			if rest.Status(err) == http.StatusTooManyRequests {
				h.Set("Retry-After", "1")
			}
			g.metrics.refuse(err)
			g.log.Debug("http request denied", "peer", r.RemoteAddr, "method", r.Method, "path",
				r.URL.Path, "err", err)
			refuse(w, r, err)
			return
		}
		if live != nil {
			ctx, cancel := context.WithCancelCause(rest.WithCaller(r.Context(), caller))
			defer cancel(nil)
			ended := make(chan struct{})
			stop := context.AfterFunc(live, func() {
				defer close(ended)
				cancel(context.Cause(live))
				// A client that revokes its own token still gets the answer.
				pacer.last(lastWord, lastFrames)
			})
			defer func() {
				if !stop() {
					<-ended // a deadline set later would apply to the connection's next request
				}
			}()
			r = r.WithContext(ctx)
		}
		g.running.Add(1)
		defer g.running.Done()
		m := httpsnoop.CaptureMetrics(next, w, r)
		g.metrics.answered(r.Pattern, m.Code, m.Duration)
		g.log.Debug("http", "peer", r.RemoteAddr, "token", caller.ID, "method", r.Method, "path",
			r.URL.Path, "took", time.Since(began))
	})
}

// recovered answers a request whose handler panicked.
func (g *guard) recovered(w http.ResponseWriter, r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if p == http.ErrAbortHandler { //nolint:errorlint // panic has this exact value
		panic(p)
	}
	id := rand.Text()[:8]
	g.log.Error("http handler panicked", "id", id, "path", r.URL.Path, "panic", p)
	rest.Fail(w, r, nil, wire.Errorf(wire.CodeInternal,
		"internal error %s; the daemon's log says more", id))
}

// from rejects requests that a foreign web page made a browser send. Such a request has an unknown
// host (DNS rebinding), or its headers name another origin.
func (g *guard) from(r *http.Request) error {
	if page.Covers(r) {
		return nil // browsers send its cookie only from its own pages, and when a link is followed
	}
	if !g.ours(r.Host) {
		return rest.WithStatus(http.StatusMisdirectedRequest,
			&wire.Error{Code: wire.CodeDenied, Message: "unknown host",
				Hint: "use localhost or the listen address, or add the host to the key http_hosts"})
	}
	if page.Stream(r) {
		return nil // it needs a token that no browser adds
	}
	denied := &wire.Error{Code: wire.CodeDenied, Message: "cross-origin request rejected"}
	if origins, ok := r.Header["Origin"]; ok {
		if len(origins) != 1 {
			return denied
		}
		if u, err := url.Parse(origins[0]); err != nil || u.Host == "" ||
			!strings.EqualFold(u.Host, r.Host) {
			return denied
		}
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return nil
	}
	// The user followed a link to a public page.
	if r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" &&
		r.Header.Get("Sec-Fetch-Dest") == "document" && open(r) {
		return nil
	}
	return denied
}

// ours reports whether hostport names this server: any IP address, which no DNS record can
// redirect, or a known host name.
func (g *guard) ours(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return slices.ContainsFunc(g.hosts, func(known string) bool {
		return strings.EqualFold(known, host)
	})
}

// caller returns the token of a request. Compatible APIs have their own headers for it.
func (g *guard) caller(r *http.Request) (token.Token, context.Context, error) {
	unknown := rest.WithStatus(http.StatusUnauthorized,
		&wire.Error{Code: wire.CodeDenied, Message: "a token is needed",
			Hint: "send Authorization: Bearer TOKEN; the admin's is in the file api_token of the " +
				"state directory; others create one with sandboxd token new"})
	secret, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		secret = r.Header.Get("X-API-Key")
	}
	if secret == "" && strings.HasPrefix(r.URL.Path, page.Root) {
		secret = page.Secret(r)
	}
	if secret == "" && page.Stream(r) {
		secret = page.StreamSecret(r)
	}
	t, live, err := g.tokens.Verify(strings.TrimSpace(secret))
	why, unbacked := errors.AsType[*wire.Error](err)
	switch {
	case err == nil:
	case unbacked:
		return t, nil, rest.WithStatus(http.StatusUnauthorized, why)
	case strings.TrimSpace(secret) != "":
		return t, nil, rest.WithStatus(http.StatusUnauthorized, &wire.Error{Code: wire.CodeDenied,
			Message: "unknown token: expired, revoked, incomplete, or made by another daemon",
			Hint: "list tokens with sandboxd token ls, create one with sandboxd token new; the " +
				"admin's is in the file api_token of the state directory"})
	default:
		return t, nil, unknown
	}
	return t, live, nil
}

// enter counts an admitted request until leave is called.
func (g *guard) enter(ctx context.Context, principal string) (leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.at[principal] >= maxUnderWay {
		return nil, rest.WithStatus(http.StatusTooManyRequests,
			&wire.Error{Code: wire.CodeLimitOps, Message: fmt.Sprintf(
				"limit of %d concurrent requests of %s reached", maxUnderWay, principal),
				Hint: "close some streams"})
	}
	done, ok := admitted(ctx)
	if !ok {
		return nil, rest.WithStatus(http.StatusServiceUnavailable,
			wire.Errorf(wire.CodeUnavailable, "connection closed: too many connections"))
	}
	g.at[principal]++
	return func() {
		done()
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.at[principal]--; g.at[principal] == 0 {
			delete(g.at, principal)
		}
	}, nil
}

// rate returns the rate limiter of a token. It is dropped when live ends.
func (g *guard) rate(live context.Context, id string) *rate.Limiter {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.rates[id]
	if l == nil {
		l = rate.NewLimiter(perSecond, g.burst)
		g.rates[id] = l
		context.AfterFunc(live, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			delete(g.rates, id)
		})
	}
	return l
}
