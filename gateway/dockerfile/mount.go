package dockerfile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/pkg/sftp"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
)

// A mount of a RUN is files that its command finds, and that the image does not get. Nothing is
// mounted, which a sandbox may not do: the files are copied before the command, and removed after
// it.

// mounts returns the mounts of a RUN as copies, those of outer directories first.
func (w *worker) mounts(ctx context.Context, s step,
	c *instructions.RunCommand) ([]copying, error) {
	var all []copying
	for _, m := range instructions.GetMounts(c) {
		one := copying{Mount: m.Type, Dest: w.path(m.Target), title: s.title}
		if one.Dest == "/" {
			return nil, errors.New("--mount: the target is /, which has files already")
		}
		var err error
		switch m.Type {
		case instructions.MountTypeBind:
			err = w.bind(ctx, s, m, &one)
		case instructions.MountTypeCache, instructions.MountTypeTmpfs:
			err = scratchMount(m, &one)
		default: // a variable has named it
			err = refused("RUN", "--mount=type="+string(m.Type))
		}
		if err == nil {
			err = w.count(one)
		}
		if err == nil {
			err = one.sum(ctx, w.files)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	slices.SortStableFunc(all, func(a, b copying) int {
		return cmp.Compare(len(a.Dest), len(b.Dest))
	})
	return all, nil
}

// bind notes the source of a bind mount. It is no pattern.
func (w *worker) bind(ctx context.Context, s step, m *instructions.Mount, one *copying) error {
	one.Source = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(m.Source)
	if m.From == "" {
		return nil
	}
	from, err := w.source(ctx, s, m.From)
	one.From, one.image = from.id, from.image
	return err
}

// scratchMount notes the directory of a mount that begins empty.
func scratchMount(m *instructions.Mount, one *copying) error {
	if m.From != "" || m.SizeLimit != 0 {
		return sandbox.Hint(fmt.Errorf("--mount=type=%s: from and size are not supported", m.Type),
			"remove them")
	}
	one.MakeDir, one.Mode = true, 0o755|fs.ModeDir
	if m.Type == instructions.MountTypeTmpfs {
		one.Mode = 0o777 | fs.ModeSticky | fs.ModeDir
	}
	if m.Mode != nil {
		one.Mode = fs.ModeDir | octal(*m.Mode)
	}
	var uid, gid uint64
	if m.UID != nil {
		uid = *m.UID
	}
	if m.GID != nil {
		gid = *m.GID
	}
	one.Owner = fmt.Sprintf("%d:%d", uid, gid)
	return nil
}

// mount copies what the command of a RUN finds. unmount removes it.
func (w *worker) mount(ctx context.Context, files *connect.Files,
	mounts []copying) (unmount func() error, err error) {
	var undo []func() error
	for _, c := range mounts {
		one, err := w.mountOne(ctx, files, c)
		if err != nil {
			return nil, c.failed(err)
		}
		undo = append(undo, func() error {
			if err := one(); err != nil {
				return c.failed(fmt.Errorf("remove the mount: %w", err))
			}
			return nil
		})
	}
	slices.Reverse(undo)
	return func() error {
		for _, one := range undo {
			if err := one(); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

func (w *worker) mountOne(ctx context.Context, files *connect.Files,
	c copying) (unmount func() error, err error) {
	info, err := files.Stat(c.Dest)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		unmount = func() error { return removeAll(ctx, files, c.Dest) }
	case err != nil:
		return nil, named(c.Dest, err)
	case info.IsDir():
		list, err := files.ReadDirContext(ctx, c.Dest)
		if err != nil {
			return nil, named(c.Dest, err)
		}
		if len(list) > 0 && c.Mount == instructions.MountTypeCache {
			return func() error { return nil }, nil // a cache may have any contents
		}
		if len(list) > 0 {
			return nil, hides(c)
		}
		unmount = func() error { return restore(ctx, files, c.Dest, info) }
	default:
		return nil, hides(c)
	}
	if !c.MakeDir {
		return unmount, w.place(ctx, files, c)
	}
	if info == nil {
		above := placing{files: files}
		if err := above.makeDirs(path.Dir(c.Dest)); err != nil {
			return nil, err
		}
		if err := files.Mkdir(c.Dest); err != nil {
			return nil, named(c.Dest, err)
		}
	}
	uid, gid, err := owner(files, c.Owner)
	if err != nil {
		return nil, err
	}
	if err := files.Chown(c.Dest, uid, gid); err != nil {
		return nil, named(c.Dest, err)
	}
	return unmount, named(c.Dest, files.Chmod(c.Dest, c.Mode))
}

func hides(c copying) error {
	return sandbox.Hint(fmt.Errorf("--mount: the image has files at %s, which a mount would hide",
		brief(c.Dest)), "mount at a path that the image does not have, or use COPY before the step")
}

// restore empties a directory, and sets its mode and owner to what they were.
func restore(ctx context.Context, files *connect.Files, dir string, was os.FileInfo) error {
	if err := empty(ctx, files, dir); err != nil {
		return err
	}
	if st, ok := was.Sys().(*sftp.FileStat); ok {
		if err := files.Chown(dir, int(st.UID), int(st.GID)); err != nil {
			return named(dir, err)
		}
	}
	return named(dir, files.Chmod(dir, was.Mode()))
}

// empty removes what a directory contains.
func empty(ctx context.Context, files *connect.Files, dir string) error {
	if len(dir) > maxPath {
		return fmt.Errorf("%s: the path is longer than %d bytes", brief(dir), maxPath)
	}
	list, err := (&collecting{ctx: ctx, files: files}).list(dir)
	if err != nil {
		return err
	}
	for _, info := range list {
		at := path.Join(dir, info.Name())
		if info.IsDir() {
			err = empty(ctx, files, at)
			if err == nil {
				err = named(at, files.RemoveDirectory(at))
			}
		} else {
			err = named(at, files.Remove(at))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// removeAll removes a file, or a directory with what it contains, if there is one.
func removeAll(ctx context.Context, files *connect.Files, name string) error {
	info, err := files.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return named(name, err)
	case !info.IsDir():
		return named(name, files.Remove(name))
	}
	if err := empty(ctx, files, name); err != nil {
		return err
	}
	return named(name, files.RemoveDirectory(name))
}
