package lifecycle_test

import (
	"testing"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A held sandbox rejects what would resume it. It is held until it is resumed or stopped, and not
// in later pauses.
func TestHold(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{Freezes: true})
	w.Backend = pausing{w.Memory}
	d := w.Start()
	w.Create(d, "demo")
	if err := d.Share(w.Ctx(), alice, "demo", "bob", wire.RightDrive); err != nil {
		t.Fatal(err)
	}
	for name, release := range map[string]func() error{
		"resume": func() error { return d.Resume(w.Ctx(), alice, "demo") },
		"start": func() error {
			_, err := d.Hub.Start(w.Ctx(), alice, "demo", nil)
			return err
		},
		"stop and start": func() error {
			if err := d.Stop(w.Ctx(), alice, "demo"); err != nil {
				return err
			}
			_, err := d.Hub.Start(w.Ctx(), alice, "demo", nil)
			return err
		},
	} {
		if err := d.Pause(w.Ctx(), alice, "demo", true); err != nil {
			t.Fatal(err)
		}
		wantCode(t, d.Relay.Wake(w.Ctx(), bob, "demo"), wire.CodeUnavailable)
		if err := release(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		sb := w.registry.Find("demo")
		if err := (pausing{w.Memory}).Pause(w.Ctx(), instanceOf(sb.Info())); err != nil {
			t.Fatal(err)
		}
		sb.Observed(w.Ctx(), lifecycle.Paused, "") // paused outside the daemon
		if err := d.Relay.Wake(w.Ctx(), bob, "demo"); err != nil {
			t.Errorf("after %s: %v", name, err)
		}
	}
}
