package httpd

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/token"
)

// A read-only token gets no access token, and cannot act in a sandbox where its owner's programs
// run (A114).
func TestE2BWatcher(t *testing.T) {
	w := newWorld(t)
	b := w.e2bCreate(w.alice, "{}")
	// Opens a connection to the sandbox.
	w.start(b, "echo secret >/tmp/watched")
	// Files are accessible.
	if a := w.call("GET", "/e2b/files?path=/tmp/watched", "", "", b.to); a.status != 200 {
		t.Fatalf("the owner's program: %d %s", a.status, a.body)
	}
	a := w.call("GET", "/e2b/sandboxes/"+b.ID, w.watch, "")
	var seen e2bBox
	if err := json.Unmarshal([]byte(a.body), &seen); err != nil || a.status != http.StatusOK ||
		seen.ID != b.ID {
		t.Fatalf("a look at it: %d %s", a.status, a.body)
	}
	if seen.Access != "" {
		t.Errorf("a read-only token gets %q", seen.Access)
	}
	for _, c := range []struct{ method, path, body string }{
		{"POST", "/connect", `{"timeout":5000}`}, {"POST", "/timeout", `{"timeout":5000}`}, {"POST", "/pause", "{}"}, {"DELETE", "", ""},
	} {
		if a := w.call(c.method, "/e2b/sandboxes/"+b.ID+c.path, w.watch,
			c.body); a.status != http.StatusForbidden || strings.Contains(a.body, "sbe_") {
			t.Errorf("%s %s: %d %s", c.method, c.path, a.status, a.body)
		}
	}
	if seen.Access == "" {
		seen.Access = w.accessOf(seen.ID, w.watch)
	}
	for _, c := range []struct{ method, path, body string }{
		{"GET", "/files?path=/tmp/watched", ""},
		{"POST", "/filesystem.Filesystem/Stat", `{"path":"/tmp/watched"}`},
		{"POST", "/filesystem.Filesystem/Remove", `{"path":"/tmp/watched"}`},
		{"POST", "/process.Process/List", "{}"},
	} {
		if a := w.call(c.method, "/e2b"+c.path, "", c.body,
			seen.to); a.status != http.StatusForbidden {
			t.Errorf("%s %s with its own token: %d %s", c.method, c.path, a.status, a.body)
		}
	}
	text := `{"process":{"cmd":"/bin/sh","args":["-c","echo done"]},"stdin":false}`
	if a := w.call("POST", "/e2b/process.Process/Start", "", frame(0, text), seen.to,
		asStream); a.status != http.StatusOK {
		t.Errorf("a command: %d %q", a.status, a.body)
	} else if messages, end := frames(t, a.body); len(messages) > 0 ||
		!strings.HasPrefix(end, `{"error":{"code":"permission_denied"`) {
		// a stream reports errors at its end
		t.Errorf("a command: %q %q", messages, end)
	}
}

// accessOf returns the access token that a token would get. A read-only client may hold one from
// earlier.
func (w *world) accessOf(name, secret string) string {
	w.t.Helper()
	t, _, denied := w.tokens.Verify(secret)
	info, err := w.hub.Get(w.t.Context(), t.AsPrincipal(), name)
	if denied != nil || err != nil {
		w.t.Fatal(denied, err)
	}
	return w.server.e2b.Access(info.ID, t.ID)
}

// A command that is too long fails alone: others keep running.
func TestE2BLongCommand(t *testing.T) {
	w := newWorld(t)
	b := w.e2bCreate(w.alice, "{}")
	beside := w.begin(b, `{"process":{"cmd":"/bin/sleep","args":["1000"]}}`)
	for _, n := range []int{140 << 10, 300 << 10, 3 << 20} {
		text, _ := json.Marshal(map[string]any{"process": map[string]any{"cmd": "/bin/sh",
			"args": []string{"-c", ": " + strings.Repeat("x", n)}}, "stdin": false})
		a := w.call("POST", "/e2b/process.Process/Start", "", frame(0, string(text)), b.to,
			asStream)
		if _, end := frames(t, a.body); !strings.Contains(end, "invalid_argument") ||
			!strings.Contains(end, "longer than") {
			t.Errorf("%d bytes: %d %.300s", n, a.status, end)
		}
	}
	if a := w.call("POST", "/e2b/process.Process/List", "", "{}", b.to); strings.Count(
		a.body, `"pid"`) != 1 {
		t.Errorf("the command beside them: %s", a.body)
	}
	beside()
}

// begin starts a command and returns when it runs; end disconnects, and the command continues.
func (w *world) begin(b e2bBox, text string) (end func()) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), "POST",
		"http://"+w.addr+"/e2b/process.Process/Start", strings.NewReader(frame(0, text)))
	if err != nil {
		w.t.Fatal(err)
	}
	b.to(r)
	asStream(r)
	resp, err := w.client.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	head := make([]byte, 64)
	n, err := resp.Body.Read(head)
	if err != nil || !strings.Contains(string(head[:n]), "start") {
		w.t.Fatalf("%q, %v", head[:n], err)
	}
	return func() { resp.Body.Close() }
}

// A command that ran when its token was revoked is not reported as rejected, because clients repeat
// rejected calls.
func TestE2BRevokedAsCommandsBegin(t *testing.T) {
	w := newWorld(t)
	secret, id := w.token(token.Token{Principal: "alice"})
	b := w.e2bCreate(secret, "{}")
	dir := t.TempDir()
	const commands = 60
	answers := make([]string, commands)
	var calls sync.WaitGroup
	for i := range commands {
		calls.Go(func() {
			text, _ := json.Marshal(map[string]any{"stdin": false,
				"process": map[string]any{"cmd": "/bin/sh",
					"args": []string{"-c", fmt.Sprintf("touch %s/%d; sleep 0.2", dir, i)}}})
			r, err := http.NewRequestWithContext(t.Context(), "POST",
				"http://"+w.addr+"/e2b/process.Process/Start",
				strings.NewReader(frame(0, string(text))))
			if err != nil {
				t.Error(err)
				return
			}
			b.to(r)
			asStream(r)
			resp, err := w.client.Do(r)
			if err != nil {
				return // unknown: it may have run
			}
			defer resp.Body.Close()
			answer, _ := io.ReadAll(resp.Body) // unknown: it may have run
			answers[i] = string(answer)
		})
	}
	for began := 0; began < 3; {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		began = len(entries)
	}
	if err := w.tokens.Revoke(t.Context(), "alice", id); err != nil {
		t.Fatal(err)
	}
	calls.Wait()
	for i, answer := range answers {
		if strings.Contains(answer, `"start"`) || !strings.Contains(answer, "unauthenticated") &&
			!strings.Contains(answer, `"unavailable"`) {
			continue
		}
		if _, err := os.Stat(fmt.Sprintf("%s/%d", dir, i)); err == nil {
			t.Errorf("command %d ran, and the answer is %q", i, answer)
		}
	}
}
