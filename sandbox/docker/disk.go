package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// places are where a container's files are on this machine. They do not change while it exists.
type places struct {
	ref   string
	layer string   // directory of what it wrote; empty where only the engine can say how much that is
	trees []string // its volumes
	files []string // of the engine, that it may write to: /etc/hosts and others
}

// Disk looks at each file that a container wrote. Where this user may not, or the engine keeps them in another way, the engine is
// asked, which does the same, without volumes and with holes counted as if they were full. See sandbox.Meter.
func (b *Backend) Disk(ctx context.Context, inst sandbox.Instance, most sandbox.DiskUsage) (sandbox.DiskUsage, error) {
	got, err := b.disk(ctx, inst, most)
	if err != nil {
		return got, fmt.Errorf("disk of %s: %w", inst.ID, err)
	}
	return got, nil
}

func (b *Backend) disk(ctx context.Context, inst sandbox.Instance, most sandbox.DiskUsage) (sandbox.DiskUsage, error) {
	p, err := b.placesOf(ctx, inst)
	if err != nil {
		return sandbox.DiskUsage{}, err
	}
	pid, err := b.firstProcess(ctx, inst)
	if err != nil {
		pid = 0
	}
	return b.measure(ctx, p, pid, most)
}

// measure looks at the files of a container and, unless pid is 0, at those without a name that its processes hold open. It may stop at most.
func (b *Backend) measure(ctx context.Context, p places, pid int, most sandbox.DiskUsage) (sandbox.DiskUsage, error) {
	w := &walk{most: most, links: make(map[[2]uint64]bool)}
	for _, file := range p.files {
		var st unix.Stat_t
		if unix.Lstat(file, &st) == nil { // where we may not look the engine counts nothing either
			w.Bytes += st.Blocks * 512
		}
	}
	before, layer := w.DiskUsage, errors.New("not to be seen")
	if p.layer != "" {
		layer = w.tree(ctx, p.layer)
	}
	if layer != nil && ctx.Err() == nil && !errors.Is(layer, errEnough) {
		w.DiskUsage = before
		if layer = b.askSize(ctx, p.ref, w); layer != nil {
			return sandbox.DiskUsage{}, layer
		}
	}
	for _, dir := range p.trees {
		if layer != nil {
			break
		}
		if layer = w.tree(ctx, dir); errors.Is(layer, os.ErrPermission) || errors.Is(layer, os.ErrNotExist) {
			layer = nil
		}
	}
	if layer == nil && pid != 0 {
		w.removed(processesOf(pid, p.ref))
	}
	if layer != nil && !errors.Is(layer, errEnough) {
		return sandbox.DiskUsage{}, layer
	}
	return w.DiskUsage, nil
}

// placesOf asks the engine once.
func (b *Backend) placesOf(ctx context.Context, inst sandbox.Instance) (places, error) {
	b.mu.Lock()
	p := b.places[inst.ID]
	b.mu.Unlock()
	if p.ref != "" && p.ref == inst.Ref {
		return p, nil
	}
	c, err := b.container(ctx, refOf(inst))
	if err != nil {
		return p, err
	}
	p = placesIn(c)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.places[inst.ID] = p
	return p, nil
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

func (b *Backend) askSize(ctx context.Context, ref string, w *walk) error {
	n, err := b.engineSize(ctx, ref)
	w.Bytes += n
	return err
}

// engineSize is how long all files together are that a container wrote, as the engine has it; 0 with an error.
func (b *Backend) engineSize(ctx context.Context, ref string) (int64, error) {
	var c container.InspectResponse
	err := b.call(ctx, b.limits.remove, "measure container", func(ctx context.Context) error {
		r, err := b.api.ContainerInspect(ctx, ref, client.ContainerInspectOptions{Size: true})
		c = r.Container
		return err
	})
	if err == nil && (c.SizeRw == nil || *c.SizeRw < 0) {
		err = errors.New("measure container: the engine did not say")
	}
	if cerrdefs.IsNotFound(err) {
		err = sandbox.ErrGone
	}
	if err != nil {
		return 0, err
	}
	return *c.SizeRw, nil
}

// walk counts what files occupy. Nothing that the sandbox put there is followed, and it may change meanwhile.
type walk struct {
	sandbox.DiskUsage
	most  sandbox.DiskUsage
	links map[[2]uint64]bool // files with several names that were counted, by device and number
}

var errEnough = errors.New("more than was asked for")

// dir is a directory that is still to be looked at, below its parent, or was.
type dir struct {
	above    *dir // nil for the root
	name     string
	dev, ino uint64 // once it was opened
}

// tree counts a directory with all below. One descriptor and no path is held for all of it: what is nested deeper than a
// path may be long is found, too. It goes from one directory to the next as they lie, not from the root: the way there would
// be as long as the tree is deep.
func (w *walk) tree(ctx context.Context, root string) error {
	top, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(top)
	at, where := -1, (*dir)(nil) // the directory that was looked at last
	defer func() {
		if at >= 0 {
			unix.Close(at)
		}
	}()
	for left := []*dir{{}}; len(left) > 0; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		next := left[len(left)-1]
		left = left[:len(left)-1]
		for at >= 0 && where != next.above { // which is above it
			at, where = climb(at, where)
		}
		from, path := top, "."
		switch {
		case next.above == nil:
		case at >= 0:
			from, path = at, next.name
		default: // something was moved
			path = next.path()
		}
		fd, err := openBelow(from, path)
		if err != nil {
			if next.above == nil || !gone(err) {
				return &os.PathError{Op: "open", Path: root, Err: err}
			}
			continue // removed or moved meanwhile: the next time it is found where it is
		}
		if at >= 0 {
			unix.Close(at)
		}
		at, where = fd, next
		if next.dev, next.ino, err = identity(fd); err != nil {
			return &os.PathError{Op: "stat", Path: root, Err: err}
		}
		below, err := w.entries(ctx, fd)
		if err != nil {
			return err
		}
		for _, name := range below {
			left = append(left, &dir{above: next, name: name})
		}
	}
	return nil
}

// climb goes from the directory at fd, which it closes, to the one above. That is -1 if it is not there any more: whatever is
// instead may lie outside.
func climb(fd int, d *dir) (int, *dir) {
	defer unix.Close(fd)
	up, err := unix.Openat(fd, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, nil
	}
	if dev, ino, err := identity(up); err != nil || dev != d.above.dev || ino != d.above.ino {
		unix.Close(up)
		return -1, nil
	}
	return up, d.above
}

func identity(fd int) (dev, ino uint64, err error) {
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	return uint64(st.Dev), st.Ino, err //nolint:unconvert // of 32 bits elsewhere
}

// path is that of d below the root.
func (d *dir) path() string {
	var names []string
	for ; d.above != nil; d = d.above {
		names = append(names, d.name)
	}
	slices.Reverse(names)
	return strings.Join(names, "/")
}

func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// openBelow opens a directory below another without following a link, however long the path.
func openBelow(from int, path string) (int, error) {
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	begun := from
	for len(path) >= unix.PathMax {
		cut := strings.LastIndexByte(path[:unix.PathMax], '/') // names have at most 255 bytes
		fd, err := unix.Openat2(begun, path[:cut], &how)
		if begun != from {
			unix.Close(begun)
		}
		if err != nil {
			return -1, err
		}
		begun, path = fd, path[cut+1:]
	}
	fd, err := unix.Openat2(begun, path, &how)
	if begun != from {
		unix.Close(begun)
	}
	return fd, err
}

// entries counts what is in a directory, and returns the directories in it. It leaves fd open.
func (w *walk) entries(ctx context.Context, fd int) ([]string, error) {
	again, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	f := os.NewFile(uintptr(again), "")
	defer f.Close()
	var below []string
	for {
		list, err := f.ReadDir(1024)
		if errors.Is(err, io.EOF) || err != nil && gone(err) {
			return below, nil
		}
		if err != nil {
			return nil, err
		}
		for _, e := range list {
			var st unix.Stat_t
			if unix.Fstatat(fd, e.Name(), &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue // removed meanwhile
			}
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				below = append(below, e.Name())
			}
			w.count(&st)
		}
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case w.most.Bytes > 0 && w.Bytes > w.most.Bytes, w.most.Files > 0 && w.Files > w.most.Files:
			return nil, errEnough
		}
	}
}

func (w *walk) count(st *unix.Stat_t) {
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		id := [2]uint64{st.Dev, st.Ino}
		if w.links[id] {
			return
		}
		w.links[id] = true
	}
	w.Bytes += st.Blocks * 512
	w.Files++
}

// maxOpen bounds the descriptors that removed looks at: a sandbox can have millions.
const maxOpen = 64 << 10

// removed counts files without a name that processes hold open. Who may not look there counts none.
func (w *walk) removed(pids []int) {
	seen := make(map[[2]uint64]bool)
	looked := 0
	for _, pid := range pids {
		path := "/proc/" + strconv.Itoa(pid) + "/fd"
		d, err := os.Open(path)
		if err != nil {
			continue
		}
		for looked < maxOpen {
			names, err := d.Readdirnames(1024)
			if err != nil {
				break
			}
			for _, name := range names {
				looked++
				var st unix.Stat_t
				if unix.Stat(path+"/"+name, &st) != nil || st.Nlink > 0 || st.Mode&unix.S_IFMT != unix.S_IFREG || seen[[2]uint64{st.Dev, st.Ino}] {
					continue
				}
				var fs unix.Statfs_t
				if unix.Statfs(path+"/"+name, &fs) != nil || fs.Type == unix.TMPFS_MAGIC { // which counts as memory
					continue
				}
				seen[[2]uint64{st.Dev, st.Ino}] = true
				w.Bytes += st.Blocks * 512
				w.Files++
			}
		}
		d.Close()
	}
}
