package lifecycle_test

import (
	"context"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A sandbox of the pool is called by its name where people see one, also after the daemon and the
// sandbox were started again.
func TestPooledSandboxHasItsName(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Options.Pool.Size = 1
	d := w.Start()
	w.ready(d, 1)
	before := w.members()
	info := w.Create(d, "demo")
	if !before[info.ID] {
		t.Fatal("it was not taken from the pool")
	}
	prompt := func(session string) {
		t.Helper()
		a, err := d.Sessions.Shared(w.Ctx(), robot, wire.Target{Sandbox: "demo", Session: session},
			attach.JoinOptions{Create: true})
		if err != nil {
			t.Fatal(err)
		}
		reply, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun,
			Text: `p='at \h'; echo "${p@P}"; PS1='in \h> '`})
		if err != nil {
			t.Fatal(err)
		}
		if reply, err = a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun,
			Text: "true"}); err != nil {
			t.Fatal(err)
		}
		screen, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbScreen})
		if err != nil || screen.Screen == nil {
			t.Fatalf("screen = %+v, %v", screen, err)
		}
		if text := screen.Screen.Text; !strings.Contains(text, "in demo>") {
			t.Errorf("prompt in session %s does not say demo:\n%s", session, text)
		}
		if reply.Result.Sandbox != "demo" {
			t.Errorf("result of sandbox %q", reply.Result.Sandbox)
		}
	}
	prompt("first")
	d.End()
	d = w.Start()
	prompt("second")
	if err := d.Stop(w.Ctx(), alice, "demo"); err != nil {
		t.Fatal(err)
	}
	prompt("third")
}

// naming sets host names, and asks for the state of the sandbox at each.
type naming struct {
	*sandboxtest.Backend
	state func() lifecycle.State
	seen  chan lifecycle.State
}

func (b *naming) SetHostname(context.Context, sandbox.Instance, string) error {
	b.seen <- b.state()
	return nil
}

// A sandbox of the pool that was stopped has its name again before anyone finds it running: the
// first program sees it.
func TestPooledSandboxHasItsNameFirst(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	b := &naming{Backend: w.Memory, seen: make(chan lifecycle.State, 2)}
	b.state = func() lifecycle.State { return w.registry.Find("demo").State() }
	w.Backend = b
	w.Options.Pool.Size = 1
	d := w.Start()
	w.ready(d, 1)
	w.Create(d, "demo")
	<-b.seen
	if err := d.Stop(w.Ctx(), alice, "demo"); err != nil {
		t.Fatal(err)
	}
	w.Run(d, "true")
	if got := <-b.seen; got != lifecycle.Stopped {
		t.Errorf("it was named when it was %s", got)
	}
}
