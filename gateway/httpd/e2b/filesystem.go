package e2b

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/pkg/sftp"

	"github.com/sandboxd/sandboxd/sandbox/connect"
)

// entry is a file or directory in the SDKs' format.
type entry struct {
	Name        string    `json:"name"`
	Type        string    `json:"type"` // of a link: type of its target
	Path        string    `json:"path"`
	Size        int64     `json:"size,string"`
	Mode        uint32    `json:"mode"`
	Permissions string    `json:"permissions"`
	Owner       string    `json:"owner"`
	Group       string    `json:"group"`
	Modified    time.Time `json:"modifiedTime"`
	Target      *string   `json:"symlinkTarget,omitzero"`
	Link        bool      `json:"isSymlink,omitempty"`
}

const (
	typeFile        = "FILE_TYPE_FILE"
	typeDir         = "FILE_TYPE_DIRECTORY"
	typeUnspecified = "FILE_TYPE_UNSPECIFIED"
)

// Limits of one call.
const (
	maxEntries = connect.MaxEntries
	maxDepth   = 256
)

type pathRequest struct {
	Path string `json:"path"`
}

type entryAnswer struct {
	Entry entry `json:"entry"`
}

// on resolves a request's path and account, and calls f with them and the connection.
func (v *visit) on(ctx context.Context, p string,
	f func(lk *link, a account, p string) error) error {
	lk, a, err := v.asUser(ctx)
	if err != nil {
		return err
	}
	if p, err = a.path(p); err != nil {
		return err
	}
	if err := f(lk, a, p); err != nil {
		return fileError(err)
	}
	return nil
}

// entry describes the file at p.
func (lk *link) entry(p string, n names) (entry, error) {
	info, err := lk.files.Lstat(p)
	if err != nil {
		return entry{}, at(p, err)
	}
	return lk.entryOf(p, info, n), nil
}

func (lk *link) entryOf(p string, info fs.FileInfo, n names) entry {
	e := entry{Name: path.Base(p), Type: typeOf(info), Path: p, Size: info.Size(),
		Mode: uint32(info.Mode().Perm()), Permissions: info.Mode().String(),
		Modified: info.ModTime().UTC()}
	if st, ok := info.Sys().(*sftp.FileStat); ok {
		e.Owner, e.Group = nameOf(n.users, st.UID), nameOf(n.groups, st.GID)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		e.Link = true
		if target, err := lk.files.ReadLink(p); err == nil {
			if !path.IsAbs(target) {
				target = path.Join(path.Dir(p), target)
			}
			e.Target = &target
		}
		e.Type = typeUnspecified
		if to, err := lk.files.Stat(p); err == nil {
			e.Type = typeOf(to)
		}
	}
	return e
}

func typeOf(info fs.FileInfo) string {
	switch {
	case info.IsDir():
		return typeDir
	case info.Mode().IsRegular():
		return typeFile
	}
	return typeUnspecified
}

func statFile(ctx context.Context, v *visit, req *pathRequest) (*entryAnswer, error) {
	var res entryAnswer
	err := v.on(ctx, req.Path, func(lk *link, _ account, p string) (err error) {
		res.Entry, err = lk.entry(p, lk.names())
		return err
	})
	return &res, err
}

func makeDir(ctx context.Context, v *visit, req *pathRequest) (*entryAnswer, error) {
	var res entryAnswer
	err := v.on(ctx, req.Path, func(lk *link, a account, p string) error {
		made, err := lk.mkdirs(a, p)
		if err != nil {
			return err
		}
		if !made {
			return &apiError{http.StatusConflict, "directory already exists: " + p}
		}
		res.Entry, err = lk.entry(p, lk.names())
		return err
	})
	return &res, err
}

// mkdirs creates a directory and its missing parents, and reports whether any was missing.
func (lk *link) mkdirs(a account, p string) (made bool, err error) {
	var missing []string
	for up := p; ; up = path.Dir(up) {
		info, err := lk.files.Stat(up)
		if err == nil && !info.IsDir() {
			return false, invalid("path %q is not a directory", up)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || up == "/" {
			return false, at(up, err)
		}
		if missing = append(missing, up); len(missing) > maxDepth {
			return false, invalid("path: more than %d nested directories", maxDepth)
		}
	}
	for _, dir := range slices.Backward(missing) {
		if err := lk.files.Mkdir(dir); err != nil {
			if info, serr := lk.files.Stat(dir); serr == nil && info.IsDir() {
				continue // created meanwhile
			}
			return false, at(dir, err)
		}
		if err := a.give(lk.files, dir); err != nil {
			return false, at(dir, err)
		}
	}
	return len(missing) > 0, nil
}

// isDir returns an error unless p, resolved for a, is a directory.
func (lk *link) isDir(a account, p string) error {
	p, err := a.path(p)
	if err != nil {
		return err
	}
	if info, err := lk.files.Stat(p); err != nil || !info.IsDir() {
		return invalid("cwd %q does not exist", cutText(p, 200))
	}
	return nil
}

type moveRequest struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

func moveFile(ctx context.Context, v *visit, req *moveRequest) (*entryAnswer, error) {
	var res entryAnswer
	err := v.on(ctx, req.Source, func(lk *link, a account, from string) error {
		to, err := a.path(req.Destination)
		if err != nil {
			return err
		}
		if _, err := lk.files.Lstat(from); err != nil {
			return at(from, err)
		}
		if _, err := lk.mkdirs(a, path.Dir(to)); err != nil {
			return err
		}
		if err := lk.files.PosixRename(from, to); err != nil {
			return at(from, err)
		}
		res.Entry, err = lk.entry(to, lk.names())
		return err
	})
	return &res, err
}

type listRequest struct {
	Path  string `json:"path"`
	Depth uint32 `json:"depth"`
}

type listAnswer struct {
	Entries []entry `json:"entries"`
}

// listDir lists a directory to the given depth. It follows no links.
func listDir(ctx context.Context, v *visit, req *listRequest) (*listAnswer, error) {
	res := listAnswer{Entries: []entry{}}
	err := v.on(ctx, req.Path, func(lk *link, _ account, p string) error {
		info, err := lk.files.Stat(p)
		if err != nil {
			return at(p, err)
		}
		if !info.IsDir() {
			return invalid("path %q is not a directory", p)
		}
		n := lk.names()
		return lk.walk(ctx, p, int(min(cmp.Or(req.Depth, 1), maxDepth)),
			func(p string, info fs.FileInfo) error {
				if len(res.Entries) == maxEntries {
					return &apiError{http.StatusTooManyRequests, "directory has too many entries"}
				}
				res.Entries = append(res.Entries, lk.entryOf(p, info, n))
				return nil
			})
	})
	return &res, err
}

// walk calls f for each entry of a directory, and for a directory before its content.
func (lk *link) walk(ctx context.Context, dir string, depth int,
	f func(p string, info fs.FileInfo) error) error {
	infos, err := lk.files.ReadDirContext(ctx, dir)
	if err != nil {
		return at(dir, err)
	}
	slices.SortFunc(infos, func(a, b os.FileInfo) int {
		return strings.Compare(a.Name(), b.Name())
	})
	for _, info := range infos {
		if strings.Contains(info.Name(), "/") || info.Name() == ".." || info.Name() == "." {
			continue // not a valid file name
		}
		p := path.Join(dir, info.Name())
		if err := f(p, info); err != nil {
			return err
		}
		if info.IsDir() && depth > 1 {
			if err := lk.walk(ctx, p, depth-1, f); err != nil && !errors.Is(err, fs.ErrNotExist) &&
				!errors.Is(err, fs.ErrPermission) {
				return err
			}
		}
	}
	return nil
}

// removeFile removes a file, or a directory with its content. A missing file is not an error.
func removeFile(ctx context.Context, v *visit, req *pathRequest) (*empty, error) {
	err := v.on(ctx, req.Path, func(lk *link, _ account, p string) error {
		if p == "/" {
			return invalid("path: / cannot be removed")
		}
		err := lk.removeAll(ctx, p, maxDepth)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return &empty{}, err
}

// removeAll removes p and its content. It follows no links.
func (lk *link) removeAll(ctx context.Context, p string, depth int) error {
	info, err := lk.files.Lstat(p)
	if err != nil {
		return at(p, err)
	}
	if !info.IsDir() {
		return lk.unlink(p)
	}
	if depth == 0 {
		return invalid("path: more than %d nested directories", maxDepth)
	}
	infos, err := lk.files.ReadDirContext(ctx, p)
	if err != nil {
		return at(p, err)
	}
	for _, info := range infos {
		if strings.Contains(info.Name(), "/") || info.Name() == ".." || info.Name() == "." {
			continue // not a valid file name
		}
		if err := lk.removeAll(ctx, path.Join(p, info.Name()), depth-1); err != nil &&
			!errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := lk.files.RemoveDirectory(p); err != nil {
		return at(p, err)
	}
	return nil
}

func (lk *link) unlink(p string) error {
	if err := lk.files.Remove(p); err != nil {
		return at(p, err)
	}
	return nil
}
