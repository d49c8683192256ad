package lifecycle_test

import (
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestRefresh compares the daemon's sessions with the guest's list. One that the guest does not
// have is dropped; one that begins after the guest has made its list stays.
func TestRefresh(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	var young *live.Session
	begin := func() {}
	linked, asked := make(chan struct{}), make(chan struct{})
	link := sync.OnceFunc(func() { close(linked) })
	w.Options.At(func(step string) {
		if step != "listed" {
			return
		}
		select {
		case <-asked:
			begin()
		default: // the list for the new connection
			link()
		}
	})
	d := w.Start()
	w.createFor(d, lifecycle.NewSpec{})
	sb := w.registry.Find("demo")
	c, err := sb.Dial(w.Ctx())
	if err != nil {
		t.Fatal(err)
	}
	adopt := func(name string) *live.Session {
		t.Helper()
		s, err := sb.Sessions().Adopt(wire.SessionInfo{Name: name,
			Created: time.Now().UnixMilli()})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	<-linked
	old := adopt("old")
	begin = func() { young = adopt("young") }
	close(asked)
	if err := sb.Refresh(w.Ctx(), c); err != nil {
		t.Fatal(err)
	}
	if !old.Final() || sb.Sessions().Get("old") != nil {
		t.Error("the session that the guest does not have is kept")
	}
	if young.Final() || sb.Sessions().Get("young") != young {
		t.Error("the session that has just begun is dropped")
	}
}
