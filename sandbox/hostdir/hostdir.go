// Package hostdir decides which directories of this machine a sandbox may be given, and says which directory exactly was
// looked at, so that what is mounted later can be compared with it. It knows no sandbox, no engine and no principal.
package hostdir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Rules say which directories may be given. The zero value gives none.
type Rules struct {
	// Roots are absolute. They may be given themselves, and so may directories below them.
	Roots []string
	// Never are absolute paths of files and directories that are not given, nor anything below them, nor a directory that
	// holds one. System is added to them.
	Never []string
	// Homes are absolute. They are not given themselves, nor is a directory that holds one: what lies below them may be.
	Homes []string
}

// System are the directories of a machine that no rule gives: at the same path they would hide what a sandbox's programs need,
// and most of them belong to the machine.
var System = []string{"/.sandboxd", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys", "/usr",
	"/var/lib/containerd", "/var/lib/docker", "/var/run"}

// maxPath is what a path may have in bytes (PATH_MAX, with its NUL).
const maxPath = 4095

// Dir is a directory that may be given, as it was when it was looked at.
type Dir struct {
	Path     string // without symbolic links
	Dev, Ino uint64 // by which it is known again, whatever has its path by then
	UID, GID uint32 // of its owner
}

// Error says why a directory is not given.
type Error struct {
	Path   string
	Why    string // "is not absolute"
	Hint   string // what to do about it; may be empty
	Denied bool   // it is not allowed; otherwise the path itself will not do
}

func (e *Error) Error() string {
	path := e.Path
	if len(path) > 200 {
		path = path[:200] + "…"
	}
	return fmt.Sprintf("directory %q %s", path, e.Why)
}

// Check looks at the directory at path. Errors are *Error.
func (r Rules) Check(path string) (Dir, error) {
	root, dir, err := r.Open(path)
	if err != nil {
		return Dir{}, err
	}
	root.Close()
	return dir, nil
}

// Open is Check that leaves the directory open, for what is read in it. The caller closes it.
func (r Rules) Open(path string) (*os.Root, Dir, error) {
	bad := func(why, hint string) (*os.Root, Dir, error) {
		return nil, Dir{}, &Error{Path: path, Why: why, Hint: hint}
	}
	if why := grammar(path); why != "" {
		return bad(why, "name an absolute path of the daemon's machine")
	}
	real, err := filepath.EvalSymlinks(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return bad("does not exist on the daemon's machine", "make it, or correct its name")
	case err != nil:
		return bad("cannot be looked at: "+reason(err), "")
	}
	if why := grammar(real); why != "" {
		return bad("is "+real+", which "+why, "")
	}
	if why, hint := r.denied(real); why != "" {
		if real != filepath.Clean(path) {
			why = "is " + real + ", which " + why
		}
		return nil, Dir{}, &Error{Path: path, Why: why, Hint: hint, Denied: true}
	}
	// What was judged is the path without links: it is opened without following one. Whoever puts one there meanwhile ends it.
	f, err := openPlain(real)
	if err != nil {
		return bad("cannot be opened: "+reason(err), "")
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return bad("cannot be looked at: "+reason(err), "")
	}
	root, err := rootOf(f, real)
	if err != nil {
		return bad("cannot be opened: "+reason(err), "")
	}
	return root, Dir{Path: real, Dev: uint64(st.Dev), Ino: st.Ino, UID: st.Uid, GID: st.Gid}, nil //nolint:unconvert // Dev is an int32 elsewhere
}

// grammar says what is wrong with the text of a path.
func grammar(path string) string {
	switch {
	case path == "":
		return "has no name"
	case !utf8.ValidString(path):
		return "is not UTF-8"
	case strings.ContainsFunc(path, unicode.IsControl):
		return "has a control character in its name"
	case len(path) > maxPath:
		return fmt.Sprintf("is longer than %d bytes", maxPath)
	case !filepath.IsAbs(path):
		return "is not absolute"
	case strings.Contains(path, ":"):
		return "has a colon in its name, which lists of paths such as PATH cannot hold"
	}
	for part := range strings.SplitSeq(path, "/") {
		if part == ".." {
			return "has .. in it"
		}
	}
	return ""
}

// denied says why a path without links is not given.
func (r Rules) denied(path string) (why, hint string) {
	for _, home := range r.Homes {
		if home = resolved(home); within(home, path) {
			if home == path {
				return "is a home directory", "mount a directory in it"
			}
			return "holds the home directory " + home, "mount a directory in that"
		}
	}
	for _, list := range [][]string{System, r.Never} {
		for _, never := range list {
			for _, never := range []string{never, resolved(never)} {
				switch {
				case never == path:
					return "is not for sandboxes", ""
				case within(path, never):
					return "lies in " + never + ", which is not for sandboxes", ""
				case within(never, path):
					return "holds " + never + ", which is not for sandboxes", ""
				}
			}
		}
	}
	if len(r.Roots) == 0 {
		return "cannot be mounted: no directories are allowed", "name those that are in mount_roots, in the daemon's configuration"
	}
	for _, root := range r.Roots {
		if within(path, resolved(root)) {
			return "", ""
		}
	}
	return "is outside of " + strings.Join(r.Roots, ", "), "what may be mounted is mount_roots, in the daemon's configuration; add it there and restart the daemon"
}

// within reports whether path is dir or lies below it. Both are clean.
func within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// resolved is path without links, as far as it exists.
func resolved(path string) string {
	path = filepath.Clean(path)
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// openPlain opens a directory whose path has no link in it, one part after the other.
func openPlain(path string) (*os.File, error) {
	fd, err := unix.Open("/", openFlags, 0)
	if err != nil {
		return nil, err
	}
	for part := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		next, err := unix.Openat(fd, part, openFlags|unix.O_NOFOLLOW, 0)
		unix.Close(fd)
		if err != nil {
			return nil, err
		}
		fd = next
	}
	return os.NewFile(uintptr(fd), path), nil
}

// reason is a system error without the path that the caller names anyway.
func reason(err error) string {
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno) && errno == syscall.ENOTDIR:
		return "it is not a directory"
	case errors.As(err, &errno) && errno == syscall.ELOOP:
		return "a symbolic link is in its path"
	case errors.As(err, &errno):
		return errno.Error()
	}
	return err.Error()
}

// ReadFile reads a regular file in root of at most so many bytes, whatever is in its place. Its errors do not name the file.
func ReadFile(root *os.Root, name string, most int64) ([]byte, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		if pe, ok := errors.AsType[*fs.PathError](err); ok {
			err = pe.Err
		}
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errors.New("is not a regular file")
	}
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("is longer than %d bytes", most)
	}
	return text, err
}
