package kubernetes

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/kubernetes/cluster"
)

// withVolume boots a sandbox with a volume.
func withVolume(t *testing.T, b *Backend) sandbox.Instance {
	t.Helper()
	spec := plainSpec
	spec.ID, spec.Volume.Size = "s1", 1<<30
	inst, err := b.Boot(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return inst
}

// A new daemon knows a stopped sandbox, and starts it.
func TestStoppedIsListed(t *testing.T) {
	f := newFake(t)
	b := f.backend()
	inst := withVolume(t, b)
	if err := b.Stop(t.Context(), inst, time.Second); err != nil {
		t.Fatal(err)
	}
	if f.pod(podName("s1")) != nil || f.claims[podName("s1")] == nil {
		t.Errorf("want the claim alone: %v, %v", f.pods, f.claims)
	}
	again := f.backend(func(o *Options) { o.Dir = b.opts.Dir })
	list, err := again.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Ref != inst.Ref {
		t.Fatalf("%+v, %v", list, err)
	}
	if st, err := again.Inspect(t.Context(), list[0]); err != nil || st.Running {
		t.Errorf("%+v, %v", st, err)
	}
	if _, err := again.Start(t.Context(), list[0]); err != nil {
		t.Error(err)
	}
	if list, err := again.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	if err := again.Destroy(t.Context(), inst); err != nil || len(f.claims)+len(f.pods) != 0 {
		t.Errorf("%v: left %v, %v", err, f.claims, f.pods)
	}
}

// What ended by itself, and what somebody else has deleted, starts again.
func TestEndedStarts(t *testing.T) {
	for name, end := range map[string]func(*fake){
		"killed":  func(f *fake) { f.fail("s1", cluster.Terminated{ExitCode: 137}) },
		"evicted": func(f *fake) { f.evict("s1") },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			b := f.backend()
			inst := withVolume(t, b)
			end(f)
			if _, err := b.Dial(t.Context(), inst); !errors.Is(err, sandbox.ErrStopped) {
				t.Errorf("dial: %v", err)
			}
			if _, err := b.Start(t.Context(), inst); err != nil {
				t.Fatal(err)
			}
			peer, err := b.Dial(t.Context(), inst)
			if err != nil {
				t.Fatal(err)
			}
			peer.Conn.Close()
		})
	}
}

// A pod that a daemon had made and not configured when it died, or that somebody else has made to get
// the keys, gets none: Start makes another one.
func TestHalfStarted(t *testing.T) {
	f := newFake(t)
	b := f.backend()
	inst := withVolume(t, b)
	if again, err := b.Start(t.Context(), inst); err != nil || again.Ref != inst.Ref {
		t.Errorf("start of a running one: %+v, %v", again, err)
	}
	first := f.pod(podName("s1")).Metadata.UID
	if err := b.Stop(t.Context(), inst, time.Second); err != nil {
		t.Fatal(err)
	}
	p, _, err := b.volumes.read("s1")
	if err != nil {
		t.Fatal(err)
	}
	s := &booting{b: b, claim: inst.Ref}
	if err := s.create(t.Context(), podOf(p)); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	half := f.pods[podName("s1")]
	f.mu.Unlock()
	if _, err := b.Start(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
	if got := f.pod(podName("s1")).Metadata.UID; got == s.ref || got == first {
		t.Errorf("the pod is the half made one: %s", got)
	}
	if len(half.input) > 0 || half.guest != nil {
		t.Errorf("it got %q", half.input)
	}
}

// A claim whose sandbox nobody knows is left alone: its files may be the only copy. Without its
// claim, a sandbox is gone.
func TestLostClaims(t *testing.T) {
	f := newFake(t)
	b := f.backend()
	inst := withVolume(t, b)
	kept := f.claims[podName("s1")]
	if err := b.Stop(t.Context(), inst, time.Second); err != nil {
		t.Fatal(err)
	}
	delete(f.claims, podName("s1"))
	if _, err := b.Start(t.Context(), inst); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("start: %v", err)
	}
	if _, err := b.Inspect(t.Context(), inst); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("inspect: %v", err)
	}
	f.claims[podName("s1")] = kept
	if _, err := b.Start(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(b.state.Dir("s1")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if list, err := b.List(t.Context()); err != nil || len(list) != 0 {
			t.Errorf("%+v, %v", list, err)
		}
	}
	if len(f.claims) != 1 || len(f.pods) != 0 {
		t.Errorf("left: %v, %v; want the claim", f.claims, f.pods)
	}
}

// The record of a creation that was interrupted knows only the ID. All that it made goes.
func TestInterruptedCreation(t *testing.T) {
	f := newFake(t)
	b := f.backend()
	withVolume(t, b)
	if err := b.Destroy(t.Context(), sandbox.Instance{ID: "s1"}); err != nil || len(f.claims) != 0 ||
		len(f.pods) != 0 {
		t.Errorf("%v; left %v, %v", err, f.claims, f.pods)
	}
}

// Authorities that a stopped sandbox gets are those that it has when it starts. One that trusts those
// of its image refuses them, and starts.
func TestTrustOfStopped(t *testing.T) {
	f := newFake(t)
	b := f.backend()
	inst := withVolume(t, b)
	if err := b.Stop(t.Context(), inst, time.Second); err != nil {
		t.Fatal(err)
	}
	if err := b.Trust(t.Context(), inst, []byte("x")); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("trust: %v", err)
	}
	if _, err := b.Start(t.Context(), inst); err != nil {
		t.Error(err)
	}
}

// A daemon may have died between the start of a closed sandbox and the test of its network: the next
// one tests it, and hands out no open one.
func TestUntestedStarts(t *testing.T) {
	f := newFake(t)
	f.enforces = true
	b := f.backend()
	spec := plainSpec
	spec.ID, spec.Volume.Size, spec.Network = "s1", 1<<30, sandbox.NetworkNone
	inst, err := b.Boot(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	f.enforces = false // since then
	later := f.backend(func(o *Options) { o.Dir = b.opts.Dir })
	if _, err := later.Start(t.Context(), inst); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("start on an open network: %v", err)
	}
	if f.pod(podName("s1")) != nil {
		t.Error("the pod still runs")
	}
}
