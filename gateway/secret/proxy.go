package secret

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	headTimeout = 60 * time.Second // of a request's header
	idleTimeout = 5 * time.Minute  // of a connection between requests
	maxHead     = 64 << 10         // bytes of a request's header
	maxAnswer   = 256 << 10        // bytes of a response's header
	// How long a server may take to answer Expect: 100-continue before the body is sent.
	continueTimeout = 5 * time.Second

	// Of a sandbox, at the same time. With maxUnread, they bound the memory that a sandbox can fill
	// by reading nothing.
	maxRequests = 128
	maxUnread   = 2 << 20 // bytes of a response that the program has not read
	maxUnsent   = 1 << 20 // bytes of requests on a connection that the server has not read
)

// proxy serves one connection of a program to one host, with server connections of its own.
type proxy struct {
	broker    *Broker
	host      string
	transport *http.Transport
	requests  sync.WaitGroup

	mu     sync.Mutex
	open   map[*dialled]bool // guarded by mu
	closed bool              // guarded by mu
	asked  bool              // guarded by mu; there was a request
}

func newProxy(b *Broker, host string, dial Dial) *proxy {
	p := &proxy{broker: b, host: host, open: make(map[*dialled]bool)}
	p.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := dial(ctx)
			if err != nil {
				return nil, &dialError{err}
			}
			return p.track(conn)
		},
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: b.options.Roots,
			ServerName: host},
		ForceAttemptHTTP2: true, DisableCompression: true,
		MaxResponseHeaderBytes: maxAnswer, IdleConnTimeout: idleTimeout,
		TLSHandshakeTimeout: handshakeTimeout, ExpectContinueTimeout: continueTimeout,
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: maxUnread},
	}
	return p
}

// serve serves conn until it ends. ended is closed when its connection is.
func (p *proxy) serve(ctx context.Context, conn *tls.Conn, ended <-chan struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := &http.Server{
		Handler: p, ReadHeaderTimeout: headTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHead, ErrorLog: discard(),
		BaseContext: func(net.Listener) context.Context { return ctx },
		// conn has its own; this one enables what its handshake may have agreed on.
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: protocols},
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxRequests,
			MaxReceiveBufferPerConnection: maxUnsent, MaxReceiveBufferPerStream: maxUnsent},
	}
	_ = server.Serve(&single{conn: conn, ended: ended}) // returns when conn has ended
	left := ctx.Err() == nil
	cancel()
	asked := p.close()
	p.requests.Wait()
	if left && !asked {
		// Node.js, for one, verifies the certificate after the handshake.
		p.broker.options.Failed(p.host, "the program ended the connection before a request: it "+
			"may not trust the certificate of the broker")
	}
}

// protocols are those of a program's connection.
var protocols = []string{"h2", "http/1.1"}

// discard returns a logger for what programs and servers do wrong.
func discard() *log.Logger { return slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) }

// single is a listener with one connection.
type single struct {
	conn  net.Conn // nil when it was accepted
	ended <-chan struct{}
}

// Accept returns the connection, and then waits for its end.
func (s *single) Accept() (net.Conn, error) {
	if conn := s.conn; conn != nil {
		s.conn = nil
		return conn, nil
	}
	<-s.ended
	return nil, net.ErrClosed
}

// Close does nothing: the connection ends the listener.
func (*single) Close() error { return nil }

// Addr returns no real address.
func (*single) Addr() net.Addr { return &net.TCPAddr{} }

// dialled is a connection to the server.
type dialled struct {
	net.Conn
	proxy *proxy
}

func (p *proxy) track(conn net.Conn) (net.Conn, error) {
	d := &dialled{conn, p}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	p.open[d] = true
	return d, nil
}

func (d *dialled) Close() error {
	d.proxy.mu.Lock()
	delete(d.proxy.open, d)
	d.proxy.mu.Unlock()
	return d.Conn.Close()
}

// close ends all connections to the server. It reports whether there was a request.
func (p *proxy) close() bool {
	p.mu.Lock()
	p.closed = true
	open, asked := p.open, p.asked
	p.open = nil
	p.mu.Unlock()
	for d := range open {
		_ = d.Conn.Close()
	}
	p.transport.CloseIdleConnections()
	return asked
}

// begin counts a request, unless p is closed.
func (p *proxy) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = true
	if !p.closed {
		p.requests.Add(1)
	}
	return !p.closed
}

// dialError is an error of Dial. The dialling side has reported it.
type dialError struct{ err error }

func (e *dialError) Error() string { return plainError(e.err) }
func (e *dialError) Unwrap() error { return e.err }

// ServeHTTP sends one request on, or answers why not.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !p.begin() {
		panic(http.ErrAbortHandler) // the program has left
	}
	defer p.requests.Done()
	select {
	case p.broker.slots <- struct{}{}:
		defer func() { <-p.broker.slots }()
	default:
		p.broker.options.Denied(p.host, fmt.Sprintf("%d requests are open, the limit", maxRequests))
		answer(w, http.StatusServiceUnavailable, problem{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("sandboxd: %d requests with secrets are open, the limit of a "+
				"sandbox", maxRequests)})
		return
	}
	bound, ok := p.broker.binding(p.host)
	err := refuse("binding", "the host is no longer bound")
	if ok {
		err = bound.mayPass(r)
	}
	if refusal, ok := errors.AsType[*Refusal](err); ok {
		p.broker.options.Denied(p.host, fmt.Sprintf("%.20s request: %s; secret %s", r.Method,
			refusal.Why, bound.Secret))
		answer(w, http.StatusForbidden, denial(bound, refusal))
		return
	}
	name, text, err := bound.header(r.Context())
	if err != nil {
		p.broker.options.Failed(p.host, fmt.Sprintf("secret %s: %v", bound.Secret, err))
		answer(w, http.StatusBadGateway, problem{Code: wire.CodeUnavailable, Secret: bound.Secret,
			Message: fmt.Sprintf("sandboxd: secret %s has no value now: %v", bound.Secret, err)})
		return
	}
	bound.entry.used.set()
	reverse := &httputil.ReverseProxy{Transport: retrying{p.transport, bound}, ErrorLog: discard(),
		FlushInterval: -1, // events and tokens arrive as the server sends them
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "https", p.host, p.host
			r.Out.URL.RawQuery = withoutParams(r.In.URL.RawQuery, bound.Params)
			r.Out.Trailer = nil // it could have credentials
			// A server that does not expect a body could take it for the next request.
			switch {
			case r.In.ContentLength != 0 && slices.Contains(bodiless, r.In.Method):
				r.Out.Header.Del("Expect")
				r.Out.Close = true
			case r.Out.Header.Get("Expect") != "": // in the form that all servers know
				r.Out.Header.Set("Expect", "100-continue")
				r.Out.Close = true
			}
			setCredential(r.Out.Header, name, text)
		},
		ModifyResponse: func(r *http.Response) error {
			r.Header.Del("Alt-Svc") // HTTP/3 would bypass the broker
			return nil
		},
		ErrorHandler: p.failed,
	}
	reverse.ServeHTTP(w, r)
}

// bodiless are methods of requests that have no body.
var bodiless = []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodDelete}

// failed answers a request whose server cannot be reached.
func (p *proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the program has left
	}
	message := plainError(err)
	if bad, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		message = "the server's certificate is not trusted: " + bad.Err.Error()
	}
	if _, ok := errors.AsType[*dialError](err); !ok {
		p.broker.options.Failed(p.host, message)
	}
	answer(w, http.StatusBadGateway, problem{Code: wire.CodeUnavailable,
		Message: fmt.Sprintf("sandboxd: %s: %s", p.host, message)})
}

// problem is the error object in the body of an answer of the broker.
type problem struct {
	Code    wire.Code `json:"code"`
	Message string    `json:"message"`
	Rule    string    `json:"rule,omitempty"`   // of a Refusal
	Secret  string    `json:"secret,omitempty"` // name
	Bound   []string  `json:"bound,omitempty"`  // what requests may be
}

// denial returns the body for a refused request.
func denial(bound Bound, refusal *Refusal) problem {
	d := problem{Code: wire.CodeDenied, Rule: refusal.Rule, Secret: bound.Secret,
		Message: "sandboxd: " + refusal.Why}
	if bound.Secret != "" {
		d.Message += "; secret " + bound.Secret
	}
	for _, r := range bound.Rules[:min(len(bound.Rules), 20)] {
		d.Bound = append(d.Bound, r.String())
	}
	return d
}

func answer(w http.ResponseWriter, status int, p problem) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]problem{"error": p})
}

// Headers that carry credentials, besides those that isCredential finds by their end.
var credentials = []string{"cookie", "dpop", "job-token", "private-token", "proxy-authorization",
	"x-amz-security-token", "x-goog-iam-authorization-token"}

// isCredential reports whether a header usually carries a credential, as servers read its name.
func isCredential(name string) bool {
	name = plainName(name)
	for _, end := range []string{"authorization", "api-key", "apikey", "auth-token",
		"access-token"} {
		if strings.HasSuffix(name, end) {
			return true
		}
	}
	return slices.Contains(credentials, name)
}

// keyProtocols are beginnings of WebSocket subprotocols that carry credentials.
var keyProtocols = []string{"openai-insecure-api-key.", "base64url.bearer.authorization."}

// setCredential removes all credentials of the program, and sets the one of the binding.
func setCredential(h http.Header, name, text string) {
	for have := range h {
		if isCredential(have) || plainName(have) == plainName(name) {
			delete(h, have)
		}
	}
	const protocolHeader = "Sec-Websocket-Protocol"
	if lists := h[protocolHeader]; len(lists) > 0 {
		var kept []string
		for one := range strings.SplitSeq(strings.Join(lists, ","), ",") {
			one = strings.TrimSpace(one)
			if !slices.ContainsFunc(keyProtocols, func(begin string) bool {
				return strings.HasPrefix(strings.ToLower(one), begin)
			}) {
				kept = append(kept, one)
			}
		}
		delete(h, protocolHeader)
		if len(kept) > 0 {
			h.Set(protocolHeader, strings.Join(kept, ", "))
		}
	}
	h.Set(name, text)
}

// withoutParams returns a query without the parameters of these names, and otherwise unchanged.
func withoutParams(query string, names []string) string {
	if len(names) == 0 || query == "" {
		return query
	}
	var kept []string
	for pair := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(pair, "=")
		plain, err := url.QueryUnescape(name)
		if err != nil || !slices.Contains(names, strings.ToLower(plain)) {
			kept = append(kept, pair)
		}
	}
	return strings.Join(kept, "&")
}
