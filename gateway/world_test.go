package gateway_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/gatewaytest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/signals"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// x/crypto can lose an opening at the moment at which a connection ends by a message that it does
// not expect; see connect.Control.OpenStream, which waits for no such.
func TestMain(m *testing.M) {
	signals.DefaultForChildren()
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("golang.org/x/crypto/ssh.(*mux).openChannel"))
}

var (
	alice = gatewaytest.Alice
	bob   = gatewaytest.Bob
	robot = gatewaytest.Robot
	main  = gatewaytest.Main

	bobsRobot = gateway.Principal{Name: "bob", Kind: wire.Agent}

	wantCode   = gatewaytest.WantCode
	readTo     = gatewaytest.ReadTo
	instanceOf = gatewaytest.InstanceOf
)

type daemon = gatewaytest.Daemon

// world is a gatewaytest.World with what only these tests do.
type world struct{ *gatewaytest.World }

func newWorld(t *testing.T, o sandboxtest.Options) *world {
	t.Helper()
	return &world{gatewaytest.NewWorld(t, o)}
}

// cut ends the connections to a sandbox, which keeps running.
func (w *world) cut(info lifecycle.Info) {
	if err := w.Memory.Cut(instanceOf(info)); err != nil {
		w.T.Error(err)
	}
}

// hook returns what the hook of d has done.
func (w *world) hook(d *daemon) attention.HookCounts {
	w.T.Helper()
	counts, err := d.Counts(alice)
	if err != nil {
		w.T.Fatal(err)
	}
	return counts.Hook
}

// take takes the keyboard as p's own party, and returns who holds it then.
func take(ctx context.Context, d *daemon, p gateway.Principal, t wire.Target) (string, error) {
	a, err := d.Sessions.Own(ctx, p, t)
	if err != nil {
		return "", err
	}
	return a.Party().String(), a.Take(ctx)
}

// give gives it back, and returns who holds it then.
func give(ctx context.Context, d *daemon, p gateway.Principal, t wire.Target) (string, error) {
	a, err := d.Sessions.Own(ctx, p, t)
	if err != nil {
		return "", err
	}
	err = a.Give(ctx)
	return a.Live().Keyboard(), err
}
