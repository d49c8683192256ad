package docker

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

// A pause that was given up goes on in the engine and may come first: the next one finds it done, which is what it wanted. So does a resume.
func TestPauseComesBefore(t *testing.T) {
	f := newFlaky(t)
	b := testBackend(t, f.use)
	inst := boot(t, b, sandbox.Spec{})
	f.set(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/pause") || strings.HasSuffix(r.URL.Path, "/unpause") {
			forward(t, r)
		}
		return false
	})
	if err := b.Pause(t.Context(), inst); err != nil {
		t.Error(err)
	}
	if err := b.Resume(t.Context(), inst); err != nil {
		t.Error(err)
	}
	// What was stopped meanwhile is not paused, whatever the engine says of it.
	f.set(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/pause") {
			r := r.Clone(r.Context())
			r.URL.Path = strings.TrimSuffix(r.URL.Path, "pause") + "kill"
			forward(t, r)
		}
		return false
	})
	if err := b.Pause(t.Context(), inst); err == nil {
		t.Error("a stopped sandbox was paused")
	}
}
