package gateway_test

import (
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Reading the screen starts nothing: the last screen is in the record.
func TestScreenOfStopped(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	at := wire.Target{Sandbox: "demo", Session: wire.DefaultSession}
	w.Run(d, "printf 'one\\ntwo\\n'")
	before, err := d.Sessions.Screen(w.Ctx(), robot, at)
	if err != nil || before.Stopped || !strings.Contains(before.Text, "two") {
		t.Fatalf("while it runs: %+v, %v", before, err)
	}
	if err := d.Stop(w.Ctx(), alice, "demo"); err != nil {
		t.Fatal(err)
	}
	got, err := d.Sessions.Screen(w.Ctx(), robot, at)
	if err != nil || !got.Stopped || got.Cols != before.Cols || got.Rows != before.Rows ||
		!strings.Contains(got.Text, "one\ntwo") {
		t.Errorf("once it is stopped: %+v, %v", got, err)
	}
	_, err = d.Sessions.Screen(w.Ctx(), robot, wire.Target{Sandbox: "demo", Session: "other"})
	wantCode(t, err, wire.CodeNotFound)
	for what, f := range map[string]func() error{
		"a party that starts no session": func() error {
			_, err := d.Sessions.Shared(w.Ctx(), robot, at, attach.JoinOptions{})
			return err
		},
		"one that takes": func() error {
			_, err := take(w.Ctx(), d, robot, at)
			return err
		},
		"one that watches": func() error {
			_, err := d.Sessions.Join(w.Ctx(), alice, at, attach.JoinOptions{})
			return err
		},
	} {
		if err := f(); err == nil || !strings.Contains(err.Error(), "stopped") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got := w.State(d, "demo"); got != lifecycle.Stopped {
		t.Errorf("it is %s", got)
	}
}
