// Package python runs stateful Python: a Jupyter kernel in a sandbox, over SSH, that keeps its
// variables between calls. Use it for models that compute, plot and analyze data. For programs and
// shells, use package agent.
//
//	in, err := python.Open(ctx, client, python.Options{})
//	c, err := in.Context(ctx, "main")
//	res, err := c.Execute(ctx, python.Call{Code: "x = 41"})
//	res, err = c.Execute(ctx, python.Call{Code: "x + 1"})
//	fmt.Println(res.Outputs[0].Text("text/plain")) // 42
//
// The sandbox needs python3 with ipykernel and jupyter_server, such as in the image
// sandboxd/python. It needs no network: the server listens on a unix socket in the sandbox. Server
// and kernels outlive the client that started them and end after Options.Idle; until then, any
// client can use their contexts again. Data from the sandbox is untrusted: messages, counts and
// sizes are bounded.
//
// An error is a failed connection or a mistake of the caller. What the code did is in the Result.
package python

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Options configure an Interpreter. The zero value works.
type Options struct {
	// Timeout is the default of Call.Timeout. 0 means 120 s.
	Timeout time.Duration

	// Idle is how long a context may be unused before its kernel ends. The server ends after the
	// last kernel. 0 means 30 minutes, a negative value never. The server also ends a kernel that
	// takes longer than this to start. It applies only to a server that this client starts.
	Idle time.Duration

	// Dir is the absolute path of the working directory of code. It is created if it does not
	// exist. Empty means /mnt/data, or the home directory if that cannot be used. Like Idle, it
	// applies only to a server that this client starts.
	Dir string

	// Limits bound the output that a Result keeps.
	Limits Limits
}

// DataDir is the default of Options.Dir. Models expect the files of a conversation in it.
const DataDir = "/mnt/data"

const (
	defaultTimeout = 120 * time.Second
	defaultIdle    = 30 * time.Minute
	maxStart       = 64 << 10 // bytes of output of the start script
	maxAnswer      = 4 << 20  // bytes of one response of the server
	maxContexts    = 100      // open contexts, and listed contexts
	maxSessions    = 10 * maxContexts

	// patience bounds operations other than running code, such as start, list and end.
	patience = 90 * time.Second
)

//go:embed start.py
var starter string

//go:embed kernel.py
var kernel string

// Interpreter is the Python of one sandbox. Create one with Open. Its methods are safe for
// concurrent use.
type Interpreter struct {
	client *agent.Client
	o      Options
	http   *http.Client
	dialer *http.Transport

	patience time.Duration
	gallery  gallery
	room     *room

	mu       sync.Mutex
	server   server              // guarded by mu
	contexts map[string]*Context // guarded by mu; by name
	closed   bool                // guarded by mu
}

// server is the sandbox's Jupyter server, as the start script reports it.
type server struct {
	Sock    string   `json:"sock"`
	Token   string   `json:"token"`
	Dir     string   `json:"dir"`
	Missing []string `json:"missing"`
	Error   string   `json:"error"`
}

// Open connects to the Jupyter server of client's sandbox, and starts it if it does not run. ctx
// bounds the call. The caller closes the Interpreter, then the client. If the image lacks a
// package, the error has code unavailable and a hint how to get one that works.
func Open(ctx context.Context, client *agent.Client, o Options) (*Interpreter, error) {
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Idle == 0 {
		o.Idle = defaultIdle
	}
	if o.Dir == "" {
		o.Dir = DataDir
	}
	if !path.IsAbs(o.Dir) || o.Timeout < 0 {
		return nil, &agent.Error{
			Code: agent.CodeUsage,
			Message: fmt.Sprintf(
				"python: directory %q must be absolute, timeout %v positive",
				o.Dir,
				o.Timeout,
			),
		}
	}
	o.Limits = o.Limits.orDefaults()
	in := newInterpreter(client, o)
	if err := in.start(ctx); err != nil {
		return nil, err
	}
	return in, nil
}

func newInterpreter(client *agent.Client, o Options) *Interpreter {
	in := &Interpreter{
		client:   client,
		o:        o,
		contexts: make(map[string]*Context),
		patience: patience,
		gallery:  gallery{most: o.Limits.Images},
		room:     newRoom(process),
	}
	in.dialer = &http.Transport{
		DisableCompression:     true,
		MaxIdleConnsPerHost:    4,
		MaxResponseHeaderBytes: 64 << 10,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if ctx.Value(passiveKey{}) != nil {
				return nil, errNotConnected
			}
			return client.DialUnix(ctx, in.current().Sock)
		},
	}
	in.http = &http.Client{
		Transport: in,
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}
	return in
}

type passiveKey struct{}

// passive returns ctx for a request that may only use an open connection. Such a request starts
// neither a server nor, by dialling, a stopped sandbox.
func passive(ctx context.Context) context.Context {
	return context.WithValue(ctx, passiveKey{}, true)
}

var errNotConnected = errors.New("no open connection to the server")

// bound returns ctx with a timeout, so that a program that does not respond cannot block a call.
func (in *Interpreter) bound(
	ctx context.Context,
	what string,
) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, in.patience, &agent.Error{Code: agent.CodeUnavailable,
		Message: fmt.Sprintf(
			"python in %s: %s took longer than %v",
			in.client.Sandbox(),
			what,
			in.patience,
		), Hint: "check what runs in the sandbox: sandboxd run " + in.client.Sandbox() + " ps aux"})
}

// exec runs a command with the timeout of bound.
func (in *Interpreter) exec(ctx context.Context, what string, cmd agent.Cmd) (agent.Exit, error) {
	ctx, cancel := in.bound(ctx, what)
	defer cancel()
	exit, err := in.client.Exec(ctx, cmd)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return exit, err
}

// Close closes the connections. Kernels keep running, with their state.
func (in *Interpreter) Close() error {
	in.mu.Lock()
	in.closed = true
	all := in.contexts
	in.contexts = nil
	in.mu.Unlock()
	for _, c := range all {
		c.disconnect()
	}
	in.dialer.CloseIdleConnections()
	return nil
}

// Shutdown ends the server and all kernels, including those of other clients, and closes the
// Interpreter. Programs that code started in a new session (setsid) continue.
func (in *Interpreter) Shutdown(ctx context.Context) error {
	defer in.Close()
	if err := in.call(ctx, http.MethodPost, "/api/shutdown", nil, nil); err != nil {
		return err
	}
	// The server ends its kernels first, so that none runs when its process is gone.
	exit, err := in.exec(
		ctx,
		"the end of the server",
		agent.Cmd{
			Command: "while [ -S " + text.Quote(
				in.current().Sock,
			) + " ] && kill -0 $(sed 's/.*\"pid\": \\([0-9]*\\).*/\\1/' " +
				text.Quote(
					path.Join(path.Dir(in.current().Sock), "server.json"),
				) + ") 2>/dev/null; do sleep 0.05; done",
		},
	)
	if err == nil && exit.Code != 0 {
		err = fmt.Errorf(
			"python in %s: waiting for the end of the server: exit %d",
			in.client.Sandbox(),
			exit.Code,
		)
	}
	return err
}

// quiet is how long a kernel may send nothing before its state is checked.
func (in *Interpreter) quiet() time.Duration {
	if in.o.Idle < 0 {
		return 10 * time.Second
	}
	return min(10*time.Second, in.o.Idle/4)
}

// Dir returns the working directory of code.
func (in *Interpreter) Dir() string { return in.current().Dir }

// RoundTrip sends a request to the sandbox's Jupyter server with its token, and ignores the host of
// the URL. It supports WebSockets. Use the Interpreter as the Transport of a proxy of the server's
// API. See http.RoundTripper.
func (in *Interpreter) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	// names that the server accepts for itself
	r.URL.Scheme, r.URL.Host, r.Host = "http", "localhost", "localhost"
	r.Header.Set("Authorization", "token "+in.current().Token)
	return in.dialer.RoundTrip(r)
}

func (in *Interpreter) current() server {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.server
}

// start runs the start script.
func (in *Interpreter) start(ctx context.Context) error {
	name := in.client.Sandbox()
	ask, err := json.Marshal(
		map[string]any{"kernel": kernel, "dir": in.o.Dir, "idle": max(int(in.o.Idle.Seconds()), 0)},
	)
	if err != nil {
		return err
	}
	out, said := &text.Head{Limit: maxStart}, &text.Head{Limit: maxStart}
	exit, err := in.exec(
		ctx,
		"its start",
		agent.Cmd{
			Command: "exec python3 - " + text.Quote(string(ask)),
			Stdin:   strings.NewReader(starter),
			Stdout:  out,
			Stderr:  said,
		},
	)
	if err != nil {
		return err
	}
	const remedy = "make the sandbox of an image that has it: sandboxd new --image " +
		"sandboxd/python NAME; or in this one: apt-get install -y python3-ipykernel " +
		"jupyter-server"
	var s server
	switch err := json.Unmarshal(out.Bytes(), &s); {
	case exit.Code == 126 || exit.Code == 127:
		return &agent.Error{
			Code:    agent.CodeUnavailable,
			Message: fmt.Sprintf("python in %s: its image has no python3", name),
			Hint:    remedy,
		}
	case len(s.Missing) > 0:
		return &agent.Error{
			Code: agent.CodeUnavailable,
			Message: fmt.Sprintf(
				"python in %s: its image lacks %s",
				name,
				strings.Join(s.Missing, " and "),
			),
			Hint: remedy,
		}
	case s.Error != "":
		return &agent.Error{
			Code:    agent.CodeUnavailable,
			Message: fmt.Sprintf("python in %s: %s", name, s.Error),
			Hint:    remedy,
		}
	case err != nil || exit.Code != 0 || !path.IsAbs(s.Sock) ||
		strings.ContainsFunc(s.Token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return &agent.Error{
			Code: agent.CodeUnavailable,
			Message: fmt.Sprintf(
				"python in %s: the server did not start: exit %d: %s",
				name,
				exit.Code,
				lastLine(said.String()),
			),
			Hint: remedy,
		}
	}
	in.mu.Lock()
	in.server = s
	in.mu.Unlock()
	return nil
}

// request sends a request to the server. If the server has ended, request restarts it once.
func (in *Interpreter) request(
	ctx context.Context,
	method, path string,
	body any,
) (*http.Response, error) {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	for again := false; ; again = true {
		r, err := http.NewRequestWithContext(
			ctx,
			method,
			"http://localhost"+path,
			bytes.NewReader(text),
		)
		if err != nil {
			return nil, err
		}
		r.Header.Set("Content-Type", "application/json")
		resp, err := in.http.Do(r)
		if err == nil {
			return resp, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if again || ctx.Value(passiveKey{}) != nil {
			return nil, fmt.Errorf("jupyter server of %s: %w", in.client.Sandbox(), err)
		}
		if err := in.start(ctx); err != nil {
			return nil, err
		}
	}
}

// errGone reports that the server does not have the kernel.
var errGone = errors.New("no such kernel")

// call is request with a JSON response, which it decodes into answer.
func (in *Interpreter) call(ctx context.Context, method, path string, body, answer any) error {
	ctx, cancel := in.bound(ctx, "an answer of its Jupyter server")
	defer cancel()
	resp, err := in.request(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case resp.StatusCode == http.StatusNotFound:
		return errGone
	case resp.StatusCode/100 != 2:
		var e struct{ Message string }
		_ = json.Unmarshal(text, &e) // without a message, the status must do
		return &agent.Error{
			Code: agent.CodeUnavailable,
			Message: fmt.Sprintf(
				"jupyter server of %s: %s: %.500s",
				in.client.Sandbox(),
				resp.Status,
				e.Message,
			),
		}
	case err != nil:
		return fmt.Errorf("jupyter server of %s: %w", in.client.Sandbox(), err)
	case answer == nil || len(text) == 0:
		return nil
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("jupyter server of %s: %w", in.client.Sandbox(), err)
	}
	return nil
}

// session is a session of the server, which holds one context.
type session struct {
	ID     string `json:"id"`
	Path   string `json:"path"`
	Kernel struct {
		ID           string    `json:"id"`
		State        string    `json:"execution_state"`
		LastActivity time.Time `json:"last_activity"`
	} `json:"kernel"`
}

// prefix begins the paths of this package's contexts among the server's sessions.
const prefix = "sandboxd-context-"

// Info is one context in a list.
type Info struct {
	Name string `json:"name"`
	// State is Jupyter's state of the kernel: starting, idle, busy, restarting or dead.
	State      string    `json:"state"`
	LastActive time.Time `json:"last_active"`
}

// List returns all contexts that have a kernel, of any client, sorted by name.
func (in *Interpreter) List(ctx context.Context) ([]Info, error) {
	var all some[session]
	if err := in.call(ctx, http.MethodGet, "/api/sessions", nil, &all); err != nil {
		return nil, err
	}
	list := []Info{}
	for _, s := range all.first(maxSessions) {
		name, ours := strings.CutPrefix(s.Path, prefix)
		if _, err := wire.ParseLabel("context name", name); ours && err == nil &&
			len(list) < maxContexts {
			list = append(
				list,
				Info{
					Name:       name,
					State:      fmt.Sprintf("%.20s", s.Kernel.State),
					LastActive: s.Kernel.LastActivity,
				},
			)
		}
	}
	slices.SortFunc(list, func(a, b Info) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// Context returns the context of that name, which is a label like the name of a session. It starts
// the kernel if there is none. Calls with the same name return the same Context. ctx bounds the
// call.
func (in *Interpreter) Context(ctx context.Context, name string) (*Context, error) {
	if _, err := wire.ParseLabel("context name", name); err != nil {
		return nil, err
	}
	in.mu.Lock()
	c := in.contexts[name]
	if c == nil && !in.closed && len(in.contexts) >= maxContexts && !in.forgetLocked() {
		in.mu.Unlock()
		return nil, &agent.Error{
			Code: agent.CodeLimitSessions,
			Message: fmt.Sprintf(
				"python in %s: the limit of %d open contexts is reached",
				in.client.Sandbox(),
				maxContexts,
			),
			Hint: "use one of them, or close one",
		}
	}
	if c == nil && !in.closed {
		c = &Context{in: in, name: name}
		in.contexts[name] = c
	}
	in.mu.Unlock()
	if c == nil {
		return nil, errClosed
	}
	if err := c.ready(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// forgetLocked removes a context without a connection and a call, and reports whether there was
// one.
func (in *Interpreter) forgetLocked() bool {
	for name, c := range in.contexts {
		if c.unused() {
			delete(in.contexts, name)
			c.disconnect()
			in.gallery.forget(c)
			return true
		}
	}
	return false
}

var errClosed = errors.New("python: the interpreter is closed")

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}
