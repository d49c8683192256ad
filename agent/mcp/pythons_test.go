package mcp_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"

	"github.com/sandboxd/sandboxd/agent/agenttest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/shortdir"
)

// jupyter makes the sandbox py of g, whose Python is a server of the test's: its kernels run code
// by run, and a context that is called bad has none. started counts how often it was looked for.
func jupyter(t *testing.T, g *agenttest.Gateway, run func(code string)) (started func() int) {
	t.Helper()
	dir := shortdir.New(t) // for a socket
	sock, log := filepath.Join(dir, "sock"), filepath.Join(dir, "log")
	starter := fmt.Sprintf(
		"#!/bin/sh\ncat >/dev/null\necho started >>%s\necho '{\"sock\": \"%s\", \"token\": "+
			"\"t\", \"dir\": \"/\"}'\n",
		log,
		sock,
	)
	py := filepath.Join(dir, "python3")
	if err := os.WriteFile(py, []byte(starter), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	if _, err := g.Hub.Create(t.Context(), alice,
		lifecycle.NewSpec{Name: "py", Env: []string{"PATH=" + dir + ":" + os.Getenv("PATH")}},
		nil); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			switch {
			case strings.Contains(string(body), "sandboxd-context-bad"):
				http.Error(w, `{"message": "no kernel today"}`, http.StatusInternalServerError)
			case !strings.HasSuffix(r.URL.Path, "/channels"):
				_, _ = io.WriteString(
					w,
					`{"id": "s", "execution_state": "busy", "kernel": {"id": "k"}}`,
				)
			default:
				serveKernel(t, w, r, run)
			}
		}),
	)
	server.Listener.Close()
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	return func() int {
		text, _ := os.ReadFile(log)
		return strings.Count(string(text), "started")
	}
}

func serveKernel(t *testing.T, w http.ResponseWriter, r *http.Request, run func(code string)) {
	c, err := websocket.Accept(w, r, nil)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.CloseNow()
	for {
		_, text, err := c.Read(r.Context())
		if err != nil {
			return
		}
		var m struct {
			Header struct {
				ID   string `json:"msg_id"`
				Kind string `json:"msg_type"`
			}
			Content struct{ Code string }
		}
		if err := json.Unmarshal(text, &m); err != nil {
			t.Error(err)
			return
		}
		reply := "kernel_info_reply"
		if m.Header.Kind == "execute_request" {
			reply = "execute_reply"
			run(m.Content.Code)
		}
		for _, said := range [][3]string{{reply, "shell", `"status": "ok"`},
			{"status", "iopub", `"execution_state": "idle"`}} {
			_ = c.Write(
				r.Context(),
				websocket.MessageText,
				fmt.Appendf(
					nil,
					`{"header": {"msg_type": %q}, "parent_header": {"msg_id": %q}, "channel": %q, "content": {%s}}`,
					said[0],
					m.Header.ID,
					said[1],
					said[2],
				),
			)
		}
	}
}

// After a call finds a broken connection to Python, later calls open a new one. Running calls are
// not affected.
func TestPythonShared(t *testing.T) {
	running, end := make(chan struct{}), make(chan struct{})
	var once sync.Once
	g := agenttest.New(t)
	started := jupyter(t, g, func(code string) {
		if code == "long" {
			once.Do(func() { close(running) })
			<-end
		}
	})
	c := client(t, g, nil)
	var calls sync.WaitGroup
	calls.Go(func() {
		if object, said, failed := call(t, c, "python",
			args{"sandbox": "py", "code": "long"}); failed ||
			object["ended"] != "done" {
			t.Errorf("a call that was under way: %v, %s", object, said)
		}
	})
	began := make(chan struct{})
	go func() { calls.Wait(); close(began) }()
	select {
	case <-running:
	case <-began:
		t.FailNow() // the call has said why
	}
	var others sync.WaitGroup
	var worked atomic.Int32
	for i := range 6 {
		others.Go(func() {
			context := "bad"
			if i%2 == 0 {
				context = fmt.Sprintf("c%d", i)
			}
			_, said, failed := call(t, c, "python",
				args{"sandbox": "py", "code": "short", "context": context},
			)
			if failed != (context == "bad") {
				t.Errorf("context %s: failed %v: %s", context, failed, said)
			}
			if !failed {
				worked.Add(1)
			}
		})
	}
	others.Wait()
	close(end)
	calls.Wait()
	if _, said, failed := call(t, c, "python", args{"sandbox": "py", "code": "short"}); failed ||
		worked.Load() != 3 {
		t.Errorf("afterwards: %s, %d worked", said, worked.Load())
	}
	if n := started(); n < 2 || n > 4 {
		t.Errorf("Python was looked for %d times", n)
	}
}
