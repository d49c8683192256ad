package sandboxtest

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/sandbox"
)

// nobody returns an instance like inst that never existed.
func (s Suite) nobody(t *testing.T, inst sandbox.Instance) sandbox.Instance {
	inst.ID, inst.Ref = s.newSpec(t).ID, "0123456789ab"
	return inst
}

func (s Suite) testFinder(t *testing.T) {
	if _, ok := s.Open(t).(sandbox.Finder); !ok {
		return // optional
	}
	t.Run("List", s.testList)
	t.Run("Inspect", s.testInspect)
	t.Run("Sweep", s.testSweep)
}

func (s Suite) testReviser(t *testing.T) {
	if _, ok := s.Open(t).(sandbox.Reviser); !ok {
		return // optional
	}
	t.Run("Resolve", s.testResolve)
	t.Run("Revision", s.testRevision)
}

func (s Suite) testList(t *testing.T) {
	b := s.Open(t)
	l := b.(sandbox.Finder)
	inst := s.boot(t, b)
	find := func() (found []sandbox.Instance) {
		t.Helper()
		list, err := l.List(timeout(t))
		if err != nil {
			t.Fatalf("List: %v", err)
		}
		for _, i := range list {
			if i.ID == inst.ID {
				found = append(found, i)
			}
		}
		return found
	}
	found := find()
	if len(found) != 1 {
		t.Fatalf("List: got %d of the instance, want 1", len(found))
	}
	if found[0].Ref != inst.Ref || found[0].Backend != inst.Backend ||
		found[0].Network != inst.Network {
		t.Errorf("List: a new daemon finds another instance than Boot returned (-boot +list):\n%s",
			cmp.Diff(inst, found[0]))
	}
	if out, _ := run(t, s.dial(t, b, found[0]), "echo found"); out != "found\n" {
		t.Errorf("a listed instance: got %q", out)
	}
	if err := b.Destroy(timeout(t), found[0]); err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	if left := find(); len(left) != 0 {
		t.Errorf("List after Destroy: got %v", left)
	}
}

func (s Suite) testInspect(t *testing.T) {
	b := s.Open(t)
	i := b.(sandbox.Finder)
	inst := s.boot(t, b)
	st, err := i.Inspect(timeout(t), inst)
	if err != nil || !st.Running {
		t.Errorf("Inspect: got %+v, %v; want a running one", st, err)
	}
	if err := b.Destroy(timeout(t), inst); err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	if _, err := i.Inspect(timeout(t), inst); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Inspect after Destroy: got %v, want ErrGone", err)
	}
}

func (s Suite) testResolve(t *testing.T) {
	b := s.Open(t)
	r := b.(sandbox.Reviser)
	inst := s.boot(t, b)
	if got, err := r.Resolve(timeout(t), inst.Image); err != nil || got != inst.Digest ||
		got == "" {
		t.Errorf("Resolve %s: got %q, %v; want the instance's own, %q", inst.Image, got, err,
			inst.Digest)
	}
	if got, err := r.Resolve(timeout(t), NoImage); !errors.Is(err, sandbox.ErrNoImage) {
		t.Errorf("Resolve of a missing image: got %q, %v, want ErrNoImage", got, err)
	}
}

func (s Suite) testRevision(t *testing.T) {
	b := s.Open(t)
	spec := s.newSpec(t)
	inst, err := b.Boot(timeout(t), spec)
	if err != nil {
		t.Fatalf("Boot: %v", err)
	}
	defer func() {
		if err := b.Destroy(timeout(t), inst); err != nil {
			t.Errorf("Destroy: %v", err)
		}
	}()
	got, err := b.(sandbox.Reviser).Revision(timeout(t), spec)
	if err != nil || got != inst.Revision {
		t.Errorf("Revision: got %q, %v; want the instance's, %q", got, err, inst.Revision)
	}
}

// Sweep touches no instance.
func (s Suite) testSweep(t *testing.T) {
	b := s.Open(t)
	inst := s.boot(t, b)
	for range 2 {
		if err := b.(sandbox.Finder).Sweep(timeout(t)); err != nil {
			t.Fatalf("Sweep: %v", err)
		}
	}
	if out, code := run(t, s.dial(t, b, inst), "echo still"); out != "still\n" || code != 0 {
		t.Errorf("after Sweep: got %q, %d", out, code)
	}
}
