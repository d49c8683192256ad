package cluster

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts an API server of one handler, and returns a client for it.
func serve(t *testing.T, h http.HandlerFunc, change ...func(*Config)) *Client {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	config := Config{Server: s.URL, Namespace: "boxes", Token: "secret",
		CA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})}
	for _, f := range change {
		f(&config)
	}
	c, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func refuse(w http.ResponseWriter, code int, reason, message string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "code": code, "reason": reason,
		"message": message})
}

func TestDo(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var in map[string]string
		_ = json.NewDecoder(r.Body).Decode(&in)
		fmt.Fprintf(w, `{"said": %q}`, strings.Join([]string{r.Method, r.URL.String(),
			r.Header.Get("Authorization"), r.Header.Get("Content-Type"), in["a"]}, " "))
	})
	var out struct{ Said string }
	if err := c.Do(t.Context(), Request{Method: http.MethodPatch, Path: c.Path("pods", "x", "status"),
		Query: url.Values{"q": {"1"}}, Type: "application/merge-patch+json",
		Body: map[string]string{"a": "b"}}, &out); err != nil {
		t.Fatal(err)
	}
	if want := "PATCH /api/v1/namespaces/boxes/pods/x/status?q=1 Bearer secret " +
		"application/merge-patch+json b"; out.Said != want {
		t.Errorf("got %q, want %q", out.Said, want)
	}
}

func TestRefusals(t *testing.T) {
	for _, tt := range []struct {
		name string
		h    http.HandlerFunc
		is   error
		text string
	}{
		{"not found", func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, 404, "NotFound", `pods "x" not found`)
		}, ErrNotFound, `pods "x" not found`},
		{"forbidden", func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, 403, "Forbidden", "user \x1b[31mmallory\ncannot")
		}, ErrForbidden, "user  [31mmallory cannot"},
		{"of a proxy", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "<html>bad gateway</html>", http.StatusBadGateway)
		}, nil, "status 502 Bad Gateway: <html>bad gateway</html>"},
		{"gone without a reason", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "old", http.StatusGone)
		}, ErrExpired, "old"},
		{"long", func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, 400, "BadRequest", strings.Repeat("x", 1<<20))
		}, nil, "status 400 Bad Request: {"},
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://127.0.0.1:1/", http.StatusFound)
		}, nil, "status 302 Found"},
		{"cut off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "{")
		}, nil, "answer to"},
		{"no JSON", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") },
			nil, "answer to"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := serve(t, tt.h)
			err := c.Do(t.Context(), Request{Path: c.Path("pods")}, new(any))
			if err == nil || tt.is != nil && !errors.Is(err, tt.is) ||
				!strings.Contains(err.Error(), tt.text) || len(err.Error()) > 2*maxText {
				t.Errorf("got %.2000v, want %v, %q", err, tt.is, tt.text)
			}
		})
	}
	nobody, err := New(Config{Server: "https://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := nobody.Do(t.Context(), Request{Path: "/"}, nil); !errors.Is(err, ErrUnreachable) {
		t.Errorf("nobody: %v", err)
	}
	for _, server := range []string{"http://a", "a", "https://", "\x7f"} {
		if _, err := New(Config{Server: server}); err == nil {
			t.Errorf("server %q: no error", server)
		}
	}
}

// A server that is busy says so before it does anything.
func TestBusy(t *testing.T) {
	var calls atomic.Int32
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if b, _ := io.ReadAll(r.Body); string(b) != "1" {
			t.Errorf("body %q", b)
		}
		if calls.Add(1) < 3 {
			w.Header().Set("Retry-After", "0")
			refuse(w, 429, "TooManyRequests", "later")
		}
	})
	if err := c.Do(t.Context(), Request{Method: "POST", Path: "/", Body: 1}, nil); err != nil ||
		calls.Load() != 3 {
		t.Errorf("%v after %d calls", err, calls.Load())
	}
	ctx, cancel := context.WithCancel(t.Context())
	always := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, 429, "TooManyRequests", "later")
		cancel()
	})
	if err := always.Do(ctx, Request{Path: "/"}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("always busy: %v", err)
	}
}

// tokens refuses all but one token.
func tokens(valid *atomic.Value) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("Authorization") != "Bearer "+valid.Load().(string) {
			refuse(w, 401, "Unauthorized", "Unauthorized")
			return
		}
		_, _ = w.Write(body)
	}
}

// A token that has expired is read again, and the request is made again with its body.
func TestTokenFile(t *testing.T) {
	var valid atomic.Value
	valid.Store("one")
	file := write(t, t.TempDir(), "token", "one\n")
	c := serve(t, tokens(&valid), func(c *Config) { c.Token, c.TokenFile = "", file })
	echo := func() error {
		var out string
		err := c.Do(t.Context(), Request{Method: "POST", Path: "/", Body: "hello"}, &out)
		if err == nil && out != "hello" {
			err = fmt.Errorf("answer %q", out)
		}
		return err
	}
	if err := echo(); err != nil {
		t.Fatal(err)
	}
	valid.Store("two")
	if err := echo(); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("with the old token: %v", err)
	}
	if err := os.WriteFile(file, []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := echo(); err != nil {
		t.Errorf("with the new token: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	valid.Store("three")
	if err := echo(); err == nil || !strings.Contains(err.Error(), "no such file") ||
		errors.Is(err, ErrUnreachable) {
		t.Errorf("without the file: %v", err)
	}
}

func TestExecPlugin(t *testing.T) {
	dir := t.TempDir()
	var valid atomic.Value
	valid.Store("token 1")
	plugin := func(script string) *Exec {
		write(t, dir, "login", "#!/bin/sh\n"+script)
		if err := os.Chmod(dir+"/login", 0o700); err != nil {
			t.Fatal(err)
		}
		return &Exec{Version: "client.authentication.k8s.io/v1", Command: "./login", Dir: dir,
			Args: []string{"arg"}, Env: []string{"PROFILE=x"}, Hint: "install it"}
	}
	run := func(e *Exec) error {
		c := serve(t, tokens(&valid), func(c *Config) { c.Token, c.Exec = "", e })
		for range 2 {
			if err := c.Do(t.Context(), Request{Path: "/"}, nil); err != nil {
				return err
			}
		}
		valid.Store("token 2")
		return c.Do(t.Context(), Request{Path: "/"}, nil)
	}
	// It is asked once, and again after a refusal.
	counts := plugin(`[ "$1$PROFILE" = argx ] && echo "$KUBERNETES_EXEC_INFO" | grep -q v1 || exit 1
echo x >>` + dir + `/calls
echo "{\"status\": {\"token\": \"token $(wc -l <` + dir + `/calls)\"}}"`)
	if err := run(counts); err != nil {
		t.Error(err)
	}
	if calls, err := os.ReadFile(dir + "/calls"); string(calls) != "x\nx\n" {
		t.Errorf("calls: %q, %v", calls, err)
	}
	for script, want := range map[string]string{
		"echo no cluster >&2; exit 3": "exec plugin ./login: no cluster: exit status 3",
		"echo secret":                 "printed no ExecCredential",
		"echo '{}'":                   "printed no ExecCredential",
		`echo '{"status": {"clientCertificateData": "x"}}'`: "client certificate",
	} {
		err := run(plugin(script))
		if err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %q", script, err, want)
		}
	}
	missing := plugin("")
	missing.Command = "sandboxd-no-such-program"
	if err := run(missing); err == nil || !strings.Contains(err.Error(), "install it") {
		t.Errorf("missing: %v", err)
	}
}

// object is an object of a fake server.
type object struct {
	Metadata Meta `json:"metadata"`
}

func named(name, version string) object {
	return object{Meta{Name: name, ResourceVersion: version}}
}

// story is what a fake server answers to lists and watches, and what Follow makes of it.
type story struct {
	mu   sync.Mutex
	asks []string // queries, in order
	saw  []string
	done context.CancelFunc
}

func (s *story) see(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saw = append(s.saw, fmt.Sprintf(format, args...))
	if strings.HasPrefix(s.saw[len(s.saw)-1], "put end") {
		s.done()
	}
}

// A follower pages through lists, continues watches where they ended, and lists again when its
// version has expired or the connection broke.
func TestFollow(t *testing.T) {
	s := new(story)
	var ctx context.Context
	ctx, s.done = context.WithCancel(t.Context())
	event := func(w http.ResponseWriter, kind string, o any) {
		_ = json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": o})
		w.(http.Flusher).Flush()
	}
	page := func(w http.ResponseWriter, version, next string, all ...object) {
		_ = json.NewEncoder(w).Encode(map[string]any{"items": all,
			"metadata": map[string]string{"resourceVersion": version, "continue": next}})
	}
	watches := 0
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Get("labelSelector") != "a=b" {
			t.Errorf("selector %q", q.Get("labelSelector"))
		}
		if q.Get("watch") == "" {
			s.asks = append(s.asks, "list "+q.Get("continue"))
			if q.Get("continue") == "" {
				page(w, "10", "more", named("one", "3"))
			} else {
				page(w, "10", "", named("two", "4"))
			}
			return
		}
		s.asks = append(s.asks, "watch "+q.Get("resourceVersion"))
		switch watches++; watches {
		case 1:
			event(w, "ADDED", named("three", "11"))
			event(w, "MODIFIED", named("one", "12"))
			event(w, "DELETED", named("two", "13"))
			event(w, "BOOKMARK", named("", "20"))
		case 2:
			event(w, "ERROR", map[string]any{"kind": "Status", "code": 410})
		case 3:
			event(w, "ADDED", named("four", "21"))
			panic(http.ErrAbortHandler)
		default:
			event(w, "ADDED", named("end", "22"))
		}
	})
	err := Follow(ctx, c, c.Path("pods"), url.Values{"labelSelector": {"a=b"}}, Changes[object]{
		Replace: func(all []object) {
			names := ""
			for _, o := range all {
				names += " " + o.Metadata.Name
			}
			s.see("all%s", names)
		},
		Put:    func(o object) { s.see("put %s", o.Metadata.Name) },
		Delete: func(o object) { s.see("delete %s", o.Metadata.Name) },
		Lost:   func(error) { s.see("lost") },
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	want := []string{"all one two", "put three", "put one", "delete two", "all one two", "put four",
		"lost", "all one two", "put end"}
	if diff := cmp.Diff(want, s.saw); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	want = []string{"list ", "list more", "watch 10", "watch 20", "list ", "list more", "watch 10",
		"list ", "list more", "watch 10"}
	if diff := cmp.Diff(want, s.asks); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// A refusal of the first list is final: nothing would change it.
func TestFollowRefused(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, 403, "Forbidden", "no")
	})
	err := Follow(t.Context(), c, c.Path("pods"), nil, Changes[object]{})
	if !errors.Is(err, ErrForbidden) {
		t.Errorf("%v", err)
	}
}

// socket returns the handler of a stream.
func socket(t *testing.T, protocol string, talk func(context.Context, *websocket.Conn,
	*http.Request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{protocol}})
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = ws.CloseNow() }()
		talk(r.Context(), ws, r)
	}
}

func send(ctx context.Context, ws *websocket.Conn, channel byte, text string) {
	_ = ws.Write(ctx, websocket.MessageBinary, append([]byte{channel}, text...))
}

// echo sends what it receives on channel 0 back on channel out, until the input ends.
func echo(ctx context.Context, ws *websocket.Conn, out byte) {
	for {
		_, m, err := ws.Read(ctx)
		if err != nil || m[0] == channelClose {
			return
		}
		send(ctx, ws, out, string(m[1:]))
	}
}

func TestExec(t *testing.T) {
	c := serve(t, socket(t, "v5.channel.k8s.io", func(ctx context.Context, ws *websocket.Conn,
		r *http.Request) {
		if want := "/api/v1/namespaces/boxes/pods/p/exec?command=a&command=b+c&container=s&" +
			"stderr=true&stdin=true&stdout=true"; r.URL.String() != want ||
			r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("%s, %v", r.URL, r.Header)
		}
		echo(ctx, ws, channelOut)
		send(ctx, ws, channelErr, "it\x1b failed")
		send(ctx, ws, channelStatus, `{"status": "Failure", "message": "exit code 3"}`)
		_ = ws.Close(websocket.StatusNormalClosure, "")
	}))
	s, err := c.Exec(t.Context(), "p", "s", "a", "b c")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	text := strings.Repeat("0123456789", 20_000) // several messages
	go func() {
		_, _ = io.WriteString(s, text)
		_ = s.CloseWrite()
	}()
	got, err := io.ReadAll(s)
	if string(got) != text {
		t.Errorf("%d bytes came back, want %d", len(got), len(text))
	}
	if err == nil || err.Error() != "exit code 3: it  failed" {
		t.Errorf("the end: %v", err)
	}
}

func TestAttach(t *testing.T) {
	c := serve(t, socket(t, "v5.channel.k8s.io", func(ctx context.Context, ws *websocket.Conn,
		r *http.Request) {
		if want := "/api/v1/namespaces/boxes/pods/p/attach?container=s&stdin=true"; r.URL.String() !=
			want {
			t.Errorf("%s", r.URL)
		}
		echo(ctx, ws, channelOut)
		send(ctx, ws, channelStatus, `{"status": "Success"}`)
		_ = ws.Close(websocket.StatusNormalClosure, "")
	}))
	s, err := c.Attach(t.Context(), "p", "s")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(s); len(got) > 0 || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestForward(t *testing.T) {
	c := serve(t, socket(t, "v4.channel.k8s.io", func(ctx context.Context, ws *websocket.Conn,
		r *http.Request) {
		send(ctx, ws, 0, "\x16\x1f") // the port, once for each channel
		send(ctx, ws, 1, "\x16\x1f")
		if r.URL.Query().Get("ports") == "7958" {
			echo(ctx, ws, 0)
			return
		}
		send(ctx, ws, 1, "connection\nrefused")
		_, _, _ = ws.Read(ctx)
	}))
	s, err := c.Forward(t.Context(), "p", 7958)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	buf := make([]byte, 5)
	if _, err := io.WriteString(s, "hello"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(s, buf); string(buf) != "hello" {
		t.Errorf("%q, %v", buf, err)
	}
	if err := s.CloseWrite(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("CloseWrite: %v", err)
	}
	// A deadline in the past ends it, and Close ends what waits.
	if err := s.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(buf); err == nil {
		t.Error("a read after the deadline has no error")
	}
	other, err := c.Forward(t.Context(), "p", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Read(buf); err == nil ||
		err.Error() != "port forward: connection refused" {
		t.Errorf("%v", err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := other.Read(buf)
		ended <- err
	}()
	other.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("a read of a closed stream: %v", err)
	}
}

func TestStreamRefused(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, 404, "NotFound", `pods "p" not found`)
	})
	if _, err := c.Forward(t.Context(), "p", 1); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
	old := serve(t, socket(t, "base64.binary.k8s.io", func(context.Context, *websocket.Conn,
		*http.Request) {
	}))
	if _, err := old.Exec(t.Context(), "p", "s"); err == nil ||
		!strings.Contains(err.Error(), "too old") {
		t.Errorf("an old server: %v", err)
	}
}
