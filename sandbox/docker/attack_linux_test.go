package docker

import (
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/attack"
)

var attacks = attack.Suite{
	Open: func(t *testing.T) sandbox.Backend {
		b := testBackend(t)
		needImage(t, b, sandbox.DefaultImage)
		return b
	},
	Spec:  sandbox.Spec{Image: sandbox.DefaultImage, Isolation: testIsolation},
	State: func(b sandbox.Backend) guestconfig.State { return b.(*Backend).state.State.State },
	Dirs: func(b sandbox.Backend) []string {
		return []string{b.(*Backend).opts.Dir, b.(*Backend).opts.GuestDir}
	},
	Names: func(t *testing.T, b sandbox.Backend, inst sandbox.Instance) (paths []string) {
		c, err := b.(*Backend).engine.container(t.Context(), inst.Ref)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{c.HostsPath, c.HostnamePath, c.ResolvConfPath} {
			if path != "" {
				paths = append(paths, path)
			}
		}
		return paths
	},
	Gone: func(t *testing.T, b sandbox.Backend, id string) { nothingLeft(t, b.(*Backend), id) },
	Has: func(t *testing.T, b sandbox.Backend, inst sandbox.Instance, path string) bool {
		_, err := b.(*Backend).engine.api.ContainerStatPath(t.Context(), inst.Ref,
			client.ContainerStatPathOptions{Path: path})
		if err != nil && !cerrdefs.IsNotFound(err) {
			t.Error(err)
		}
		return err == nil
	},
}

func TestAttackMemoryOfPID1(t *testing.T) { attacks.MemoryOfPID1(t) }
func TestAttackSignals(t *testing.T)      { attacks.Signals(t) }
func TestAttackStart(t *testing.T)        { attacks.Start(t) }
func TestAttackMounts(t *testing.T)       { attacks.Mounts(t) }
func TestAttackSocket(t *testing.T)       { attacks.Socket(t) }
func TestAttackForkBomb(t *testing.T)     { attacks.ForkBomb(t) }
func TestAttackMemory(t *testing.T)       { attacks.Memory(t) }
func TestAttackReserve(t *testing.T)      { attacks.Reserve(t) }
func TestAttackKernel(t *testing.T)       { attacks.Kernel(t) }
func TestAttackTerminals(t *testing.T)    { attacks.Terminals(t) }
func TestAttackSelf(t *testing.T)         { attacks.Self(t) }
