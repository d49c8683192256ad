package httpd

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// Only the admin can read the metrics.
func TestMetrics(t *testing.T) {
	w := newWorld(t)
	w.session("demo", "read answer")
	w.call("GET", "/v1/sandboxes", w.alice, "")
	w.call("GET", "/v1/sandboxes/demo", w.bob, "")
	w.call("GET", "/v1/sandboxes", "", "")
	w.call("GET", "/", w.alice, "", func(r *http.Request) { r.Host = "evil.example" })
	w.call("GET", "/v1/sandboxes", w.alice, "",
		func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") })
	got := w.call("GET", "/metrics", w.alice, "")
	if got.status != http.StatusOK || !strings.HasPrefix(got.header.Get("Content-Type"),
		"text/plain") {
		t.Fatalf("%d %v %s", got.status, got.header, got.body)
	}
	for _, want := range []string{
		`sandboxd_sandboxes{state="running"} 1`,
		`sandboxd_sandboxes{state="warm"} 0`,
		`sandboxd_sessions 1`,
		`sandboxd_sessions_needing{needs="asks"} 1`,
		`sandboxd_boots_total{result="ok"} 1`,
		`sandboxd_boots_total{result="failed"} 0`,
		`sandboxd_claims_total{result="ok"} 0`,
		`sandboxd_connections_total{what="refused"} 0`,
		`sandboxd_connections_limited_total{limit="owner"} 0`,
		`sandboxd_connections_open 0`,
		`sandboxd_events_dropped_total 0`,
		`sandboxd_http_requests_total{route="GET /v1/sandboxes",status="200"} 1`,
		`sandboxd_http_requests_total{route="GET /v1/sandboxes/{name}",status="404"} 1`,
		`sandboxd_http_request_seconds_count{route="GET /v1/sandboxes"} 1`,
		`sandboxd_http_refused_total{reason="token"} 1`,
		`sandboxd_http_refused_total{reason="host"} 1`,
		`sandboxd_http_refused_total{reason="origin"} 1`,
		`sandboxd_run_calls_total{status="timed_out"} 0`,
		`go_goroutines `,
	} {
		if !strings.Contains(got.body, "\n"+want) {
			t.Errorf("no %s", want)
		}
	}
	if got := w.call("GET", "/metrics", w.bob, ""); got.status != http.StatusForbidden {
		t.Errorf("bob: %d", got.status)
	}
	if got := w.call("GET", "/metrics", "", ""); got.status != http.StatusUnauthorized {
		t.Errorf("without a token: %d", got.status)
	}
	if t.Failed() {
		t.Log(got.body)
	}
}

// No label comes from a client or a sandbox, so neither can add lines or series (A118).
func TestMetricsAreBounded(t *testing.T) {
	w := newWorld(t)
	// A terminal's title, a name in a path, a method, a query.
	w.session("demo", `printf '\033]0;evil"} 1\nforged 1\007'`)
	series := func() int {
		body := w.call("GET", "/metrics", w.alice, "").body
		for _, bad := range []string{"evil", "forged", "demo", "alice"} {
			if strings.Contains(body, bad) {
				t.Errorf("%q is in it", bad)
			}
		}
		return len(regexp.MustCompile(`(?m)^sandboxd_`).FindAllString(body, -1))
	}
	ask := func(i int) {
		for _, path := range []string{"/evil%s", "/v1/sandboxes/evil%s",
			"/v1/sandboxes/demo/sessions/evil%s/record", "/v1/run/evil%s/artifacts/forged",
			"/v1/sandboxes?evil%s=1"} {
			w.call("GET", fmt.Sprintf(path, fmt.Sprintf("%d%%22%%7d%%20", i)), w.alice, "")
		}
		w.call("EVIL", "/v1/sandboxes", w.alice, "")
	}
	ask(0)
	series() // adds its own series
	before := series()
	for i := range 20 {
		ask(i + 1)
	}
	if after := series(); after != before {
		t.Errorf("%d series became %d", before, after)
	}
}
