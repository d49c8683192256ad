package lifecycle_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// copied is the state directory as kill -9 would leave it now.
func (w *world) copied() string {
	w.T.Helper()
	to := filepath.Join(w.T.TempDir(), "state")
	if err := os.CopyFS(to, os.DirFS(w.Dir)); err != nil {
		w.T.Fatal(err)
	}
	// Which the copy made by the umask.
	err := filepath.WalkDir(to, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			return os.Chmod(path, 0o700)
		}
		return os.Chmod(path, 0o600)
	})
	if err != nil {
		w.T.Fatal(err)
	}
	return to
}

// A daemon that is killed between any two steps of a claim leaves a sandbox that is either the
// pool's or its new owner's, and never both; it has its name; and a store that is lost, too, takes
// nobody's sandbox away.
func TestClaimIsCutShort(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		step    string
		claimed bool // for the next daemon
		noted   bool // whose it is, for one that lost the store
	}{
		{"reserved", false, false},
		{"noted", false, true},
		{"stored", true, true},
		{"named", true, true},
	} {
		for _, lost := range []bool{false, true} {
			name := tt.step
			if lost {
				name += ", and the store is lost"
			}
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, sandboxtest.Options{})
				w.Options.Pool.Size = 1
				var left string
				w.Options.At(func(step string) {
					if step == tt.step && left == "" {
						left = w.copied()
						runtime.Goexit() // the steps that follow do not happen
					}
				})
				d := w.Start()
				w.ready(d, 1)
				before := w.members()
				for range w.registry.Boots() {
					// No refill: what is there afterwards is what the claim left.
					w.registry.Pooled().Waiting()
				}
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					_, _ = d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "demo"}, nil)
				}()
				<-ended
				d.End()
				if left == "" {
					t.Fatal("the claim did not come so far")
				}
				w.Dir = left
				w.Options.At(nil)
				if lost {
					for _, f := range []string{store.File, store.File + "-wal", store.File +
						"-shm"} {
						if err := os.Remove(filepath.Join(w.Dir, f)); err != nil &&
							!errors.Is(err, os.ErrNotExist) {
							t.Fatal(err)
						}
					}
				}
				d = w.Start()
				claimed := tt.claimed || lost && tt.noted
				infos, err := d.List(w.Ctx(), alice)
				if err != nil {
					t.Fatal(err)
				}
				switch {
				case claimed:
					if len(infos) != 1 || infos[0].Name != "demo" ||
						infos[0].State != lifecycle.Running || !before[infos[0].ID] {
						t.Fatalf("List = %+v, want demo of those that stood ready", infos)
					}
				case lost: // of which nothing is noted
					if len(infos) != 1 || infos[0].State != lifecycle.Lost {
						t.Fatalf("List = %+v, want one that is lost", infos)
					}
					return
				default:
					if len(infos) != 0 {
						t.Fatalf("List = %+v, want none", infos)
					}
					w.ready(d, 1)
					if info := w.Create(d, "demo"); !before[info.ID] {
						t.Error("what stood ready was not found again")
					}
				}
				w.ready(d, 1)
				if res := w.Run(d, "PS1='in \\h> '"); res.Sandbox != "demo" {
					t.Errorf("result of %q", res.Sandbox)
				}
				w.Run(d, "true")
				l, err := d.Sessions.Live(w.Ctx(), alice, main)
				if err != nil {
					t.Fatal(err)
				}
				if text, err := readTo(w.Ctx(), l, 0, l.Len()); err != nil ||
					!strings.Contains(text, "in demo> ") {
					t.Errorf("the prompt does not say demo: %q, %v", text, err)
				}
			})
		}
	}
}

// A claim that is given up frees the name, and nobody gets its sandbox: neither callers that wait
// for the name nor the next to claim.
func TestClaimThatIsGivenUp(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Options.Pool.Size = 1
	ctx, cancel := context.WithCancel(w.Ctx())
	reserved, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	w.Options.At(func(step string) {
		if step == "reserved" {
			once.Do(func() {
				close(reserved)
				<-goOn
			})
		}
	})
	d := w.Start()
	w.ready(d, 1)
	before := w.members()
	gaveUp := make(chan error, 1)
	go func() {
		_, err := d.Create(ctx, alice, lifecycle.NewSpec{Name: "demo"}, nil)
		gaveUp <- err
	}()
	<-reserved
	type made struct {
		info lifecycle.Info
		err  error
	}
	waits, joins := make(chan made, 1), make(chan error, 1)
	go func() {
		info, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "demo", Reuse: true}, nil)
		waits <- made{info, err}
	}()
	go func() {
		c, err := d.Relay.Open(w.Ctx(), alice, "demo", nil)
		if err == nil {
			c.Close()
		}
		joins <- err
	}()
	cancel() // who asked first has gone
	close(goOn)
	if err := <-gaveUp; !errors.Is(err, context.Canceled) {
		t.Fatalf("Create = %v", err)
	}
	second := <-waits
	if second.err != nil || second.info.Name != "demo" || second.info.Owner != "alice" ||
		before[second.info.ID] {
		t.Errorf("who waited has %+v, %v", second.info, second.err)
	}
	// Or it came later, into the second one.
	if err := <-joins; err != nil && !errors.Is(err, lifecycle.ErrUnknown) {
		t.Errorf("Upstream = %v", err)
	}
	w.Eventually("the first one is removed", func() bool {
		for id := range before {
			if w.members()[id] {
				return false
			}
		}
		return true
	})
	w.ready(d, 1)
}

// A store that does not take the row claims nothing.
func TestClaimThatIsNotStored(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Options.Pool.Size = 1
	var d *daemon
	w.Options.At(func(step string) {
		if step == "noted" {
			row, err := lifecycle.Record{Name: "demo", Owner: "bob", State: lifecycle.Stopped}.Row(
				"other")
			if err == nil {
				err = d.Store.Add(w.Ctx(), row)
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	d = w.Start()
	w.ready(d, 1)
	before := w.members()
	_, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "demo"}, nil)
	wantCode(t, err, wire.CodeExists)
	if _, err := d.Get(w.Ctx(), alice, "demo"); !errors.Is(err, lifecycle.ErrUnknown) {
		t.Errorf("Get = %v, want ErrUnknown", err)
	}
	w.Eventually("it is replaced", func() bool {
		now := w.members()
		for id := range before {
			if now[id] {
				return false
			}
		}
		return len(now) == 1
	})
	w.ready(d, 1)
}
