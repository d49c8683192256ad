package sshd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/gatewaytest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// world is a gateway with a listener on loopback, a hub and in-memory sandboxes that run the real
// guest.
type world struct {
	t    testing.TB
	dir  string
	hub  *gateway.Hub
	host ssh.Signer
	addr string
	port string
	log  *syncBuffer

	keys  *Keys
	lines map[string]string // lines of keys, by the keys' names

	backend   *scripted
	closeDoor context.CancelFunc
}

// The keys of a world, each in its own file; all are alice's except bob's.
var worldKeys = map[string]string{
	"alice": `principal="alice"`,
	"bob":   `principal="bob"`,
	"agent": `principal="alice",kind="agent"`,
	"watch": `principal="alice",role="watch"`,
	"no":    "", // not in the file
}

// worldOptions are options of a test.
type worldOptions struct {
	limits   Limits
	commands Commands
	watches  func([]string) (wire.Target, bool)
	keys     []string // more lines of authorized_keys
	options  map[string]string
	hub      func(*gateway.Options)
	hostKeys []ssh.Signer
	alert    string
}

func newWorld(t testing.TB, o worldOptions) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), host: newSigner(t), log: &syncBuffer{}}
	log := slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", w.log)
		}
	})

	w.backend = &scripted{Backend: sandboxtest.New(t, sandboxtest.Options{}), t: t,
		key: newSigner(t)}
	ho := gateway.Options{Logins: []string{"localuser"}}
	ho.Backends, ho.Log = map[string]sandbox.Backend{sandboxtest.Name: w.backend},
		log.With("of", "hub")
	if o.hub != nil {
		o.hub(&ho)
	}
	w.hub = gatewaytest.Hub(t, &ho)

	var lines []string
	w.lines = make(map[string]string)
	for name, options := range worldKeys {
		signer, err := KeyPair(w.key(name), ED25519, name)
		if err != nil {
			t.Fatal(err)
		}
		if more, ok := o.options[name]; ok {
			options = more
		}
		if name != "no" {
			w.lines[name] = keyLine(options, signer.PublicKey())
			lines = append(lines, w.lines[name])
		}
	}
	limits := o.limits
	if limits.PerSource == 0 {
		limits.PerSource = 1000
		limits.Exempt = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	}
	commands := o.commands
	if commands == nil {
		commands = func(_ context.Context, p gateway.Principal, c CommandIO) int {
			fmt.Fprintf(c.Stdout, "%s: %q\n", p.Name, c.Args)
			return 0
		}
	}
	hostKeys := o.hostKeys
	if hostKeys == nil {
		hostKeys = []ssh.Signer{w.host}
	}
	w.keys = OpenKeys(writeKeys(t, append(lines, o.keys...)...), "owner", log)
	s, err := New(Options{Hub: w.hub, Alert: o.alert, HostKeys: hostKeys, Keys: w.keys,
		Commands: commands, Watches: o.watches, Limits: limits, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.addr = l.Addr().String()
	_, w.port, _ = net.SplitHostPort(w.addr)
	var known []byte
	for _, k := range hostKeys {
		known = append(known, knownhosts.Line([]string{w.addr}, k.PublicKey())+"\n"...)
	}
	if err := os.WriteFile(w.file("known_hosts"), known, 0o600); err != nil {
		t.Fatal(err)
	}
	w.closeDoor = w.background(func(ctx context.Context) error { return s.Serve(ctx, l) })
	return w
}

// background runs f until the test ends or the returned function is called.
func (w *world) background(f func(context.Context) error) context.CancelFunc {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil && !errors.Is(err, context.Canceled) {
				w.t.Errorf("ended with %v", err)
			}
		case <-time.After(time.Minute):
			buf := make([]byte, 1<<20)
			w.t.Errorf("does not end:\n%s", buf[:runtime.Stack(buf, true)])
		}
	})
	return cancel
}

// allow replaces the key file: change returns each new line.
func (w *world) allow(change func(name, line string) string) {
	w.t.Helper()
	var text strings.Builder
	for name, line := range w.lines {
		text.WriteString(change(name, line))
	}
	fresh := w.file("authorized_keys.new")
	if err := os.WriteFile(fresh, []byte(text.String()), 0o600); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(fresh, w.keys.path); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) file(name string) string { return filepath.Join(w.dir, name) }
func (w *world) key(name string) string  { return w.file("id_" + name) }

// sandbox creates a sandbox of alice's.
func (w *world) sandbox(name string) {
	w.t.Helper()
	w.sandboxOf("alice", name)
}

func (w *world) sandboxOf(owner, name string) {
	w.t.Helper()
	p := gateway.Principal{Name: owner, Kind: wire.Person, Rights: wire.RightDrive}
	if _, err := w.hub.Create(w.t.Context(), p, lifecycle.NewSpec{Name: name}, nil); err != nil {
		w.t.Fatalf("create %s: %v", name, err)
	}
}

// sshOptions returns options with which an OpenSSH program uses this world and none of the
// machine's configuration.
func (w *world) sshOptions(key string) []string {
	return []string{"-F", "none", "-o", "IdentityFile=" + w.key(key), "-o", "IdentitiesOnly=yes",
		"-o", "IdentityAgent=none",
		"-o", "UserKnownHostsFile=" + w.file("known_hosts"), "-o", "GlobalKnownHostsFile=none",
		"-o", "StrictHostKeyChecking=yes",
		"-o", "BatchMode=yes", "-o", "LogLevel=ERROR", "-o", "Port=" + w.port, "-o",
		"ConnectTimeout=60"}
}

// ssh returns the real client: ssh(“alice”, “demo@127.0.0.1”, “true”).
func (w *world) ssh(key string, args ...string) *exec.Cmd {
	return w.command("ssh", append(w.sshOptions(key), args...)...)
}

// command returns a program that ends with the test.
func (w *world) command(name string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	w.t.Cleanup(cancel)
	c := exec.CommandContext(ctx, name, args...)
	c.WaitDelay = 30 * time.Second // for output of a program that has ended
	c.Dir = w.dir
	c.Env = append(os.Environ(), "HOME="+w.dir, "LC_ALL=C.UTF-8")
	return c
}

// result is how a program ended.
type result struct {
	stdout, stderr string
	exit           int
}

// outcome runs a program to its end.
func outcome(t testing.TB, c *exec.Cmd, stdin string) result {
	t.Helper()
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if c.Stdin == nil {
		c.Stdin = strings.NewReader(stdin)
	}
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v\n%s", c.Args, err, errs.String())
	}
	return result{out.String(), errs.String(), c.ProcessState.ExitCode()}
}

// dial logs in with the library.
func (w *world) dial(key, user string) *ssh.Client {
	w.t.Helper()
	c, err := w.tryDial(key, user)
	if err != nil {
		w.t.Fatalf("%s as %s: %v", key, user, err)
	}
	w.t.Cleanup(func() { c.Close() })
	return c
}

func (w *world) signer(key string) ssh.Signer {
	w.t.Helper()
	s, err := readKey(w.key(key))
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) tryDial(key, user string) (*ssh.Client, error) {
	return ssh.Dial("tcp", w.addr, &ssh.ClientConfig{User: user,
		Auth:            []ssh.AuthMethod{ssh.PublicKeys(w.signer(key))},
		HostKeyCallback: ssh.FixedHostKey(w.host.PublicKey()), Timeout: time.Minute})
}

// eventually waits until cond holds; there is no event for it.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		<-tick.C
	}
}

// need finds a program that scripts/setup installs for the tests.
func need(t testing.TB, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatalf("%v; scripts/setup test installs it", err)
	}
	return path
}

// readAll reads r to its end within the test's time.
func readAll(t testing.TB, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
