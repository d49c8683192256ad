package sandboxtest

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/sandbox"
)

func (s Suite) testList(t *testing.T) {
	b := s.Open(t)
	l, ok := b.(sandbox.Lister)
	if !ok {
		return // optional
	}
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
	if found[0].Ref != inst.Ref || found[0].Backend != inst.Backend || found[0].Network != inst.Network {
		t.Errorf("List: what a daemon without memory finds differs from what Boot said (-boot +list):\n%s", cmp.Diff(inst, found[0]))
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
	i, ok := b.(sandbox.Inspector)
	if !ok {
		return // optional
	}
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

func (s Suite) testStopStart(t *testing.T) {
	b := s.Open(t)
	st, ok := b.(sandbox.Stopper)
	if !ok {
		return // optional
	}
	inst := s.boot(t, b)
	client := s.dial(t, b, inst)
	if out, code := run(t, client, "echo kept >kept && (sleep 1000 >/dev/null 2>&1 & echo $!)"); code != 0 {
		t.Fatalf("write a file: %s", out)
	}
	for range 2 {
		if err := st.Stop(timeout(t), inst, time.Second); err != nil {
			t.Fatalf("Stop: %v", err)
		}
	}
	if _, err := b.Dial(timeout(t), inst); !errors.Is(err, sandbox.ErrStopped) {
		t.Errorf("Dial of a stopped one: got %v, want ErrStopped", err)
	}
	if i, ok := b.(sandbox.Inspector); ok {
		if got, err := i.Inspect(timeout(t), inst); err != nil || got.Running {
			t.Errorf("Inspect of a stopped one: got %+v, %v", got, err)
		}
	}
	for range 2 {
		again, err := st.Start(timeout(t), inst)
		if err != nil {
			t.Fatalf("Start: %v", err)
		}
		if again.ID != inst.ID {
			t.Errorf("Start: ID %q became %q", inst.ID, again.ID)
		}
		inst = again
	}
	if out, code := run(t, s.dial(t, b, inst), "cat kept"); out != "kept\n" || code != 0 {
		t.Errorf("after Start: got %q, %d; want the file from before", out, code)
	}
	nobody := inst
	nobody.ID, nobody.Ref = s.newSpec(t).ID, "0123456789ab"
	if err := st.Stop(timeout(t), nobody, time.Second); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Stop of one that never was: got %v, want ErrGone", err)
	}
	if _, err := st.Start(timeout(t), nobody); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Start of one that never was: got %v, want ErrGone", err)
	}
}
