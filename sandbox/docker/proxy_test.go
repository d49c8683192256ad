package docker

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/shortdir"
)

// flaky is a proxy between a Backend and the real engine that breaks requests.
type flaky struct {
	socket string
	server *http.Server

	mu sync.Mutex
	// Guarded by mu; true: it answered, or never will.
	fault func(http.ResponseWriter, *http.Request) bool
}

// newFlaky listens on its own socket.
func newFlaky(t *testing.T) *flaky {
	t.Helper()
	needEngine(t)
	f := &flaky{socket: filepath.Join(shortdir.New(t), "docker.sock")}
	l, err := net.Listen("unix", f.socket)
	if err != nil {
		t.Fatal(err)
	}
	var conns []net.Conn // connections that an attachment took over outlive the server
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (
		net.Conn, error) {
		conn, err := dialEngine(ctx, network, address)
		if err == nil {
			f.mu.Lock()
			conns = append(conns, conn)
			f.mu.Unlock()
		}
		return conn, err
	}}
	proxy := &httputil.ReverseProxy{Transport: transport, FlushInterval: -1,
		ErrorLog: log.New(io.Discard, "", 0), // of requests that a test ends
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: "docker"})
		}}
	f.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		fault := f.fault
		f.mu.Unlock()
		if fault == nil || !fault(w, r) {
			proxy.ServeHTTP(w, r)
		}
	})}
	var wg sync.WaitGroup
	wg.Go(func() { f.server.Serve(l) })
	t.Cleanup(func() {
		f.server.Close()
		wg.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, conn := range conns {
			conn.Close()
		}
	})
	return f
}

func dialEngine(ctx context.Context, _, _ string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", strings.TrimPrefix(DefaultHost, "unix://"))
}

func (f *flaky) set(fault func(http.ResponseWriter, *http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

func (f *flaky) use(o *Options) { o.Host = "unix://" + f.socket }

// asks reports whether r is the given engine call, in any version and for any container: "POST
// /containers/*/start".
func asks(r *http.Request, call string) bool {
	method, pattern, _ := strings.Cut(call, " ")
	path := r.URL.Path
	if _, image, ok := strings.Cut(path, "/images/"); ok && strings.HasSuffix(image, "/json") {
		path = "/images/x/json" // image names have slashes
	}
	if rest, ok := strings.CutPrefix(path, "/v1."); ok {
		_, path, _ = strings.Cut(rest, "/")
		path = "/" + path
	}
	ok, err := filepath.Match(pattern, path)
	return r.Method == method && ok && err == nil
}

// hangUp closes the connection of a request without an answer, like an engine that dies.
func hangUp(w http.ResponseWriter) {
	if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
		conn.Close()
	}
}

// refuse answers like an engine with an internal error.
func refuse(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusInternalServerError)
	w.Write([]byte(`{"message":"engine is out of sorts"}`))
}
