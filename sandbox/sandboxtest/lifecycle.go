package sandboxtest

import (
	"errors"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

func (s Suite) testLifecycle(t *testing.T) {
	b := s.Open(t)
	st, ok := b.(sandbox.Lifecycle)
	if !ok {
		return // optional
	}
	inst := s.boot(t, b)
	client := s.dial(t, b, inst)
	if !st.CanStop(s.Spec) {
		if err := st.Stop(timeout(t), inst, time.Second); !errors.Is(err, sandbox.ErrUnsupported) {
			t.Errorf("Stop: got %v, want ErrUnsupported", err)
		}
		if out, code := run(t, client, "echo on"); out != "on\n" || code != 0 {
			t.Errorf("after that: got %q, %d", out, code)
		}
		return
	}
	if out, code := run(
		t, client, "echo kept >kept && (sleep 1000 >/dev/null 2>&1 & echo $!)"); code != 0 {
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
	if i, ok := b.(sandbox.Finder); ok {
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
	nobody := s.nobody(t, inst)
	if err := st.Stop(timeout(t), nobody, time.Second); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Stop of one that never was: got %v, want ErrGone", err)
	}
	if _, err := st.Start(timeout(t), nobody); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Start of one that never was: got %v, want ErrGone", err)
	}
}

func (s Suite) testPauser(t *testing.T) {
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
	if i, ok := b.(sandbox.Finder); ok {
		if got, err := i.Inspect(timeout(t), inst); err != nil || !got.Running || !got.Paused {
			t.Errorf("Inspect of a paused one: got %+v, %v; want it to run and be paused", got, err)
		}
	}
	// No process in it answers. A missing answer causes no event, so a short wait must do.
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
			t.Errorf("after Resume: %v; the earlier connection must continue", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("after Resume nothing answers")
	}
	if out, code := run(t, client, "echo on"); out != "on\n" || code != 0 {
		t.Errorf("after Resume: got %q, %d", out, code)
	}
	if st, ok := b.(sandbox.Lifecycle); ok {
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
	paused := s.boot(t, b) // destroyed while paused
	if err := p.Pause(timeout(t), paused); err != nil {
		t.Fatalf("Pause: %v", err)
	}
	nobody := s.nobody(t, inst)
	if err := p.Pause(timeout(t), nobody); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Pause of one that never was: got %v, want ErrGone", err)
	}
	if err := p.Resume(timeout(t), nobody); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Resume of one that never was: got %v, want ErrGone", err)
	}
}
