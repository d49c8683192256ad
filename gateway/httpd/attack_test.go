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
)

// Malicious bodies of POST /v1/run/ are rejected before anything runs (A105, A110).
func TestHostileBodies(t *testing.T) {
	w := newWorld(t)
	kind := func(k string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Content-Type", k) }
	}
	same := func(*http.Request) {}
	for name, c := range map[string]struct {
		body string
		edit func(*http.Request)
		want int
	}{
		"a form of a page":   {"code=print(1)", kind("application/x-www-form-urlencoded"), http.StatusUnsupportedMediaType},
		"text of a page":     {`{"code":"print(1)"}`, kind("text/plain"), http.StatusUnsupportedMediaType},
		"no code":            {`{}`, same, http.StatusBadRequest},
		"null":               {`{"code":null}`, same, http.StatusBadRequest},
		"a key twice":        {`{"code":"a","code":"b"}`, same, http.StatusBadRequest},
		"another case":       {`{"Code":"a"}`, same, http.StatusBadRequest},
		"an unknown key":     {`{"code":"a","timeout":-1}`, same, http.StatusBadRequest},
		"NUL in a key":       {"{\"code\\u0000\":\"a\"}", same, http.StatusBadRequest},
		"a number for text":  {`{"code":1e999}`, same, http.StatusBadRequest},
		"deep":               {`{"code":` + strings.Repeat("[", 100_000), same, http.StatusBadRequest},
		"large":              {`{"code":"` + strings.Repeat("x", 2<<20) + `"}`, same, http.StatusRequestEntityTooLarge},
		"compressed":         {"\x1f\x8b\x08", func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip") }, http.StatusBadRequest},
		"of another origin":  {`{"code":"print(1)"}`, func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") }, http.StatusForbidden},
		"a watcher's token":  {`{"code":"print(1)"}`, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+w.watch) }, http.StatusForbidden},
		"forwarded as known": {`{"code":"print(1)"}`, func(r *http.Request) { r.Header.Del("Authorization"); r.Header.Set("X-Forwarded-For", "127.0.0.1") }, http.StatusUnauthorized},
		"of a foreign host":  {`{"code":"print(1)"}`, func(r *http.Request) { r.Host = "evil.example"; r.Header.Set("X-Forwarded-Host", "localhost") }, http.StatusMisdirectedRequest},
	} {
		for _, path := range []string{"/v1/run/", "/v1/run"} {
			if got := w.call("POST", path, w.alice, c.body, c.edit); got.status != c.want {
				t.Errorf("%s at %s: %d %.200s, want %d", name, path, got.status, got.body, c.want)
			}
		}
	}
	if all := get[struct{ Sandboxes []Sandbox }](w, "/v1/sandboxes", w.alice); len(
		all.Sandboxes) != 0 {
		t.Errorf("something was run: %+v", all)
	}
}

// A slow body costs its sender one connection for a limited time, and others nothing (A110).
func TestDrippingBody(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for as long as a body may take")
	}
	w := newWorld(t)
	slow, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	fmt.Fprintf(
		slow,
		"POST /v1/run/ HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: "+
			"application/json\r\nContent-Length: 100\r\n\r\n{", w.alice)
	if got := w.call("GET", "/v1/sandboxes", w.alice, ""); got.status != http.StatusOK {
		t.Errorf("another request meanwhile: %d", got.status)
	}
	slow.SetReadDeadline(time.Now().Add(time.Minute))
	if line, err := bufio.NewReader(slow).ReadString('\n'); !strings.Contains(line, " 408 ") {
		t.Errorf("%q, %v", line, err)
	}
}

// Thousands of clients that send nothing, or never read, block others for at most the header
// timeout (A112).
func TestIdleConnections(t *testing.T) {
	if testing.Short() {
		t.Skip("it opens thousands of connections")
	}
	w := newWorld(t)
	const silent = maxConnections + 500 // above the limit
	for i := range silent {
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		defer c.Close()
		if i%50 == 0 { // sends a request, and never reads
			fmt.Fprintf(c, "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
		}
	}
	began := time.Now()
	resp, err := w.client.Get("http://" + w.addr + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("%d, %v", resp.StatusCode, err)
	}
	if took := time.Since(began); took > 6*headerTime {
		t.Errorf("it took %v", took)
	}
}
