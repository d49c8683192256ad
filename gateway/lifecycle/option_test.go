package lifecycle_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Options of the engine are asked for by who runs the daemon, and by others where its configuration
// says so. What there is to ask for is the backend's to say: this one has none.
func TestWhoAsksForOptions(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Options.Engine = []string{"hostname", "label=team=blue"}
	d := w.Start()
	for _, tt := range []struct {
		p       gateway.Principal
		options []string
		denied  bool
	}{
		{alice, []string{"cpu-shares=2"}, false},
		{bob, []string{"hostname=a", "label=team=blue"}, false},
		{bob, []string{"hostname=a", "label=team=red"}, true},
		{bob, []string{"label"}, true},
		{bob, []string{"privileged=true"}, true},
	} {
		_, err := d.Create(w.Ctx(), tt.p, lifecycle.NewSpec{Options: tt.options}, nil)
		var e *wire.Error
		if denied := errors.Is(err, &wire.Error{Code: wire.CodeDenied}); denied != tt.denied {
			t.Errorf("%s asks for %q: %v", tt.p.Name, tt.options, err)
		} else if denied && (!errors.As(err, &e) || !strings.Contains(e.Hint, "docker_options")) {
			t.Errorf("%s asks for %q: %v does not say what to do", tt.p.Name, tt.options, err)
		}
		if !tt.denied && !errors.Is(err, sandbox.ErrUnsupported) {
			t.Errorf("%s asks for %q: got %v, want the backend's refusal", tt.p.Name, tt.options,
				err)
		}
	}
	w.nothingLeft(d)
}
