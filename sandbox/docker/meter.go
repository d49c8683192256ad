package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestsock"
	"github.com/sandboxd/sandboxd/sandbox/usage"
)

// meter is the backend's sandbox.Meter. It reads files and counters itself. It asks the engine only
// where this user has no permission.
type meter struct {
	engine  *engine
	sockets *guestsock.Set

	mu     sync.Mutex
	places map[string]places // guarded by mu; by instance ID
}

func newMeter(e *engine, s *guestsock.Set) *meter {
	return &meter{engine: e, sockets: s, places: make(map[string]places)}
}

// places are where a container's files are on this machine. They do not change while it exists.
type places struct {
	ref   string
	layer string   // directory of files that it wrote; empty if only the engine can measure them
	trees []string // its volumes
	files []string // files of the engine that the sandbox can write: /etc/hosts and others

	remote bool // they are on another machine: only the engine measures
}

// Usage reads the control groups of a container. See sandbox.Meter.
func (m *meter) Usage(ctx context.Context, inst sandbox.Instance) (sandbox.Usage, error) {
	f, err := m.engine.facts(ctx)
	if err != nil {
		return sandbox.Usage{}, fmt.Errorf("usage of %s: %w", inst.ID, err)
	}
	var u sandbox.Usage
	if f.remote {
		u, err = m.engine.usage(ctx, refOf(inst))
	} else if pid, e := m.firstProcess(ctx, inst); e == nil {
		u, err = usage.Counters(pid, inst.Ref)
	} else {
		err = e
	}
	if err != nil {
		return u, fmt.Errorf("usage of %s: %w", inst.ID, err)
	}
	return u, nil
}

// Room returns the free space of the engine's disk. See sandbox.Meter.
func (m *meter) Room(ctx context.Context) (int64, error) {
	f, err := m.engine.facts(ctx)
	if err != nil {
		return 0, fmt.Errorf("room: %w", err)
	}
	if f.remote {
		return 0, fmt.Errorf("room: %w: the engine is remote", sandbox.ErrUnsupported)
	}
	free, err := freeIn(f.root)
	if err != nil {
		return 0, fmt.Errorf("room: %s: %w", f.root, err)
	}
	return free, nil
}

// Disk visits each file that a container wrote. Where this user has no permission, or the engine
// stores files in another way, the engine measures them: without volumes, and with holes as if they
// were full. See sandbox.Meter.
func (m *meter) Disk(ctx context.Context, inst sandbox.Instance,
	limit sandbox.DiskUsage) (sandbox.DiskUsage, error) {
	p, err := m.placesOf(ctx, inst)
	if err != nil {
		return sandbox.DiskUsage{}, fmt.Errorf("disk of %s: %w", inst.ID, err)
	}
	pid := 0
	if !p.remote {
		pid, _ = m.firstProcess(ctx, inst)
	}
	got, err := m.measure(ctx, p, pid, limit)
	if err != nil {
		return got, fmt.Errorf("disk of %s: %w", inst.ID, err)
	}
	return got, nil
}

// measure adds up the files of a container and, unless pid is 0, removed files that its processes
// hold open. It may stop at limit.
func (m *meter) measure(ctx context.Context, p places, pid int,
	limit sandbox.DiskUsage) (sandbox.DiskUsage, error) {
	w := &usage.Walk{Limit: limit}
	for _, file := range p.files {
		w.File(file)
	}
	err := m.written(ctx, p, w)
	for _, dir := range p.trees {
		if err != nil {
			break
		}
		if err = w.Tree(ctx, dir); errors.Is(err, os.ErrPermission) ||
			errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	if err == nil && pid != 0 {
		w.Removed(usage.Processes(pid, p.ref))
	}
	if err != nil && !errors.Is(err, usage.ErrLimit) {
		return sandbox.DiskUsage{}, err
	}
	return w.DiskUsage, nil
}

// written adds the files that a container wrote outside its volumes.
func (m *meter) written(ctx context.Context, p places, w *usage.Walk) error {
	before := w.DiskUsage
	if p.layer != "" {
		err := w.Tree(ctx, p.layer)
		if err == nil || ctx.Err() != nil || errors.Is(err, usage.ErrLimit) {
			return err
		}
	}
	w.DiskUsage = before
	n, err := m.engine.size(ctx, p.ref)
	w.Bytes += n
	return err
}

// placesOf asks the engine once for each container.
func (m *meter) placesOf(ctx context.Context, inst sandbox.Instance) (places, error) {
	m.mu.Lock()
	p := m.places[inst.ID]
	m.mu.Unlock()
	if p.ref != "" && p.ref == inst.Ref {
		return p, nil
	}
	c, err := m.engine.container(ctx, refOf(inst))
	if err != nil {
		return p, err
	}
	f, err := m.engine.facts(ctx)
	if err != nil {
		return p, err
	}
	if p = placesIn(c); f.remote {
		p = places{ref: c.ID, remote: true}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.places[inst.ID] = p
	return p, nil
}

// forget drops the cached places of an instance that is gone.
func (m *meter) forget(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.places, id)
}

func placesIn(c container.InspectResponse) places {
	p := places{ref: c.ID, files: []string{c.HostsPath, c.HostnamePath, c.ResolvConfPath}}
	if c.GraphDriver != nil {
		p.layer = c.GraphDriver.Data["UpperDir"]
	}
	for _, m := range c.Mounts {
		if m.Type == mount.TypeVolume {
			p.trees = append(p.trees, m.Source)
		}
	}
	return p
}

// firstProcess returns the first process of a running container: from its socket if known, else
// from the engine.
func (m *meter) firstProcess(ctx context.Context, inst sandbox.Instance) (int, error) {
	if pid := m.sockets.PID(inst.ID); pid != 0 {
		return pid, nil
	}
	c, err := m.engine.container(ctx, refOf(inst))
	switch {
	case err != nil:
		return 0, err
	case !c.State.Running || c.State.Pid == 0:
		return 0, sandbox.ErrStopped
	}
	return c.State.Pid, nil
}
