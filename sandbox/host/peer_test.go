package host

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/openssh"
	"github.com/sandboxd/sandboxd/sandbox/signals"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// patience bounds waits for quick events on a busy machine.
const patience = time.Minute

var shared struct {
	dir   string // removed at the end
	guest func() (string, error)
}

func TestMain(m *testing.M) {
	signals.DefaultForChildren()
	dir, err := os.MkdirTemp("", "sandboxd-host-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	shared.dir = dir
	shared.guest = sync.OnceValues(func() (string, error) { return openssh.Guest(dir) })
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

func keyPair(t *testing.T, file string) ssh.Signer { t.Helper(); return openssh.KeyPair(t, file) }

func put(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// peer is an SSH server of the test, with a user who may log in.
type peer struct {
	dir, home  string
	port, user string
	host       ssh.Signer // its host key
	identity   string     // file of the key that may log in
	pid        int
	log        string
}

// settings of an OpenSSH server. The zero value is Debian's configuration, with SFTP.
type settings struct {
	lines  []string // of sshd_config, before ours: the first line of a keyword counts
	noSFTP bool
	rc     string // ~/.bashrc of the account
	home   string // instead of a directory of the test
	env    string // more variables for SetEnv
}

// openSSH starts the SSH server of this machine, for the account that runs the test.
func openSSH(t *testing.T, s settings) *peer {
	t.Helper()
	server := openssh.Start(t, openssh.Settings{Lines: s.lines, NoSFTP: s.noSFTP, RC: s.rc,
		Home: s.home, Env: s.env})
	return &peer{dir: server.Dir, home: server.Home, port: server.Port, user: server.User,
		host: server.Key, identity: server.Identity,
		pid: server.PID, log: server.Log}
}

func shortDir(t *testing.T) string { t.Helper(); return openssh.ShortDir(t) }

// start runs a server until the test ends, and waits until it accepts connections.
func (p *peer) start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	p.pid = openssh.Run(t, cmd, p.port, p.log)
}

func needed(t *testing.T, what string)     { t.Helper(); openssh.Needed(t, what) }
func freePort(t *testing.T) string         { t.Helper(); return openssh.FreePort(t) }
func ours(_ *testing.T, d string) []string { return openssh.Processes(d) }

// needRoot skips tests that need root, for mounts and accounts. SANDBOXD_TEST_REQUIRE makes no
// difference, because no setup could permit them to another user.
func needRoot(t *testing.T, what string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skipf("%s takes root", what)
	}
}

func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(patience); !cond(); {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("never: %s", what)
		}
	}
}

func (p *peer) uri() string { return "ssh://" + p.user + "@127.0.0.1:" + p.port }

// spec returns a spec for p, with its key accepted by fingerprint.
func (p *peer) spec(t *testing.T) sandbox.Spec {
	return sandbox.Spec{ID: fmt.Sprintf("t%x", time.Now().UnixNano()), Name: "box",
		Progress: func(line string) { t.Log(line) },
		Host: sandbox.Host{URI: p.uri(), Identity: p.identity,
			Accept: ssh.FingerprintSHA256(p.host.PublicKey())}}
}

// newBackend returns a backend with the real guest.
func newBackend(t *testing.T) *Backend {
	t.Helper()
	guest, err := shared.guest()
	if err != nil {
		t.Fatal(err)
	}
	b := New(Options{Guest: func(arch string) (string, error) {
		if arch != runtime.GOARCH {
			return "", fmt.Errorf("there is no guest for %s", arch)
		}
		return guest, nil
	}})
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return b
}

func timeout(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*patience)
	t.Cleanup(cancel)
	return ctx
}

// boot boots a sandbox and destroys it at the end of the test.
func boot(t *testing.T, b *Backend, spec sandbox.Spec) sandbox.Instance {
	t.Helper()
	inst, err := b.Boot(timeout(t), spec)
	if err != nil {
		t.Fatalf("Boot: %v", err)
	}
	t.Cleanup(func() {
		if err := b.Destroy(timeout(t), inst); err != nil {
			t.Errorf("Destroy: %v", err)
		}
	})
	return inst
}

// dialSessions connects to the sessions, and checks their tier.
func dialSessions(t *testing.T, b *Backend, inst sandbox.Instance, tier string) *connect.Control {
	t.Helper()
	c, err := b.DialSessions(timeout(t), inst)
	if err != nil {
		t.Fatalf("DialSessions: %v", err)
	}
	t.Cleanup(func() { c.Close() })
	if tier != TierGuest { // the guest makes the terminals of its tier
		openssh.NeedTerminals(t)
	}
	if got, why := c.Tier(); got != tier {
		t.Fatalf("tier %s (%s), want %s", got, why, tier)
	}
	return c
}

var party = wire.Party{Name: "alice", Kind: wire.Agent, Rights: wire.RightDrive, ID: "1"}

// attach attaches an agent to a session, and creates the session if needed.
func attach(t *testing.T, c *connect.Control, session string, start wire.Start) *wire.Client {
	t.Helper()
	s, err := c.OpenStream(timeout(t))
	if err != nil {
		t.Fatalf("OpenStream: %v", err)
	}
	p := party
	client, err := wire.Open(timeout(t), s,
		wire.Attach{Session: session, Create: true, Party: &p, Start: &start}, wire.Handler{})
	if err != nil {
		t.Fatalf("attach: %v", err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// do makes a request and returns its result.
func do(t *testing.T, client *wire.Client, r wire.Request) *wire.Result {
	t.Helper()
	r.Op, r.TimeoutMS = wire.NewOp(), patience.Milliseconds()
	reply, err := client.Request(timeout(t), r)
	if err != nil {
		t.Fatalf("%s %q: %v", r.Verb, r.Text, err)
	}
	if reply.Result == nil {
		t.Fatalf("%s %q: no result: %+v", r.Verb, r.Text, reply)
	}
	return reply.Result
}

// run runs a command that must end.
func run(t *testing.T, client *wire.Client, command string) *wire.Result {
	t.Helper()
	res := do(t, client, wire.Request{Verb: wire.VerbRun, Text: command})
	if res.Ended != wire.Done {
		t.Fatalf("run %q: %+v (error %v)", command, res, res.Error)
	}
	return res
}

func exitCode(r *wire.Result) string {
	if r.ExitCode == nil {
		return "unknown"
	}
	return strconv.Itoa(*r.ExitCode)
}
