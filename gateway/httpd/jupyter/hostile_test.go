package jupyter

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hostile is a Jupyter server under an attacker's control.
type hostile struct {
	http.RoundTripper
	broken *atomic.Int64
	leases *sync.WaitGroup
}

func (h hostile) Broken()  { h.broken.Add(1) }
func (h hostile) Release() { h.leases.Done() }

// world is a Handler with such a server and an authenticated client.
type world struct {
	t       *testing.T
	addr    string
	broken  atomic.Int64
	leases  sync.WaitGroup          // released at the end of the test
	end     context.CancelCauseFunc // ends the client's token
	handler *Handler
}

func newWorld(t *testing.T, l limits, does http.HandlerFunc) *world {
	t.Helper()
	w := &world{t: t, handler: New(Options{})}
	w.handler.limits = l
	inside := httptest.NewServer(does)
	t.Cleanup(inside.Close)
	to, err := url.Parse(inside.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableCompression: true, MaxResponseHeaderBytes: 64 << 10}
	t.Cleanup(transport.CloseIdleConnections)
	lease := func(context.Context) (server, error) {
		w.leases.Add(1)
		return hostile{roundTrip(func(r *http.Request) (*http.Response, error) {
			r = r.Clone(r.Context())
			r.URL.Scheme, r.URL.Host = "http", to.Host
			return transport.RoundTrip(r)
		}), &w.broken, &w.leases}, nil
	}
	live, end := context.WithCancelCause(t.Context())
	w.end = end
	handler := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		defer context.AfterFunc(live, func() { cancel(context.Cause(live)) })()
		r = r.WithContext(ctx)
		below := strings.TrimPrefix(r.URL.Path, "/api/")
		var err error
		if r.Header.Get("Upgrade") != "" {
			err = w.handler.socket(rw, r, "alice", below, lease)
		} else {
			err = w.handler.relay(rw, r, below, lease)
		}
		if err != nil && r.Context().Err() == nil {
			w.handler.fail(rw, err)
		}
	}))
	t.Cleanup(handler.Close)
	w.addr = handler.Listener.Addr().String()
	t.Cleanup(func() {
		end(nil)
		released := make(chan struct{})
		go func() { w.leases.Wait(); close(released) }()
		select {
		case <-released:
		case <-time.After(20 * time.Second):
			t.Error("a lease is not released")
		}
	})
	return w
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (w *world) get(path string) (*http.Response, string, error) {
	w.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(
		*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	resp, err := client.Get("http://" + w.addr + "/api/" + path)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp, string(text), err
}

var small = limits{answer: 1 << 20, within: 2 * time.Second, message: 1 << 20,
	stall: 300 * time.Millisecond}

// patient is for clients that read all. On a busy machine, they may be slow.
var patient = limits{answer: small.answer, within: time.Minute, message: small.message,
	stall: time.Minute}

// A server's answer reaches a client as JSON, or not at all.
func TestHostileAnswers(t *testing.T) {
	w := newWorld(t, small, func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Set-Cookie", "a=b")
		h.Set("Location", "http://elsewhere.example/")
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("Content-Type", "application/json")
		endless := func() {
			for r.Context().Err() == nil {
				if _, err := w.Write(bytes.Repeat([]byte(" "), 64<<10)); err != nil {
					return
				}
			}
		}
		switch r.URL.Path {
		case "/api/good":
			_, _ = io.WriteString(w, `{"a":1}`)
		case "/api/redirect":
			w.WriteHeader(http.StatusFound)
		case "/api/page":
			h.Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<script>alert(1)</script>")
		case "/api/errorpage":
			h.Set("Content-Type", "text/html")
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, "<script>alert(1)</script>")
		case "/api/packed":
			h.Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(w, "{}")
		case "/api/huge":
			h.Set("Content-Length", "99999999999")
			endless()
		case "/api/endless":
			endless()
		case "/api/silent":
			<-r.Context().Done()
		case "/api/headers":
			for range 10_000 {
				h.Add("X-Y", strings.Repeat("z", 100))
			}
			_, _ = io.WriteString(w, "{}")
		case "/api/stale":
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, "{}")
		}
	})
	for path, want := range map[string]struct {
		status int
		body   string
	}{
		"good": {200, `{"a":1}`}, "redirect": {502, "302"}, "page": {502, "something other than JSON"}, "errorpage": {404, `{"message":"Not Found"}`}, "packed": {502, "JSON"},
		"huge": {502, "more than"}, "silent": {504, "does not answer"}, "headers": {502, "does not answer"}, "stale": {403, "{}"},
	} {
		resp, text, err := w.get(path)
		if err != nil || resp.StatusCode != want.status || !strings.Contains(text, want.body) ||
			strings.Contains(text, "script") {
			t.Errorf("%s: %v, %v, %.300s", path, err, resp, text)
			continue
		}
		for _, name := range []string{"Set-Cookie", "Location", "Access-Control-Allow-Origin",
			"X-Y"} {
			if resp.Header.Get(name) != "" {
				t.Errorf("%s: a header %s of the server reached the client", path, name)
			}
		}
		if got := resp.Header.Get("Content-Type"); got != "application/json" {
			t.Errorf("%s: the type is %q", path, got)
		}
	}
	if got := w.broken.Load(); got != 4 { // headers, twice, stale, and silent
		t.Errorf("%d times the server was taken for another one", got)
	}
	if _, text, err := w.get("endless"); err == nil || len(text) > int(small.answer)+(64<<10) {
		t.Errorf("an answer without end: %d bytes, %v", len(text), err)
	}
}

// A foreign page cannot send a body that is passed on. Only methods of the API are.
func TestBodies(t *testing.T) {
	w := newWorld(t, small, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.Copy(w, r.Body)
	})
	for name, c := range map[string]struct {
		method, kind, body string
		want               int
	}{
		"json":    {"POST", "application/json", `{"a":1}`, 200},
		"none":    {"POST", "", "", 200},
		"a form":  {"POST", "text/plain", `{"a":1}`, 415},
		"nothing": {"POST", "", `{"a":1}`, 415},
		"large":   {"POST", "application/json", strings.Repeat("x", 2<<20), 413},
		"trace":   {"PROPFIND", "", "", 405},
	} {
		r, _ := http.NewRequestWithContext(t.Context(), c.method, "http://"+w.addr+"/api/kernels",
			strings.NewReader(c.body))
		r.Header.Set("Content-Type", c.kind)
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%s: %d, want %d", name, resp.StatusCode, c.want)
		}
	}
}

// socket opens a client's socket.
func (w *world) socket(path string) (*websocket.Conn, *http.Response, error) {
	w.t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	c, resp, err := websocket.Dial(w.t.Context(), "ws://"+w.addr+path,
		&websocket.DialOptions{HTTPClient: &http.Client{Transport: transport},
			Subprotocols: []string{"other", protocol}})
	if c != nil {
		c.SetReadLimit(-1)
		w.t.Cleanup(func() { c.CloseNow() })
	}
	return c, resp, err
}

const kernel = "/api/kernels/a-b/channels"

// sockets is a server whose sockets run f.
func sockets(t *testing.T, f func(ctx context.Context, c *websocket.Conn)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{protocol}})
		if err != nil {
			t.Error(err)
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(-1)
		f(r.Context(), c)
	}
}

// Messages are passed on unchanged, with the client's protocol and session.
func TestSocket(t *testing.T) {
	w := newWorld(t, patient, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery != "session_id=a%26b" || r.Header.Get("Cookie") != "" ||
			r.Header.Get("Origin") != "" {
			t.Errorf("asked for %s with %v", r.URL, r.Header)
		}
		sockets(t, func(ctx context.Context, c *websocket.Conn) {
			for {
				kind, text, err := c.Read(ctx)
				if err != nil {
					return
				}
				if err := c.Write(ctx, kind, text); err != nil {
					return
				}
			}
		})(w, r)
	})
	c, _, err := w.socket(kernel + "?session_id=a%26b&x=y")
	if err != nil {
		t.Fatal(err)
	}
	if c.Subprotocol() != protocol {
		t.Errorf("the protocol is %q", c.Subprotocol())
	}
	for _, n := range []int{0, 5, 900_000} {
		for _, kind := range []websocket.MessageType{websocket.MessageText,
			websocket.MessageBinary} {
			sent := bytes.Repeat([]byte("x"), n)
			if err := c.Write(t.Context(), kind, sent); err != nil {
				t.Fatal(err)
			}
			if got, text, err := c.Read(t.Context()); err != nil || got != kind ||
				!bytes.Equal(text, sent) {
				t.Fatalf("%d bytes of %v came as %d of %v, %v", n, kind, len(text), got, err)
			}
		}
	}
	_ = c.Close(websocket.StatusNormalClosure, "")
	for _, path := range []string{"/api/events/subscribe", "/api/kernels/a%2f..%2fb/channels",
		"/api/kernels//channels", "/api/kernels/a/channels/x"} {
		if _, resp, err := w.socket(path); err == nil || resp == nil ||
			resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %v %v", path, resp, err)
		}
	}
}

// A socket ends with the client's token, and the close reason says so.
func TestSocketRevoked(t *testing.T) {
	w := newWorld(t, small, sockets(t, func(ctx context.Context, c *websocket.Conn) {
		_, _, _ = c.Read(ctx)
	}))
	c, _, err := w.socket(kernel)
	if err != nil {
		t.Fatal(err)
	}
	w.end(io.EOF)
	if _, _, err := c.Read(t.Context()); websocket.CloseStatus(err) != closedToken {
		t.Errorf("it ended with %v", err)
	}
}

// A flooding server uses no memory: a client that does not read loses its socket, and a message
// that is too large ends it.
func TestSocketFloods(t *testing.T) {
	over := make(chan int64, 1)
	l := small
	l.message = 8 << 20
	w := newWorld(t, l, sockets(t, func(ctx context.Context, c *websocket.Conn) {
		sent := int64(0)
		for part := bytes.Repeat([]byte("x"), 256<<10); c.Write(ctx, websocket.MessageText,
			part) == nil; {
			sent += int64(len(part))
		}
		over <- sent
	}))
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, _, err := w.socket(kernel); err != nil { // and never reads
		t.Fatal(err)
	}
	select {
	case sent := <-over:
		if sent > 64<<20 {
			t.Errorf("%d bytes were taken for a client that reads nothing", sent)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the flood continues")
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if after.HeapAlloc > before.HeapAlloc+(16<<20) {
		t.Errorf("%d bytes of memory for it", after.HeapAlloc-before.HeapAlloc)
	}

	huge := newWorld(t, small, sockets(t, func(ctx context.Context, c *websocket.Conn) {
		out, err := c.Writer(ctx, websocket.MessageText)
		for part := bytes.Repeat([]byte("x"), 64<<10); err == nil; {
			_, err = out.Write(part)
		}
	}))
	c, _, err := huge.socket(kernel)
	if err != nil {
		t.Fatal(err)
	}
	if _, text, err := c.Read(t.Context()); err == nil || len(text) > 2<<20 {
		t.Errorf("a message without end: %d bytes, %v", len(text), err)
	}
}

// The number of open sockets is limited, and closed ones count no longer.
func TestSocketCount(t *testing.T) {
	w := newWorld(t, small, sockets(t, func(ctx context.Context, c *websocket.Conn) {
		_, _, _ = c.Read(ctx)
	}))
	for range maxSockets {
		if _, _, err := w.socket(kernel); err != nil {
			t.Fatal(err)
		}
	}
	if _, resp, err := w.socket(kernel); err == nil ||
		resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("one more: %v, %v", resp, err)
	}
	w.end(io.EOF)
	for late := time.After(20 * time.Second); ; {
		w.handler.mu.Lock()
		left := len(w.handler.sockets)
		w.handler.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-late:
			t.Fatal("sockets are counted that have ended")
		default:
			runtime.Gosched()
		}
	}
}
