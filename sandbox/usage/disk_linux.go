package usage

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Walk adds up the disk space of files. It follows no link, and files may change meanwhile. The
// zero value counts without a limit.
type Walk struct {
	sandbox.DiskUsage                   // the sum so far
	Limit             sandbox.DiskUsage // zero fields mean no limit

	links map[[2]uint64]bool // counted files with several links, by device and inode
}

// ErrLimit ends a Walk that has found more than its limit.
var ErrLimit = errors.New("more than the limit")

// File adds one file. A file that cannot be read counts nothing.
func (w *Walk) File(path string) {
	var st unix.Stat_t
	if unix.Lstat(path, &st) == nil {
		w.Bytes += st.Blocks * 512
	}
}

// dir is a directory below its parent.
type dir struct {
	above    *dir // nil for the root
	name     string
	dev, ino uint64 // set when it is opened
}

// Tree adds a directory with everything below it. It returns ErrLimit, the cause of ctx, or the
// error of opening root.
//
// It moves from one directory to the next and holds one descriptor. So it reaches files that are
// nested deeper than a path can be long, and never walks down again from the root.
func (w *Walk) Tree(ctx context.Context, root string) error {
	top, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(top)
	at, where := -1, (*dir)(nil) // the last directory that was read
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
		for at >= 0 && where != next.above { // climb to its parent
			at, where = climb(at, where)
		}
		from, path := top, "."
		switch {
		case next.above == nil:
		case at >= 0:
			from, path = at, next.name
		default: // a directory was moved
			path = next.path()
		}
		fd, err := openBelow(from, path)
		if err != nil {
			if next.above == nil || !gone(err) {
				return &os.PathError{Op: "open", Path: root, Err: err}
			}
			continue // removed or moved meanwhile: the next measurement finds it
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

// climb moves from the directory at fd, which it closes, to its parent. It returns -1 if that is no
// longer d's parent: the new parent may be outside the tree.
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
	return uint64(st.Dev), st.Ino, err //nolint:unconvert // 32 bits on other systems
}

// path returns the path of d below the root.
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

// openBelow opens a directory below another without following a link, at any path length.
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

// entries adds the files of a directory, and returns the names of its subdirectories. It leaves fd
// open.
func (w *Walk) entries(ctx context.Context, fd int) ([]string, error) {
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
		case w.Limit.Bytes > 0 && w.Bytes > w.Limit.Bytes, w.Limit.Files > 0 &&
			w.Files > w.Limit.Files:
			return nil, ErrLimit
		}
	}
}

func (w *Walk) count(st *unix.Stat_t) {
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		id := [2]uint64{st.Dev, st.Ino}
		if w.links[id] {
			return
		}
		if w.links == nil {
			w.links = make(map[[2]uint64]bool)
		}
		w.links[id] = true
	}
	w.Bytes += st.Blocks * 512
	w.Files++
}

// maxOpen bounds the descriptors that Removed checks, and maxMapped the mappings: a sandbox can
// have millions.
const (
	maxOpen   = 64 << 10
	maxMapped = 64 << 10
)

// Removed adds files that were removed and that these processes still hold open, or have mapped. It
// adds none if this user has no permission; only root may see mappings. It does not see descriptors
// that are sent and were not received, nor those of a thread alone.
func (w *Walk) Removed(pids []int) {
	r := removed{walk: w, seen: make(map[[2]uint64]bool)}
	open, mapped := maxOpen, maxMapped
	for _, pid := range pids {
		dir := "/proc/" + strconv.Itoa(pid)
		open = r.open(dir+"/fd", open)
		mapped = r.mapped(dir, mapped)
	}
}

type removed struct {
	walk *Walk
	seen map[[2]uint64]bool
}

// open adds the open files of a process, and returns how many descriptors are left to check.
func (r *removed) open(dir string, left int) int {
	d, err := os.Open(dir)
	if err != nil {
		return left
	}
	defer d.Close()
	for left > 0 {
		names, err := d.Readdirnames(1024)
		if err != nil {
			break
		}
		for _, name := range names {
			r.add(dir + "/" + name)
		}
		left -= len(names)
	}
	return left
}

// mapped adds the mapped files of a process (proc_pid_maps(5), proc_pid_map_files(5)), and returns
// how many mappings are left to check.
func (r *removed) mapped(dir string, left int) int {
	f, err := os.Open(dir + "/maps")
	if err != nil {
		return left
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); left > 0 && lines.Scan(); left-- {
		if !bytes.HasSuffix(lines.Bytes(), []byte(" (deleted)")) {
			continue
		}
		addresses, _, _ := strings.Cut(lines.Text(), " ")
		from, to, _ := strings.Cut(addresses, "-") // padded with zeros only here
		r.add(dir + "/map_files/" + strings.TrimLeft(from, "0") + "-" + strings.TrimLeft(to, "0"))
	}
	return left
}

// add adds the file to which a link of proc(5) leads, if it was removed.
func (r *removed) add(link string) {
	var st unix.Stat_t
	if unix.Stat(link, &st) != nil || st.Nlink > 0 || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return
	}
	id := [2]uint64{st.Dev, st.Ino}
	var fs unix.Statfs_t
	// Those in memory count as memory.
	if r.seen[id] || unix.Statfs(link, &fs) != nil || fs.Type == unix.TMPFS_MAGIC ||
		fs.Type == unix.HUGETLBFS_MAGIC {
		return
	}
	r.seen[id] = true
	r.walk.Bytes += st.Blocks * 512
	r.walk.Files++
}
