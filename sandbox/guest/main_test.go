//go:build linux

package guest

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/shortdir"
	"github.com/sandboxd/sandboxd/sandbox/signals"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// The test program also runs as the children of its guests.
func TestMain(m *testing.M) {
	if os.Args[0] == Name {
		os.Exit(Main(os.Args))
	}
	signals.DefaultForChildren()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(status int) {
		if built != "" {
			os.RemoveAll(built)
		}
		os.Exit(status)
	}))
}

// keys are the keys that a daemon makes for a sandbox.
type keys struct {
	hostPEM    string
	host       ssh.PublicKey
	client     ssh.Signer
	clientPEM  string
	authorized string
}

func newKeys(t testing.TB) keys {
	t.Helper()
	hostPEM, host := newKey(t)
	clientPEM, client := newKey(t)
	return keys{hostPEM: hostPEM, host: host.PublicKey(), client: client, clientPEM: clientPEM,
		authorized: string(ssh.MarshalAuthorizedKey(client.PublicKey()))}
}

func newKey(t testing.TB) (string, ssh.Signer) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(block)), signer
}

// sandbox is a guest inside the test program, reachable by a loopback listener: the kernel buffers,
// as with the socket of a real sandbox.
type sandbox struct {
	*Guest
	keys
	home     string
	listener net.Listener
}

func newSandbox(t testing.TB, change ...func(*wire.GuestConfig)) *sandbox {
	t.Helper()
	s := &sandbox{keys: newKeys(t), home: shortdir.New(t)}
	config := wire.GuestConfig{Version: wire.Version, HostKey: s.hostPEM, ClientKey: s.authorized,
		Name: "demo", Socket: "unused"}
	for _, f := range change {
		f(&config)
	}
	var err error
	s.Guest, err = New(config, Options{Account: &Account{Name: "tester", UID: uint32(os.Getuid()),
		GID: uint32(os.Getgid()), Home: s.home, Shell: "/bin/bash"}})
	if err != nil {
		t.Fatal(err)
	}
	if s.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := s.listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { _ = s.ServeConn(t.Context(), conn) }) // tests check the other end
		}
	})
	t.Cleanup(func() {
		s.listener.Close()
		// The test's own context has ended, and a shell that exits writes its history into the
		// directory that is removed next.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		wg.Wait()
	})
	return s
}

// dial logs in.
func (s *sandbox) dial(t testing.TB) *ssh.Client {
	t.Helper()
	client, err := ssh.Dial("tcp", s.listener.Addr().String(), s.clientConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func (s *sandbox) clientConfig() *ssh.ClientConfig {
	return &ssh.ClientConfig{User: "sandbox", Auth: []ssh.AuthMethod{ssh.PublicKeys(s.client)},
		HostKeyCallback: ssh.FixedHostKey(s.host), Timeout: time.Minute}
}

// order sends a control request.
func order(t testing.TB, client *ssh.Client, ctl wire.Control) wire.ControlReply {
	t.Helper()
	payload, err := json.Marshal(ctl)
	if err != nil {
		t.Fatal(err)
	}
	ok, answer, err := client.SendRequest(wire.ControlRequest, true, payload)
	if err != nil || !ok {
		t.Fatalf("%s: got %v, %v", ctl.Do, ok, err)
	}
	var reply wire.ControlReply
	if err := json.Unmarshal(answer, &reply); err != nil {
		t.Fatalf("%s: %v", ctl.Do, err)
	}
	return reply
}

// result is the result of a command.
type result struct {
	Out, Err string
	Status   int    // -1 if there was none
	Signal   string // without SIG
}

// execute runs a command on its own channel.
func execute(t testing.TB, client *ssh.Client, command, stdin string) result {
	t.Helper()
	sess, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer sess.Close()
	var out, errout strings.Builder
	sess.Stdout, sess.Stderr, sess.Stdin = &out, &errout, strings.NewReader(stdin)
	err = sess.Run(command)
	return result{out.String(), errout.String(), exitStatus(t, err), exitSignal(err)}
}

func exitStatus(t testing.TB, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*ssh.ExitError](err); ok {
		if e.Signal() != "" {
			return -1
		}
		return e.ExitStatus()
	}
	t.Errorf("no exit status: %v", err)
	return -1
}

func exitSignal(err error) string {
	if e, ok := errors.AsType[*ssh.ExitError](err); ok {
		return e.Signal()
	}
	return ""
}

// await waits until cond holds, for facts without a notification.
func await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited 15 s in vain: %s", what)
		}
	}
}

func writeFile(t testing.TB, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// alive reports whether a process runs; an ended one that was not reaped does not.
func alive(pid int) bool {
	p, ok := readProcess(pid)
	return ok && !p.zombie
}
