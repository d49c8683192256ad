package python

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/connect"
)

// fake returns an Interpreter on a fake server, as a hostile root of the sandbox could run. kernel
// serves the WebSocket of a kernel. other, if not nil, serves requests first.
func fake(
	t *testing.T,
	kernel func(context.Context, *websocket.Conn),
	other http.HandlerFunc,
) *Interpreter {
	t.Helper()
	return fakeOf(t, []string{subprotocol}, kernel, other)
}

// fakeOf is fake with these subprotocols.
func fakeOf(
	t *testing.T,
	subprotocols []string,
	kernel func(context.Context, *websocket.Conn),
	other http.HandlerFunc,
) *Interpreter {
	t.Helper()
	life, end := context.WithCancel(context.Background())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case other != nil:
			other(w, r.WithContext(life))
		case strings.HasSuffix(r.URL.Path, "/channels"):
			c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: subprotocols})
			if err != nil {
				t.Error(err)
				return
			}
			defer c.CloseNow()
			c.SetReadLimit(-1)
			kernel(life, c)
		case strings.HasSuffix(r.URL.Path, "/gone"):
			http.NotFound(w, r)
		default:
			_, _ = io.WriteString(
				w,
				`{"id": "s", "execution_state": "idle", "kernel": {"id": "k"}}`,
			)
		}
	}))
	nowhere := agent.NewClient(
		"box",
		nil,
		func(context.Context) (*connect.Conn, error) { return nil, errors.New("no way there") },
	)
	in := newInterpreter(
		nowhere,
		Options{Timeout: time.Minute, Idle: time.Minute, Limits: Limits{}.orDefaults()},
	)
	in.dialer.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
	}
	t.Cleanup(func() {
		end()
		in.Close()
		nowhere.Close()
		server.CloseClientConnections()
		server.Close()
	})
	return in
}

// asked reads a request and returns its ID, or "" at the end.
func asked(ctx context.Context, c *websocket.Conn) string {
	_, text, err := c.Read(ctx)
	if err != nil {
		return ""
	}
	understand := parse
	if c.Subprotocol() == subprotocol {
		understand = unframe
	}
	m, _ := understand(text) // a valid message of this package
	return m.Header.ID
}

// tell sends a message.
func tell(ctx context.Context, c *websocket.Conn, parent, kind, channel, content string) {
	head, of := `{"msg_type": "`+kind+`"}`, `{"msg_id": "`+parent+`"}`
	if c.Subprotocol() == subprotocol {
		_ = c.Write(ctx, websocket.MessageBinary, said(channel, head, of, content))
		return
	}
	_ = c.Write(
		ctx,
		websocket.MessageText,
		[]byte(
			`{"header": `+head+`, "parent_header": `+of+`, "channel": "`+channel+`", "content": `+
				content+`}`,
		),
	)
}

// greet replies to the first request, as a started kernel does.
func greet(ctx context.Context, c *websocket.Conn) {
	hello := asked(ctx, c)
	tell(ctx, c, hello, "kernel_info_reply", "shell", `{"status": "ok"}`)
	tell(ctx, c, hello, "status", "iopub", `{"execution_state": "idle"}`)
}

// A reply that is lost is asked for again.
func TestLostReply(t *testing.T) {
	in := fake(t, func(ctx context.Context, c *websocket.Conn) {
		lost := asked(ctx, c)
		hello := asked(ctx, c)
		if hello != lost {
			t.Errorf("another request: %s, not %s", hello, lost)
		}
		tell(ctx, c, hello, "kernel_info_reply", "shell", `{"status": "ok"}`)
		tell(ctx, c, hello, "status", "iopub", `{"execution_state": "idle"}`)
		_ = asked(ctx, c)
	}, nil)
	soon(t, "a context", func() {
		if _, err := in.Context(t.Context(), "main"); err != nil {
			t.Error(err)
		}
	})
}

// A server may pass on a reply before it has subscribed to the kernel's status: the kernel is not
// ready for a call, whose end would not be seen.
func TestLateSubscription(t *testing.T) {
	in := fake(t, func(ctx context.Context, c *websocket.Conn) {
		hello := asked(ctx, c)
		tell(ctx, c, hello, "kernel_info_reply", "shell", `{"status": "ok"}`)
		if asked(ctx, c) != hello {
			return // the call
		}
		tell(ctx, c, hello, "status", "iopub", `{"execution_state": "idle"}`)
		id := asked(ctx, c)
		tell(ctx, c, id, "execute_reply", "shell", `{"status": "ok"}`)
		tell(ctx, c, id, "status", "iopub", `{"execution_state": "idle"}`)
		_ = asked(ctx, c)
	}, nil)
	soon(t, "a call", func() {
		c, err := in.Context(t.Context(), "main")
		if err != nil {
			t.Error(err)
			return
		}
		if res, err := c.Execute(t.Context(), Call{Code: "1"}); err != nil || !res.OK {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

// quiet is a kernel that starts, and then says nothing and reads nothing.
func quiet(ctx context.Context, c *websocket.Conn) {
	greet(ctx, c)
	<-ctx.Done()
}

// soon fails a test whose call does not return by itself.
func soon(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s does not come back", what)
	}
}

// A silent kernel, a silent server and an endless response are errors within a limited time.
func TestSilence(t *testing.T) {
	endless := func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, strings.Repeat(" ", 4<<10)); err != nil {
				return
			}
			if err := http.NewResponseController(w).Flush(); err != nil {
				return
			}
		}
	}
	for what, in := range map[string]*Interpreter{
		"a silent kernel": fake(t, func(ctx context.Context, c *websocket.Conn) {
			for asked(ctx, c) != "" {
			}
		}, nil),
		"a silent server": fake(t, nil, func(_ http.ResponseWriter,
			r *http.Request) {
			<-r.Context().Done()
		}),
	} {
		in.patience = 200 * time.Millisecond
		soon(t, what, func() {
			if _, err := in.Context(t.Context(), "main"); !errors.Is(
				err,
				&agent.Error{Code: agent.CodeUnavailable},
			) ||
				!strings.Contains(err.Error(), "took longer") {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	in := fake(t, nil, endless)
	soon(t, "an endless answer", func() {
		if list, err := in.List(t.Context()); err == nil {
			t.Errorf("an endless answer: %v", list)
		}
	})
}

// A server that does not read cannot block a call beyond its timeout.
func TestUnread(t *testing.T) {
	in := fake(t, quiet, nil)
	c, err := in.Context(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	soon(t, "a call", func() {
		res, err := c.Execute(
			t.Context(),
			Call{Code: strings.Repeat("#", maxCode), Timeout: 300 * time.Millisecond},
		)
		if err != nil || res.Ended != agent.EndedDead && res.Ended != agent.EndedDeadline {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

// A call that is canceled while its code is being sent keeps the connection, so that the code can
// be interrupted.
func TestCanceledWhileSending(t *testing.T) {
	begun, canceled, read := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	in := fake(t, func(ctx context.Context, c *websocket.Conn) {
		greet(ctx, c)
		_, r, err := c.Reader(ctx)
		if err != nil {
			read <- err
			return
		}
		close(begun)
		<-canceled
		text, err := io.ReadAll(r)
		read <- err
		m, _ := unframe(text) // a valid message of this package
		tell(ctx, c, m.Header.ID, "execute_reply", "shell", `{"status": "aborted"}`)
		tell(ctx, c, m.Header.ID, "status", "iopub", `{"execution_state": "idle"}`)
		<-ctx.Done()
	}, nil)
	c, err := in.Context(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-begun
		cancel()
		close(canceled)
	}()
	soon(t, "a call", func() {
		res, err := c.Execute(ctx, Call{Code: strings.Repeat("#", maxCode)})
		if !errors.Is(err, context.Canceled) || res.Ended != agent.EndedInterrupted ||
			res.Restart {
			t.Errorf("%+v, %v", res, err)
		}
	})
	if err := <-read; err != nil {
		t.Errorf("the server reads the code: %v", err)
	}
}

// A call is not rejected while another client opens the same context.
func TestBeginning(t *testing.T) {
	greeting := make(chan struct{})
	in := fake(t, func(ctx context.Context, c *websocket.Conn) {
		hello := asked(ctx, c)
		close(greeting)
		id := asked(ctx, c)
		for id == hello { // it is repeated while there is no reply
			id = asked(ctx, c)
		}
		tell(ctx, c, hello, "kernel_info_reply", "shell", `{"status": "ok"}`)
		tell(ctx, c, hello, "status", "iopub", `{"execution_state": "idle"}`)
		tell(ctx, c, id, "status", "iopub", `{"execution_state": "idle"}`)
		tell(ctx, c, id, "execute_reply", "shell", `{"status": "ok"}`)
		_ = asked(ctx, c)
	}, nil)
	opened := make(chan error, 1)
	go func() {
		_, err := in.Context(t.Context(), "main")
		opened <- err
	}()
	<-greeting
	c, err := in.Context(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	if res, err := c.Execute(t.Context(), Call{Code: "1"}); err != nil || !res.OK {
		t.Errorf("%+v, %v", res, err)
	}
	if err := <-opened; err != nil {
		t.Error(err)
	}
}

// The memory of a message with many tiny parts is proportional to its bytes.
func TestManyParts(t *testing.T) {
	parts := func(part string) string {
		return strings.TrimSuffix(strings.Repeat(part+",", 16<<20/(len(part)+1)), ",")
	}
	for what, text := range map[string]string{
		"forms":     `{"header":{"msg_type":"display_data"},"content":{"data":{` + parts(`"":1`) + `}}}`,
		"traceback": `{"header":{"msg_type":"error"},"content":{"ename":"E","traceback":[` + parts(`""`) + `]}}`,
		"lines":     `{"header":{"msg_type":"display_data"},"content":{"data":{"image/png":[` + parts(`""`) + `]}}}`,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		m, err := parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		o, ok := m.output()
		if !ok {
			t.Fatalf("%s: no output", what)
		}
		new(gallery).add(&Context{}, &o)
		_ = o.String()
		runtime.ReadMemStats(&after)
		if used := (after.TotalAlloc - before.TotalAlloc) / uint64(len(text)); used > 12 {
			t.Errorf("%s: %d bytes for each", what, used)
		}
	}
	in := fake(t, nil, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(
			w,
			"["+strings.TrimSuffix(strings.Repeat("{},", maxAnswer/3-1), ",")+"]",
		)
	})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := in.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 40<<20 {
		t.Errorf("a list of sessions: %d MiB", used>>20)
	}
}

// The type of an image is that of its bytes.
func TestClaims(t *testing.T) {
	for what, c := range map[string]struct{ data, image string }{
		"a picture":            {`{"image/png": "iVBORw0KGgoAAAAN"}`, "image/png"},
		"a page":               {`{"image/png": "PGh0bWw+PHNjcmlwdD4="}`, ""},
		"another picture":      {`{"image/png": "R0lGODlhAQABAA=="}`, ""},
		"the second form":      {`{"image/png": "AAAA", "image/gif": "R0lGODlhAQABAA=="}`, "image/gif"},
		"a drawing":            {`{"image/svg+xml": "<?xml version=\"1.0\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\"/>"}`, "image/svg+xml"},
		"a drawing that isn't": {`{"image/svg+xml": "GIF89a"}`, ""},
	} {
		var o Output
		if err := json.Unmarshal([]byte(c.data), &o.Data); err != nil {
			t.Fatal(err)
		}
		var g gallery
		g.add(&Context{}, &o)
		if mime, _ := o.Picture(); mime != c.image || (o.Image != "") != (c.image != "") {
			t.Errorf("%s: %q, image %q", what, mime, o.Image)
		}
	}
}

// The limits of images and contexts of an Interpreter hold for any number of contexts.
func TestManyContexts(t *testing.T) {
	picture := `{"image/png": "iVBORw0KGgoA` + strings.Repeat("A", 24<<20) + `"}`
	in := fake(t, func(ctx context.Context, c *websocket.Conn) {
		greet(ctx, c)
		for id := asked(ctx, c); id != ""; id = asked(ctx, c) {
			tell(ctx, c, id, "display_data", "iopub", `{"data": `+picture+`}`)
			tell(ctx, c, id, "status", "iopub", `{"execution_state": "idle"}`)
			tell(ctx, c, id, "execute_reply", "shell", `{"status": "ok"}`)
		}
	}, nil)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	kept := 0
	var all []*Context
	for _, name := range []string{"a", "b", "c", "d"} {
		c, err := in.Context(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
		if res, err := c.Execute(t.Context(),
			Call{Code: "show()", Timeout: 10 * time.Minute}); err != nil ||
			!res.OK ||
			res.Outputs[0].Image != "1" {
			t.Fatalf("%s: %s, %v", name, res.Ended, err)
		}
	}
	for _, c := range all {
		for _, i := range c.Images() {
			kept += i.Size
		}
	}
	if kept > maxImageBytes || len(all[3].Images()) != 1 {
		t.Errorf(
			"%d MiB of images are kept, %d of the last context",
			kept>>20,
			len(all[3].Images()),
		)
	}
	if err := all[3].Close(t.Context()); err != nil || len(all[3].Images()) != 0 {
		t.Errorf("a closed context has %d images, %v", len(all[3].Images()), err)
	}
	for i := range 2 * maxContexts { // those without a kernel are removed
		if _, err := in.Context(gone, "gone"+strconv.Itoa(i)); !errors.Is(err, context.Canceled) {
			t.Fatalf("context %d without a kernel: %v", i, err)
		}
	}
	for i := range maxContexts {
		if _, err := in.Context(t.Context(), "x"+strconv.Itoa(i)); errors.Is(
			err,
			&agent.Error{Code: agent.CodeLimitSessions},
		) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Errorf("%d contexts, and none is refused", maxContexts+3)
}

// While code runs, watch opens no connection, which would start a stopped sandbox.
func TestWatchDoesNotDial(t *testing.T) {
	dialled := 0
	client := agent.NewClient("box", nil, func(context.Context) (*connect.Conn, error) {
		dialled++
		return nil, errors.New("no way there")
	})
	defer client.Close()
	in := newInterpreter(client, Options{})
	defer in.Close()
	c := &Context{in: in, name: "main", kernel: "k"}
	if _, err := c.state(passive(t.Context())); !errors.Is(err, errNotConnected) || dialled != 0 {
		t.Errorf("%v, dialled %d times", err, dialled)
	}
	if c.alive(t.Context()) || dialled == 0 {
		t.Errorf("a new call dialled %d times", dialled)
	}
}

// watch uses the open connection to check whether the kernel has ended.
func TestWatchAsksWhereConnected(t *testing.T) {
	in := fake(t, nil, nil)
	c := &Context{in: in, name: "main", kernel: "k"}
	if !c.alive(t.Context()) {
		t.Fatal("the kernel is not alive")
	}
	in.dialer.DialContext = func(context.Context, string, string) (net.Conn, error) {
		return nil,
			errNotConnected
	}
	if state, err := c.state(passive(t.Context())); err != nil || state != "idle" {
		t.Errorf("%q, %v", state, err)
	}
}

// The messages of a kernel that shuts down are no reason to believe that it still runs: the next
// call asks the server, and gets a new kernel.
func TestMessagesOfTheEnd(t *testing.T) {
	in := fake(t, quiet, nil)
	c, err := in.Context(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	first := c.link
	c.kernel = "gone"
	c.mu.Unlock()
	if l, err := c.connected(t.Context()); err != nil || l != first {
		t.Fatalf("a kernel that has just replied was replaced: %v", err)
	}
	c.handle(
		first,
		&message{Header: header{Type: "status"}, Parent: header{Type: "shutdown_request"}},
	)
	if l, err := c.connected(t.Context()); err != nil || l == first {
		t.Errorf("a kernel that has shut down was used: %v", err)
	}
}

// A server may end, because it was idle, between the start of a kernel and the connection to it.
// The context then starts both again. A server that always does so is an error.
func TestServerEndsMeanwhile(t *testing.T) {
	for _, ends := range []int64{1, 2} {
		var dials atomic.Int64
		in := fake(t, nil, func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, "/channels") {
				_, _ = io.WriteString(w, `{"id": "s", "kernel": {"id": "k"}}`)
				return
			}
			if dials.Add(1) <= ends {
				panic(http.ErrAbortHandler)
			}
			c, err := websocket.Accept(w, r,
				&websocket.AcceptOptions{Subprotocols: []string{subprotocol}})
			if err != nil {
				t.Error(err)
				return
			}
			defer c.CloseNow()
			quiet(r.Context(), c)
		})
		soon(t, "the connection", func() {
			c := &Context{in: in, name: "main"}
			_, err := c.connected(t.Context())
			if (err != nil) != (ends > 1) || dials.Load() != 2 {
				t.Errorf("the server ended %d times: %v after %d dials", ends, err, dials.Load())
			}
		})
	}
}
