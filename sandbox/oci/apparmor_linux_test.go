package oci

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

// A start gives a container the AppArmor profile of today, whatever an older daemon or kernel gave
// it.
func TestProfileAgain(t *testing.T) {
	b := testBackend(t)
	inst := boot(t, b, sandbox.Spec{})
	if err := b.Stop(t.Context(), inst, time.Second); err != nil {
		t.Fatal(err)
	}
	want, err := b.runtime.confine()
	if err != nil {
		t.Fatal(err)
	}
	made, err := b.bundle(inst.ID)
	if err != nil {
		t.Fatal(err)
	}
	made.Process.ApparmorProfile = "no-such-profile"
	text, err := json.Marshal(made)
	if err == nil {
		err = b.writeBundle(inst.ID, text)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Start(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
	if made, err = b.bundle(inst.ID); err != nil || made.Process.ApparmorProfile != want {
		t.Errorf("got profile %q, %v; want %q", made.Process.ApparmorProfile, err, want)
	}
	sh(t, login(t, b, inst), "true")
}
