package gateway_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestRunThroughTheHub(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	info := w.Create(d, "demo")
	if info.State != lifecycle.Running || info.Owner != "alice" || info.ID == "" {
		t.Errorf("info = %+v", info)
	}
	res := w.Run(d, "echo hello; cd /; exit_code() { return 3; }; exit_code")
	if res.Ended != wire.Done || res.ExitCode == nil || *res.ExitCode != 3 ||
		res.Output != "hello\n" || res.Cwd != "/" {
		t.Errorf("result = %+v", res)
	}
	l, err := d.Sessions.Live(w.Ctx(), alice, wire.Target{Sandbox: "demo"})
	if err != nil {
		t.Fatal(err)
	}
	text, err := readTo(w.Ctx(), l, res.From, res.To)
	if err != nil || !strings.Contains(text, "hello\r\n") {
		t.Errorf("replica has %q, %v between the command's offsets", text, err)
	}
	if got := l.State().Phase; got != wire.PhasePrompt {
		t.Errorf("phase = %s, want prompt", got)
	}
}

func TestOthersSandboxesAreUnknown(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	calls := map[string]func(p gateway.Principal, name string) error{
		"Get": func(p gateway.Principal, n string) error {
			_, err := d.Get(w.Ctx(), p, n)
			return err
		},
		"Remove": func(p gateway.Principal, n string) error { return d.Discard(w.Ctx(), p, n) },
		"Stop":   func(p gateway.Principal, n string) error { return d.Stop(w.Ctx(), p, n) },
		"Start": func(p gateway.Principal, n string) error {
			_, err := d.Start(w.Ctx(), p, n, nil)
			return err
		},
		"Rescue": func(p gateway.Principal, n string) error {
			_, err := d.Rescue(w.Ctx(), p, n)
			return err
		},
		"Describe": func(p gateway.Principal, n string) error {
			_, err := d.Describe(w.Ctx(), p, n)
			return err
		},
		"Upstream": func(p gateway.Principal, n string) error {
			_, err := d.Relay.Open(w.Ctx(), p, n, nil)
			return err
		},
		"Join": func(p gateway.Principal, n string) error {
			_, err := d.Sessions.Join(w.Ctx(), p, wire.Target{Sandbox: n},
				attach.JoinOptions{Create: true})
			return err
		},
		"Shared": func(p gateway.Principal, n string) error {
			_, err := d.Sessions.Shared(w.Ctx(), p, wire.Target{Sandbox: n},
				attach.JoinOptions{Create: true})
			return err
		},
		"Live": func(p gateway.Principal, n string) error {
			_, err := d.Sessions.Live(w.Ctx(), p, wire.Target{Sandbox: n})
			return err
		},
		"Sessions": func(p gateway.Principal, n string) error {
			_, err := d.Sessions.List(w.Ctx(), p, n)
			return err
		},
		"CloseSession": func(p gateway.Principal, n string) error {
			return d.Sessions.Close(w.Ctx(), p, wire.Target{Sandbox: n, Session: "main"})
		},
		"Kick": func(p gateway.Principal, n string) error {
			_, err := d.Sessions.Disconnect(w.Ctx(), p, wire.Target{Sandbox: n, Session: "main"},
				"x")
			return err
		},
		"Take": func(p gateway.Principal, n string) error {
			_, err := take(w.Ctx(), d, p, wire.Target{Sandbox: n})
			return err
		},
		"Give": func(p gateway.Principal, n string) error {
			_, err := give(w.Ctx(), d, p, wire.Target{Sandbox: n})
			return err
		},
		"Events": func(p gateway.Principal, n string) error {
			_, err := d.Events(w.Ctx(), p, n, 1)
			return err
		},
		"Records": func(p gateway.Principal, n string) error {
			_, err := d.Sessions.Records(w.Ctx(), p, n)
			return err
		},
		"OpenRecord": func(p gateway.Principal, n string) error {
			_, err := d.Sessions.OpenRecord(w.Ctx(), p, wire.Target{Sandbox: n, Session: "main"}, 0)
			return err
		},
		"Terminal": func(p gateway.Principal, n string) error {
			_, err := d.Relay.Terminal(w.Ctx(), p, n, "x", 80, 24)
			return err
		},
	}
	for name, call := range calls {
		forbidden := call(bob, "demo")
		wantCode(t, forbidden, wire.CodeNotFound)
		if !errors.Is(forbidden, lifecycle.ErrUnknown) {
			t.Errorf("%s: %v is not ErrUnknown", name, forbidden)
		}
		unknown := d.Public(call(bob, "demp"))
		if got, want := strings.ReplaceAll(unknown.Message+unknown.Hint, "demp", "demo"),
			d.Public(forbidden).Message+d.Public(forbidden).Hint; got != want {
			t.Errorf("%s: unknown says %q, forbidden %q", name, got, want)
		}
	}
	if list, err := d.List(w.Ctx(), bob); err != nil || len(list) != 0 {
		t.Errorf("bob's list: %v, %v", list, err)
	}
	if got := w.State(d, "demo"); got != lifecycle.Running {
		t.Errorf("after bob's calls demo is %s", got)
	}
}

func TestWatcherMakesNothing(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	watcher := gateway.Principal{Name: "alice", Kind: wire.Person, Rights: wire.RightWatch}
	for name, err := range map[string]error{
		"Create": func() error {
			_, err := d.Create(w.Ctx(), watcher, lifecycle.NewSpec{Name: "x"}, nil)
			return err
		}(),
		"Remove": d.Discard(w.Ctx(), watcher, "demo"),
		"Stop":   d.Stop(w.Ctx(), watcher, "demo"),
		"Upstream": func() error { // of exec on the control host, too
			c, err := d.Relay.Open(w.Ctx(), watcher, "demo", nil)
			if err == nil {
				c.Conn.Close()
			}
			return err
		}(),
		"Fresh": func() error {
			_, err := d.Sessions.Join(w.Ctx(), watcher, wire.Target{Sandbox: "demo"},
				attach.JoinOptions{Fresh: true})
			return err
		}(),
	} {
		if !errors.Is(err, &wire.Error{Code: wire.CodeDenied}) {
			t.Errorf("%s by a watcher: %v, want denied", name, err)
		}
	}
}

func TestAutoCreate(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	principals := 1
	w.Options.Principals = func() int { return principals }
	d := w.Start()
	for name, code := range map[string]wire.Code{"demo": "", "localuser": wire.CodeNotFound,
		"root": wire.CodeUsage, "../x": wire.CodeUsage} {
		err := d.AutoCreate(alice, name)
		if code == "" {
			if err != nil {
				t.Errorf("%s: %v, want nil", name, err)
			}
			continue
		}
		wantCode(t, err, code)
	}
	principals = 2
	wantCode(t, d.AutoCreate(alice, "demo"), wire.CodeNotFound)
}

func TestPublicHidesWhatIsNotForStrangers(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	got := d.Public(errors.New("open /var/lib/secret: permission denied"))
	if got.Code != wire.CodeInternal || strings.Contains(got.Message, "secret") {
		t.Errorf("public error = %+v", got)
	}
	id := strings.TrimPrefix(got.Message, "internal error ")
	if log := w.Log.String(); !strings.Contains(log, id) || !strings.Contains(log,
		"/var/lib/secret") {
		t.Errorf("the log has not got %s with the cause", id)
	}
	if d.Public(nil) != nil {
		t.Error("Public(nil) is an error")
	}
}
