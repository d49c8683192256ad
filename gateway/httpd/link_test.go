package httpd

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// share returns the address of a link that the page makes, and the token in it.
func (w *world) share(s session, name string) (address, secret string) {
	w.t.Helper()
	got := w.pageCall(s, "POST", "/page/sandboxes/"+name+"/link", "{}")
	var link struct {
		URL     string
		Expires time.Time
	}
	if err := json.Unmarshal([]byte(got.body), &link); err != nil || got.status != http.StatusOK {
		w.t.Fatalf("%d %s", got.status, got.body)
	}
	if d := time.Until(link.Expires); d <= 0 || d > 24*time.Hour {
		w.t.Errorf("the link expires in %s", d)
	}
	_, secret, ok := strings.Cut(link.URL, "/#link=")
	if !ok {
		w.t.Fatalf("the link is %s", link.URL)
	}
	return link.URL, secret
}

// Who has a link sees one sandbox, and changes nothing. The link ends when its share ends.
func TestLink(t *testing.T) {
	w := newWorld(t)
	w.sandbox("demo")
	w.sandbox("other")
	w.run(w.agent("demo"), "echo seen")
	s := w.login(wire.RightDrive)
	_, secret := w.share(s, "demo")
	if got := w.call("GET", "/page/records/demo", secret, ""); got.status != http.StatusOK {
		t.Errorf("the records: %d %s", got.status, got.body)
	}
	for _, c := range []struct{ method, path, body string }{
		{"GET", "/v1/sandboxes", ""},
		{"GET", "/v1/sandboxes/demo", ""},
		{"GET", "/page/records/other", ""},
		{"POST", "/v1/sandboxes", `{"name":"mine"}`},
		{"DELETE", "/v1/sandboxes/demo", ""},
		{"POST", "/page/sandboxes/demo/stop", "{}"},
		{"POST", "/page/sandboxes/demo/fork", `{"name":"copy"}`},
		{"POST", "/page/sandboxes/demo/link", "{}"},
		{"POST", "/page/ports/demo/80", ""},
		{"GET", "/page/files/demo", ""},
		{"POST", "/page/answer/demo/main", `{"text":"y"}`},
		{"GET", "/page/find/other/main?text=seen", ""},
		{"GET", "/page/find/demo/main?text=+", ""},
		{"GET", "/page/find/demo/main?text=" + strings.Repeat("x", 201), ""},
	} {
		if got := w.call(c.method, c.path, secret, c.body); got.status < 400 {
			t.Errorf("%s %s: %d %s", c.method, c.path, got.status, got.body)
		}
	}
	got := w.call("GET", "/page/records/demo", secret, "")
	if got.status != http.StatusOK {
		t.Errorf("records: %d %s", got.status, got.body)
	}
	got = w.call("GET", "/page/find/demo/main?text=SEEN", secret, "")
	if got.status != http.StatusOK || !strings.Contains(got.body, `"line":"seen"`) {
		t.Errorf("a search: %d %s", got.status, got.body)
	}
	alice := gateway.Principal{Name: "alice", Kind: wire.Person}
	info, err := w.hub.Get(t.Context(), alice, "demo")
	if err != nil || len(info.SharedWith) != 1 {
		t.Fatalf("%+v, %v", info.SharedWith, err)
	}
	link := info.SharedWith[0].Principal
	if maker, ok := gateway.LinkOf(link); !ok || maker != "alice" {
		t.Errorf("the principal is %s", link)
	}
	if _, err := w.hub.Unshare(t.Context(), alice, "demo", link); err != nil {
		t.Fatal(err)
	}
	if got := w.call("GET", "/page/records/demo", secret, ""); got.status < 400 {
		t.Errorf("after unshare: %d %s", got.status, got.body)
	}

	// A link whose token has ended is removed by the next one.
	_, secret = w.share(s, "demo")
	tok, _, err := w.tokens.Verify(secret)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.tokens.Revoke(t.Context(), tok.Principal, tok.ID); err != nil {
		t.Fatal(err)
	}
	w.share(s, "demo")
	if info, err = w.hub.Get(t.Context(), alice, "demo"); err != nil || len(info.SharedWith) != 1 ||
		info.SharedWith[0].Principal == tok.Principal {
		t.Errorf("%+v, %v", info.SharedWith, err)
	}
	late := time.Now().Add(token.MaxLink + time.Hour)
	for name, maker := range map[string]token.Token{"no end": {}, "too late": {Expires: &late}} {
		if _, _, err := w.tokens.Link(t.Context(), w.hub, alice, "demo", maker); err == nil {
			t.Errorf("%s: a link", name)
		}
	}
	bob := gateway.Principal{Name: "bob", Kind: wire.Person}
	soon := time.Now().Add(time.Hour)
	for name, p := range map[string]gateway.Principal{"bob": bob, "a link": {Name: link,
		Kind: wire.Person, Rights: wire.RightWatch},
		"a watcher": {Name: "alice", Kind: wire.Person, Rights: wire.RightWatch}} {
		if _, _, err := w.tokens.Link(t.Context(), w.hub, p, "demo",
			token.Token{Expires: &soon}); err == nil {
			t.Errorf("%s makes a link", name)
		}
	}
}

// A person shares a link on the page. Another browser asks before it logs in with it, shows the
// sandbox without buttons, and says when the link has ended.
func TestPageLink(t *testing.T) {
	browser := newBrowser(t)
	w := newWorld(t)
	w.sandbox("demo")
	w.run(w.agent("demo"), "echo seen")
	b := newTab(browser, t, 1300, 600)
	b.open(w.link(wire.RightDrive))
	b.click(".row")
	b.click("#share")
	b.until("the link", `document.querySelector("#link").checkVisibility()`)
	b.shoot("share")
	address := valueOf[string](b, `document.querySelector("#address").value`)
	b.fine()

	guest := newTab(browser, t, 1000, 600)
	guest.open(address)
	guest.until("it asks", `document.querySelector("#login-shared").checkVisibility()`)
	guest.shoot("shared-asks")
	guest.click("#login button")
	guest.click(".row")
	guest.sees("echo seen")
	guest.until("no buttons", `!["actions", "make", "tab-files", "tab-ports"].some((id) => document.getElementById(id).checkVisibility())`)
	guest.types("x")
	guest.sees("you may only watch")
	guest.shoot("shared")
	alice := gateway.Principal{Name: "alice", Kind: wire.Person}
	info, err := w.hub.Get(context.Background(), alice, "demo")
	if err != nil || len(info.SharedWith) != 1 {
		t.Fatalf("%+v, %v", info.SharedWith, err)
	}
	if _, err := w.hub.Unshare(t.Context(), alice, "demo",
		info.SharedWith[0].Principal); err != nil {
		t.Fatal(err)
	}
	guest.until("no sandbox", `!document.querySelector(".row")`)
	guest.until("why", `document.querySelector("#work").innerText.includes("no longer shared with you")`)
	guest.fine()

	// A link that has ended does not cost its visitor their own login.
	secret := address[strings.Index(address, "#link=")+len("#link="):]
	tok, _, err := w.tokens.Verify(secret)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.tokens.Revoke(t.Context(), tok.Principal, tok.ID); err != nil {
		t.Fatal(err)
	}
	b.open("about:blank")
	b.open(address)
	b.until("it asks", `document.querySelector("#login-shared").checkVisibility()`)
	b.click("#login button")
	b.until("why not", `document.querySelector("#login-problem").textContent.includes("unknown token")`)
	b.open("about:blank")
	b.open("http://" + w.addr + "/")
	b.until("their own login", `document.querySelector("#who").textContent === "alice"`)
}
