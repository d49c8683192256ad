package docker

import (
	"context"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
)

// BenchmarkBoot compares a boot, until the guest has called, with the engine's own time to create
// and start a container without a network.
func BenchmarkBoot(b *testing.B) {
	back, err := New(Options{Dir: b.TempDir(), GuestDir: b.TempDir(), DaemonID: newID(),
		Guest: func(string) (string, error) { return shared.guest() }})
	if err != nil {
		b.Fatal(err)
	}
	defer back.Close()
	ctx := context.Background()
	if _, err := back.engine.inspectImage(ctx, busybox); err != nil {
		b.Skipf("no engine or no image %s: %v", busybox, err)
	}
	b.Run("engine", func(b *testing.B) {
		for b.Loop() {
			r, err := back.engine.api.ContainerCreate(ctx, client.ContainerCreateOptions{
				Config:     &container.Config{Image: busybox, Cmd: []string{"sleep", "1000"}},
				HostConfig: &container.HostConfig{NetworkMode: "none"}})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := back.engine.api.ContainerStart(
				ctx, r.ID, client.ContainerStartOptions{}); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			if _, err := back.engine.api.ContainerRemove(
				ctx, r.ID, client.ContainerRemoveOptions{Force: true}); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
	b.Run("sandbox", func(b *testing.B) {
		for b.Loop() {
			inst, err := back.Boot(ctx, sandbox.Spec{ID: newID(), Image: busybox})
			if err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			if err := back.Destroy(ctx, inst); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
}
