package gateway_test

import (
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/secret"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Each principal has secrets of its own. Only keys that may change something set them, and only the
// admin's, as a person, may name a command.
func TestSecretsOfPrincipals(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	value, err := secret.ParseValue([]byte("key"))
	if err != nil {
		t.Fatal(err)
	}
	set := func(p gateway.Principal, name string, kind secret.Kind, sandboxes ...string) (string,
		error) {
		change, err := d.Secrets.Set(w.Ctx(), p, secret.Secret{Name: name, Sandboxes: sandboxes,
			Source:   secret.Source{Kind: kind, From: "echo key"},
			Bindings: []secret.Binding{{Host: name + ".example.com", Header: "X-Key: {}"}}}, value)
		return strings.Join(change.Notes, "\n"), err
	}
	watching := alice
	watching.Rights = wire.RightWatch
	robot := alice
	robot.Kind = wire.Agent
	for name, p := range map[string]gateway.Principal{"watching": watching} {
		_, err := set(p, name, secret.KindValue)
		wantCode(t, err, wire.CodeDenied)
		_, err = d.Secrets.Remove(w.Ctx(), p, name)
		wantCode(t, err, wire.CodeDenied)
	}
	for name, p := range map[string]gateway.Principal{"robot": robot, "bob": bob} {
		_, err := set(p, name, secret.KindCmd)
		wantCode(t, err, wire.CodeDenied)
		if _, err := set(p, name, secret.KindValue); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := set(alice, "cmd", secret.KindCmd); err != nil {
		t.Error(err)
	}

	// A name of another owner's sandbox is one that does not exist.
	notes, err := set(bob, "bob", secret.KindValue, "demo")
	if err != nil || notes != "sandbox demo does not exist yet: new applies it" {
		t.Errorf("got %q, %v", notes, err)
	}
	_, err = set(alice, "named", secret.KindValue, "demo") // has no network
	wantCode(t, err, wire.CodeUsage)
	_, err = d.Secrets.Remove(w.Ctx(), bob, "cmd")
	wantCode(t, err, wire.CodeNotFound)
	for who, want := range map[string]string{"alice": "cmd robot", "bob": "bob", "carl": ""} {
		var names []string
		for _, s := range d.Secrets.List(gateway.Principal{Name: who}) {
			names = append(names, s.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s has %q, want %q", who, got, want)
		}
	}
	if info, err := d.Get(w.Ctx(), alice, "demo"); err != nil || len(info.Secrets) > 0 {
		t.Errorf("a sandbox without a network uses %v, %v", info.Secrets, err)
	}
}
