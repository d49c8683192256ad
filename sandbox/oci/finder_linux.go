package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/machine"
	"github.com/sandboxd/sandboxd/sandbox/usage"
)

// exitKilled is the exit code of a process that was killed, as engines report it: 128 and the
// number of the signal.
const exitKilled = 128 + 9

// Inspect reports the state of a container. The exit code of its first process is 0 after Stop, and
// that of a killed process otherwise: nothing else ends the guest. See sandbox.Finder.
func (b *Backend) Inspect(_ context.Context, inst sandbox.Instance) (sandbox.Status, error) {
	p, err := b.first(inst)
	if errors.Is(err, sandbox.ErrStopped) {
		if p := readProcess(b.in(inst.ID, pidFile)); p == (process{}) { // Stop has ended it
			return sandbox.Status{}, nil
		}
		u := usage.CountersOf(path.Join(groupsDir, inst.Ref))
		return sandbox.Status{ExitCode: exitKilled, OOMKilled: u.OOMKills > 0}, nil
	}
	if err != nil {
		return sandbox.Status{}, fmt.Errorf("inspect %s: %w", inst.ID, err)
	}
	s := sandbox.Status{Running: true, Paused: usage.Frozen(p.pid, inst.Ref),
		Halted: machine.Halted(p.pid)}
	if u, err := usage.Counters(p.pid, inst.Ref); err == nil {
		s.OOMKilled = u.OOMKills > 0
	}
	return s, nil
}

// List returns the instances that this daemon made. See sandbox.Finder.
func (b *Backend) List(ctx context.Context) ([]sandbox.Instance, error) {
	ids, err := b.ids()
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	var list []sandbox.Instance
	for _, id := range ids {
		changing := b.Changing(id) // before the note, which the change may write
		n, err := b.state.ReadNote(id)
		switch {
		case err == nil && n.Instance.ID == id && n.Instance.Backend == Name:
			list = append(list, n.Instance)
		case err == nil || !errors.Is(err, fs.ErrNotExist):
			b.log(id).Error("read note", "err", err)
		case !changing:
			// A daemon ended while it made the sandbox, whose name nobody knows.
			if err := b.Destroy(ctx, sandbox.Instance{ID: id}); err != nil {
				b.log(id).Warn("a sandbox that was not complete is left behind", "err", err)
			}
		}
	}
	return list, nil
}

// ids returns the IDs of all instances, also of those that are being made.
func (l *instances) ids() (ids []string, err error) {
	dirs, err := os.ReadDir(string(l.state.State))
	for _, dir := range dirs {
		if guestconfig.ValidID.MatchString(dir.Name()) {
			ids = append(ids, dir.Name())
		}
	}
	return ids, err
}

// Sweep removes layers that no image and no instance needs. See sandbox.Finder.
func (b *Backend) Sweep(ctx context.Context) error { return b.images.Collect(ctx) }

// Revision returns the revision of an instance made now. See sandbox.Reviser.
func (b *Backend) Revision(_ context.Context, spec sandbox.Spec) (string, error) {
	name, err := b.runtime.find(spec.Isolation)
	if err != nil {
		return "", err
	}
	guest, _, err := b.files.Place(runtime.GOARCH, sandbox.TrustImage)
	if err != nil {
		return "", err
	}
	return machine.Revision(guest, name), nil
}

// Usage reads the control groups of a container. See sandbox.Meter.
func (b *Backend) Usage(_ context.Context, inst sandbox.Instance) (u sandbox.Usage, err error) {
	p, err := b.first(inst)
	if err == nil {
		u, err = usage.Counters(p.pid, inst.Ref)
	}
	if err != nil {
		return u, fmt.Errorf("usage of %s: %w", inst.ID, err)
	}
	return u, nil
}

// Disk visits each file that a container wrote. See sandbox.Meter.
func (b *Backend) Disk(ctx context.Context, inst sandbox.Instance,
	limit sandbox.DiskUsage) (sandbox.DiskUsage, error) {
	p, err := b.first(inst)
	if err != nil && !errors.Is(err, sandbox.ErrStopped) {
		return sandbox.DiskUsage{}, fmt.Errorf("disk of %s: %w", inst.ID, err)
	}
	w := &usage.Walk{Limit: limit}
	err = w.Tree(ctx, b.in(inst.ID, upperDir))
	for _, name := range nameFiles {
		w.File(b.in(inst.ID, namesDir) + "/" + name)
	}
	w.File(b.in(inst.ID, logFile))
	if err == nil && p.pid != 0 {
		w.Removed(usage.Processes(p.pid, inst.Ref))
	}
	if err != nil && !errors.Is(err, usage.ErrLimit) {
		return sandbox.DiskUsage{}, fmt.Errorf("disk of %s: %w", inst.ID, err)
	}
	return w.DiskUsage, nil
}

// Room returns the free space where instances write. See sandbox.Meter.
func (b *Backend) Room(context.Context) (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(b.opts.Dir, &fs); err != nil {
		return 0, fmt.Errorf("room: %s: %w", b.opts.Dir, os.NewSyscallError("statfs", err))
	}
	return int64(fs.Bavail) * fs.Bsize, nil
}
