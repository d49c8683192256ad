package httpd

import (
	"bytes"
	frameLength "encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/token"
)

// e2bBox is a sandbox as the create call returns it.
type e2bBox struct {
	ID     string `json:"sandboxID"`
	Access string `json:"envdAccessToken"`
}

func (w *world) e2bCreate(secret, body string) e2bBox {
	w.t.Helper()
	a := w.call("POST", "/e2b/v2/sandboxes", secret, body)
	var box e2bBox
	if err := json.Unmarshal([]byte(a.body), &box); err != nil || a.status != http.StatusCreated ||
		box.ID == "" || box.Access == "" {
		w.t.Fatalf("create: %d %s", a.status, a.body)
	}
	return box
}

// to adds the sandbox's headers and its access token to a request.
func (b e2bBox) to(r *http.Request) {
	r.Header.Del("Authorization")
	r.Header.Set("E2b-Sandbox-Id", b.ID)
	r.Header.Set("E2b-Sandbox-Port", "49983")
	r.Header.Set("Connect-Protocol-Version", "1")
	if b.Access != "" {
		r.Header.Set("X-Access-Token", b.Access)
	}
}

func frame(flags byte, text string) string {
	return string(flags) + string(frameLength.BigEndian.AppendUint32(nil, uint32(len(text)))) + text
}

func asStream(r *http.Request) { r.Header.Set("Content-Type", "application/connect+json") }

// frames returns the messages of a stream; the last frame has flag 2.
func frames(t *testing.T, body string) (messages []string, end string) {
	t.Helper()
	for len(body) >= 5 {
		n := int(frameLength.BigEndian.Uint32([]byte(body[1:5])))
		if len(body) < 5+n {
			break
		}
		text := body[5 : 5+n]
		if body[0] == 2 {
			return messages, text
		}
		messages, body = append(messages, text), body[5+n:]
	}
	t.Fatalf("a stream without an end: %q", body)
	return nil, ""
}

func (w *world) start(b e2bBox, command string) (messages []string, end string) {
	w.t.Helper()
	text, _ := json.Marshal(map[string]any{"process": map[string]any{"cmd": "/bin/sh",
		"args": []string{"-c", command}}, "stdin": false})
	a := w.call("POST", "/e2b/process.Process/Start", "", frame(0, string(text)), b.to, asStream)
	if a.status != http.StatusOK || a.header.Get("Content-Type") != "application/connect+json" {
		w.t.Fatalf("start: %d %v %q", a.status, a.header, a.body)
	}
	return frames(w.t.(*testing.T), a.body)
}

// The wire format: a unary call, a stream with its end, and an error of each.
func TestE2BWire(t *testing.T) {
	w := newWorld(t)
	b := w.e2bCreate(
		w.alice, `{"templateID":"base","timeout":60,"metadata":{"a":"b"},"new":"passed over"}`)
	messages, end := w.start(b, "echo hi; echo err >&2; exit 3")
	all := strings.Join(messages, "\n")
	if !strings.HasPrefix(messages[0], `{"event":{"start":{"pid":`) ||
		!strings.Contains(all, `{"event":{"data":{"stdout":"aGkK"}}}`) ||
		!strings.Contains(all, `{"event":{"data":{"stderr":"ZXJyCg=="}}}`) ||
		messages[len(
			messages)-1] != `{"event":{"end":{"exitCode":3,"exited":true,"status":"exit status 3","error":"exit status 3"}}}` || end != "{}" {
		t.Errorf("%s\n%s", all, end)
	}
	if a := w.call("POST", "/e2b/process.Process/List", "", "{}", b.to); a.status != 200 ||
		strings.TrimSpace(a.body) != `{"processes":[]}` {
		t.Errorf("list: %d %s", a.status, a.body)
	}
	if a := w.call("POST", "/e2b/process.Process/SendSignal", "",
		`{"process":{"pid":77},"signal":"SIGNAL_SIGKILL"}`, b.to); a.status != 404 ||
		!strings.Contains(a.body, `"code":"not_found"`) {
		t.Errorf("an error: %d %s", a.status, a.body)
	}
	a := w.call("POST", "/e2b/process.Process/Connect", "", frame(0, `{"process":{"pid":77}}`),
		b.to, asStream)
	if _, end := frames(t, a.body); a.status != 200 ||
		!strings.Contains(end, `{"error":{"code":"not_found"`) {
		t.Errorf("an error of a stream: %d %s", a.status, end)
	}
	if a := w.call("GET", "/e2b/sandboxes/"+b.ID, w.alice, ""); a.status != 200 ||
		!strings.Contains(a.body, `"metadata":{"a":"b"}`) ||
		!strings.Contains(a.body, `"state":"running"`) {
		t.Errorf("info: %d %s", a.status, a.body)
	}
	if a := w.call("POST", "/e2b/execute", "", `{"code":"1","language":"r"}`,
		b.to); a.status != http.StatusNotFound {
		t.Errorf("run_code: %d %s", a.status, a.body)
	}
}

// Each credential gives access to its own API only. Sandboxes of other owners look like missing
// ones (A108, A114).
func TestE2BAccess(t *testing.T) {
	w := newWorld(t)
	secret, id := w.token(token.Token{Principal: "alice"})
	b, other, his := w.e2bCreate(secret, "{}"), w.e2bCreate(w.alice, "{}"), w.e2bCreate(w.bob, "{}")
	health := func(b e2bBox, edit ...func(*http.Request)) answer {
		return w.call("GET", "/e2b/health", "", "", append([]func(*http.Request){b.to}, edit...)...)
	}
	if a := health(b); a.status != http.StatusNoContent {
		t.Fatalf("its own: %d %s", a.status, a.body)
	}
	none := health(e2bBox{"e2b-nothing", b.Access})
	if none.status != http.StatusBadGateway || !strings.Contains(none.body, "was not found") {
		t.Fatalf("a missing sandbox: %d %s", none.status, none.body)
	}
	for name, with := range map[string]e2bBox{
		"another sandbox's":       {b.ID, other.Access},
		"another owner's token":   {b.ID, his.Access},
		"another owner's sandbox": {his.ID, b.Access},
		"an API token":            {b.ID, w.alice},
		"a changed one":           {b.ID, b.Access[:len(b.Access)-1] + "x"},
		"a cut one":               {b.ID, b.Access[:len(b.Access)-8]},
		"a malformed token":       {b.ID, "sbe_"},
	} {
		a := health(with)
		if want := strings.ReplaceAll(none.body, "e2b-nothing", with.ID); a.status != none.status ||
			a.body != want {
			t.Errorf("%s: %d %s, want %s", name, a.status, a.body, want)
		}
	}
	if a := health(e2bBox{ID: b.ID}); a.status != http.StatusUnauthorized {
		t.Errorf("without any: %d %s", a.status, a.body)
	}
	if a := health(e2bBox{ID: b.ID}, func(r *http.Request) {
		r.Header.Set("Authorization", "Bearer "+w.alice)
	}); a.status != http.StatusUnauthorized {
		t.Errorf("an API token instead: %d", a.status)
	}
	for _, path := range []string{"/e2b/v2/sandboxes", "/v1/sandboxes"} {
		if a := w.call("GET", path, b.Access, ""); a.status != http.StatusUnauthorized {
			t.Errorf("an access token at %s: %d", path, a.status)
		}
	}
	for _, r := range [][2]string{{"GET", ""}, {"DELETE", ""}, {"POST", "/timeout"},
		{"POST", "/connect"}, {"POST", "/pause"}, {"GET", "/metrics"}} {
		path, body := "/e2b/sandboxes/", ""
		if r[0] == "POST" {
			body = `{"timeout":5}`
		}
		got, unknown := w.call(r[0], path+b.ID+r[1], w.bob, body),
			w.call(r[0], path+"e2b-nothing"+r[1], w.bob, body)
		if want := strings.ReplaceAll(unknown.body, "e2b-nothing", b.ID); got.status != 404 ||
			unknown.status != 404 || got.body != want {
			t.Errorf("%s %s of another owner: %d %s, want %d %s", r[0], r[1], got.status, got.body,
				unknown.status, want)
		}
	}
	if a := w.call("GET", "/e2b/v2/sandboxes", w.bob, ""); strings.Contains(a.body, b.ID) ||
		!strings.Contains(a.body, his.ID) {
		t.Errorf("bob's list: %s", a.body)
	}
	if a := w.call("POST", "/e2b/v2/sandboxes", w.watch, "{}"); a.status != http.StatusForbidden {
		t.Errorf("a token that only looks creates: %d %s", a.status, a.body)
	}
	// A stream ends with its token, and so does the access token.
	ended := make(chan error, 1)
	text := `{"process":{"cmd":"/bin/sleep","args":["1000"]}}`
	r, err := http.NewRequestWithContext(t.Context(), "POST",
		"http://"+w.addr+"/e2b/process.Process/Start", strings.NewReader(frame(0, text)))
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
	if _, err := io.ReadFull(resp.Body, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	go func() { _, err := io.Copy(io.Discard, resp.Body); ended <- err }()
	if err := w.tokens.Revoke(t.Context(), "alice", id); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Error("a stream continues after its token was revoked")
	}
	w.client.CloseIdleConnections()
	if a := health(b); a.status != none.status {
		t.Errorf("the access token of a revoked token: %d %q %v", a.status, a.body, a.header)
	}
}

// Invalid and excessive requests are rejected (A93, A95, A97, A110, A112).
func TestE2BAttacks(t *testing.T) {
	w := newWorld(t)
	b := w.e2bCreate(w.alice, "{}")
	for name, body := range map[string]string{
		"a negative timeout":   `{"timeout":-1}`,
		"an endless timeout":   `{"timeout":9000000000000}`,
		"a key twice":          `{"templateID":"base","templateID":"base"}`,
		"depth":                `{"mcp":` + strings.Repeat("[", 100_000),
		"a variable with NUL":  `{"envVars":{"A":"\u0000"}}`,
		"a label of ours":      `{"metadata":{"sandboxd.x":"1"}}`,
		"volumes":              `{"volumeMounts":[{"name":"v","path":"/v"}]}`,
		"a number that is one": `{"timeout":1e999}`,
	} {
		if a := w.call("POST", "/e2b/v2/sandboxes", w.alice,
			body); a.status != http.StatusBadRequest || !strings.Contains(a.body, `"code":400`) {
			t.Errorf("%s: %d %.200s", name, a.status, a.body)
		}
	}
	stat := func(body string) answer {
		return w.call("POST", "/e2b/filesystem.Filesystem/Stat", "", body, b.to)
	}
	for body, want := range map[string]int{
		`{"path":"/tmp/\u0000x"}`: 400, `{"path":"/` + strings.Repeat("x", 5000) + `"}`: 400,
		`{"path":"/no/such"}`:                    404,
		`{"path":"/../../../etc/passwd"}`:        200, // in the sandbox's own file system
		`{"path":` + strings.Repeat("[", 10_000): 400, `{"path":"` + strings.Repeat("x", 5<<20) +
			`"}`: 429,
	} {
		if a := stat(body); a.status != want {
			t.Errorf("stat %.60s: %d %.200s, want %d", body, a.status, a.body, want)
		}
	}
	// A frame that announces too large a size is rejected at once.
	huge := append([]byte{0}, 0x40, 0, 0, 0)
	a := w.call("POST", "/e2b/process.Process/Start", "", string(huge)+"{}", b.to, asStream)
	if _, end := frames(t, a.body); !strings.Contains(end, "resource_exhausted") {
		t.Errorf("a frame of 1 GiB: %d %s", a.status, end)
	}
	compressed := func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip") }
	octets := func(r *http.Request) { r.Header.Set("Content-Type", "application/octet-stream") }
	if a := w.call("POST", "/e2b/files?path=/tmp/x", "", "x", b.to, octets,
		compressed); a.status != http.StatusUnsupportedMediaType {
		t.Errorf("a compressed upload: %d %s", a.status, a.body)
	}
	if a := w.call("POST", "/e2b/files?path=%00", "", "x", b.to,
		octets); a.status != http.StatusBadRequest {
		t.Errorf("a path with NUL: %d %s", a.status, a.body)
	}
	if a := w.call("GET", "/e2b/files?path=/dev/zero", "", "",
		b.to); a.status != http.StatusBadRequest {
		t.Errorf("a device: %d %.100s", a.status, a.body)
	}
	if a := w.call("GET", "/e2b/files?path=/etc/passwd&signature=v1_x", "", "",
		b.to); a.status != http.StatusNotImplemented {
		t.Errorf("a signed URL: %d %.100s", a.status, a.body)
	}
}

// The number of background commands is limited, and all end with the sandbox.
func TestE2BManyProcesses(t *testing.T) {
	w := newWorld(t)
	b := w.e2bCreate(w.alice, "{}")
	const asked, most = 300, 256
	var mu sync.Mutex
	began, refused := 0, 0
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	for range asked {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			r, _ := http.NewRequestWithContext(t.Context(), "POST",
				"http://"+w.addr+"/e2b/process.Process/Start", strings.NewReader(
					frame(0, `{"process":{"cmd":"/bin/sleep","args":["1000"]}}`)))
			b.to(r)
			asStream(r)
			resp, err := w.client.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			head := make([]byte, 5+len(`{"event":{"start"`))
			if _, err := io.ReadFull(resp.Body, head); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if bytes.Contains(head, []byte("start")) {
				began++
			} else {
				refused++
			}
		})
	}
	wg.Wait()
	if began != most || refused != asked-most {
		t.Errorf("%d began and %d were refused, want %d and %d", began, refused, most, asked-most)
	}
	if a := w.call("POST", "/e2b/process.Process/List", "", "{}", b.to); strings.Count(
		a.body, `"pid"`) != most {
		t.Errorf("%d are listed", strings.Count(a.body, `"pid"`))
	}
	if a := w.call("DELETE", "/e2b/sandboxes/"+b.ID, w.alice,
		""); a.status != http.StatusNoContent {
		t.Errorf("kill: %d %s", a.status, a.body)
	}
	if a := w.call("GET", "/e2b/health", "", "", b.to); a.status != http.StatusBadGateway {
		t.Errorf("health of a removed sandbox: %d", a.status)
	}
}

// An SDK with a wrong address gets an error that it can parse. Other formats end its program with a
// KeyError.
func TestE2BMisplaced(t *testing.T) {
	w := newWorld(t)
	b := w.e2bCreate(w.alice, "{}")
	for path, code := range map[string]string{"/v2/sandboxes": "404", "/sandboxes/x": "404",
		"/e2b//v2/sandboxes": "404", "/files": "404",
		"/e2b//process.Process/List": `"not_found"`, "//process.Process/List": `"not_found"`,
		"/filesystem.Filesystem/Stat": `"not_found"`} {
		for _, secret := range []string{w.alice, ""} {
			a := w.call("POST", path, secret, "{}", b.to,
				func(r *http.Request) { r.Header.Set("Content-Type", "application/json") })
			if a.status != http.StatusNotFound || !strings.HasPrefix(
				a.body, `{"code":`+code+`,"message":"E2B's routes are below /e2b`) {
				t.Errorf("%s: %d %s", path, a.status, a.body)
			}
		}
	}
	a := w.call("POST", "/process.Process/Start", "", frame(0, "{}"), b.to, asStream)
	if _, end := frames(t, a.body); a.status != http.StatusOK || !strings.HasPrefix(
		end, `{"error":{"code":"not_found","message":"E2B's routes are below /e2b`) {
		t.Errorf("a stream: %d %s", a.status, end)
	}
	// The results of upload_url and download_url with the daemon's address.
	for _, path := range []string{"/files?path=a&signature=v1_x",
		"/e2b/files?path=a&signature=v1_x"} {
		if a := w.call("GET", path, "", ""); a.status != http.StatusNotImplemented ||
			!strings.Contains(a.body, "signed URLs are not supported") {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	// Without E2B_SANDBOX_URL, get_host and the SDK use a host name that never resolves, not one of
	// E2B's.
	if a := w.call("GET", "/e2b/sandboxes/"+b.ID, w.alice, ""); !strings.Contains(
		a.body, `.invalid"`) {
		t.Errorf("the domain: %s", a.body)
	}
}
