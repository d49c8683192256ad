package kubernetes

import (
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

// All pods have it: of sandboxes, also after a stop, and of the test of the network.
func TestTemplateOfAll(t *testing.T) {
	f := newFake(t)
	f.enforces = true
	parsed, err := ParseTemplate([]byte(template))
	if err != nil {
		t.Fatal(err)
	}
	b := f.backend(func(o *Options) { o.Template = parsed })
	inst, err := b.Boot(t.Context(), sandbox.Spec{ID: "s1", Network: sandbox.NetworkNone,
		Volume: sandbox.Volume{Size: 1 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Stop(t.Context(), inst, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Start(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	made := 0
	for _, e := range f.events {
		if e.Type != "ADDED" {
			continue
		}
		made++
		s := e.Object.Spec
		if e.Object.Metadata.Labels["team"] != "agents" ||
			s.NodeSelector["kubernetes.io/arch"] != "amd64" || s.Tolerations == nil || s.Affinity == nil {
			t.Errorf("%s: %+v", e.Object.Metadata.Name, s)
		}
	}
	if made != 4 {
		t.Errorf("%d pods, want the sandbox twice, and two of a test", made)
	}
}
