package httpd

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// session is what a browser stores of a login.
type session struct {
	cookie *http.Cookie
	key    string
}

// login exchanges a code as the page does.
func (w *world) login(rights wire.Rights) session {
	w.t.Helper()
	_, code, _ := strings.Cut(w.link(rights), "#code=")
	got := w.call("POST", "/page/login", "", `{"code":"`+code+`"}`,
		func(r *http.Request) { r.Header.Set("Origin", "http://"+w.addr) })
	cookies := (&http.Response{Header: got.header}).Cookies()
	_, key, _ := strings.Cut(got.body, `"key":"`)
	if got.status != http.StatusOK || len(cookies) != 1 || len(key) < 32 {
		w.t.Fatalf("login: %d %s", got.status, got.body)
	}
	return session{cookies[0], key[:32]}
}

// A page of another origin, in a browser that is logged in, reads nothing and changes nothing
// (A105, A107).
func TestHostilePage(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	w.sandbox("demo")
	target := "http://" + w.addr
	reached := make(chan string, 100)
	evil := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/said" {
			reached <- r.URL.RawQuery
			return
		}
		rw.Header().Set("Content-Type", "text/html")
		fmt.Fprint(
			rw,
			`<!doctype html><iframe name=f></iframe><form id=form method=post target=f enctype=text/plain action="`+target+`/page/login"><input name='{"code":"x","y":"' value='"}'></form>`)
	}))
	t.Cleanup(evil.Close)

	b := newTab(browser, t, 800, 500)
	b.open(w.link(wire.RightDrive))
	b.until("logged in", `document.querySelectorAll("#list .row").length === 1`)
	key := valueOf[string](b, `JSON.parse(localStorage.getItem("sandboxd")).key`)
	b.open(evil.URL) // the same site to a browser: only the port differs

	for name, script := range map[string]string{
		"fetch":                   `fetch(T + "/page/records/demo", {credentials: "include"}).then((r) => "got " + r.status, (e) => "nothing")`,
		"fetch with the key":      `fetch(T + "/page/records/demo", {credentials: "include", headers: {"X-Sandboxd-Key": K}}).then((r) => "got " + r.status, (e) => "nothing")`,
		"fetch without an answer": `fetch(T + "/page/logout", {method: "POST", mode: "no-cors", credentials: "include", body: '{"revoke":true}'}).then((r) => r.type === "opaque" ? "nothing" : "got " + r.status, (e) => "nothing")`,
		"image":                   `new Promise((done) => { const i = new Image(); i.onload = () => done("got an image"); i.onerror = () => done("nothing"); i.src = T + "/page/static/icon.svg" })`,
		"script":                  `new Promise((done) => { const s = document.createElement("script"); s.type = "module"; s.onload = () => done("got a script"); s.onerror = () => done("nothing"); s.src = T + "/page/static/page.mjs"; document.head.append(s) })`,
		"socket":                  `new Promise((done) => { const s = new WebSocket(T.replace("http", "ws") + "/page/live", ["sandboxd.page", "key." + K]); s.onopen = () => done("got a socket"); s.onerror = () => done("nothing") })`,
		"terminal":                `new Promise((done) => { const s = new WebSocket(T.replace("http", "ws") + "/page/terminal/demo/main", ["sandboxd.page", "key." + K]); s.onopen = () => done("got a socket"); s.onerror = () => done("nothing") })`,
		"frame":                   `new Promise((done) => { const f = document.createElement("iframe"); f.onload = () => { try { done(f.contentDocument ? "got the page" : "nothing") } catch { done("nothing") } }; f.src = T + "/"; document.body.append(f) })`,
		"form":                    `new Promise((done) => { const f = document.querySelector("iframe"); f.onload = () => { try { done(f.contentDocument?.body.innerText ? "got an answer" : "nothing") } catch { done("nothing") } }; document.querySelector("#form").submit() })`,
	} {
		got := valueOf[string](b, fmt.Sprintf(`(() => { const T = %q, K = %q; return %s })()`,
			target, key, script))
		if got != "nothing" {
			t.Errorf("%s: %s", name, got)
		}
	}
	if n := len(w.tokens.List("alice")); n != 3 {
		t.Errorf("%d tokens, want 3: the login must stay", n)
	}
	b.open(target + "/")
	b.until("still logged in", `document.querySelectorAll("#list .row").length === 1`)
	b.fine()
}

// Neither half of a login gives access, nor do both without Origin. Neither reveals the token, and
// no log contains them.
func TestHalvesOfALogin(t *testing.T) {
	w := newWorld(t)
	s := w.login(wire.RightDrive)
	if c := s.cookie; !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" ||
		c.MaxAge < 3500 || c.MaxAge > 3601 || c.Secure {
		t.Errorf("cookie %v", c)
	}
	ours := func(r *http.Request) { r.Header.Set("Origin", "http://"+w.addr) }
	cookie := func(r *http.Request) { r.AddCookie(s.cookie) }
	key := func(r *http.Request) { r.Header.Set("X-Sandboxd-Key", s.key) }
	other := func(r *http.Request) { r.Header.Set("X-Sandboxd-Key", strings.Repeat("0", 32)) }
	for name, c := range map[string]struct {
		method, path string
		edit         []func(*http.Request)
		want         int
	}{
		"both":                  {"GET", "/page/records/demo", []func(*http.Request){cookie, key}, 404},
		"both, on another path": {"GET", "/v1/sandboxes", []func(*http.Request){cookie, key, ours}, 401},
		"cookie":                {"GET", "/page/records/demo", []func(*http.Request){cookie, ours}, 401},
		"key":                   {"GET", "/page/records/demo", []func(*http.Request){key, ours}, 401},
		"another key":           {"GET", "/page/records/demo", []func(*http.Request){cookie, other}, 401},
		"cookie as a token":     {"GET", "/page/records/demo", []func(*http.Request){func(r *http.Request) { r.Header.Set("Authorization", "Bearer sbx_"+s.cookie.Value) }}, 401},
		"no origin":             {"POST", "/page/logout", []func(*http.Request){cookie, key}, 401},
		"login without origin":  {"POST", "/page/login", nil, 403},
	} {
		body := ""
		if c.method == "POST" {
			body = `{}`
		}
		if got := w.call(c.method, c.path, "", body, c.edit...); got.status != c.want {
			t.Errorf("%s: %d %s, want %d", name, got.status, got.body, c.want)
		}
	}
	a, _ := hex.DecodeString(s.cookie.Value)
	k, _ := hex.DecodeString(s.key)
	for i := range a {
		a[i] ^= k[i]
	}
	secret := token.Prefix + hex.EncodeToString(a)
	if _, _, err := w.tokens.Verify(secret); err != nil {
		t.Error("the halves are not those of a token")
	}
	for _, half := range []string{secret, s.key, s.cookie.Value} {
		if strings.Contains(w.log.String(), half) {
			t.Error("the log has it")
		}
	}
	if got := w.call("POST", "/page/logout", "", `{"revoke":true}`, cookie, key,
		ours); got.status != http.StatusNoContent {
		t.Errorf("logout: %d %s", got.status, got.body)
	}
	if _, _, err := w.tokens.Verify(secret); err == nil {
		t.Error("the token outlives the logout")
	}
}

// socket opens a WebSocket as the page does.
func (w *world) socket(s session, path string, edit ...func(http.Header)) (*websocket.Conn,
	*http.Response, error) {
	return w.socketBy(w.client, s, path, edit...)
}

func (w *world) socketBy(client *http.Client, s session, path string,
	edit ...func(http.Header)) (*websocket.Conn, *http.Response, error) {
	h := http.Header{"Origin": {"http://" + w.addr}, "Cookie": {s.cookie.String()}}
	for _, e := range edit {
		e(h)
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	c, resp, err := websocket.Dial(ctx, "ws://"+w.addr+path,
		&websocket.DialOptions{HTTPClient: client, HTTPHeader: h,
			Subprotocols: []string{"sandboxd.page", "key." + s.key}})
	if resp != nil && resp.Body != nil {
		resp.Body.Close()
	}
	return c, resp, err
}

// The number of sockets and their frame size are limited, and clients that do not read cost others
// nothing (A112).
func TestSocketLimits(t *testing.T) {
	w := newWorld(t)
	w.sandbox("demo")
	s := w.login(wire.RightDrive)
	for name, edit := range map[string]func(http.Header){
		"no origin":      func(h http.Header) { h.Del("Origin") },
		"foreign origin": func(h http.Header) { h.Set("Origin", "http://evil.example") },
		"no cookie":      func(h http.Header) { h.Del("Cookie") },
	} {
		if c, resp, err := w.socket(s, "/page/live", edit); err == nil {
			c.CloseNow()
			t.Errorf("%s: the socket is open", name)
		} else if resp == nil || resp.StatusCode != 401 && resp.StatusCode != 403 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if c, _, err := w.socket(session{s.cookie, strings.Repeat("0", 32)}, "/page/live"); err == nil {
		c.CloseNow()
		t.Error("the socket opened with another key")
	}

	var all []*websocket.Conn
	refused := 0
	for range 70 { // none of them reads
		c, resp, err := w.socket(s, "/page/live")
		switch {
		case err == nil:
			all = append(all, c)
		case resp != nil && resp.StatusCode == http.StatusTooManyRequests:
			refused++
		default:
			t.Fatal(err)
		}
	}
	if len(all) != 64 || refused != 6 {
		t.Errorf("%d are open, %d were refused", len(all), refused)
	}
	for _, c := range all {
		c.CloseNow()
	}
	// Closed sockets count no longer once the server has noticed.
	var big *websocket.Conn
	for end := time.Now().Add(patience); big == nil; {
		c, resp, err := w.socket(s, "/page/terminal/demo/main?cols=80&rows=24")
		switch {
		case err == nil:
			big = c
		case time.Now().After(end) || resp == nil || resp.StatusCode != http.StatusTooManyRequests:
			t.Fatal(err)
		}
	}
	defer big.CloseNow()
	big.SetReadLimit(-1)
	if err := big.Write(t.Context(), websocket.MessageBinary, make([]byte, 1<<20)); err != nil {
		t.Logf("a frame of a megabyte: %v", err) // the server may close during the write
	}
	for {
		_, _, err := big.Read(t.Context())
		if err == nil {
			continue
		}
		if got := websocket.CloseStatus(err); got != websocket.StatusMessageTooBig && got != -1 {
			t.Errorf("a frame of a megabyte: %v", err)
		}
		break
	}
	// A program's token opens no terminal for a person.
	c, _, err := w.socket(s, "/page/terminal/demo/main",
		func(h http.Header) { h.Del("Cookie"); h.Set("Authorization", "Bearer "+w.alice) })
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if _, _, err = c.Read(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "belongs to a program") {
		t.Errorf("a program at a person's terminal: %v", err)
	}
}

// A login link from another site needs a click. One typed by hand is used at once (A105).
func TestLinkOfAnotherPage(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	w.sandbox("demo")
	evil := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/html")
		rw.Header().Set("Referrer-Policy", "no-referrer")
		fmt.Fprint(rw, `<!doctype html><a id=go>here</a>`)
	}))
	t.Cleanup(evil.Close)
	b := newTab(browser, t, 800, 500)
	b.open(w.link(wire.RightDrive))
	b.until("logged in", `document.getElementById("who").textContent === "alice"`)
	key := `JSON.parse(localStorage.getItem("sandboxd")).key`
	before := valueOf[string](b, key)

	follow := func() {
		b.open(evil.URL)
		valueOf[bool](b, `document.getElementById("go").href = "`+w.linkOf("bob", wire.RightDrive)+
			`", true`)
		b.click("#go")
		b.arrives("it asks", `location.port === "`+w.addr[strings.LastIndexByte(w.addr, ':')+1:]+
			`" && document.getElementById("login-link").checkVisibility()`)
	}
	follow()
	if now := valueOf[string](b, key); now != before {
		t.Error("the login is another one")
	}
	if got := w.call("GET", "/page/static/index.html", "", ""); got.status != http.StatusNotFound {
		t.Errorf("the page without the question: %d", got.status)
	}
	b.open("http://" + w.addr + "/")
	b.until("the login as before", `document.getElementById("who").textContent === "alice"`)
	follow()
	b.click("#login button")
	b.until("after the click it is the other user",
		`document.getElementById("who").textContent === "bob"`)
	b.fine()
}
