package httpd

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/token"
)

// All routes except /healthz and /readyz reject requests without a valid token.
func TestTokenIsNeeded(t *testing.T) {
	w := newWorld(t)
	for _, secret := range []string{"", "sbx_", "sbx_00000000000000000000000000000000",
		w.alice + "x", strings.ToUpper(w.alice)} {
		for _, path := range []string{"/page/live", "/page/records/demo",
			"/page/terminal/demo/main", "/nothing", "/metrics", "/debug/pprof/", "/healthz/../",
			"//healthz"} {
			got := w.call("GET", path, secret, "")
			if got.status != http.StatusUnauthorized || got.header.Get("WWW-Authenticate") == "" {
				t.Errorf("%q at %s: %d %s", secret, path, got.status, got.body)
			}
			var p rest.Problem
			if err := json.Unmarshal([]byte(got.body), &p); err != nil || p.Status != 401 ||
				p.Hint == "" || got.header.Get("Content-Type") != rest.ProblemType {
				t.Errorf("%s: %v: %s", path, err, got.body)
			}
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if got := w.call("GET", path, "", ""); got.status != http.StatusOK {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	for name, edit := range map[string]func(*http.Request){
		"bearer": func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+w.alice) },
		"key":    func(r *http.Request) { r.Header.Set("X-API-Key", w.alice) },
	} {
		if got := w.call("GET", "/nothing", "", "", edit); got.status != http.StatusNotFound {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	if got := w.call("GET", "/nothing?token="+w.alice, "",
		""); got.status != http.StatusUnauthorized {
		t.Errorf("a token in the URL: %d", got.status)
	}
	if strings.Contains(w.log.String(), w.alice) {
		t.Error("the log has a token")
	}
}

// Requests that a foreign page makes a browser send are rejected, with and without a token (A105,
// A106).
func TestForeignPages(t *testing.T) {
	w := newWorld(t)
	host := func(h string) func(*http.Request) { return func(r *http.Request) { r.Host = h } }
	header := func(kv ...string) func(*http.Request) {
		return func(r *http.Request) {
			for i := 0; i < len(kv); i += 2 {
				r.Header.Add(kv[i], kv[i+1])
			}
		}
	}
	_, port, _ := net.SplitHostPort(w.addr)
	for name, c := range map[string]struct {
		edit func(*http.Request)
		want int
	}{
		"name that was made to point here": {host("evil.example:" + port), http.StatusMisdirectedRequest},
		"name that begins like ours":       {host("localhost.evil.example"), http.StatusMisdirectedRequest},
		"no host that can be read":         {host("a:b:c"), http.StatusMisdirectedRequest},
		"foreign origin":                   {header("Origin", "http://evil.example"), http.StatusForbidden},
		"origin of another port":           {header("Origin", "http://127.0.0.1:1"), http.StatusForbidden},
		"origin of no page":                {header("Origin", "null"), http.StatusForbidden},
		"two origins":                      {header("Origin", "http://"+w.addr, "Origin", "http://evil.example"), http.StatusForbidden},
		"image of a foreign page":          {header("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"), http.StatusForbidden},
		"another port of this machine":     {header("Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors"), http.StatusForbidden},
		"link to it":                       {header("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"), http.StatusForbidden},
		"our own page":                     {header("Origin", "http://"+w.addr, "Sec-Fetch-Site", "same-origin"), http.StatusNotFound},
		"localhost":                        {host("localhost:" + port), http.StatusNotFound},
		"LOCALHOST":                        {host("LOCALHOST"), http.StatusNotFound},
		"::1":                              {host("[::1]:" + port), http.StatusNotFound},
		"configured":                       {host("box.example"), http.StatusNotFound},
	} {
		for _, method := range []string{"GET", "POST"} {
			if got := w.call(method, "/nothing", w.alice, "", c.edit); got.status != c.want {
				t.Errorf("%s, %s: %d %s, want %d", name, method, got.status, got.body, c.want)
			} else if h := got.header; h.Get("Access-Control-Allow-Origin") != "" ||
				h.Get("X-Content-Type-Options") != "nosniff" ||
				h.Get("Content-Security-Policy") == "" {
				t.Errorf("%s: headers %v", name, h)
			}
		}
	}
}

// Revoking a token ends its requests in all handlers.
func TestRevokedInUse(t *testing.T) {
	w := newWorld(t)
	began := make(chan struct{})
	g := newGuard(nil, w.tokens, w.hub, w.hubLog())
	secret, id := w.token(token.Token{Principal: "alice"})
	h := g.wrap(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done()
		fmt.Fprint(rw, "ended")
	}))
	s := newServer(t, h)
	done := make(chan error, 1)
	go func() {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", "http://"+s+"/nothing", nil)
		r.Header.Set("Authorization", "Bearer "+secret)
		resp, err := w.client.Do(r)
		if err == nil {
			resp.Body.Close()
		}
		done <- err
	}()
	<-began
	if err := w.tokens.Revoke(t.Context(), "alice", id); err != nil {
		t.Fatal(err)
	}
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Error("still running after 5 s")
	}
}

// A token is limited to its rate, and others are not affected.
func TestRate(t *testing.T) {
	w := newWorld(t)
	g := newGuard(nil, w.tokens, w.hub, w.hubLog())
	g.burst = 3
	w.addr = newServer(t, g.wrap(http.NotFoundHandler()))
	limited := 0
	for range 200 {
		got := w.call("GET", "/nothing", w.alice, "")
		if got.status == http.StatusTooManyRequests {
			if limited++; got.header.Get("Retry-After") == "" {
				t.Error("it does not say when to try again")
			}
		}
		if limited == 1 {
			if got := w.call("GET", "/nothing", w.bob, ""); got.status != http.StatusNotFound {
				t.Errorf("bob: %d %s", got.status, got.body)
			}
			return
		}
	}
	t.Error("200 requests in a row, and all were let in")
}

// Endless and oversized headers cost one connection for a limited time (A110).
func TestSlowAndLargeHeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slow, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	began := time.Now()
	fmt.Fprint(slow, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
	slow.SetReadDeadline(began.Add(4 * headerTime))
	if _, err := bufio.NewReader(slow).ReadString('\n'); err != nil &&
		time.Since(began) > 3*headerTime {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	large, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer large.Close()
	fmt.Fprintf(large, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Large: %s\r\n\r\n",
		strings.Repeat("x", 40<<10))
	if line, err := bufio.NewReader(large).ReadString('\n'); !strings.Contains(line, " 431 ") {
		t.Errorf("a header of 40 KiB: %q, %v", line, err)
	}
}

// Common mistakes return a specific error: a similar route, or the token of another daemon.
func TestCommonMistakesReturnASpecificError(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct {
		method, path, secret string
		status               int
		says                 string
	}{
		"an extra slash":   {"GET", "/v1/sandboxes/", w.alice, 404, "remove the slash"},
		"an unknown route": {"GET", "/v1/sandbox", w.alice, 404, "GET /docs lists the routes"},
		"a slash, unknown": {"GET", "/v1/sandbox/", w.alice, 404, "GET /docs lists the routes"},
		"to create one":    {"POST", "/v1/sandboxes", w.alice, 405, "method POST not allowed; allowed: GET"},
		"to remove one":    {"DELETE", "/v1/sandboxes/x", w.alice, 405, "use SSH commands"},
		"wrong method":     {"GET", "/v1/run/", w.alice, 405, "method GET not allowed; allowed: POST"},
		"an unknown token": {"GET", "/v1/sandboxes", "sbx_00000000000000000000000000000000", 401, "unknown token"},
		"none":             {"GET", "/v1/sandboxes", "", 401, "a token is needed"},
	} {
		a := w.call(c.method, c.path, c.secret, "")
		if a.status != c.status || !strings.Contains(a.body, c.says) ||
			a.header.Get("Content-Type") != rest.ProblemType {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
		if allow := a.header.Get("Allow"); (a.status == 405) != (allow != "") {
			t.Errorf("%s: Allow: %q", name, allow)
		}
	}
}

// The MCP library reads only bearer tokens; the server accepts X-API-Key as well.
func TestKeyForMCP(t *testing.T) {
	for name, c := range map[string]struct{ bearer, key, want string }{
		"bearer":           {"Bearer a", "", "Bearer a"},
		"key":              {"", "b", "Bearer b"},
		"both":             {"Bearer a", "b", "Bearer a"},
		"another's scheme": {"Basic a", "b", "Bearer b"},
		"none":             {"", "", ""},
	} {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/mcp", nil)
		r.Header.Set("Authorization", c.bearer)
		r.Header.Set("X-API-Key", c.key)
		got := "not called"
		asBearer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			got = r.Header.Get("Authorization")
		})).ServeHTTP(httptest.NewRecorder(), r)
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
