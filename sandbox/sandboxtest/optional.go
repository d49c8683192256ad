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

func (s Suite) testResolve(t *testing.T) {
	b := s.Open(t)
	r, ok := b.(sandbox.Resolver)
	if !ok {
		return // optional
	}
	inst := s.boot(t, b)
	if got, err := r.Resolve(timeout(t), inst.Image); err != nil || got != inst.Digest || got == "" {
		t.Errorf("Resolve %s: got %q, %v; want what the instance was made from, %q", inst.Image, got, err, inst.Digest)
	}
	if got, err := r.Resolve(timeout(t), NoImage); !errors.Is(err, sandbox.ErrNoImage) {
		t.Errorf("Resolve of an image that is not there: got %q, %v, want ErrNoImage", got, err)
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

func (s Suite) testPauseResume(t *testing.T) {
	b := s.Open(t)
	p, ok := b.(sandbox.Pauser)
	if !ok {
		return // optional
	}
	inst := s.boot(t, b)
	client := s.dial(t, b, inst)
	for range 2 {
		if err := p.Pause(timeout(t), inst); err != nil {
			t.Fatalf("Pause: %v", err)
		}
	}
	if i, ok := b.(sandbox.Inspector); ok {
		if got, err := i.Inspect(timeout(t), inst); err != nil || !got.Running || !got.Paused {
			t.Errorf("Inspect of a paused one: got %+v, %v; want it to run and be paused", got, err)
		}
	}
	// Nothing in it answers. There is no event for an answer that does not come, so a while has to do.
	answered := make(chan error, 1)
	go func() {
		_, _, err := client.SendRequest("keepalive@openssh.com", true, nil)
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Errorf("a paused one answered: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	for range 2 {
		if err := p.Resume(timeout(t), inst); err != nil {
			t.Fatalf("Resume: %v", err)
		}
	}
	select {
	case err := <-answered:
		if err != nil {
			t.Errorf("after Resume: %v; the connection from before has to go on", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("after Resume nothing answers")
	}
	if out, code := run(t, client, "echo on"); out != "on\n" || code != 0 {
		t.Errorf("after Resume: got %q, %d", out, code)
	}
	if st, ok := b.(sandbox.Stopper); ok {
		if err := p.Pause(timeout(t), inst); err != nil {
			t.Fatalf("Pause: %v", err)
		}
		if err := st.Stop(timeout(t), inst, time.Second); err != nil {
			t.Fatalf("Stop of a paused one: %v", err)
		}
		if err := p.Pause(timeout(t), inst); !errors.Is(err, sandbox.ErrStopped) {
			t.Errorf("Pause of a stopped one: got %v, want ErrStopped", err)
		}
		if err := p.Resume(timeout(t), inst); err != nil {
			t.Errorf("Resume of a stopped one: %v", err)
		}
	}
	paused := s.boot(t, b) // destroyed as it is
	if err := p.Pause(timeout(t), paused); err != nil {
		t.Fatalf("Pause: %v", err)
	}
	nobody := inst
	nobody.ID, nobody.Ref = s.newSpec(t).ID, "0123456789ab"
	if err := p.Pause(timeout(t), nobody); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Pause of one that never was: got %v, want ErrGone", err)
	}
	if err := p.Resume(timeout(t), nobody); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Resume of one that never was: got %v, want ErrGone", err)
	}
}

func (s Suite) testSnapshot(t *testing.T) {
	b := s.Open(t)
	sn, ok := b.(sandbox.Snapshotter)
	if !ok {
		return // optional
	}
	inst := s.boot(t, b)
	client := s.dial(t, b, inst)
	pwd, _ := run(t, client, "pwd")
	if out, code := run(t, client, "mkdir -p /kept && echo data >/kept/file && chmod 4750 /kept/file && ln -s file /kept/link && (sleep 1000 >/dev/null 2>&1 & :)"); code != 0 {
		t.Fatalf("write files: %s", out)
	}
	spec := s.newSpec(t)
	image, err := sn.Fork(timeout(t), inst, spec.ID)
	if err != nil {
		t.Fatalf("Fork: %v", err)
	}
	spec.Image = image
	fork, err := b.Boot(timeout(t), spec)
	if err != nil {
		t.Fatalf("Boot of a fork: %v", err)
	}
	forked := s.dial(t, b, fork)
	if out, code := run(t, forked, "cat /kept/link; ls -ln /kept/file /kept/link | cut -c1-10; ps 2>/dev/null | grep -c '[s]leep 1000'; pwd"); code != 0 ||
		out != "data\n-rwsr-x---\nlrwxrwxrwx\n0\n"+pwd {
		t.Errorf("fork: got %q, %d; want the files, no process, and the same directory %q", out, code, pwd)
	}
	run(t, forked, "echo other >/kept/file")
	if out, _ := run(t, client, "cat /kept/file"); out != "data\n" {
		t.Errorf("after a write in the fork the first one has %q", out)
	}
	first, err := b.Dial(timeout(t), inst)
	if err != nil {
		t.Fatalf("Dial: %v", err)
	}
	first.Conn.Close()
	second, err := b.Dial(timeout(t), fork)
	if err != nil {
		t.Fatalf("Dial: %v", err)
	}
	second.Conn.Close()
	if string(first.HostKeys[0].Marshal()) == string(second.HostKeys[0].Marshal()) {
		t.Error("a fork has the host key of the first one")
	}
	// It is that one's, and gone with it.
	stranger := s.newSpec(t)
	stranger.Image = image
	if _, err := b.Boot(timeout(t), stranger); !errors.Is(err, sandbox.ErrNoImage) {
		t.Errorf("Boot of another's fork: got %v, want ErrNoImage", err)
	}
	if err := b.Destroy(timeout(t), fork); err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	again := spec
	if _, err := b.Boot(timeout(t), again); !errors.Is(err, sandbox.ErrNoImage) {
		t.Errorf("Boot of a fork's image when that is destroyed: got %v, want ErrNoImage", err)
	}
	nobody := inst
	nobody.ID, nobody.Ref = s.newSpec(t).ID, "0123456789ab"
	if _, err := sn.Fork(timeout(t), nobody, s.newSpec(t).ID); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Fork of one that never was: got %v, want ErrGone", err)
	}
}
