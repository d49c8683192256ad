package httpd

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// session creates a sandbox of alice's and runs a command in its main session.
func (w *world) session(name, command string) {
	w.t.Helper()
	alice := gateway.Principal{Name: "alice", Kind: wire.Agent}
	if _, err := w.hub.Create(w.t.Context(), alice, lifecycle.NewSpec{Name: name, Reuse: true},
		nil); err != nil {
		w.t.Fatal(err)
	}
	party, err := w.hub.Sessions.Shared(w.t.Context(), alice, wire.Target{Sandbox: name},
		attach.JoinOptions{Create: true})
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := party.Request(w.t.Context(),
		wire.Request{Verb: wire.VerbRun, Text: command}); err != nil {
		w.t.Fatal(err)
	}
}

// get requests JSON and decodes it strictly.
func get[T any](w *world, path, secret string) T {
	w.t.Helper()
	got := w.call("GET", path, secret, "")
	if got.status != http.StatusOK || got.header.Get("Content-Type") != "application/json" {
		w.t.Fatalf("%s: %d %s %s", path, got.status, got.header.Get("Content-Type"), got.body)
	}
	var v T
	if err := json.Unmarshal([]byte(got.body), &v); err != nil {
		w.t.Fatalf("%s: %v: %s", path, err, got.body)
	}
	return v
}

// The routes return sandboxes with attention states, sessions and screens.
func TestSandboxes(t *testing.T) {
	w := newWorld(t)
	w.session("demo", "echo hello; read answer")
	list := get[struct{ Sandboxes []Sandbox }](w, "/v1/sandboxes", w.alice).Sandboxes
	if len(list) != 1 || list[0].Name != "demo" || list[0].State != lifecycle.Running ||
		len(list[0].Needs) != 1 || list[0].Needs[0].Needs != attention.Answer {
		t.Errorf("list: %+v", list)
	}
	if got := w.call("GET", "/v1/sandboxes", w.bob, ""); got.body != `{"sandboxes":[]}`+"\n" {
		t.Errorf("bob's: %s", got.body)
	}
	// Packages of this machine.
	if d := get[Described](w, "/v1/sandboxes/demo?packages=true", w.alice); len(d.Packages) == 0 ||
		d.Packages[0].Count == 0 {
		t.Errorf("with packages: %+v", d)
	}
	if got := w.call("GET", "/v1/sandboxes/demo?packages=true", w.watch,
		""); got.status != http.StatusForbidden {
		t.Errorf("packages for a read-only client: %+v", got)
	}
	if d := get[Described](w, "/v1/sandboxes/demo", w.watch); d.Health != "ok" ||
		len(d.Needs) != 1 {
		t.Errorf("describe: %+v", d)
	}
	sessions := get[struct{ Sessions []Session }](w, "/v1/sandboxes/demo/sessions",
		w.alice).Sessions
	if len(sessions) != 1 || sessions[0].Name != "main" || sessions[0].Need == nil ||
		sessions[0].Need.Needs != attention.Answer {
		t.Errorf("sessions: %+v", sessions)
	}
	for _, secret := range []string{w.alice, w.watch} {
		if s := get[wire.Screen](w, "/v1/sandboxes/demo/sessions/main/screen",
			secret); !strings.Contains(s.Text, "hello") || s.Cols == 0 {
			t.Errorf("screen: %+v", s)
		}
	}
	for path, want := range map[string]int{"/v1/sandboxes?all=1": 422,
		"/v1/sandboxes/demo/sessions/none/screen": 404, "/v1/sandboxes/-x": 400,
		"/v1/sandboxes/": 404, "/v1/nothing": 404} {
		got := w.call("GET", path, w.alice, "")
		var p rest.Problem
		if err := json.Unmarshal([]byte(got.body), &p); got.status != want || err != nil ||
			p.Status != want || p.Detail == "" ||
			got.header.Get("Content-Type") != rest.ProblemType {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
}

// A session's bytes, by range, and as an asciicast.
func TestRecords(t *testing.T) {
	w := newWorld(t)
	w.session("demo", "echo 0123456789")
	records := get[struct {
		Records []struct {
			Session string
			Bytes   int
		}
	}](w, "/v1/sandboxes/demo/records", w.alice).Records
	if len(records) != 1 || records[0].Session != "main" || records[0].Bytes == 0 {
		t.Fatalf("records: %+v", records)
	}
	at := "/v1/sandboxes/demo/sessions/main/record"
	all := w.call("GET", at, w.alice, "")
	if all.status != http.StatusOK || !strings.Contains(all.body, "0123456789\r\n") ||
		all.header.Get("Accept-Ranges") != "bytes" || all.header.Get(headerBegun) == "" {
		t.Fatalf("record: %d %v %q", all.status, all.header, all.body)
	}
	from := strings.LastIndex(all.body, "0123456789")
	part := w.call("GET", at, w.alice, "", func(r *http.Request) {
		r.Header.Set("Range", "bytes="+strconv.Itoa(from+2)+"-"+strconv.Itoa(from+4))
	})
	if part.status != http.StatusPartialContent || part.body != "234" {
		t.Errorf("range: %d %q", part.status, part.body)
	}
	if past := w.call("GET", at, w.alice, "", func(r *http.Request) {
		r.Header.Set("Range", "bytes=1000000-")
	}); past.status != http.StatusRequestedRangeNotSatisfiable {
		t.Errorf("a range beyond the end: %d", past.status)
	}
	for _, version := range []string{"", "?version=2", "?version=3"} {
		cast := w.call("GET", at+"/cast"+version, w.alice, "")
		if cast.status != http.StatusOK || cast.header.Get("Content-Type") != castType ||
			!strings.HasPrefix(cast.body, "{") || !strings.Contains(cast.body, "0123456789") {
			t.Errorf("cast%s: %d %.200s", version, cast.status, cast.body)
		}
	}
	for path, want := range map[string]int{at + "/cast?version=4": 400, at + "?run=-1": 400,
		at + "?run=99": 404, at + "?run=1&run=2": 400, at + "?x=1": 400,
		"/v1/sandboxes/demo/sessions/..%2f..%2fmain/record": 400} {
		if got := w.call("GET", path, w.alice, ""); got.status != want {
			t.Errorf("%s: %d %s, want %d", path, got.status, got.body, want)
		}
	}
}

// The API description covers each route and its errors. Its HTML page loads nothing from other
// hosts.
func TestDescription(t *testing.T) {
	w := newWorld(t)
	got := w.call("GET", "/openapi.json", "", "")
	var d struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			OperationID string
			Summary     string
			Responses   map[string]any
		}
	}
	if err := json.Unmarshal([]byte(got.body), &d); err != nil ||
		!strings.HasPrefix(d.OpenAPI, "3.1") {
		t.Fatalf("%v: %.300s", err, got.body)
	}
	page := w.call("GET", "/docs", "", "")
	if page.status != http.StatusOK || strings.Contains(page.body, "://") ||
		strings.Contains(page.body, "<script") ||
		!strings.Contains(page.header.Get("Content-Security-Policy"), "default-src 'none'") {
		t.Errorf("the page: %d %v", page.status, page.header)
	}
	for path, item := range d.Paths {
		for method, op := range item {
			if op.OperationID == "" || op.Summary == "" || op.Responses["default"] == nil {
				t.Errorf("%s %s is not described: %+v", method, path, op)
			}
			if !strings.Contains(page.body, `id="`+op.OperationID+`"`) {
				t.Errorf("%s %s is not on the page", method, path)
			}
			at := strings.NewReplacer("{name}", "nosuch", "{session}", "main").Replace(path)
			if got := w.call(strings.ToUpper(method), at, "",
				""); got.status != http.StatusUnauthorized {
				t.Errorf("%s %s without a token: %d", method, at, got.status)
			}
		}
	}
}

// A sandbox of another owner looks missing on every route that names one (A114).
func TestForeignSandbox(t *testing.T) {
	w := newWorld(t)
	w.session("demo", "true")
	paths := []string{"", "/sessions", "/sessions/main/screen", "/records", "/sessions/main/record",
		"/sessions/main/record/cast", "/sessions/none/record"}
	for _, path := range paths {
		theirs, none := w.call("GET", "/v1/sandboxes/demo"+path, w.bob, ""),
			w.call("GET", "/v1/sandboxes/nope"+path, w.bob, "")
		if theirs.status != http.StatusNotFound || strings.ReplaceAll(none.body, "nope",
			"demo") != theirs.body || none.status != theirs.status {
			t.Errorf("%s: %d %s, and of an unknown one %d %s", path, theirs.status, theirs.body,
				none.status, none.body)
		}
	}
	// A shared sandbox is visible.
	if err := w.hub.Share(t.Context(), gateway.Principal{Name: "alice", Kind: wire.Person}, "demo",
		"bob", wire.RightWatch); err != nil {
		t.Fatal(err)
	}
	for _, path := range slices.DeleteFunc(
		paths, func(p string) bool { return strings.Contains(p, "none") }) {
		if got := w.call("GET", "/v1/sandboxes/demo"+path, w.bob, ""); got.status != http.StatusOK {
			t.Errorf("shared, %s: %d %s", path, got.status, got.body)
		}
	}
}
