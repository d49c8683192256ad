package sandboxtest

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Suite describes a backend to [Run].
type Suite struct {
	// Open returns a backend to test. Its sandboxes must be removed when t ends, also after a
	// failure.
	Open func(t *testing.T) sandbox.Backend
	// Spec is the sandbox to boot; its image must have a shell. The suite sets ID.
	Spec sandbox.Spec
	// NoImage is an image reference that does not exist.
	NoImage string
	// Refused are the network modes that the backend does not support.
	Refused []sandbox.Network
	// Remote: the instances are on a machine that shares no files with this one. Such a backend
	// passes no network device: that is ErrUnsupported.
	Remote bool
	// NewID returns a new instance ID; nil derives it from the test's name and the time.
	NewID func(t *testing.T) string
}

// bootTimeout bounds one call of a backend.
const bootTimeout = 2 * time.Minute

// Run tests the contract of sandbox.Backend, and of the groups that the backend implements.
func Run(t *testing.T, s Suite) {
	t.Run("Boot", s.testBoot)
	t.Run("Dial", s.testDial)
	t.Run("Destroy", s.testDestroy)
	t.Run("Refusals", s.testRefusals)
	t.Run("Cancelled", s.testCancelled)
	t.Run("Finder", s.testFinder)
	t.Run("Reviser", s.testReviser)
	t.Run("Lifecycle", s.testLifecycle)
	t.Run("Pauser", s.testPauser)
	t.Run("Imager", s.testImager)
	t.Run("Meter", s.testMeter)
	t.Run("Networker", s.testNetworker)
}

// newSpec returns s.Spec with a new ID.
func (s Suite) newSpec(t *testing.T) sandbox.Spec {
	spec := s.Spec
	if s.NewID != nil {
		spec.ID = s.NewID(t)
	} else {
		spec.ID = fmt.Sprintf("t%x", time.Now().UnixNano())
	}
	return spec
}

// boot boots a sandbox and destroys it at the end of the test.
func (s Suite) boot(t *testing.T, b sandbox.Backend) sandbox.Instance {
	t.Helper()
	inst, err := b.Boot(timeout(t), s.newSpec(t))
	if err != nil {
		t.Fatalf("Boot: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), bootTimeout)
		defer cancel()
		if err := b.Destroy(ctx, inst); err != nil {
			t.Errorf("Destroy: %v", err)
		}
	})
	return inst
}

// newKey returns a fresh key pair.
func newKey() (string, ssh.Signer, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", nil, err
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		return "", nil, err
	}
	signer, err := ssh.NewSignerFromKey(private)
	return string(pem.EncodeToMemory(block)), signer, err
}

func timeout(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), bootTimeout)
	t.Cleanup(cancel)
	return ctx
}

// Login logs in to a peer like the daemon: with its credentials, accepting only its keys. The
// client is closed at the end of the test.
func Login(t testing.TB, peer sandbox.Peer) *ssh.Client {
	t.Helper()
	conn, chans, reqs, err := ssh.NewClientConn(peer.Conn, "sandbox", &ssh.ClientConfig{
		User: peer.User, Auth: peer.Auth, Timeout: 30 * time.Second,
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			if slices.ContainsFunc(peer.HostKeys, func(k ssh.PublicKey) bool {
				return string(k.Marshal()) == string(key.Marshal())
			}) {
				return nil
			}
			return fmt.Errorf("host key %s is not one of the peer's", ssh.FingerprintSHA256(key))
		},
	})
	if err != nil {
		peer.Conn.Close()
		t.Fatalf("handshake: %v", err)
	}
	client := ssh.NewClient(conn, chans, reqs)
	t.Cleanup(func() { client.Close() })
	return client
}

// Sh runs a command in a sandbox and returns what it prints, without the last newline. err is that
// of ssh.Session.Wait.
func Sh(t *testing.T, c *ssh.Client, command string) (string, error) {
	t.Helper()
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	out, err := s.CombinedOutput(command)
	return strings.TrimSuffix(string(out), "\n"), err
}

// MustSh is Sh for a command that must succeed.
func MustSh(t *testing.T, c *ssh.Client, command string) string {
	t.Helper()
	out, err := Sh(t, c, command)
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return out
}

// dial dials and logs in.
func (s Suite) dial(t *testing.T, b sandbox.Backend, inst sandbox.Instance) *ssh.Client {
	t.Helper()
	peer, err := b.Dial(timeout(t), inst)
	if err != nil {
		t.Fatalf("Dial: %v", err)
	}
	if len(peer.HostKeys) == 0 {
		t.Fatal("Dial: peer without host keys")
	}
	return Login(t, peer)
}

// run runs a command and returns its output and exit status.
func run(t *testing.T, client *ssh.Client, command string) (string, int) {
	t.Helper()
	sess, err := client.NewSession()
	if err != nil {
		t.Fatalf("session: %v", err)
	}
	defer sess.Close()
	out, err := sess.CombinedOutput(command)
	if exit := (*ssh.ExitError)(nil); errors.As(err, &exit) {
		return string(out), exit.ExitStatus()
	}
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return string(out), 0
}

func (s Suite) testBoot(t *testing.T) {
	b := s.Open(t)
	spec := s.newSpec(t)
	var progress []string
	spec.Progress = func(line string) { progress = append(progress, line) }
	begun := 0
	spec.Begin = func(context.Context) error { begun++; return nil }
	inst, err := b.Boot(timeout(t), spec)
	if err != nil {
		t.Fatalf("Boot: %v", err)
	}
	t.Cleanup(func() { _ = b.Destroy(context.WithoutCancel(t.Context()), inst) })
	if inst.ID != spec.ID || inst.Backend == "" || inst.Ref == "" || inst.Runtime == "" ||
		inst.Network == "" || inst.Created.IsZero() {
		t.Errorf("Boot: instance lacks required fields: %+v", inst)
	}
	if begun != 1 {
		t.Errorf("Boot: Begin was called %d times", begun)
	}
	for _, line := range progress {
		if strings.ContainsAny(line, "\n\r") {
			t.Errorf("progress %q is not one line", line)
		}
	}
	client := s.dial(t, b, inst)
	if out, code := run(t, client, "echo out; echo err >&2; exit 7"); code != 7 ||
		!strings.Contains(out, "out\n") || !strings.Contains(out, "err\n") {
		t.Errorf("exec: got %q, exit status %d; want out and err, 7", out, code)
	}
	if _, err := b.Boot(timeout(t), spec); err == nil {
		t.Error("Boot of an ID that exists: no error")
	}
	if out, code := run(t, s.dial(t, b, inst), "echo still"); out != "still\n" || code != 0 {
		t.Errorf("after a Boot of the same ID: got %q, %d; the first one must not be touched", out,
			code)
	}
}

func (s Suite) testDial(t *testing.T) {
	b := s.Open(t)
	inst := s.boot(t, b)
	t.Run("again and at once", func(t *testing.T) {
		a, b := s.dial(t, b, inst), s.dial(t, b, inst)
		for i, c := range []*ssh.Client{a, b, a} {
			if out, code := run(t, c, "echo hello"); out != "hello\n" || code != 0 {
				t.Errorf("client %d: got %q, %d", i, out, code)
			}
		}
		a.Close()
		if out, code := run(t, b, "echo alone"); out != "alone\n" || code != 0 {
			t.Errorf("after the other closed: got %q, %d", out, code)
		}
	})
	t.Run("only the key", func(t *testing.T) {
		peer, err := b.Dial(timeout(t), inst)
		if err != nil {
			t.Fatalf("Dial: %v", err)
		}
		defer peer.Conn.Close()
		_, stranger, err := newKey()
		if err != nil {
			t.Fatal(err)
		}
		_, _, _, err = ssh.NewClientConn(peer.Conn, "sandbox",
			&ssh.ClientConfig{User: peer.User, Timeout: 30 * time.Second,
				HostKeyCallback: ssh.FixedHostKey(peer.HostKeys[0]),
				Auth:            []ssh.AuthMethod{ssh.PublicKeys(stranger), ssh.Password("")}})
		if err == nil {
			t.Error("a stranger's key logged in")
		}
	})
	t.Run("gone", func(t *testing.T) {
		nobody := s.nobody(t, inst)
		if _, err := b.Dial(timeout(t), nobody); !errors.Is(err, sandbox.ErrGone) {
			t.Errorf("Dial of an instance that never was: got %v, want ErrGone", err)
		}
	})
}

func (s Suite) testDestroy(t *testing.T) {
	b := s.Open(t)
	inst := s.boot(t, b)
	client := s.dial(t, b, inst)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = client.Wait() // with any error
	}()
	for range 2 {
		if err := b.Destroy(timeout(t), inst); err != nil {
			t.Fatalf("Destroy: %v", err)
		}
	}
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Error("a connection outlives its sandbox")
	}
	if _, err := b.Dial(timeout(t), inst); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Dial after Destroy: got %v, want ErrGone", err)
	}
	nobody := s.nobody(t, inst)
	if err := b.Destroy(timeout(t), nobody); err != nil {
		t.Errorf("Destroy of an instance that never was: %v", err)
	}
}

func (s Suite) testRefusals(t *testing.T) {
	b := s.Open(t)
	refused := func(t *testing.T, spec sandbox.Spec, want error) {
		t.Helper()
		inst, err := b.Boot(timeout(t), spec)
		if err == nil {
			_ = b.Destroy(timeout(t), inst)
			t.Fatal("Boot: no error")
		}
		boot := (*sandbox.BootError)(nil)
		if !errors.As(err, &boot) || boot.Stage == "" {
			t.Errorf("Boot: %v does not say at which stage", err)
		}
		if want != nil && !errors.Is(err, want) {
			t.Errorf("Boot: got %v, want %v", err, want)
		}
		s.nothingLeft(t, b, spec.ID)
	}
	t.Run("image", func(t *testing.T) {
		spec := s.newSpec(t)
		spec.Image = s.NoImage
		refused(t, spec, sandbox.ErrNoImage)
	})
	t.Run("begin", func(t *testing.T) {
		errTurn := errors.New("no turn")
		spec := s.newSpec(t)
		spec.Begin = func(context.Context) error { return errTurn }
		refused(t, spec, errTurn)
	})
	for _, n := range s.Refused {
		t.Run("network "+string(n), func(t *testing.T) {
			spec := s.newSpec(t)
			spec.Network = n
			refused(t, spec, sandbox.ErrUnsupported)
		})
	}
	for _, option := range []string{"no-such-option=1", "no-such-option", "privileged=true",
		"volume=/:/host"} {
		t.Run("option "+option, func(t *testing.T) {
			spec := s.newSpec(t)
			spec.Options = []string{option}
			refused(t, spec, sandbox.ErrUnsupported)
		})
	}
	for _, id := range []string{"", "../../x", "-o", "UPPER", "a b", strings.Repeat("a", 64)} {
		t.Run(fmt.Sprintf("id %q", id), func(t *testing.T) {
			spec := s.newSpec(t)
			spec.ID = id
			refused(t, spec, nil)
		})
	}
}

// nothingLeft checks that no instance with that ID exists.
func (s Suite) nothingLeft(t *testing.T, b sandbox.Backend, id string) {
	t.Helper()
	l, ok := b.(sandbox.Finder)
	if !ok {
		return
	}
	list, err := l.List(timeout(t))
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	if slices.ContainsFunc(list, func(i sandbox.Instance) bool { return i.ID == id }) {
		t.Errorf("instance %q was left behind", id)
	}
}

// testCancelled ends Boot's context at many moments of a boot.
func (s Suite) testCancelled(t *testing.T) {
	b := s.Open(t)
	began := time.Now()
	s.boot(t, b)
	whole := time.Since(began)
	for _, part := range []float64{0, 0.1, 0.3, 0.5, 0.7, 0.9} {
		t.Run(fmt.Sprintf("after %.0f%%", 100*part), func(t *testing.T) {
			spec := s.newSpec(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(part*float64(whole)))
			defer cancel()
			inst, err := b.Boot(ctx, spec)
			if err == nil { // it completed first
				if err := b.Destroy(timeout(t), inst); err != nil {
					t.Errorf("Destroy: %v", err)
				}
				return
			}
			s.nothingLeft(t, b, spec.ID)
			// The ID is available again.
			if inst, err = b.Boot(timeout(t), spec); err != nil {
				t.Fatalf("Boot after a cancelled one: %v", err)
			}
			if err := b.Destroy(timeout(t), inst); err != nil {
				t.Errorf("Destroy: %v", err)
			}
		})
	}
}
