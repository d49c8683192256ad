package httpd

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// The viewer of the documentation shows a session, and types in it, from another origin.
func TestViewer(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	w.sandbox("demo")
	w.run(w.agent("demo"), "echo from the agent")
	if err := w.agent("demo").Give(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, from := range map[string]string{"index.html": "../../docs/examples/viewer.html",
		"xterm.mjs": "page/static/vendor/xterm.mjs", "xterm.css": "page/static/vendor/xterm.css"} {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	other := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer other.Close()
	secret, _ := w.token(token.Token{Principal: "alice", Kind: wire.Person})
	b := newTab(browser, t, 1200, 900)
	b.open(other.URL)
	valueOf[bool](b, fmt.Sprintf(`(() => {
		document.querySelector("#daemon").value = "ws://%s";
		document.querySelector("#token").value = %q;
		document.querySelector("button").click();
		return true;
	})()`, w.addr, secret))
	b.sees("from the agent")
	b.until("nobody types", `document.querySelector("#state").textContent === "nobody types"`)
	b.types("echo $((6*7))\r")
	b.sees("42")
	b.shoot("viewer")
	b.prefix("d")
	b.until("the end", `document.querySelector("#state").textContent.includes("closed: 1000")`)
	b.fine()
}

// A terminal socket needs the token of a person, which no browser adds by itself, and starts
// nothing that was not asked for.
func TestTerminalSocket(t *testing.T) {
	w := newWorld(t)
	w.sandbox("demo")
	s := w.login(wire.RightDrive)
	secret, _ := w.token(token.Token{Principal: "alice", Kind: wire.Person})
	watch, _ := w.token(token.Token{Principal: "alice", Kind: wire.Person,
		Rights: wire.RightWatch})
	dial := func(path string, protocols []string, header http.Header) (*websocket.Conn, int) {
		t.Helper()
		c, r, err := websocket.Dial(t.Context(), "ws://"+w.addr+path,
			&websocket.DialOptions{HTTPHeader: header, Subprotocols: protocols})
		if err == nil {
			t.Cleanup(func() { c.CloseNow() })
			return c, http.StatusSwitchingProtocols
		}
		if r == nil {
			t.Fatal(err)
		}
		return nil, r.StatusCode
	}
	const path = "/v1/terminal/demo/main"
	evil := http.Header{"Origin": {"http://evil.example"}}
	cookie := http.Header{"Origin": {"http://evil.example"}, "Cookie": {s.cookie.String()}}
	for name, c := range map[string]struct {
		path      string
		protocols []string
		header    http.Header
		want      int
	}{
		"no token":               {path, []string{"sandboxd.terminal"}, evil, http.StatusUnauthorized},
		"a wrong token":          {path, []string{"sandboxd.terminal", "token.sbx_00"}, evil, http.StatusUnauthorized},
		"the login of a page":    {path, []string{"sandboxd.terminal", "key." + s.key}, cookie, http.StatusUnauthorized},
		"a page's socket":        {"/page/terminal/demo/main", []string{"sandboxd.page", "key." + s.key}, cookie, http.StatusForbidden},
		"a token elsewhere":      {"/page/live", []string{"sandboxd.page", "token." + secret}, nil, http.StatusUnauthorized},
		"a token at another API": {"/v1/sandboxes", []string{"sandboxd.terminal", "token." + secret}, nil, http.StatusUnauthorized},
		"another origin":         {path + "?start=yes", []string{"sandboxd.terminal", "token." + secret}, evil, http.StatusSwitchingProtocols},
	} {
		got, status := dial(c.path, c.protocols, c.header)
		if status != c.want {
			t.Errorf("%s: %d, want %d", name, status, c.want)
		}
		if got == nil {
			continue
		}
		if got.Subprotocol() != "sandboxd.terminal" {
			t.Errorf("%s: subprotocol %q", name, got.Subprotocol())
		}
		if _, _, err := got.Read(t.Context()); err != nil { // its session exists now
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := w.call("GET", path, secret, ""); got.status != http.StatusUpgradeRequired {
		t.Errorf("a request: %d %s", got.status, got.body)
	}
	closes := func(path, secret string) string {
		t.Helper()
		c, status := dial(path, []string{"sandboxd.terminal"},
			http.Header{"Authorization": {"Bearer " + secret}})
		if c == nil {
			t.Fatal(status)
		}
		for {
			if _, _, err := c.Read(t.Context()); err != nil {
				return err.Error()
			}
		}
	}
	for name, c := range map[string]struct{ path, secret, want string }{
		"a program":                {path, w.alice, "belongs to a program"},
		"a session that is not":    {"/v1/terminal/demo/other", secret, "no session other"},
		"a watcher starts nothing": {"/v1/terminal/demo/other?start=yes", watch, "no session other"},
		"no sandbox":               {"/v1/terminal/none/main?start=yes", secret, "none"},
	} {
		if got := closes(c.path, c.secret); !strings.Contains(got, "4400") ||
			!strings.Contains(got, c.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
	if all, err := w.hub.Sessions.List(t.Context(), aliceAgent, "demo"); err != nil ||
		len(all) != 1 {
		t.Errorf("sessions %+v, %v", all, err)
	}
}
