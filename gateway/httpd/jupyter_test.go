package httpd

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// The Jupyter API is for owners, with a token in a header, or a cookie that foreign pages cannot
// use (A105, A106, A108, A114).
func TestJupyterAccess(t *testing.T) {
	w := newWorld(t)
	b := w.e2bCreate(w.alice, "{}")
	path := "/jupyter/" + b.ID
	with := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	for name, c := range map[string]struct {
		path string
		edit []func(*http.Request)
		want int
	}{
		"nothing shown":         {path + "/api/kernels", nil, 401},
		"a wrong token":         {path + "/api/kernels", []func(*http.Request){with("Authorization", "token "+w.alice+"x")}, 401},
		"the sandbox's own":     {path + "/api/kernels", []func(*http.Request){with("Authorization", "token "+b.Access)}, 401},
		"a token in the URL":    {path + "/api/kernels?token=" + w.alice, nil, 400},
		"that beside a good":    {path + "/api/kernels?token=" + w.alice, []func(*http.Request){with("Authorization", "token "+w.alice)}, 400},
		"a cookie alone":        {path + "/api/kernels", []func(*http.Request){with("Cookie", "sandboxd_jupyter="+w.alice)}, 401},
		"a cookie and a guess":  {path + "/api/kernels", []func(*http.Request){with("Cookie", "_xsrf=0123456789abcdef0; sandboxd_jupyter="+w.alice), with("X-XSRFToken", "0123456789abcdef1")}, 401},
		"a short _xsrf":         {path + "/api/kernels", []func(*http.Request){with("Cookie", "_xsrf=; sandboxd_jupyter="+w.alice), with("X-XSRFToken", "")}, 401},
		"another origin":        {path + "/api/kernels", []func(*http.Request){with("Authorization", "token "+w.alice), with("Origin", "http://evil.example")}, 403},
		"another host":          {path + "/api/kernels", []func(*http.Request){with("Authorization", "token "+w.alice), func(r *http.Request) { r.Host = "evil.example" }}, 421},
		"a read-only token":     {path + "/api/kernels", []func(*http.Request){with("Authorization", "token "+w.watch)}, 403},
		"a page":                {path + "/lab", []func(*http.Request){with("Authorization", "token "+w.alice)}, 404},
		"files":                 {path + "/files/etc/passwd", []func(*http.Request){with("Authorization", "Bearer "+w.alice)}, 404},
		"a page without":        {path + "/lab", nil, 401},
		"a socket of no kernel": {path + "/api/events/subscribe", []func(*http.Request){with("Authorization", "token "+w.alice), with("Upgrade", "websocket"), with("Connection", "Upgrade")}, 404},
	} {
		a := w.call("GET", c.path, "", "", c.edit...)
		if a.status != c.want || !strings.HasPrefix(a.header.Get("Content-Type"), "application/") ||
			a.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d %v %s, want %d", name, a.status, a.header, a.body, c.want)
		}
	}
	for _, path := range []string{"", "/kernels", "/sessions", "/kernels/x"} {
		got := w.call("GET", "/jupyter/"+b.ID+"/api"+path, "", "",
			with("Authorization", "token "+w.bob))
		none := w.call("GET", "/jupyter/e2b-nothing/api"+path, "", "",
			with("Authorization", "token "+w.bob))
		if want := strings.ReplaceAll(none.body, "e2b-nothing", b.ID); got.status != 404 ||
			none.status != 404 || got.body != want {
			t.Errorf("%s of another owner: %d %s, want %d %s", path, got.status, got.body,
				none.status, want)
		}
	}
	if strings.Contains(w.log.String(), w.alice) {
		t.Error("a token is in the log")
	}
}

// A login exchanges a token for a cookie. It must repeat the XSRF cookie of the form, and foreign
// pages cannot use it.
func TestJupyterLogin(t *testing.T) {
	w := newWorld(t)
	form := w.call("GET", "/jupyter/box/login", "", "")
	cookie, _, _ := strings.Cut(form.header.Get("Set-Cookie"), ";")
	xsrf, ok := strings.CutPrefix(cookie, "_xsrf=")
	if !ok || form.status != 200 || !strings.Contains(form.header.Get("Set-Cookie"),
		"Path=/jupyter/box") {
		t.Fatalf("the form: %d %v", form.status, form.header)
	}
	login := func(password, again string, edit ...func(*http.Request)) answer {
		return w.call("POST", "/jupyter/box/login", "", url.Values{"password": {password},
			"_xsrf": {again}}.Encode(), append([]func(*http.Request){func(r *http.Request) {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.Header.Set("Cookie", cookie)
		}}, edit...)...)
	}
	if a := login(w.alice, xsrf); a.status != 200 ||
		!strings.Contains(a.header.Get("Set-Cookie"), "sandboxd_jupyter="+w.alice) ||
		!strings.Contains(a.header.Get("Set-Cookie"), "HttpOnly") ||
		!strings.Contains(a.header.Get("Set-Cookie"), "SameSite=Strict") {
		t.Errorf("a login: %d %v", a.status, a.header)
	}
	for name, a := range map[string]answer{
		"a wrong one":    login(w.alice+"x", xsrf),
		"nothing":        login("", xsrf),
		"a guess":        login(w.alice, xsrf+"x"),
		"without":        login(w.alice, xsrf, func(r *http.Request) { r.Header.Del("Cookie") }),
		"another origin": login(w.alice, xsrf, func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") }),
		"too much":       login(strings.Repeat("x", 1<<20), xsrf),
	} {
		if a.status < 400 || a.header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %d %v", name, a.status, a.header)
		}
	}
}

// The code interpreter's SDK header opens contexts, and nothing else.
func TestE2BTrafficToken(t *testing.T) {
	w := newWorld(t)
	b, other := w.e2bCreate(w.alice, "{}"), w.e2bCreate(w.alice, "{}")
	traffic := func(b e2bBox, secret string) func(*http.Request) {
		return func(r *http.Request) {
			e2bBox{ID: b.ID}.to(r)
			r.Header.Set("E2B-Traffic-Access-Token", secret)
		}
	}
	if a := w.call("GET", "/e2b/sandboxes/"+b.ID, w.alice, ""); !strings.Contains(
		a.body, `"trafficAccessToken":"`+b.Access+`"`) {
		t.Errorf("no error: %s", a.body)
	}
	if a := w.call("GET", "/e2b/sandboxes/"+b.ID, w.watch, ""); !strings.Contains(
		a.body, `"trafficAccessToken":null`) {
		t.Errorf("a read-only token gets: %s", a.body)
	}
	if a := w.call("POST", "/e2b/contexts", "", `{"language":"r"}`,
		traffic(b, b.Access)); a.status == http.StatusUnauthorized ||
		a.status == http.StatusBadGateway {
		t.Errorf("contexts: %d %s", a.status, a.body)
	}
	for name, a := range map[string]answer{
		"another sandbox's": w.call("GET", "/e2b/contexts", "", "", traffic(other, b.Access)),
		"none":              w.call("GET", "/e2b/contexts", "", "", traffic(b, "")),
		"files":             w.call("GET", "/e2b/files?path=/etc/hosts", "", "", traffic(b, b.Access)),
		"a path beside":     w.call("GET", "/e2b/contextsx", "", "", traffic(b, b.Access)),
	} {
		if a.status != http.StatusUnauthorized && a.status != http.StatusBadGateway {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
}
