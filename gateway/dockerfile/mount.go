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
		one, err := w.planMount(ctx, s, m)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.title, err)
		}
		if err := one.sum(ctx, w.files); err != nil {
			return nil, one.failed(err)
		}
		all = append(all, one)
	}
	slices.SortStableFunc(all, func(a, b copying) int {
		return cmp.Compare(len(a.Dest), len(b.Dest))
	})
	return all, nil
}

func (w *worker) planMount(ctx context.Context, s step, m *instructions.Mount) (copying, error) {
	c := copying{Mount: m.Type, Dest: w.path(m.Target), title: s.title}
	if c.Dest == "/" {
		return c, errors.New("--mount: the target is /, which has files already")
	}
	var err error
	switch m.Type {
	case instructions.MountTypeBind:
		err = w.bind(ctx, s, m, &c)
	case instructions.MountTypeCache, instructions.MountTypeTmpfs:
		err = scratchMount(m, &c)
	default: // a variable has named it
		err = refused("RUN", "--mount=type="+string(m.Type))
	}
	if err == nil {
		err = w.count(c)
	}
	return c, err
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
			"remove them; the disk limit of the sandbox holds for all its files")
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
				return c.failed(fmt.Errorf("--mount: %w", err))
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

// mountOne copies one mount. The image may have an empty directory there, or nothing.
func (w *worker) mountOne(ctx context.Context, files *connect.Files,
	c copying) (unmount func() error, err error) {
	clean := &collecting{ctx: ctx, files: files}
	was, err := files.Lstat(c.Dest)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		above, err := missingAbove(files, c.Dest)
		if err != nil {
			return nil, err
		}
		unmount = func() error { return clean.unmount(c.Dest, above) }
	case err != nil:
		return nil, named(c.Dest, err)
	case !was.IsDir():
		return nil, hides(c)
	default:
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
		unmount = func() error { return clean.restore(c.Dest, was) }
	}
	if !c.MakeDir {
		return unmount, w.place(ctx, files, c)
	}
	if was == nil {
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

// missingAbove returns the directories above a path that do not exist, the innermost first.
func missingAbove(files *connect.Files, name string) (missing []string, err error) {
	for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
		_, err := files.Stat(dir)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, named(dir, err)
		}
		missing = append(missing, dir)
	}
	return missing, nil
}

func hides(c copying) error {
	hint := "mount at a path that the image does not have, or use COPY before the step"
	if c.Mount != instructions.MountTypeBind {
		hint = "mount at a path that the image does not have, or delete the files in the step"
	}
	return sandbox.Hint(fmt.Errorf("--mount: %s exists and is not an empty directory; a mount "+
		"cannot hide it", brief(c.Dest)), hint)
}

// unmount removes a mount where the image has nothing, and the directories that were made above it,
// unless the command has put files there.
func (c *collecting) unmount(name string, above []string) error {
	switch info, err := c.files.Lstat(name); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return named(name, err)
	case info.IsDir():
		if err := c.remove(name); err != nil {
			return err
		}
	default:
		if err := c.files.Remove(name); err != nil {
			return named(name, err)
		}
	}
	for _, dir := range above {
		if err := c.files.RemoveDirectory(dir); err != nil {
			return nil //nolint:nilerr // it has files of the command
		}
	}
	return nil
}

// restore empties a directory, and sets its mode and owner to what they were.
func (c *collecting) restore(dir string, was os.FileInfo) error {
	// Links are not followed: a user of the image could lead root elsewhere.
	if now, err := c.files.Lstat(dir); err != nil || !now.IsDir() {
		return fmt.Errorf("%s: the command has removed or replaced it", brief(dir))
	}
	if err := c.empty(dir); err != nil {
		return err
	}
	if st, ok := was.Sys().(*sftp.FileStat); ok {
		if err := c.files.Chown(dir, int(st.UID), int(st.GID)); err != nil {
			return named(dir, err)
		}
	}
	return named(dir, c.files.Chmod(dir, was.Mode()))
}

// remove removes a directory with what it contains.
func (c *collecting) remove(dir string) error {
	if err := c.empty(dir); err != nil {
		return err
	}
	if err := c.files.RemoveDirectory(dir); err != nil {
		return fmt.Errorf("%s: a process that the command has left may write to it: %w",
			brief(dir), err)
	}
	return nil
}

// empty removes what a directory contains.
func (c *collecting) empty(dir string) error {
	list, err := c.list(dir)
	if err != nil {
		return err
	}
	defer c.release(list)
	for _, info := range list {
		at := path.Join(dir, info.Name())
		if info.IsDir() {
			err = c.remove(at)
		} else {
			err = named(at, c.files.Remove(at))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
