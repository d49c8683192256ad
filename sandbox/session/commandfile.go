package session

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// commandFile is the file from which a shell reads its next command. It is in memory, and writable
// only here: a program that has dropped privileges must not write commands of the shell.
type commandFile struct {
	w *os.File
	// The same file for reading, which the session's own shell inherits. It shares its offset, so
	// that rewinding it here rewinds it for the shell. Nil for a file with a name.
	r   *os.File
	dir string // directory that holds only the file with a name; empty for one without
}

// sharedMemory is the directory of POSIX shared memory; see shm_overview(7).
const sharedMemory = "/dev/shm"

// namedFile makes the file of a shell that runs already, as the user uid: one that has closed the
// descriptors it inherited, such as behind sudo, opens it by name. Only that user can read it, and
// cannot write it: a shell around that one could read the line that names it. The name is no
// secret: it is typed on the terminal, which other programs may read.
func namedFile(uid int) (*commandFile, error) {
	dir, err := os.MkdirTemp(sharedMemory, "sandboxd-")
	if err != nil {
		return nil, unwritable(err)
	}
	f := &commandFile{dir: dir}
	if err = os.Chmod(dir, 0o711); err == nil {
		f.w, err = os.OpenFile(filepath.Join(dir, rand.Text()),
			os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	}
	if err == nil {
		err = f.w.Chmod(0o400)
	}
	if err == nil && uid != os.Geteuid() {
		err = readableBy(f.w, uid)
	}
	if err != nil {
		f.close()
		return nil, unwritable(err)
	}
	return f, nil
}

// unwritable is the error for a file that could not be made or written.
func unwritable(err error) error {
	if why, ok := errors.AsType[*fs.PathError](err); ok {
		err = why.Err
	}
	return &wire.Error{Code: wire.CodeUnavailable,
		Message: "commands cannot be given to this shell: " + sharedMemory + ": " + err.Error(),
		Hint:    "make room there, type the command, or leave the shell with exit"}
}

// seenBy returns an error if the process pid cannot open the file by its name: it has another root
// directory or other mounts.
func (f *commandFile) seenBy(pid int) error {
	own, err := f.w.Stat()
	if err != nil {
		return err
	}
	its, err := os.Stat("/proc/" + strconv.Itoa(pid) + "/root" + f.w.Name())
	if errors.Is(err, fs.ErrPermission) {
		return nil // not known
	}
	if err == nil && os.SameFile(own, its) {
		return nil
	}
	return &wire.Error{Code: wire.CodeUnavailable,
		Message: "the shell in front cannot take commands: it does not see " + sharedMemory +
			" of the session, as in a chroot",
		Hint: "type to it, or leave it with exit"}
}

// isGone reports whether the file was removed.
func (f *commandFile) isGone() bool {
	own, err := f.w.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(f.w.Name())
	return err != nil || !os.SameFile(own, named)
}

// hand makes payload the content of the file: the next command of the shell. After an error the
// file is empty.
func (f *commandFile) hand(payload []byte) error {
	err := f.w.Truncate(0)
	if err == nil {
		_, err = f.w.WriteAt(payload, 0)
	}
	if err == nil && f.r != nil {
		_, err = f.r.Seek(0, 0)
	}
	if err != nil {
		_ = f.takeBack()
		return unwritable(err)
	}
	return nil
}

// takeBack empties the file, so that a person who presses the key by chance runs nothing.
func (f *commandFile) takeBack() error { return f.w.Truncate(0) }

// close closes the file, and removes one with a name. A shell that has inherited it keeps it, and a
// link may be left: it is empty.
func (f *commandFile) close() {
	if f.dir != "" && f.w != nil {
		_ = f.takeBack()
	}
	for _, file := range []*os.File{f.w, f.r} {
		if file != nil {
			file.Close()
		}
	}
	if f.dir != "" {
		os.RemoveAll(f.dir)
	}
}
