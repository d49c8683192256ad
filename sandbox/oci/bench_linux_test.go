package oci

import (
	"sync"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

// BenchmarkBoot boots a sandbox and runs its first command.
func BenchmarkBoot(b *testing.B) {
	backend := testBackend(b)
	for b.Loop() {
		inst := boot(b, backend, sandbox.Spec{})
		sh(b, login(b, backend, inst), "true")
		b.StopTimer()
		if err := backend.Destroy(b.Context(), inst); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkBoot50 boots 50 sandboxes at once and runs the first command of each.
func BenchmarkBoot50(b *testing.B) {
	backend := testBackend(b)
	for b.Loop() {
		var all sync.WaitGroup
		made := make([]sandbox.Instance, 50)
		for i := range made {
			all.Go(func() {
				made[i] = boot(b, backend, sandbox.Spec{})
				sh(b, login(b, backend, made[i]), "true")
			})
		}
		all.Wait()
		b.StopTimer()
		for _, inst := range made {
			if err := backend.Destroy(b.Context(), inst); err != nil {
				b.Fatal(err)
			}
		}
		b.StartTimer()
	}
}
