package dockerfile

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
)

// placing writes files into a sandbox. Links in the sandbox are followed there, so no path leads
// out of it.
type placing struct {
	copying
	files    *connect.Files
	uid, gid int
	keep     bool // keep owners instead
}

// all writes the entries of a tar archive. A directory begins with an entry ".", which is Dest.
func (p *placing) all(ctx context.Context, r io.Reader) error {
	entries := tar.NewReader(untilDone{ctx, r})
	whole := false // a directory is copied
	for n := 0; ; n++ {
		h, err := entries.Next()
		switch {
		case errors.Is(err, io.EOF) && n == 0:
			return fmt.Errorf("%s: no such file, or .dockerignore excludes it", brief(p.Source))
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		switch {
		case h.Name == ".":
			whole = true
			if err := p.top(h); err != nil {
				return err
			}
			continue
		case n == 0 && p.Into:
			if err := p.makeDirs(p.Dest); err != nil {
				return err
			}
		case n > 0 && !whole && !p.Into:
			return fmt.Errorf("%s: several files match, and the destination does not end with /",
				brief(p.Source))
		}
		var from io.Reader = entries
		if p.Extract && !whole && h.Typeflag == tar.TypeReg {
			file := bufio.NewReaderSize(entries, archiveHead)
			archive, err := open(file)
			if err == nil && archive != nil {
				err = p.extract(untilDone{ctx, archive})
			}
			if err != nil {
				return fmt.Errorf("%s: %w", brief(p.Source), err)
			}
			if archive != nil {
				continue
			}
			from = file
		}
		at, err := p.at(h, whole)
		if err == nil {
			err = p.entry(h, from, at)
		}
		if err != nil {
			return err
		}
	}
}

// at returns where an entry goes.
func (p *placing) at(h *tar.Header, whole bool) (string, error) {
	if p.Into || whole || h.Typeflag != tar.TypeReg {
		return path.Join(p.Dest, path.Clean("/"+h.Name)), nil
	}
	if info, err := p.files.Stat(p.Dest); err == nil && info.IsDir() {
		if p.Mount != "" {
			return "", fmt.Errorf("%s: a file cannot be mounted on a directory", brief(p.Dest))
		}
		return path.Join(p.Dest, path.Base(h.Name)), nil
	}
	return p.Dest, p.makeDirs(path.Dir(p.Dest))
}

// top makes the directory Dest like the one that is copied, unless it exists.
func (p *placing) top(h *tar.Header) error {
	if _, err := p.files.Stat(p.Dest); !errors.Is(err, fs.ErrNotExist) {
		return p.makeDirs(p.Dest)
	}
	return p.entry(h, nil, p.Dest)
}

// makeDirs makes a directory and those above it, unless they exist.
func (p *placing) makeDirs(dir string) error {
	switch info, err := p.files.Stat(dir); {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return fmt.Errorf("%s: not a directory", brief(dir))
	case !errors.Is(err, fs.ErrNotExist) || dir == "/":
		return named(dir, err)
	}
	if err := p.makeDirs(path.Dir(dir)); err != nil {
		return err
	}
	if err := p.files.Mkdir(dir); err != nil {
		return named(dir, err)
	}
	if err := p.files.Chmod(dir, 0o755); err != nil {
		return named(dir, err)
	}
	return named(dir, p.files.Chown(dir, p.uid, p.gid))
}

// named adds a path of the sandbox to the error of an SFTP request.
func named(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", brief(path), err)
}

// entry writes one entry of an archive. Entries that are no file, directory or link are skipped.
func (p *placing) entry(h *tar.Header, from io.Reader, at string) error {
	var err error
	switch h.Typeflag {
	case tar.TypeDir:
		if info, statErr := p.files.Stat(at); statErr == nil && info.IsDir() {
			break
		}
		if err = p.makeDirs(path.Dir(at)); err == nil {
			err = p.files.Mkdir(at)
		}
	case tar.TypeReg:
		err = p.write(from, at)
	case tar.TypeSymlink:
		if err = p.replace(at); err == nil {
			err = p.files.Symlink(h.Linkname, at)
		}
		return named(at, err) // SFTP sets neither the owner nor the times of a link
	case tar.TypeLink:
		if err = p.replace(at); err == nil {
			err = p.files.Link(path.Join(p.Dest, path.Clean("/"+h.Linkname)), at)
		}
		return named(at, err)
	default:
		return nil
	}
	if err != nil {
		return named(at, err)
	}
	uid, gid := p.uid, p.gid
	if p.keep {
		uid, gid = h.Uid, h.Gid
	}
	// The owner first: the system clears set-user-ID bits with it.
	if err := p.files.Chown(at, uid, gid); err != nil {
		return named(at, err)
	}
	mode := h.FileInfo().Mode()
	if p.Mode != 0 {
		mode = p.Mode
	}
	if err := p.files.Chmod(at, mode); err != nil {
		return named(at, err)
	}
	if h.Typeflag == tar.TypeReg {
		err = p.files.Chtimes(at, h.ModTime, h.ModTime)
	}
	return named(at, err)
}

// replace removes what is at a path, unless it is a directory with files, and makes the directories
// above.
func (p *placing) replace(at string) error {
	switch info, err := p.files.Lstat(at); {
	case errors.Is(err, fs.ErrNotExist):
		return p.makeDirs(path.Dir(at))
	case err != nil:
		return err
	case info.IsDir():
		return errors.New("a directory is in the way")
	}
	return p.files.Remove(at)
}

func (p *placing) write(from io.Reader, at string) error {
	if err := p.replace(at); err != nil {
		return err
	}
	f, err := p.files.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	_, err = f.ReadFrom(from)
	return errors.Join(err, f.Close())
}

// extract writes the entries of an archive that an ADD names. They keep their owners.
func (p *placing) extract(r io.Reader) error {
	inside := *p
	inside.Into, inside.Extract, inside.keep = true, false, p.Owner == ""
	if err := inside.makeDirs(p.Dest); err != nil {
		return err
	}
	entries := tar.NewReader(r)
	for n := 0; ; n++ {
		h, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if n == maxContextFiles {
			return fmt.Errorf("more than %d files", maxContextFiles)
		}
		if path.Clean("/"+h.Name) == "/" {
			continue
		}
		if err := inside.entry(h, entries, path.Join(p.Dest, path.Clean("/"+h.Name))); err != nil {
			return err
		}
	}
}

// archiveHead is how much of a file is read to see whether it is an archive: the first block of
// bzip2 has up to 900 kB.
const archiveHead = 1 << 20

// open returns the tar archive in r, which may be compressed, or nil if r is none. r has a buffer
// of archiveHead bytes.
func open(r *bufio.Reader) (io.Reader, error) {
	plain := func(r io.Reader) (io.Reader, error) { return r, nil }
	unpack := plain
	head, _ := r.Peek(archiveHead)
	switch {
	case bytes.HasPrefix(head, []byte("\x1f\x8b")):
		unpack = func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }
	case bytes.HasPrefix(head, []byte("BZh")):
		unpack = func(r io.Reader) (io.Reader, error) { return bzip2.NewReader(r), nil }
	case bytes.HasPrefix(head, []byte("\xfd7zXZ\x00")),
		bytes.HasPrefix(head, []byte("\x28\xb5\x2f\xfd")):
		return nil, sandbox.Hint(errors.New("archives by xz and zstd are not extracted"),
			"COPY it, and RUN tar")
	}
	const magicAt = 257 // of ustar, which GNU tar and pax(1) write, too
	block := make([]byte, 512)
	beginning, err := unpack(bytes.NewReader(head))
	if err == nil {
		_, err = io.ReadFull(beginning, block)
	}
	if err != nil || !bytes.HasPrefix(block[magicAt:], []byte("ustar")) {
		return nil, nil //nolint:nilerr,nilnil // it is none
	}
	return unpack(r)
}

// owner returns the numbers of a user and group of the sandbox. As with BuildKit, a number without
// a group has the group with the same number.
func owner(files *connect.Files, of string) (uid, gid int, err error) {
	if of == "" || of == "root" || of == "0" {
		return 0, 0, nil
	}
	user, group, both := strings.Cut(of, ":")
	if uid, err = strconv.Atoi(user); err == nil {
		gid = uid
		if uid < 0 {
			return 0, 0, fmt.Errorf("owner %s: negative", brief(of))
		}
	} else if uid, gid, err = lookup(files, "/etc/passwd", user); err != nil {
		return 0, 0, err
	}
	if !both {
		return uid, gid, nil
	}
	if gid, err = strconv.Atoi(group); err != nil {
		gid, _, err = lookup(files, "/etc/group", group)
	}
	if err == nil && gid < 0 {
		err = fmt.Errorf("owner %s: negative", brief(of))
	}
	return uid, gid, err
}

// lookup returns the third and fourth field of an entry of passwd(5) or group(5).
func lookup(files *connect.Files, file, name string) (third, fourth int, err error) {
	const most = 1 << 20
	f, err := files.Open(file)
	if err != nil {
		return 0, 0, fmt.Errorf("owner %s: %s: %w", brief(name), file, err)
	}
	defer f.Close()
	for all := bufio.NewScanner(io.LimitReader(f, most)); all.Scan(); {
		fields := strings.Split(all.Text(), ":")
		if len(fields) < 4 || fields[0] != name {
			continue
		}
		third, err = strconv.Atoi(fields[2])
		if err == nil && file == "/etc/passwd" {
			fourth, err = strconv.Atoi(fields[3])
		}
		if err != nil || third < 0 || fourth < 0 {
			return 0, 0, fmt.Errorf("owner %s: a bad entry in %s", brief(name), file)
		}
		return third, fourth, nil
	}
	return 0, 0, fmt.Errorf("owner %s is not in %s", brief(name), file)
}
