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

// lastWord is how long an answer may take whose token was revoked, lastFrames what a stream has that took its connection over.
const (
	lastWord   = time.Second
	lastFrames = 5 * time.Second
)

// What one token may ask for: more than programs at work do, less than it takes to keep the daemon from others.
const (
	perSecond = 200
	burst     = 1000
)

// maxUnderWay is how many requests of one principal are under way at once, streams among them, by all of their tokens: there are
// connections for several.
const maxUnderWay = maxConnections / 4

// open reports whether a path needs no token: what is there is no secret.
func open(path string) bool {
	return slices.Contains([]string{"/healthz", "/readyz", "/docs", "/docs.css", "/openapi.json"}, path) || page.Open(path) || jupyter.Open(path)
}

// gate lets requests in by what they have to show there, a token or something else, and no others. The first that covers one decides.
type gate struct {
	covers func(r *http.Request) bool
	admit  func(r *http.Request) (by token.Token, live context.Context, err error) // whose token stands behind the request, as Registry.Verify
	refuse func(w http.ResponseWriter, r *http.Request, err error)                 // answers in the words of what is behind it
}

// guard lets requests in, or answers why not, before any handler sees them.
type guard struct {
	hosts  []string
	tokens *token.Registry
	hub    *gateway.Hub
	log    *slog.Logger

	burst   int            // requests of a token at once
	stall   time.Duration  // see stallTime
	metrics *metrics       // nil counts nothing
	running sync.WaitGroup // requests that were let in, also those that took their connection over
	gates   []gate         // all others need a token, and are answered with problem documents

	mu    sync.Mutex
	rates map[string]*rate.Limiter // guarded by mu; by token ID
	at    map[string]int           // guarded by mu; requests under way, by principal
}

func newGuard(hosts []string, tokens *token.Registry, hub *gateway.Hub, log *slog.Logger) *guard {
	return &guard{hosts: append([]string{"localhost"}, hosts...), tokens: tokens, hub: hub, log: log, burst: burst, stall: stallTime, rates: make(map[string]*rate.Limiter), at: make(map[string]int)}
}

// wrap is next behind the guard.
func (g *guard) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Context().Err() != nil {
			// The request before on this connection ended with its token, and with it, for the server, all that come on it.
			w.Header().Set("Connection", "close")
			rest.WriteJSON(w, http.StatusServiceUnavailable, rest.NewProblem(nil, &wire.Error{Code: wire.CodeUnavailable, Message: "this connection is over", Hint: "ask again on another"}))
			return
		}
		began := time.Now()
		pacer := &pacer{c: http.NewResponseController(w), stall: g.stall}
		pacer.soon()
		defer pacer.soon() // for what is on its way yet
		w = pacer.wrap(w)
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		defer g.recovered(w, r)
		err := g.from(r)
		verify, refuse := g.caller, func(w http.ResponseWriter, r *http.Request, err error) { rest.Fail(w, r, nil, err) }
		for _, gate := range g.gates {
			if gate.covers(r) {
				verify, refuse = gate.admit, gate.refuse
				break
			}
		}
		var caller token.Token
		var live context.Context
		if err == nil && !open(r.URL.Path) {
			caller, live, err = verify(r)
		}
		if err == nil && live != nil && !g.rate(live, caller.ID).Allow() {
			err = rest.WithStatus(http.StatusTooManyRequests, wire.Errorf(wire.CodeDenied, "more than %d requests a second with this token", perSecond))
		}
		if err == nil && live != nil {
			var leave func()
			if leave, err = g.enter(r.Context(), caller.Principal); err == nil {
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
			g.log.Debug("http refused", "peer", r.RemoteAddr, "method", r.Method, "path", r.URL.Path, "err", err)
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
				pacer.last(lastWord, lastFrames) // who revokes their own token is told that it worked
			})
			defer func() {
				if !stop() {
					<-ended // a deadline that is set later would be that of the connection's next request
				}
			}()
			r = r.WithContext(ctx)
		}
		g.running.Add(1)
		defer g.running.Done()
		m := httpsnoop.CaptureMetrics(next, w, r)
		g.metrics.answered(r.Pattern, m.Code, m.Duration)
		g.log.Debug("http", "peer", r.RemoteAddr, "token", caller.ID, "method", r.Method, "path", r.URL.Path, "took", time.Since(began))
	})
}

// recovered answers for a handler that panicked.
func (g *guard) recovered(w http.ResponseWriter, r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if p == http.ErrAbortHandler { //nolint:errorlint // what was thrown is this value
		panic(p)
	}
	id := rand.Text()[:8]
	g.log.Error("http handler panicked", "id", id, "path", r.URL.Path, "panic", p)
	rest.Fail(w, r, nil, wire.Errorf(wire.CodeInternal, "internal error %s; the daemon's log says more", id))
}

// from refuses what a page of somebody else's makes a browser send: a request for a name that is not ours (its name was made to point
// here), or one that says it comes from another page.
func (g *guard) from(r *http.Request) error {
	if !g.ours(r.Host) {
		return rest.WithStatus(http.StatusMisdirectedRequest, &wire.Error{Code: wire.CodeDenied, Message: "this server does not answer for that host",
			Hint: "ask for localhost or the address that it listens on, or name the host in the key http_hosts"})
	}
	denied := &wire.Error{Code: wire.CodeDenied, Message: "requests of pages of other origins are refused"}
	if origins, ok := r.Header["Origin"]; ok {
		if len(origins) != 1 {
			return denied
		}
		if u, err := url.Parse(origins[0]); err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
			return denied
		}
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return nil
	}
	// Somebody clicked on a link to the page.
	if r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document" && open(r.URL.Path) {
		return nil
	}
	return denied
}

// ours reports whether hostport names this server: an address, which no page can make point elsewhere, or a name that is known.
func (g *guard) ours(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return slices.ContainsFunc(g.hosts, func(known string) bool { return strings.EqualFold(known, host) })
}

// caller is whose token the request has. Clients of others' shapes have headers of their own for it.
func (g *guard) caller(r *http.Request) (token.Token, context.Context, error) {
	unknown := rest.WithStatus(http.StatusUnauthorized, &wire.Error{Code: wire.CodeDenied, Message: "a token is needed",
		Hint: "send Authorization: Bearer TOKEN; the daemon's own user has one in the file api_token of the state directory, others make one: sandboxd token new"})
	secret, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		secret = r.Header.Get("X-API-Key")
	}
	if secret == "" && strings.HasPrefix(r.URL.Path, page.Root) {
		secret = page.Secret(r)
	}
	t, live, err := g.tokens.Verify(strings.TrimSpace(secret))
	why, unbacked := errors.AsType[*wire.Error](err)
	switch {
	case err == nil:
	case unbacked:
		return t, nil, rest.WithStatus(http.StatusUnauthorized, why)
	case strings.TrimSpace(secret) != "":
		return t, nil, rest.WithStatus(http.StatusUnauthorized, &wire.Error{Code: wire.CodeDenied, Message: "this token is not known here: it is another daemon's, has expired, was revoked, or is cut off",
			Hint: "sandboxd token ls lists yours, sandboxd token new makes one; the daemon's own user has one in the file api_token of the state directory"})
	default:
		return t, nil, unknown
	}
	return t, live, nil
}

// enter counts a request that was let in, until leave is called.
func (g *guard) enter(ctx context.Context, principal string) (leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.at[principal] >= maxUnderWay {
		return nil, rest.WithStatus(http.StatusTooManyRequests, &wire.Error{Code: wire.CodeLimitOps, Message: fmt.Sprintf("%d requests of %s are under way, the most there may be", maxUnderWay, principal),
			Hint: "end some streams"})
	}
	done, ok := letIn(ctx)
	if !ok {
		return nil, rest.WithStatus(http.StatusServiceUnavailable, wire.Errorf(wire.CodeUnavailable, "this connection had to go"))
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

// rate is the limit of a token, for as long as that is good.
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
