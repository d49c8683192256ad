package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/gateway/gatewaytest"
	"github.com/sandboxd/sandboxd/gateway/sshd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds a wait, so that a test that waits in vain reports where.
const patience = 5 * time.Minute

// bounded is a context for one test.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeoutCause(
		t.Context(),
		patience,
		errors.New("the test has waited too long"),
	)
	t.Cleanup(cancel)
	return ctx
}

// gatewayOf starts a gateway with sandboxes in memory, and returns a function that dials its
// sandbox "box".
func gatewayOf(t *testing.T) func(ctx context.Context) (*agent.Client, error) {
	t.Helper()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	hub := gatewaytest.Hub(t, &gateway.Options{})
	user, err := sshd.KeyPair(file("alice"), sshd.ED25519, "alice")
	check(err)
	check(
		os.WriteFile(
			file("authorized_keys"),
			fmt.Appendf(
				nil,
				"principal=%q %s",
				"alice",
				ssh.MarshalAuthorizedKey(user.PublicKey()),
			),
			0o600,
		),
	)
	host, err := sshd.KeyPair(file("host_key"), sshd.ED25519, "gateway")
	check(err)
	server, err := sshd.New(
		sshd.Options{
			Hub:      hub,
			HostKeys: []ssh.Signer{host},
			Keys:     sshd.OpenKeys(file("authorized_keys"), "alice", nil),
			Commands: func(ctx context.Context, p gateway.Principal, c sshd.CommandIO) int {
				return command.Run(
					ctx,
					&command.Env{
						Hub:       hub,
						Principal: p,
						Stdin:     c.Stdin,
						Stdout:    c.Stdout,
						Stderr:    c.Stderr,
					},
					c.Args,
				)
			},
			Watches: command.Watches,
			Limits: sshd.Limits{
				PerSource: 1000,
				Exempt:    []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
			},
		},
	)
	check(err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	check(
		os.WriteFile(
			file("known_hosts"),
			[]byte(knownhosts.Line([]string{l.Addr().String()}, host.PublicKey())+"\n"),
			0o600,
		),
	)
	background(t, func(ctx context.Context) error { return server.Serve(ctx, l) })
	return func(ctx context.Context) (*agent.Client, error) {
		return agent.Dial(
			ctx,
			"ssh://box@"+l.Addr().String(),
			agent.Options{
				Create:     true,
				Identity:   file("alice"),
				KnownHosts: []string{file("known_hosts")},
			},
		)
	}
}

// background runs f until t ends.
func background(t *testing.T, f func(context.Context) error) {
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
