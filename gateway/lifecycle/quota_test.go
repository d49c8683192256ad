package lifecycle_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/admission"
	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// wantQuota wants err to be limit_quota, naming the key and what frees it.
func wantQuota(t *testing.T, err error, key, frees string) {
	t.Helper()
	wantCode(t, err, wire.CodeLimitQuota)
	e, _ := errors.AsType[*wire.Error](err)
	if e == nil || !strings.Contains(e.Message, "("+key+")") || !strings.Contains(e.Hint, frees) {
		t.Errorf("got %+v, want %s named, and %q as what to do", e, key, frees)
	}
}

// What one owner's sandboxes are allowed together has an end; another's do not count.
func TestQuota(t *testing.T) {
	big := sandbox.Limits{Memory: 3 << 30, CPUs: 3, Disk: 20 << 30}
	for _, tt := range []struct {
		name, key, frees string
		quota            admission.Quota
		stopped          bool // those that are stopped count
	}{
		{"memory", "quota.memory", "--memory", admission.Quota{Memory: 4 << 30}, false},
		{"cpus", "quota.cpus", "--cpus", admission.Quota{CPUs: 4}, false},
		{"disk", "quota.disk", "--disk", admission.Quota{Disk: 25 << 30}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, sandboxtest.Options{})
			w.Options.Quota = tt.quota
			w.Options.Limits = big
			d := w.Start()
			w.Create(d, "one")
			_, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "two"}, nil)
			wantQuota(t, err, tt.key, tt.frees)
			if _, err := d.Get(w.Ctx(), alice, "two"); err == nil {
				t.Error("what was refused is there")
			}
			little := sandbox.Limits{Memory: 1 << 30, CPUs: 1, Disk: 5 << 30}
			if _, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "little", Limits: little},
				nil); err != nil {
				t.Errorf("one that asks for less: %v", err)
			}
			if _, err := d.Create(w.Ctx(), bob, lifecycle.NewSpec{Name: "bobs"}, nil); err != nil {
				t.Errorf("another owner's: %v", err)
			}
			if err := errors.Join(d.Discard(w.Ctx(), alice, "little"), d.Stop(w.Ctx(), alice,
				"one")); err != nil {
				t.Fatal(err)
			}
			_, err = d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "two"}, nil)
			if tt.stopped {
				wantQuota(t, err, tt.key, tt.frees)
				return
			}
			if err != nil {
				t.Fatalf("while the other is stopped: %v", err)
			}
			_, err = d.Start(w.Ctx(), alice, "one", nil)
			wantQuota(t, err, tt.key, "stop")
			if err := d.Discard(w.Ctx(), alice, "two"); err != nil {
				t.Fatal(err)
			}
			if _, err = d.Start(w.Ctx(), alice, "one", nil); err != nil {
				t.Errorf("with room again: %v", err)
			}
		})
	}
}

func TestQuotaOfSessions(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Options.Quota.Sessions = 2
	d := w.Start()
	w.Create(d, "one")
	w.Create(d, "two")
	join := func(p gateway.Principal, target string) (*attach.Attachment, error) {
		to, err := wire.ParseTarget(target)
		if err != nil {
			t.Fatal(err)
		}
		return d.Sessions.Join(w.Ctx(), p, to, attach.JoinOptions{Create: true})
	}
	var all []*attach.Attachment
	// The third joins what is there.
	for _, target := range []string{"one~main", "two~main", "one~main"} {
		a, err := join(alice, target)
		if err != nil {
			t.Fatalf("%s: %v", target, err)
		}
		defer a.Close()
		all = append(all, a)
	}
	_, err := join(alice, "one~more")
	wantQuota(t, err, "quota.sessions", "exit")
	_, err = join(robot, "two~more")
	wantQuota(t, err, "quota.sessions", "exit")
	if err := d.Sessions.Close(w.Ctx(), alice, all[0].Target()); err != nil {
		t.Fatal(err)
	}
	if err := all[0].Wait(w.Ctx()); err == nil {
		t.Fatal("the session goes on")
	}
	a, err := join(alice, "two~more")
	if err != nil {
		t.Fatalf("with room again: %v", err)
	}
	a.Close()
}
