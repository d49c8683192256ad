// Package hostdir decides which directories of this machine a sandbox may mount. It also identifies
// the directory that it checked, so that a later mount can be compared with it. It knows no
// sandbox, engine or principal.
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
)

// Rules say which directories may be mounted. The zero value allows none.
type Rules struct {
	// Roots are absolute. They and the directories below them are allowed.
	Roots []string
	// Never are absolute paths of files and directories that are not allowed, nor anything below
	// them, nor a directory that contains one. System is always added.
	Never []string
	// Homes are absolute. They are not allowed, nor is a directory that contains one; directories
	// below them may be.
	Homes []string
}

// System are the directories that no rule allows: at the same path they would hide files that a
// sandbox's programs need, and most belong to the machine.
var System = []string{"/.sandboxd", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64",
	"/libx32", "/proc", "/run", "/sbin", "/sys", "/usr",
	"/var/lib/containerd", "/var/lib/docker", "/var/run"}

// maxPath is the longest path in bytes (PATH_MAX, without its NUL).
const maxPath = 4095

// Dir is an allowed directory, with its state at the time of the check.
type Dir struct {
	Path     string // without symbolic links
	Dev, Ino uint64 // identify it, even if another directory has its path by then
	UID, GID uint32 // of its owner
}

// Error says why a directory is not allowed.
type Error struct {
	Path   string
	Why    string // "is not absolute"
	Hint   string // what to do; may be empty
	Denied bool   // a rule forbids it; false if the path itself is invalid
}

func (e *Error) Error() string {
	path := e.Path
	if len(path) > 200 {
		path = path[:200] + "…"
	}
	return fmt.Sprintf("directory %q %s", path, e.Why)
}

// Check checks the directory at path. Its errors are *Error.
func (r Rules) Check(path string) (Dir, error) {
	root, dir, err := r.Open(path)
	if err != nil {
		return Dir{}, err
	}
	root.Close()
	return dir, nil
}

// Open is like Check, and leaves the directory open to read files in it. The caller closes it.
func (r Rules) Open(path string) (*os.Root, Dir, error) {
	bad := func(why, hint string) (*os.Root, Dir, error) {
		return nil, Dir{}, &Error{Path: path, Why: why, Hint: hint}
	}
	if why := grammar(path); why != "" {
		return bad(why, "use an absolute path on the daemon's machine")
	}
	real, err := filepath.EvalSymlinks(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return bad("does not exist on the daemon's machine", "create it, or correct its path")
	case err != nil:
		return bad("cannot be checked: "+reason(err), "")
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
	// Check decided on the path without links, so open it without following any. If a link has
	// replaced a part meanwhile, this fails.
	f, err := openPlain(real)
	if err != nil {
		return bad("cannot be opened: "+reason(err), "")
	}
	defer f.Close()
	dir, err := identify(f)
	if err != nil {
		return bad("cannot be checked: "+reason(err), "")
	}
	root, err := rootOf(f, real)
	if err != nil {
		return bad("cannot be opened: "+reason(err), "")
	}
	dir.Path = real
	return root, dir, nil
}

// grammar returns what is wrong with the text of a path.
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
		return "has a colon in its name, which separates paths in lists such as PATH"
	}
	for part := range strings.SplitSeq(path, "/") {
		if part == ".." {
			return "has .. in it"
		}
	}
	return ""
}

// denied returns why a path without links is not allowed.
func (r Rules) denied(path string) (why, hint string) {
	for _, home := range r.Homes {
		if home = resolved(home); within(home, path) {
			if home == path {
				return "is a home directory", "mount a directory in it"
			}
			return "contains the home directory " + home, "mount a directory in it"
		}
	}
	for _, list := range [][]string{System, r.Never} {
		for _, never := range list {
			for _, never := range []string{never, resolved(never)} {
				switch {
				case never == path:
					return "is not allowed for sandboxes", ""
				case within(path, never):
					return "is in " + never + ", which is not allowed for sandboxes", ""
				case within(never, path):
					return "contains " + never + ", which is not allowed for sandboxes", ""
				}
			}
		}
	}
	if len(r.Roots) == 0 {
		return "cannot be mounted: no directories are allowed",
			"set mount_roots in the daemon's configuration"
	}
	for _, root := range r.Roots {
		if within(path, resolved(root)) {
			return "", ""
		}
	}
	return "is outside of the directories that sandboxes may use: " + strings.Join(r.Roots, ", "),
		"add it to mount_roots in the daemon's configuration, and restart the daemon"
}

// within reports whether path is dir or below it. Both are clean.
func within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// resolved returns path without links, as far as it exists.
func resolved(path string) string {
	path = filepath.Clean(path)
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// reason returns a system error without the path, which the message already has.
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

// ReadFile reads a regular file in root of at most most bytes; any other file is an error and does
// not block. Its errors do not name the file.
func ReadFile(root *os.Root, name string, most int64) ([]byte, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|noWait, 0)
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
