package httpd

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// app serves h in a sandbox, on the returned port: the sandboxes of these tests are processes of
// this machine.
func app(t *testing.T, h http.HandlerFunc) (port string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// openPort returns the link to a port, as the page gets it.
func (w *world) openPort(s session, name, port string) *url.URL {
	w.t.Helper()
	got := w.pageCall(s, "POST", "/page/ports/"+name+"/"+port, "")
	var link struct{ URL string }
	if err := json.Unmarshal([]byte(got.body), &link); err != nil || got.status != http.StatusOK {
		w.t.Fatalf("%d %s", got.status, got.body)
	}
	u, err := url.Parse(link.URL)
	if err != nil {
		w.t.Fatal(err)
	}
	return u
}

// at sends a request to a name of the daemon.
func (w *world) at(method, host, path string, cookies ...*http.Cookie) answer {
	w.t.Helper()
	return w.call(method, path, "", "", func(r *http.Request) {
		r.Host = host
		for _, c := range cookies {
			r.AddCookie(c)
		}
	})
}

// enter follows a link and returns the cookie that it gives.
func (w *world) enter(link *url.URL) *http.Cookie {
	w.t.Helper()
	w.client.CheckRedirect = func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}
	got := w.at("GET", link.Host, link.RequestURI())
	cookies := (&http.Response{Header: got.header}).Cookies()
	if got.status != http.StatusSeeOther || len(cookies) != 1 {
		w.t.Fatalf("%d %s %v", got.status, got.body, cookies)
	}
	return cookies[0]
}

// A port is served on its own name, with its own headers, to those with the cookie of that name.
func TestPorts(t *testing.T) {
	w := newWorld(t)
	w.sandbox("demo")
	asked := make(chan *http.Request, 100)
	port := app(t, func(rw http.ResponseWriter, r *http.Request) {
		asked <- r
		rw.Header().Set("X-App", "yes")
		rw.Header().Set("Cache-Control", "max-age=60")
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(rw, "%s %s %s", r.Method, r.URL, body)
	})
	s := w.login(wire.RightDrive)
	if got := w.pageCall(s, "GET", "/page/ports/demo", ""); got.status != http.StatusOK ||
		!strings.Contains(got.body, port) {
		t.Errorf("the list: %d %s", got.status, got.body)
	}
	link := w.openPort(s, "demo", port)
	if !strings.HasPrefix(link.Host, port+"--demo--") ||
		!strings.Contains(link.Host, ".localhost:") {
		t.Errorf("the name is %s", link.Host)
	}
	if got := w.at("GET", link.Host, "/"); got.status != http.StatusUnauthorized ||
		!strings.Contains(got.body, "open the port from the dashboard") {
		t.Errorf("without a cookie: %d %s", got.status, got.body)
	}
	cookie := w.enter(link)
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteLaxMode || cookie.Domain != "" {
		t.Errorf("the cookie is %v", cookie)
	}
	own := &http.Cookie{Name: "own", Value: "1"}
	for _, path := range []string{"/", "/healthz", "/page/live", "/v1/sandboxes?a=%2F", "/docs"} {
		got := w.at("POST", link.Host, path, cookie, own)
		if got.status != http.StatusOK || got.body != "POST "+path+" " ||
			got.header.Get("X-App") != "yes" || got.header.Get("Cache-Control") != "max-age=60" ||
			got.header.Get("Content-Security-Policy") != "" {
			t.Errorf("%s: %d %s %v", path, got.status, got.body, got.header)
		}
		r := <-asked
		if r.Host != link.Host || r.Header.Get("Cookie") != "own=1" {
			t.Errorf("the program got host %s, cookie %q", r.Host, r.Header.Get("Cookie"))
		}
	}
	// Nothing else takes the cookie, and the link is used up.
	other := app(t, func(http.ResponseWriter, *http.Request) { t.Error("another port was asked") })
	for host, path := range map[string]string{
		w.openPort(s, "demo", other).Host:                          "/",
		strings.Replace(link.Host, "--demo--", "--demo2--", 1):     "/",
		strings.Replace(link.Host, ".localhost", ".example", 1):    "/",
		strings.Replace(link.Host, ".localhost", ".localhost.", 1): "/",
		link.Host: link.RequestURI(),
		w.addr:    "/page/live",
	} {
		if got := w.at("GET", host, path, cookie); got.status < 400 {
			t.Errorf("%s%s: %d %s", host, path, got.status, got.body)
		}
	}
}

// What ends the user's access ends the visit, a WebSocket included.
func TestPortAccessEnds(t *testing.T) {
	w := newWorld(t)
	w.sandbox("demo")
	port := app(t, func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			return
		}
		c, err := websocket.Accept(rw, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.CloseNow()
		kind, text, err := c.Read(r.Context())
		if err == nil {
			err = c.Write(r.Context(), kind, text)
		}
		if err != nil {
			t.Error(err)
		}
		_, _, _ = c.Read(r.Context())
	})
	alice := gateway.Principal{Name: "alice", Kind: wire.Person}
	for name, end := range map[string]func(session, string){
		"revoked": func(_ session, id string) {
			if err := w.tokens.Revoke(t.Context(), "alice", id); err != nil {
				t.Fatal(err)
			}
		},
		"removed": func(session, string) {
			if _, err := w.hub.Remove(t.Context(), alice, "demo"); err != nil {
				t.Fatal(err)
			}
			w.sandbox("demo")
		},
		"stopped": func(session, string) {
			if err := w.hub.Stop(t.Context(), alice, "demo"); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := w.hub.Start(t.Context(), alice, "demo", nil); err != nil {
				t.Fatal(err)
			}
			s, id := w.loginID()
			link := w.openPort(s, "demo", port)
			unused := w.openPort(s, "demo", port)
			cookie := w.enter(link)
			if got := w.at("GET", link.Host, "/", cookie); got.status != http.StatusOK {
				t.Fatalf("%d %s", got.status, got.body)
			}
			c, resp, err := websocket.Dial(t.Context(), "ws://"+w.addr+"/", &websocket.DialOptions{
				Host: link.Host, HTTPHeader: http.Header{"Cookie": {cookie.String()}}})
			if err != nil {
				t.Fatal(err)
			}
			if resp.Body != nil {
				resp.Body.Close()
			}
			defer c.CloseNow()
			if err := c.Write(t.Context(), websocket.MessageText, []byte("hello")); err != nil {
				t.Fatal(err)
			}
			if _, text, err := c.Read(t.Context()); err != nil || string(text) != "hello" {
				t.Fatalf("%q, %v", text, err)
			}
			end(s, id)
			if _, _, err := c.Read(t.Context()); err == nil {
				t.Error("the WebSocket goes on")
			}
			if got := w.at("GET", link.Host, "/", cookie); got.status < 400 {
				t.Errorf("after: %d %s", got.status, got.body)
			}
			if got := w.at("GET", unused.Host, unused.RequestURI()); name == "revoked" &&
				got.status < 400 {
				t.Errorf("a link: %d %s", got.status, got.body)
			}
		})
	}
}

// What cannot be opened says why.
func TestPortErrors(t *testing.T) {
	w := newWorld(t)
	w.sandbox("demo")
	s := w.login(wire.RightDrive)
	for _, port := range []string{"0", "65536", "-1", "x"} {
		if got := w.pageCall(s, "POST", "/page/ports/demo/"+port, ""); got.status !=
			http.StatusBadRequest || !strings.Contains(got.body, "65535") {
			t.Errorf("port %s: %d %s", port, got.status, got.body)
		}
	}
	if got := w.pageCall(s, "POST", "/page/ports/none/80", ""); got.status != http.StatusNotFound {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := w.pageCall(w.login(wire.RightWatch), "POST", "/page/ports/demo/80",
		""); got.status != http.StatusForbidden {
		t.Errorf("a watcher: %d %s", got.status, got.body)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, free, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	link := w.openPort(s, "demo", free)
	if got := w.at("GET", link.Host, "/", w.enter(link)); got.status != http.StatusBadGateway ||
		!strings.Contains(got.body, "no web server answers on port "+free+" of demo") {
		t.Errorf("nothing listens: %d %s", got.status, got.body)
	}
	garbage, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer garbage.Close()
	go func() {
		for {
			c, err := garbage.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, strings.Repeat("\x1b]0;evil\a", 1000))
			c.Close()
		}
	}()
	_, speaks, _ := net.SplitHostPort(garbage.Addr().String())
	link = w.openPort(s, "demo", speaks)
	if got := w.at("GET", link.Host, "/", w.enter(link)); got.status != http.StatusBadGateway ||
		strings.Contains(got.body, "\x1b") {
		t.Errorf("no HTTP: %d %q", got.status, got.body)
	}
	got := w.call("POST", "/page/ports/demo/80", "", "", func(r *http.Request) {
		r.AddCookie(s.cookie)
		r.Header.Set("X-Sandboxd-Key", s.key)
		r.Host = "192.0.2.1:80"
		r.Header.Set("Origin", "http://192.0.2.1:80")
	})
	if got.status < 400 {
		t.Errorf("a dashboard at another machine: %d %s", got.status, got.body)
	}
}

// A person opens a hostile page of a sandbox from the dashboard. The page works, and reaches
// neither the dashboard nor the page of another port.
func TestPagePorts(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	w.sandbox("demo")
	said, opened := make(chan string, 10), make(chan struct{})
	var otherHost string
	other := app(t, func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/secret":
			said <- "the other port was asked"
		case "/":
			close(opened)
		}
	})
	port := app(t, func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/said":
			said <- r.URL.Query().Get("all")
		case "/worker.js":
			rw.Header().Set("Content-Type", "text/javascript")
		case "/":
			rw.Header().Set("Content-Type", "text/html")
			rw.Header().Set("Set-Cookie", "own=1")
			fmt.Fprintf(rw, `<script>(async () => {
				const got = async (url) => fetch(url, { credentials: "include", mode: "no-cors" }).then((r) => r.type + " " + r.status, () => "failed");
				await got("http://%[2]s/secret");
				const all = {
					cookie: document.cookie,
					opener: String(window.opener),
					dashboard: await fetch("http://%[1]s/page/live", { credentials: "include" }).then((r) => r.text(), () => "failed"),
					worker: await navigator.serviceWorker.register("/worker.js").then((r) => r.scope, String),
				};
				fetch("/said?all=" + encodeURIComponent(JSON.stringify(all)));
			})()</script>`, w.addr, otherHost)
		}
	})
	b := newTab(browser, t, 1100, 700)
	b.open(w.link(wire.RightDrive))
	b.click(".row")
	b.click("#tab-ports")
	// A visit of the other port is open in the same browser.
	b.until("the list", `document.querySelector("#listening .row")`)
	b.shoot("ports")
	link := w.openPort(w.login(wire.RightDrive), "demo", other)
	otherHost = link.Host
	open := func(port string) {
		b.t.Helper()
		find := fmt.Sprintf(`[...document.querySelectorAll("#listening .row")].find((b) => b.textContent === "Open port %s")`, port)
		b.until("port "+port, find)
		valueOf[bool](b, find+`.click(), true`)
	}
	open(other)
	select {
	case <-opened:
	case <-time.After(patience):
		t.Fatal("the other page did not open")
	}
	open(port)
	select {
	case got := <-said:
		for _, want := range []string{`"cookie":"own=1"`, `"opener":"null"`, `"dashboard":"failed"`,
			`"worker":"http://` + port + "--demo--"} {
			if !strings.Contains(got, want) {
				t.Errorf("the page says %s, want %s", got, want)
			}
		}
	case <-time.After(patience):
		t.Error("the page did not open")
	}
	b.fine()
}
