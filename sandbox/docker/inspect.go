package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/moby/moby/api/types/container"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/machine"
	"github.com/sandboxd/sandboxd/sandbox/usage"
)

// Inspect reports the state of a container. See sandbox.Finder.
func (b *Backend) Inspect(ctx context.Context, inst sandbox.Instance) (sandbox.Status, error) {
	c, err := b.engine.container(ctx, refOf(inst))
	if err != nil {
		return sandbox.Status{}, fmt.Errorf("inspect %s: %w", inst.ID, err)
	}
	s := sandbox.Status{Running: c.State.Running, Paused: c.State.Paused,
		ExitCode: c.State.ExitCode, OOMKilled: c.State.OOMKilled}
	if s.Running {
		// The engine's flag is often false if the kernel killed another process than the first; the
		// cgroup counts them. Counters checks that the process belongs to the container.
		if u, err := usage.Counters(c.State.Pid, c.ID); err == nil {
			s.OOMKilled = s.OOMKilled || u.OOMKills > 0
			s.Halted = machine.Halted(c.State.Pid)
		}
		return s, nil
	}
	if !s.OOMKilled && c.State.ExitCode != 0 {
		if err := b.engine.listens(ctx); err != nil {
			return sandbox.Status{}, fmt.Errorf("inspect %s: %w", inst.ID, err)
		}
		if f, err := b.engine.facts(ctx); err == nil && !f.remote {
			s.EngineRestarted = b.engine.endedByEngine(ctx, c.State)
		}
	}
	if c.State.Error != "" {
		s.Notes = append(s.Notes, c.State.Error)
	}
	return s, nil
}

// List returns the instances that this daemon made. See sandbox.Finder.
func (b *Backend) List(ctx context.Context) ([]sandbox.Instance, error) {
	found, err := b.engine.listContainers(ctx, b.engine.limits.start,
		labelDaemon+"="+b.engine.daemon)
	if err != nil {
		return nil, err
	}
	var list []sandbox.Instance
	for _, c := range found {
		id := c.Labels[labelID]
		// A container of a committed sandbox's image inherits its labels, but not its name.
		if !guestconfig.ValidID.MatchString(id) ||
			!slices.Contains(c.Names, "/"+containerName(id)) {
			continue
		}
		if c.State == container.StateCreated && b.abandoned(id) {
			// Boot gave up while the engine still created it. It never ran and has no keys, so it
			// is empty and unreachable.
			if err := b.Destroy(ctx, sandbox.Instance{ID: id, Ref: c.ID}); err != nil {
				b.log(id).Warn("a container that was never started is left behind", "err", err)
			}
			continue
		}
		inst, err := b.recall(ctx, id, c)
		if errors.Is(err, sandbox.ErrGone) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list: sandbox %s: %w", id, err)
		}
		list = append(list, inst)
	}
	return list, nil
}

// abandoned reports whether an instance has no directory and no call is making it.
func (b *Backend) abandoned(id string) bool {
	_, err := os.Lstat(b.state.Dir(id))
	return !b.instances.Changing(id) && errors.Is(err, fs.ErrNotExist)
}

// recall returns the instance that Boot returned for a container, or what the engine knows of it if
// the stored note is missing.
func (b *Backend) recall(ctx context.Context, id string, c container.Summary) (sandbox.Instance,
	error) {
	n, err := b.state.ReadNote(id)
	if err == nil && n.Instance.ID == id && n.Instance.Ref == c.ID {
		return n.Instance, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		b.log(id).Error("read note", "err", err)
	}
	full, err := b.engine.container(ctx, c.ID)
	if err != nil {
		return sandbox.Instance{}, err
	}
	inst := instanceOf(id, full)
	f, err := b.engine.facts(ctx)
	if err != nil {
		return sandbox.Instance{}, err
	}
	if f.compatible {
		inst.Runtime = f.defaultRuntime // the engine reports "oci" for all
	}
	if k, err := b.state.ReadKeys(id); err == nil {
		inst.User = k.User()
	}
	return inst, nil
}

// instanceOf reconstructs an instance from its container.
func instanceOf(id string, c container.InspectResponse) sandbox.Instance {
	inst := sandbox.Instance{Backend: Name, ID: id, Ref: c.ID, Image: c.Image, Digest: c.Image}
	inst.Created, _ = time.Parse(time.RFC3339, c.Config.Labels[labelCreated])
	if h := c.HostConfig; h != nil {
		inst.Runtime = h.Runtime
		inst.Network = sandbox.Network(h.NetworkMode)
		inst.Limits = sandbox.Limits{Memory: h.Memory, CPUs: float64(h.NanoCPUs) / 1e9,
			Shm: h.ShmSize, Swap: max(0, h.MemorySwap-h.Memory)}
		if h.PidsLimit != nil {
			inst.Limits.PIDs = *h.PidsLimit
		}
		for _, u := range h.Ulimits {
			if u.Name == "nofile" || u.Name == "RLIMIT_NOFILE" {
				inst.Limits.NoFile = u.Hard
			}
		}
	}
	return inst
}
