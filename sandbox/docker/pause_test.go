package docker

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

// An abandoned pause continues in the engine and may complete first. The next one then finds the
// container paused and succeeds. The same holds for a resume.
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
	// A container that was stopped meanwhile is not paused, whatever the engine reports. It is
	// another one: of a container that was just resumed a busy engine may still report "paused".
	inst = boot(t, b, sandbox.Spec{})
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

// If runc cannot freeze a container in time, Pause retries. If it cannot be frozen at all, the
// error has the engine's text.
func TestPauseAgain(t *testing.T) {
	f := newFlaky(t)
	b := testBackend(t, f.use)
	inst := boot(t, b, sandbox.Spec{})
	var asked atomic.Int32
	fails := func(times int32) {
		asked.Store(0)
		f.set(func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasSuffix(r.URL.Path, "/pause") || asked.Add(1) > times {
				return false
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusInternalServerError)
			io.WriteString(
				w,
				`{"message":"Cannot pause container: OCI runtime pause failed: unable to freeze: unknown"}`)
			return true
		})
	}
	// First, while the container was never paused: a busy engine may report a former state.
	fails(100)
	err := b.Pause(t.Context(), inst)
	if !errors.Is(err, sandbox.ErrRefused) || !strings.Contains(err.Error(), "unable to freeze") ||
		asked.Load() != freezeTries {
		t.Errorf("after %d tries: %v", asked.Load(), err)
	}
	fails(freezeTries - 1)
	if err := b.Pause(t.Context(), inst); err != nil {
		t.Error(err)
	}
	if err := b.Resume(t.Context(), inst); err != nil {
		t.Error(err)
	}
}
