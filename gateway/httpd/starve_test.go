package httpd

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// raw returns a connection that has sent text.
func (w *world) raw(text string) net.Conn {
	w.t.Helper()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
	if _, err := io.WriteString(c, text); err != nil {
		w.t.Fatal(err)
	}
	return c
}

// At the connection limit, clients without a token make room for clients with one. Admitted
// requests stay (A112).
func TestConnectionLimit(t *testing.T) {
	w := newWorld(t)
	w.client.CloseIdleConnections()
	const most = 8
	w.server.conns.mu.Lock()
	w.server.conns.most = most
	w.server.conns.mu.Unlock()
	b := w.e2bCreate(w.alice, "{}")
	hangUp := w.begin(b, `{"process":{"cmd":"/bin/sleep","args":["1000"]}}`)
	defer hangUp()
	var silent []net.Conn
	for i := range 3 * most {
		silent = append(silent, w.raw([]string{"", "GET / HT",
			"POST /page/login HTTP/1.1\r\nHost: localhost\r\nOrigin: " +
				"http://localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"}[i%3]))
		if a := w.call("GET", "/v1/sandboxes", w.alice, ""); a.status != http.StatusOK {
			t.Fatalf("after %d silent clients: %d %s", i+1, a.status, a.body)
		}
	}
	// The first is closed long before its header is late.
	silent[0].SetReadDeadline(time.Now().Add(headerTime / 2))
	if _, err := silent[0].Read(make([]byte, 1)); err == nil ||
		strings.Contains(err.Error(), "timeout") {
		t.Errorf("the first silent client: %v", err)
	}
	// The last silent ones may be accepted only now, in place of an idle one.
	w.client.CloseIdleConnections()
	if a := w.call("POST", "/e2b/process.Process/List", "", "{}", b.to); strings.Count(
		a.body, `"pid"`) != 1 {
		t.Errorf("a stream meanwhile: %s", a.body)
	}
	w.server.conns.mu.Lock()
	defer w.server.conns.mu.Unlock()
	if n := len(w.server.conns.all); n > most {
		t.Errorf("%d connections are known", n)
	}
}

// A client that does not read its answer is disconnected after a while, from a record's bytes or a
// stream. Its resources are released (A112).
func TestNeverReading(t *testing.T) {
	w := newWorld(t)
	w.server.guard.stall = 500 * time.Millisecond
	b := w.e2bCreate(w.alice, "{}")
	messages, _ := w.start(b, "dd if=/dev/zero of=/tmp/large bs=1M count=64 2>&1")
	if len(messages) == 0 {
		t.Fatal("no file")
	}
	text :=
		`{"process":{"cmd":"/bin/sh","args":["-c","while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done"]},"stdin":false}`
	head := fmt.Sprintf("Host: localhost\r\nE2b-Sandbox-Id: %s\r\nX-Access-Token: %s\r\n", b.ID,
		b.Access)
	clients := map[string]net.Conn{
		"a file":   w.raw("GET /e2b/files?path=/tmp/large HTTP/1.1\r\n" + head + "\r\n"),
		"a stream": w.raw(fmt.Sprintf("POST /e2b/process.Process/Start HTTP/1.1\r\n%sConnect-Protocol-Version: 1\r\nContent-Type: application/connect+json\r\nContent-Length: %d\r\n\r\n%s", head, len(text)+5, frame(0, text))),
	}
	for name, c := range clients {
		line, err := bufio.NewReaderSize(c, 16).ReadString('\n')
		if !strings.Contains(line, "200") {
			t.Fatalf("%s: %q, %v", name, line, err)
		}
	}
	// Neither reads on. The requests end by themselves.
	for end := time.Now().Add(patience); ; {
		w.server.guard.mu.Lock()
		n := w.server.guard.at["alice"]
		w.server.guard.mu.Unlock()
		if n == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d requests are under way", n)
		}
		w.call("GET", "/healthz", "", "")
	}
	// The command whose output nobody reads continues, and can be ended.
	a := w.call("POST", "/e2b/process.Process/List", "", "{}", b.to)
	_, rest, _ := strings.Cut(a.body, `"pid":`)
	pid, _, _ := strings.Cut(rest, "}")
	if a := w.call("POST", "/e2b/process.Process/SendSignal", "",
		`{"process":{"pid":`+pid+`},"signal":"SIGNAL_SIGKILL"}`, b.to); a.status != http.StatusOK {
		t.Errorf("kill %q: %d %s", pid, a.status, a.body)
	}
}

// A client that disappears in the middle of a request leaves nothing behind (A112).
func TestHalfOpen(t *testing.T) {
	w := newWorld(t)
	b := w.e2bCreate(w.alice, "{}")
	hangUp := w.begin(b, `{"process":{"cmd":"/bin/cat"}}`)
	a := w.call("POST", "/e2b/process.Process/List", "", "{}", b.to)
	_, rest, _ := strings.Cut(a.body, `"pid":`)
	pid, _, _ := strings.Cut(rest, "}")
	hangUp()
	head := fmt.Sprintf(
		"Host: localhost\r\nE2b-Sandbox-Id: %s\r\nX-Access-Token: "+
			"%s\r\nConnect-Protocol-Version: 1\r\n", b.ID, b.Access)
	input := frame(0, `{"start":{"process":{"pid":`+pid+`}}}`)
	for name, text := range map[string]string{
		"input":    "POST /e2b/process.Process/StreamInput HTTP/1.1\r\n" + head + "Content-Type: application/connect+json\r\nTransfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n", len(input), input),
		"a frame":  "POST /e2b/process.Process/StreamInput HTTP/1.1\r\n" + head + "Content-Type: application/connect+json\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n\x00\x00\x00\r\n",
		"a file":   "POST /e2b/files?path=/tmp/half HTTP/1.1\r\n" + head + "Content-Type: application/octet-stream\r\nContent-Length: 100000\r\n\r\nhalf",
		"a form":   "POST /e2b/files HTTP/1.1\r\n" + head + "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 100000\r\n\r\n--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/tmp/form\"\r\n\r\nhalf",
		"a stream": "POST /e2b/process.Process/Connect HTTP/1.1\r\n" + head + fmt.Sprintf("Content-Type: application/connect+json\r\nContent-Length: %d\r\n\r\n", 5+len(`{"process":{"pid":`+pid+`}}`)) + frame(0, `{"process":{"pid":`+pid+`}}`),
	} {
		c := w.raw(text)
		w.await(name+" is under way", func(at map[string]int) bool { return at["alice"] == 1 })
		_ = c.(*net.TCPConn).SetLinger(0) // as if the machine were gone: a reset without a close
		c.Close()
		w.await(name+" is over", func(at map[string]int) bool { return at["alice"] == 0 })
	}
}

func (w *world) await(what string, so func(at map[string]int) bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); ; {
		w.server.guard.mu.Lock()
		ok := so(w.server.guard.at)
		w.server.guard.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(end) {
			w.t.Fatalf("not so: %s", what)
		}
		w.call("GET", "/healthz", "", "")
	}
}

// Limits on requests and sockets hold for a principal, whatever number of tokens it has.
func TestOneDoesNotStarveOthers(t *testing.T) {
	w := newWorld(t)
	w.sandbox("demo")
	w.server.guard.mu.Lock()
	w.server.guard.at["alice"] = maxUnderWay
	w.server.guard.mu.Unlock()
	another, _ := w.token(token.Token{Principal: "alice"})
	for _, secret := range []string{w.alice, another} {
		if a := w.call("GET", "/v1/sandboxes", secret, ""); a.status != http.StatusTooManyRequests {
			t.Errorf("one more of hers: %d %s", a.status, a.body)
		}
	}
	if a := w.call("GET", "/v1/sandboxes", w.bob, ""); a.status != http.StatusOK {
		t.Errorf("his: %d %s", a.status, a.body)
	}
	w.server.guard.mu.Lock()
	w.server.guard.at["alice"] = 0
	w.server.guard.mu.Unlock()

	opened, refused := 0, 0
	for i := range 70 {
		if i%10 == 0 {
			w.client.CloseIdleConnections()
		}
		c, resp, err := w.socket(w.login(wire.RightDrive), "/page/live") // each with its own token
		switch {
		case err == nil:
			opened++
			defer c.CloseNow()
		case resp != nil && resp.StatusCode == http.StatusTooManyRequests:
			refused++
		default:
			t.Fatal(err)
		}
	}
	if opened != 64 || refused != 6 {
		t.Errorf("%d sockets are open, %d were refused", opened, refused)
	}
}

// When a principal can no longer log in, its tokens and their requests end within seconds.
func TestPrincipalGone(t *testing.T) {
	w := newWorld(t)
	b := w.e2bCreate(w.bob, "{}")
	r, err := http.NewRequestWithContext(t.Context(), "POST",
		"http://"+w.addr+"/e2b/process.Process/Start",
		strings.NewReader(frame(0, `{"process":{"cmd":"/bin/sleep","args":["1000"]}}`)))
	if err != nil {
		t.Fatal(err)
	}
	b.to(r)
	asStream(r)
	resp, err := w.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	w.gone.Store("bob")
	for name, a := range map[string]answer{
		"his token":           w.call("GET", "/v1/sandboxes", w.bob, ""),
		"his sandbox's token": w.call("GET", "/e2b/health", "", "", b.to),
	} {
		if a.status != http.StatusUnauthorized || !strings.Contains(a.body, "its key is gone") {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	ended := make(chan error, 1)
	go func() { _, err := io.Copy(io.Discard, resp.Body); ended <- err }()
	select {
	case <-ended:
	case <-time.After(5*time.Second + patience/2):
		t.Error("the stream of bob continues")
	}
}
