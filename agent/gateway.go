package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Gateway creates, lists and removes the sandboxes of one daemon. Its methods are safe for
// concurrent use.
//
//	g, err := agent.DialGateway(ctx, "ssh://localhost:2222", agent.Options{})
//	sb, err := g.Create(ctx, agent.Spec{Image: "sandboxd/python"})
//	sh, err := g.Shell(ctx, sb.Name)
//	res, err := sh.Run(ctx, "python3 --version")
//	err = g.Remove(ctx, sb.Name)
//
// An error that the daemon reports is an [*Error] with a code to branch on.
type Gateway struct {
	daemon Daemon
	close  func() error

	mu      sync.Mutex
	clients map[string]*Client // guarded by mu; connections of Shell, by sandbox
	closed  bool               // guarded by mu
}

// Daemon is the connection of a Gateway to its daemon. [DialGateway] connects over SSH. A program
// that connects in another way implements Daemon and calls [NewGateway]. Its methods are safe for
// concurrent use.
type Daemon interface {
	// Dial connects to an existing sandbox. The caller closes the Client.
	Dial(ctx context.Context, sandbox string) (*Client, error)

	// Command runs one command of the daemon, such as "ls", "--json", and returns its standard
	// output. progress receives its messages for people as they arrive; nil discards them. A
	// command that fails is an error: an *Error if the daemon gave a reason.
	Command(ctx context.Context, progress io.Writer, words ...string) ([]byte, error)
}

// NewGateway returns a Gateway that uses d. Its Close closes the connections that Shell opened, but
// not d.
func NewGateway(d Daemon) *Gateway {
	return &Gateway{
		daemon:  d,
		close:   func() error { return nil },
		clients: make(map[string]*Client),
	}
}

// DialGateway connects to the daemon at uri: ssh://HOST[:PORT], HOST:PORT, or an alias of the
// user's ssh configuration. A user name in uri is ignored. The options are those of [Dial], without
// Kind and Create. ctx bounds the dial, not the connection. The caller closes the Gateway. Errors
// are those of Dial.
func DialGateway(ctx context.Context, uri string, o Options) (*Gateway, error) {
	t, err := parseURI(uri)
	if err != nil {
		return nil, err
	}
	o.Kind, o.Create = KindGateway, false
	d := &dialer{target: t, options: o, passwords: newPasswords(o.Host.Password)}
	d.target.user = wire.ControlHost
	control, err := d.gateway(ctx, uri)
	if err != nil {
		return nil, public(err)
	}
	g := NewGateway(&remote{dialer: d, control: control})
	g.close = control.Close
	return g, nil
}

// Create creates a sandbox and returns when it is ready for use. After an error, nothing is left
// behind. The zero Spec means the daemon's defaults and a generated name.
func (g *Gateway) Create(ctx context.Context, spec Spec) (Sandbox, error) {
	words, err := spec.words()
	if err != nil {
		return Sandbox{}, err
	}
	var sb Sandbox
	return sb, g.decode(ctx, spec.Progress, &sb, words...)
}

// List returns the caller's sandboxes and those shared with the caller, sorted by name.
func (g *Gateway) List(ctx context.Context) ([]Sandbox, error) {
	out, err := g.Command(ctx, nil, "ls", "--json")
	if err != nil {
		return nil, err
	}
	all := []Sandbox{}
	for lines := json.NewDecoder(bytes.NewReader(out)); ; {
		var sb Sandbox
		if err := lines.Decode(&sb); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("ls: %w", err)
		}
		all = append(all, sb)
	}
}

// Describe returns a sandbox with its details, which the daemon and the sandbox report.
func (g *Gateway) Describe(ctx context.Context, name string) (Description, error) {
	return g.describe(ctx, "describe", "--json", "--", name)
}

// DescribePackages is Describe with the installed packages. It takes longer, and callers with the
// right watch get an error with code denied.
func (g *Gateway) DescribePackages(ctx context.Context, name string) (Description, error) {
	return g.describe(ctx, "describe", "--packages", "--json", "--", name)
}

func (g *Gateway) describe(ctx context.Context, words ...string) (Description, error) {
	if _, err := wire.ParseSandbox(words[len(words)-1]); err != nil {
		return Description{}, public(err)
	}
	var d Description
	return d, g.decode(ctx, nil, &d, words...)
}

// Remove removes sandboxes with their files and recordings, in order. It stops at the first error.
func (g *Gateway) Remove(ctx context.Context, names ...string) error {
	for _, name := range names {
		if _, err := wire.ParseSandbox(name); err != nil {
			return public(err)
		}
		if _, err := g.Command(ctx, nil, "rm", "--force", "--json", "--", name); err != nil {
			return err
		}
		g.forget(name)
	}
	return nil
}

// Dial connects to an existing sandbox. The caller closes the Client.
func (g *Gateway) Dial(ctx context.Context, sandbox string) (*Client, error) {
	c, err := g.daemon.Dial(ctx, sandbox)
	return c, public(err)
}

// Shell attaches to a session of a sandbox and starts it if it does not exist. target is SANDBOX
// for the session main, or SANDBOX~SESSION. All shells of a sandbox share one connection, which
// Close and Remove close. The caller closes the Shell.
func (g *Gateway) Shell(ctx context.Context, target string) (*Shell, error) {
	t, err := wire.ParseTarget(target)
	if err != nil {
		return nil, public(err)
	}
	c, err := g.client(ctx, t.Sandbox)
	if err != nil {
		return nil, err
	}
	return c.Shell(ctx, t.Session)
}

// Command runs one command of the daemon: a command line of sandboxd without "sandboxd". It returns
// the standard output, which is JSON if words has --json and the command supports it. progress
// receives messages for people; nil discards them.
func (g *Gateway) Command(
	ctx context.Context,
	progress io.Writer,
	words ...string,
) ([]byte, error) {
	out, err := g.daemon.Command(ctx, progress, words...)
	return out, public(err)
}

// Close closes the connection to the daemon and the shells of the Gateway. Sandboxes and their
// programs continue.
func (g *Gateway) Close() error {
	g.mu.Lock()
	clients := g.clients
	g.clients, g.closed = nil, true
	g.mu.Unlock()
	var errs []error
	for _, c := range clients {
		errs = append(errs, c.Close())
	}
	return errors.Join(append(errs, g.close())...)
}

// client returns the connection to a sandbox that its shells share.
func (g *Gateway) client(ctx context.Context, sandbox string) (*Client, error) {
	g.mu.Lock()
	c := g.clients[sandbox]
	g.mu.Unlock()
	if c != nil {
		return c, nil
	}
	c, err := g.Dial(ctx, sandbox)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if other := g.clients[sandbox]; other != nil || g.closed {
		c.Close()
		if g.closed {
			return nil, errClientClosed
		}
		return other, nil
	}
	g.clients[sandbox] = c
	return c, nil
}

// forget closes the connection to a removed sandbox.
func (g *Gateway) forget(sandbox string) {
	g.mu.Lock()
	c := g.clients[sandbox]
	delete(g.clients, sandbox)
	g.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// decode runs a command that prints one JSON object, and decodes it.
func (g *Gateway) decode(ctx context.Context, progress io.Writer, into any, words ...string) error {
	out, err := g.Command(ctx, progress, words...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("%s: %w", words[0], err)
	}
	return nil
}

// remote is a Daemon over SSH.
type remote struct {
	dialer  *dialer
	control *Client // logged in as the control host
}

func (r *remote) Dial(ctx context.Context, sandbox string) (*Client, error) {
	if _, err := wire.ParseTarget(sandbox); err != nil {
		return nil, err
	}
	d := *r.dialer
	d.target.user, d.first = sandbox, nil
	return d.gateway(ctx, sandbox)
}

func (r *remote) Command(ctx context.Context, progress io.Writer, words ...string) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out, messages := &answer{cancel: cancel}, &opening{next: progress}
	exit, err := r.control.Exec(
		ctx,
		Cmd{Command: text.Quote(words...), Stdout: out, Stderr: messages},
	)
	if err != nil {
		return nil, err
	}
	return out.Bytes(), CommandError(words[0], exit.Code, out.Bytes(), messages.String())
}

// CommandError returns the error of the daemon command name that ended with an exit code, or nil
// for 0. It is the error of the JSON in stdout. Without one, its message is stderr, with code usage
// for exit code 2 and unavailable for others.
func CommandError(name string, code int, stdout []byte, stderr string) error {
	if code == 0 {
		return nil
	}
	var failed struct {
		Error *Error `json:"error"`
	}
	if err := json.Unmarshal(stdout, &failed); err == nil && failed.Error != nil {
		return failed.Error
	}
	said := strings.TrimSpace(strings.TrimPrefix(stderr, "sandboxd: "))
	reason := CodeUnavailable
	if code == wire.ExitUsage {
		reason = CodeUsage
	}
	return &Error{Code: reason, Message: fmt.Sprintf("%s: exit code %d: %s", name, code, said)}
}

// Limits of a command's output, in bytes.
const (
	maxAnswer   = 64 << 20
	maxMessages = 4 << 10
)

// answer stores a command's output. It ends a command whose output is too long.
type answer struct {
	bytes.Buffer
	cancel context.CancelCauseFunc
}

func (a *answer) Write(p []byte) (int, error) {
	if len(p) > maxAnswer-a.Len() {
		err := &Error{Code: CodeUnavailable,
			Message: fmt.Sprintf("daemon: the output is longer than %d MiB", maxAnswer>>20),
			Hint:    "check that the URI names a daemon that you trust"}
		a.cancel(err)
		return 0, err
	}
	return a.Buffer.Write(p)
}

// opening stores the first bytes of a command's messages, and writes all of them to next.
type opening struct {
	bytes.Buffer
	next io.Writer // may be nil
}

func (o *opening) Write(p []byte) (int, error) {
	_, _ = o.Buffer.Write(p[:min(len(p), maxMessages-o.Len())]) // in memory: it cannot fail
	if o.next != nil {
		_, _ = o.next.Write(p) // a failed write does not end the command
	}
	return len(p), nil
}
