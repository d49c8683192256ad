package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// copyTree copies the directory from, with its own attributes, to the directory to, which is empty.
// It works by descriptors of directories and follows no symbolic link, so that it stays in from
// whatever a program does there meanwhile.
func copyTree(ctx context.Context, from, to string) error {
	in, err := openAt(nil, from, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := openAt(nil, to, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer out.Close()
	c := copier{root: out, linked: make(map[inode]string)}
	return c.dir(ctx, in, out, "")
}

type inode struct{ dev, ino uint64 }

type copier struct {
	root   *os.File         // of the copy
	linked map[inode]string // files with several names that were copied: where, from root
}

// copyChunk is how much is copied between two looks at the context, in bytes.
const copyChunk = 64 << 20

// openAt opens name in dir, or a path if dir is nil, without following a symbolic link at its end.
func openAt(dir *os.File, name string, flags int, mode uint32) (*os.File, error) {
	at := unix.AT_FDCWD
	if dir != nil {
		at = int(dir.Fd())
	}
	fd, err := unix.Openat(at, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// dir copies what is in a directory, and then its attributes: its time changes with its entries.
// rel is its path in the copy.
func (c *copier) dir(ctx context.Context, from, to *os.File, rel string) error {
	names, err := from.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		at := path.Join(rel, name)
		err := c.entry(ctx, from, to, name, at)
		if _, named := errors.AsType[*copyError](err); err != nil && !named {
			err = &copyError{at, err}
		}
		if err != nil {
			return err
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(from.Fd()), &st); err != nil {
		return err
	}
	return copyAttributes(from, to, ".", st)
}

// copyError names the file that cannot be copied.
type copyError struct {
	path string
	err  error
}

func (e *copyError) Error() string { return fmt.Sprintf("copy %.200q: %v", e.path, e.err) }
func (e *copyError) Unwrap() error { return e.err }

func (c *copier) entry(ctx context.Context, from, to *os.File, name, rel string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(int(from.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	kind := st.Mode & unix.S_IFMT
	whiteout := kind == unix.S_IFCHR && st.Rdev == 0 // overlayfs links them to save inodes
	if st.Nlink > 1 && kind != unix.S_IFDIR && !whiteout {
		id := inode{st.Dev, st.Ino}
		if first, ok := c.linked[id]; ok {
			return unix.Linkat(int(c.root.Fd()), first, int(to.Fd()), name, 0)
		}
		c.linked[id] = rel
	}
	switch kind {
	case unix.S_IFSOCK: // useless without the program that listens
		delete(c.linked, inode{st.Dev, st.Ino})
		return nil
	case unix.S_IFDIR:
		return c.subdir(ctx, from, to, name, rel)
	case unix.S_IFREG:
		if err := copyFile(ctx, from, to, name); err != nil {
			return err
		}
	case unix.S_IFLNK:
		target := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(int(from.Fd()), name, target)
		if err != nil {
			return err
		}
		if err := unix.Symlinkat(string(target[:n]), int(to.Fd()), name); err != nil {
			return err
		}
	default:
		if err := unix.Mknodat(int(to.Fd()), name, st.Mode, int(st.Rdev)); err != nil {
			return err
		}
	}
	return copyAttributes(from, to, name, st)
}

func (c *copier) subdir(ctx context.Context, from, to *os.File, name, rel string) error {
	if strings.Count(rel, "/") >= maxDepth {
		return fmt.Errorf("more than %d directories inside each other", maxDepth)
	}
	in, err := openAt(from, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := unix.Mkdirat(int(to.Fd()), name, 0o700); err != nil {
		return err
	}
	out, err := openAt(to, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer out.Close()
	return c.dir(ctx, in, out, rel)
}

// copyFile copies the data of a regular file, without its holes.
func copyFile(ctx context.Context, from, to *os.File, name string) error {
	// Without O_NONBLOCK a FIFO that is put there now would wait for a writer.
	in, err := openAt(from, name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("changed while it was copied")
	}
	out, err := openAt(to, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	for end := int64(0); ; {
		start, err := unix.Seek(int(in.Fd()), end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // no more data
		}
		if err != nil {
			return err
		}
		if end, err = unix.Seek(int(in.Fd()), start, unix.SEEK_HOLE); err != nil {
			return err
		}
		if err := copyRange(ctx, in, out, start, end); err != nil {
			return err
		}
	}
	return out.Truncate(info.Size())
}

func copyRange(ctx context.Context, in, out *os.File, start, end int64) error {
	for _, f := range []*os.File{in, out} {
		if _, err := f.Seek(start, io.SeekStart); err != nil {
			return err
		}
	}
	for start < end {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := io.CopyN(out, in, min(end-start, copyChunk))
		if err != nil {
			return err
		}
		start += n
	}
	return nil
}

// notCopied are attributes that tie a file to the overlay file system that wrote it.
var notCopied = []string{overlayPrefix + "origin", overlayPrefix + "impure",
	overlayPrefix + "nlink", overlayPrefix + "upper", overlayPrefix + "uuid"}

// copyAttributes copies owner, extended attributes, mode and times of name in a directory to name
// in another, where the last element of neither is followed. st is that by which the copy was made:
// a symbolic link that became a file since is still a link in the copy, and chmod would follow it.
// Changing the owner removes setuid bits and capabilities, so it comes first.
func copyAttributes(from, to *os.File, name string, st unix.Stat_t) error {
	err := unix.Fchownat(int(to.Fd()), name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return err
	}
	if err := copyXattrs(pathIn(from, name), pathIn(to, name)); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Fchmodat(int(to.Fd()), name, st.Mode&0o7777, 0); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(int(to.Fd()), name, []unix.Timespec{st.Atim, st.Mtim},
		unix.AT_SYMLINK_NOFOLLOW)
}

// pathIn returns a path to name in an open directory, for system calls that have no form with a
// descriptor.
func pathIn(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}

func copyXattrs(from, to string) error {
	names, err := listAttributes(from)
	if err != nil {
		return err
	}
	for _, name := range names {
		if slices.Contains(notCopied, name) {
			continue
		}
		value := make([]byte, 64<<10) // the most that Linux has
		n, err := unix.Lgetxattr(from, name, value)
		if err == nil {
			err = unix.Lsetxattr(to, name, value[:n], 0)
		}
		if err != nil {
			return fmt.Errorf("attribute %q: %w", strings.ToValidUTF8(name, "?"), err)
		}
	}
	return nil
}
