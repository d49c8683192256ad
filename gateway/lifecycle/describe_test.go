package lifecycle_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestDescribe(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Options.Command = func(target string) string { return "ssh " + target + "@gw" }
	d := w.Start()
	if _, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "demo", Sudo: true},
		nil); err != nil {
		t.Fatal(err)
	}
	w.Run(d, "true")
	got, err := d.Describe(w.Ctx(), alice, "demo")
	if err != nil {
		t.Fatal(err)
	}
	if got.Health != "ok" || got.OS == "" || got.Kernel == "" || got.Cwd == "" ||
		!strings.Contains(got.Account, "uid") {
		t.Errorf("description = %+v", got)
	}
	if got.Tools["sh"] == "" || got.Tools["bash"] == "" {
		t.Errorf("tools = %v", got.Tools)
	}
	if len(got.Sessions) != 1 || got.Sessions[0].Name != "main" || got.Command != "ssh demo@gw" {
		t.Errorf("sessions %+v, command %q", got.Sessions, got.Command)
	}
	if !strings.Contains(strings.Join(got.Notes, "\n"), "sudo") {
		t.Errorf("notes = %q", got.Notes)
	}
	if err := d.Stop(w.Ctx(), alice, "demo"); err != nil {
		t.Fatal(err)
	}
	got, err = d.Describe(w.Ctx(), alice, "demo")
	if err != nil || got.Health != "stopped" || got.State != lifecycle.Stopped || got.OS != "" {
		t.Errorf("description of a stopped one = %+v, %v", got, err)
	}
}

func TestRelayedTerminalIsRecorded(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	term, err := d.Relay.Terminal(w.Ctx(), alice, "demo", "htop", 80, 24)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"one ", "two"} {
		if n, err := term.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatalf("Write = %d, %v", n, err)
		}
	}
	term.Resize(100, 30)
	term.Close(7)
	records, err := d.Sessions.Records(w.Ctx(), alice, "demo")
	if err != nil || len(records) != 1 {
		t.Fatalf("records = %+v, %v", records, err)
	}
	r := records[0]
	if !strings.HasPrefix(r.Session, "exec-") || r.Title != "htop" || r.Ended == nil ||
		r.State.ExitCode == nil || *r.State.ExitCode != 7 {
		t.Errorf("record = %+v", r)
	}
	if text, _ := w.Recorded(d, wire.Target{Sandbox: "demo",
		Session: r.Session}); text != "one two" {
		t.Errorf("its bytes are %q", text)
	}
}

// A command that prints without end is hung up on, and what it printed first is kept.
func TestRunKeepsNoMoreThanItsLimit(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	b := w.registry.Find("demo")
	out, err := b.RunInside(w.Ctx(), "yes", 100)
	if string(out) != strings.Repeat("y\n", 50) || !errors.Is(err, connect.ErrTooMuch) {
		t.Errorf("%d bytes, %v", len(out), err)
	}
}
