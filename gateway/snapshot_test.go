package gateway

import (
	"context"
	"fmt"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
)

// copying is a backend whose images are names.
type copying struct{ *sandboxtest.Backend }

func (copying) Snapshot(_ context.Context, _ sandbox.Instance, owner, name, tag string) (string, error) {
	return owner + "/" + name + ":" + tag, nil
}

func (copying) Fork(_ context.Context, _ sandbox.Instance, id string) (string, error) {
	return "fork/" + id, nil
}

// Forks that wait for their source keep nobody from starting something: perhaps it is the source that is started.
func TestForksWaitWithoutASlot(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.backend = copying{w.memory}
	d := w.start()
	w.create(d, "demo")
	source, err := d.find(alice, "demo")
	if err == nil {
		err = source.lock(w.ctx())
	}
	if err != nil {
		t.Fatal(err)
	}
	waiting, forked := make(chan string, cap(d.boots)), make(chan error, cap(d.boots))
	for i := range cap(d.boots) {
		go func() {
			_, err := d.Fork(w.ctx(), alice, "demo", fmt.Sprintf("fork-%d", i), func(line string) { waiting <- line })
			forked <- err
		}()
	}
	for range cap(d.boots) {
		<-waiting
	}
	w.create(d, "other")
	source.unlock()
	for range cap(d.boots) {
		if err := <-forked; err != nil {
			t.Error(err)
		}
	}
}
