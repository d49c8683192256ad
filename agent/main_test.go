package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/gateway/gatewaytest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/sshd"
	"github.com/sandboxd/sandboxd/sandbox/signals"
)

// world is the gateway of all tests and examples of this package.
var world *gatewayWorld

func TestMain(m *testing.M) {
	signals.DefaultForChildren()
	run := &mainTB{}
	world = newGateway(run)
	exampleMachines = run
	code := m.Run()
	run.cleanup()
	if run.failed {
		code = 1
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// mainTB is what of a test TestMain needs, for what asks for one.
type mainTB struct {
	testing.TB // nil: the rest is not there

	mu     sync.Mutex
	ends   []func() // guarded by mu
	failed bool     // guarded by mu
}

func (b *mainTB) Helper()                  {}
func (b *mainTB) Context() context.Context { return context.Background() }

func (b *mainTB) Cleanup(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ends = append(b.ends, f)
}

func (b *mainTB) Errorf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "gateway of the tests: "+format+"\n", args...)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed = true
}

func (b *mainTB) Fatal(args ...any) {
	b.Errorf("%s", fmt.Sprint(args...))
	b.cleanup()
	os.Exit(1)
}

func (b *mainTB) Skip(args ...any)           { b.Fatal(args...) } // an example cannot be skipped
func (b *mainTB) Logf(f string, args ...any) { fmt.Fprintf(os.Stderr, f+"\n", args...) }

func (b *mainTB) Failed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failed
}

func (b *mainTB) TempDir() string {
	dir, err := os.MkdirTemp("", "agent-test-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			b.Errorf("%v", err)
		}
	})
	return dir
}

// cleanup runs the registered functions, last first.
func (b *mainTB) cleanup() {
	b.mu.Lock()
	ends := b.ends
	b.ends = nil
	b.mu.Unlock()
	for i := len(ends) - 1; i >= 0; i-- {
		ends[i]()
	}
}

// gatewayWorld is a whole gateway in this process: a hub on a store, its SSH server on loopback
// with the command table behind it, and sandboxes that run the real guest.
type gatewayWorld struct {
	hub  *gateway.Hub
	addr string
	dir  string // holds known_hosts and the keys
}

// newGateway runs a gateway until t ends. It knows alice's key and bob's; nobody's is not in
// authorized_keys.
func newGateway(t testing.TB) *gatewayWorld {
	w := &gatewayWorld{dir: t.TempDir()}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	if os.Getenv("AGENT_TEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	w.hub = gatewaytest.Hub(t, &gateway.Options{Options: lifecycle.Options{Log: log}})

	var authorized []byte
	for _, name := range []string{"alice", "bob", "nobody"} {
		signer, err := sshd.KeyPair(w.key(name), sshd.ED25519, name)
		check(err)
		if name != "nobody" {
			authorized = fmt.Appendf(
				authorized,
				"principal=%q %s",
				name,
				ssh.MarshalAuthorizedKey(signer.PublicKey()),
			)
		}
	}
	check(os.WriteFile(w.file("authorized_keys"), authorized, 0o600))
	host, err := sshd.KeyPair(w.file("host_key"), sshd.ED25519, "gateway")
	check(err)
	server, err := sshd.New(
		sshd.Options{
			Hub:      w.hub,
			HostKeys: []ssh.Signer{host},
			Keys:     sshd.OpenKeys(w.file("authorized_keys"), "alice", log),
			Commands: w.command,
			Watches:  command.Watches,
			Log:      log,
			Limits: sshd.Limits{
				PerSource: 1000,
				Exempt:    []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
			},
		},
	)
	check(err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	w.addr = l.Addr().String()
	check(
		os.WriteFile(
			w.file("known_hosts"),
			[]byte(knownhosts.Line([]string{w.addr}, host.PublicKey())+"\n"),
			0o600,
		),
	)
	background(t, func(ctx context.Context) error { return server.Serve(ctx, l) })
	return w
}

// command runs a command of the control host.
func (w *gatewayWorld) command(ctx context.Context, p gateway.Principal, c sshd.CommandIO) int {
	return command.Run(
		ctx,
		&command.Env{Hub: w.hub, Principal: p, Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr},
		c.Args,
	)
}

func (w *gatewayWorld) file(name string) string { return filepath.Join(w.dir, name) }
func (w *gatewayWorld) key(name string) string  { return w.file("id_" + name) }

// uri returns the URI of a sandbox.
func (w *gatewayWorld) uri(sandbox string) string { return "ssh://" + sandbox + "@" + w.addr }

// options log in as alice and know the gateway's host key.
func (w *gatewayWorld) options() agent.Options {
	return agent.Options{
		Create:     true,
		Identity:   w.key("alice"),
		KnownHosts: []string{w.file("known_hosts")},
	}
}

// background runs f until t ends.
func background(t testing.TB, f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	})
}

// patience bounds a wait, so that a test that waits in vain reports where.
const patience = 60 * time.Second

// bounded is a context for one test.
func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeoutCause(
		t.Context(),
		patience,
		errors.New("the test has waited too long"),
	)
	t.Cleanup(cancel)
	return ctx
}

// dial connects to a sandbox of the test's own.
func dial(t testing.TB) *agent.Client {
	t.Helper()
	return dialAt(t, world.addr, sandboxName(t), world.options())
}

var sandboxes struct {
	mu    sync.Mutex
	made  int               // guarded by mu
	names map[string]string // guarded by mu; by test
}

// sandboxName returns the name of a test's sandbox, which is removed with the test.
func sandboxName(t testing.TB) string {
	sandboxes.mu.Lock()
	defer sandboxes.mu.Unlock()
	if name, ok := sandboxes.names[t.Name()]; ok {
		return name
	}
	if sandboxes.names == nil {
		sandboxes.names = make(map[string]string)
	}
	sandboxes.made++
	name := fmt.Sprintf("t%d", sandboxes.made)
	sandboxes.names[t.Name()] = name
	t.Cleanup(func() {
		sandboxes.mu.Lock()
		delete(sandboxes.names, t.Name())
		sandboxes.mu.Unlock()
		if _, err := world.hub.Remove(context.Background(), alice, name); err != nil &&
			!errors.Is(err, &agent.Error{Code: "not_found"}) {
			t.Errorf("remove %s: %v", name, err)
		}
	})
	return name
}

func dialAt(t testing.TB, addr, sandbox string, o agent.Options) *agent.Client {
	t.Helper()
	c, err := agent.Dial(bounded(t), "ssh://"+sandbox+"@"+addr, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// shell attaches to the main session of a sandbox of the test's own.
func shell(t testing.TB) *agent.Shell {
	t.Helper()
	return attach(t, dial(t), agent.ShellOptions{})
}

// ready is shell at its prompt, for calls with a short timeout.
func ready(t testing.TB) *agent.Shell {
	t.Helper()
	sh := shell(t)
	if _, err := sh.Wait(bounded(t), agent.PhasePrompt); err != nil {
		t.Fatal(err)
	}
	return sh
}

func attach(t testing.TB, c *agent.Client, o agent.ShellOptions) *agent.Shell {
	t.Helper()
	sh, err := c.Attach(bounded(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sh.Close() })
	return sh
}
