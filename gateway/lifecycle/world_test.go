package lifecycle_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/gateway/gatewaytest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/signals"
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

	wantCode   = gatewaytest.WantCode
	readTo     = gatewaytest.ReadTo
	instanceOf = gatewaytest.InstanceOf
)

type daemon = gatewaytest.Daemon

// world is a gatewaytest.World of which the tests see the registry.
type world struct {
	*gatewaytest.World
	registry *lifecycle.Registry // of the daemon that was started last
}

// newWorld returns a world whose daemons do not wait for requests that were abandoned.
func newWorld(t *testing.T, o sandboxtest.Options) *world {
	t.Helper()
	w := &world{World: gatewaytest.NewWorld(t, o)}
	w.Options.SetLateBoot(time.Millisecond)
	w.Options.Made(func(reg *lifecycle.Registry) { w.registry = reg })
	return w
}

// forget makes the daemon close its connections to a sandbox. It makes the next ones at once, where
// it waits ever longer for a sandbox that closes them.
func (w *world) forget(name string) { w.registry.Find(name).Forget() }

// wantLines fails the test unless a file has that many lines.
func wantLines(t *testing.T, file string, want int) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if got := strings.Count(string(text), "\n"); got != want {
		t.Errorf("it ran %d times, want %d", got, want)
	}
}
