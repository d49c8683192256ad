package agent_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/sshd"
	"github.com/sandboxd/sandboxd/sandbox/connect"
)

// knownAs writes a known_hosts file with the gateway's key for another address.
func knownAs(t testing.TB, addr string) string {
	t.Helper()
	return knownHosts(t, addr, world.file("host_key"))
}

// knownHosts writes a known_hosts file with a public key.
func knownHosts(t testing.TB, addr, key string) string {
	t.Helper()
	signer, err := sshd.KeyPair(key, sshd.ED25519, "")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(file, []byte(knownhosts.Line([]string{addr}, signer.PublicKey())+"\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestDialErrors(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := closed.Addr().String()
	closed.Close()
	empty := t.TempDir()
	t.Setenv("HOME", empty)
	t.Setenv("SSH_AUTH_SOCK", "")
	damaged := filepath.Join(empty, "damaged")
	if err := os.WriteFile(damaged, []byte("not a key"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := world.options()
	with := func(change func(*agent.Options)) agent.Options {
		changed := o
		change(&changed)
		return changed
	}
	for _, test := range []struct {
		name, uri string
		options   agent.Options
		is        error
		says      string
	}{
		{"no name", "ssh://" + world.addr, o, usageError, "names no sandbox"},
		{"empty", "", o, usageError, "the host is missing"},
		{"no host", "ssh://demo@", o, usageError, "the host is missing"},
		{"scheme", "http://demo@" + world.addr, o, usageError, "scheme"},
		{"password", "ssh://demo:secret@" + world.addr, o, usageError, "password"},
		{"host that is an option", "ssh://demo@-oProxyCommand=x:1", o, usageError, ""},
		{"bad port", "ssh://demo@localhost:x", o, usageError, "not a valid URI"},
		{"bad name", "ssh://De_mo@" + world.addr, o, usageError, "not a name"},
		{"bad session", "ssh://demo~-@" + world.addr, o, usageError, "session name"},
		{"reserved name", "ssh://root@" + world.addr, o, usageError, "reserved"},
		{"unknown host key", world.uri("demo"),
			with(func(o *agent.Options) { o.KnownHosts = []string{} }), deniedError,
			"is not known"},
		{"no known_hosts at all", world.uri("demo"),
			with(func(o *agent.Options) { o.KnownHosts, o.State = nil, empty }), deniedError,
			"is not known"},
		{"missing known_hosts", world.uri("demo"),
			with(func(o *agent.Options) { o.KnownHosts = []string{empty + "/no"} }), os.ErrNotExist,
			"known_hosts"},
		{"another host key", world.uri("demo"),
			with(func(o *agent.Options) {
				o.KnownHosts = []string{knownHosts(t, world.addr,
					world.key("bob"))}
			}), connect.ErrIdentity, "SHA256:"},
		{"no key", world.uri("demo"), with(func(o *agent.Options) {
			o.Identity, o.State = "",
				empty
		}), deniedError, "no key"},
		{"missing key", world.uri("demo"), with(
			func(o *agent.Options) { o.Identity = empty + "/no" }), os.ErrNotExist, "identity"},
		{"damaged key", world.uri("demo"), with(func(o *agent.Options) { o.Identity = damaged }),
			nil, damaged},
		{"key that is not trusted", world.uri("demo"),
			with(func(o *agent.Options) { o.Identity = world.key("nobody") }), connect.ErrLogin,
			world.addr},
		{"nobody listens", "ssh://demo@" + gone,
			with(func(o *agent.Options) { o.KnownHosts = []string{knownAs(t, gone)} }), nil, gone},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := agent.Dial(bounded(t), test.uri, test.options)
			if err == nil {
				c.Close()
				t.Fatal("no error")
			}
			if test.is != nil && !errors.Is(err, test.is) ||
				!strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v (%T), want %v that says %q", err, err, test.is, test.says)
			}
			var shown *agent.Error
			if !errors.As(err, &shown) || shown.Code == "" || shown.Hint == "" {
				t.Errorf("%v: %+v, want what to do", err, shown)
			}
		})
	}
}

var (
	usageError  = &agent.Error{Code: "usage"}
	deniedError = &agent.Error{Code: "denied"}
)

// A missing sandbox and one of another owner return the same error.
func TestUnknownSandbox(t *testing.T) {
	mine := dial(t)
	o := world.options()
	o.Create = false
	missing := dialAt(t, world.addr, "nothing-here", o)
	_, err := missing.Shell(bounded(t), "")
	if !isCode(err, "not_found") {
		t.Errorf("shell: %v", err)
	}
	var stderr strings.Builder
	if exit, err := missing.Exec(bounded(t), agent.Cmd{Command: "true",
		Stderr: &stderr}); err != nil ||
		exit.Code == 0 ||
		!strings.Contains(stderr.String(), "no sandbox nothing-here") {
		t.Errorf("exec: %+v, %v, %q", exit, err, stderr.String())
	}
	o.Identity = world.key("bob")
	foreign := dialAt(t, world.addr, mine.Sandbox(), o)
	_, other := foreign.Shell(bounded(t), "")
	if !isCode(other, "not_found") {
		t.Errorf("bob's shell in alice's sandbox: %v", other)
	}
	if a, b := strings.ReplaceAll(err.Error(), "nothing-here", "NAME"),
		strings.ReplaceAll(other.Error(), mine.Sandbox(), "NAME"); a != b {
		t.Errorf("errors differ:\n%s\n%s", a, b)
	}
	// Creating a sandbox that another owner has gives no access to it.
	o.Create = true
	if c, err := agent.Dial(bounded(t), world.uri(mine.Sandbox()), o); err == nil {
		_, err = c.Shell(bounded(t), "")
		c.Close()
		if err == nil {
			t.Error("bob is in alice's sandbox")
		}
	}
}

func TestDialSession(t *testing.T) {
	dial(t) // makes it
	c := dialAt(t, world.addr, sandboxName(t)+"~build", world.options())
	if sh := attach(t, c, agent.ShellOptions{}); sh.Session() != "build" ||
		c.Sandbox() != sandboxName(t) {
		t.Errorf("session %s of %s", sh.Session(), c.Sandbox())
	}
	if sh := attach(t, c, agent.ShellOptions{Session: "main"}); sh.Session() != "main" {
		t.Errorf("session %s", sh.Session())
	}
	fresh := attach(t, c, agent.ShellOptions{Session: "new", Fresh: true})
	another := attach(t, c, agent.ShellOptions{Session: "new", Fresh: true})
	if fresh.Session() == "new" || fresh.Session() == another.Session() {
		t.Errorf("fresh sessions %s and %s", fresh.Session(), another.Session())
	}
	if _, err := c.Attach(bounded(t), agent.ShellOptions{Session: "build", Fresh: true}); !isCode(
		err,
		"exists",
	) {
		t.Errorf("fresh by a name that is taken: %v", err)
	}
	if _, err := c.Attach(bounded(t), agent.ShellOptions{Session: "No"}); !isCode(err, "usage") {
		t.Errorf("a bad name: %v", err)
	}
}

// Options.State of a local daemon is enough to log in.
func TestDialState(t *testing.T) {
	name := sandboxName(t)
	if _, err := world.hub.Create(bounded(t), alice, lifecycle.NewSpec{Name: name},
		nil); err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	for from, to := range map[string]string{world.key("alice"): "identity",
		world.file("known_hosts"): "known_hosts"} {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(state, to), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("SSH_AUTH_SOCK", "")
	c := dialAt(t, world.addr, name, agent.Options{State: state})
	if exit, err := c.Exec(bounded(t), agent.Cmd{Command: "exit 9"}); err != nil || exit.Code != 9 {
		t.Errorf("%+v, %v", exit, err)
	}
	key, err := os.ReadFile(filepath.Join(state, "identity"))
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.ParsePrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dialAt(t, world.addr, name, agent.Options{State: state, Signers: []ssh.Signer{signer}})
}

// A server that accepts connections and sends nothing cannot block a dial beyond its timeout.
func TestDialSilence(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	o := world.options()
	o.KnownHosts = []string{knownAs(t, l.Addr().String())}
	o.DialTimeout = 100 * time.Millisecond
	if _, err := agent.Dial(bounded(t), "ssh://demo@"+l.Addr().String(), o); !errors.Is(
		err,
		context.DeadlineExceeded,
	) &&
		!errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want a deadline", err)
	}
	o.DialTimeout = 0
	ctx, cancel := context.WithCancel(bounded(t))
	ended := make(chan error, 1)
	go func() {
		_, err := agent.Dial(ctx, "ssh://demo@"+l.Addr().String(), o)
		ended <- err
	}()
	conn, err := l.Accept() // of the first dial
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want canceled", err)
	}
}
