package dockerfile

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/pkg/sftp"

	"github.com/sandboxd/sandboxd/sandbox/connect"
)

// collecting walks files of a sandbox, which is not trusted, and copies or removes them.
type collecting struct {
	ctx   context.Context //nolint:containedctx // of one walk
	files *connect.Files
	tar   *tar.Writer // nil for a walk that removes files
	count int
	held  int // entries of the directories that are being walked
}

// collect writes the files that a source names in a sandbox as pack does, with their owners.
func collect(ctx context.Context, w io.Writer, files *connect.Files, source string) error {
	c := &collecting{ctx: ctx, files: files, tar: tar.NewWriter(w)}
	names, err := match(ctx, path.Clean("/"+source), func(dir string) ([]string, error) {
		list, err := c.list(dir)
		defer c.release(list)
		names := make([]string, len(list))
		for i, info := range list {
			names[i] = info.Name()
		}
		return names, err
	})
	if err != nil {
		return err
	}
	for _, name := range names {
		info, err := files.Stat(name) // a link that is named itself is followed
		if err != nil {
			return named(name, err)
		}
		if info.IsDir() {
			err = c.tree(name, ".", info)
		} else {
			err = c.add(name, path.Base(name), info)
		}
		if err != nil {
			return err
		}
	}
	if c.count == 0 {
		return fmt.Errorf("%s: no such file", brief(source))
	}
	return c.tar.Close()
}

const (
	maxName = 255 // bytes of the name of a file, as on Linux
	// entries of directories that are walked at a time, of which one may have 100,000
	maxHeld = 2 * connect.MaxEntries
)

// notFiles are directories of a sandbox that its image does not have.
var notFiles = []string{"/proc", "/sys", "/dev", "/.sandboxd"}

// release ends the walk of what list has returned.
func (c *collecting) release(list []os.FileInfo) { c.held -= len(list) }

// list reads a directory. The caller releases the entries.
func (c *collecting) list(dir string) ([]os.FileInfo, error) {
	list, err := c.files.ReadDirContext(c.ctx, dir)
	if err != nil {
		return nil, named(dir, err)
	}
	for _, info := range list {
		if n := info.Name(); n == "" || n == "." || n == ".." || len(n) > maxName ||
			strings.ContainsAny(n, "/\x00") {
			return nil, fmt.Errorf("%s: a file has a bad name", brief(dir))
		}
	}
	if c.held += len(list); c.held > maxHeld || len(dir) > maxPath {
		return nil, fmt.Errorf("%s: too many files, or directories in each other", brief(dir))
	}
	return list, nil
}

// tree adds a directory as a name, and what it contains.
func (c *collecting) tree(dir, as string, info os.FileInfo) error {
	if err := c.add(dir, as, info); err != nil {
		return err
	}
	list, err := c.list(dir)
	if err != nil {
		return err
	}
	defer c.release(list)
	for _, info := range list {
		add := c.add
		if slices.Contains(notFiles, path.Join(dir, info.Name())) {
			continue
		}
		if info.IsDir() {
			add = c.tree
		}
		if err := add(path.Join(dir, info.Name()), path.Join(as, info.Name()), info); err != nil {
			return err
		}
	}
	return nil
}

// add adds a file as a name. It skips sockets, FIFOs and devices.
func (c *collecting) add(name, as string, info os.FileInfo) error {
	if c.count++; c.count > maxContextFiles {
		return fmt.Errorf("more than %d files", maxContextFiles)
	}
	if len(name) > maxPath {
		return fmt.Errorf("%s: the path is longer than %d bytes", brief(name), maxPath)
	}
	link := ""
	switch mode := info.Mode(); {
	case mode&fs.ModeSymlink != 0:
		var err error
		if link, err = c.files.ReadLink(name); err == nil && len(link) > maxPath {
			err = errors.New("the target of the link is too long")
		}
		if err != nil {
			return named(name, err)
		}
	case !mode.IsRegular() && !mode.IsDir():
		return nil
	}
	header, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return named(name, err)
	}
	header.Name, header.Format = as, tar.FormatPAX
	if st, ok := info.Sys().(*sftp.FileStat); ok {
		header.Uid, header.Gid = int(st.UID), int(st.GID)
	}
	if !info.Mode().IsRegular() {
		return c.tar.WriteHeader(header)
	}
	if info.Size() < 0 {
		return named(name, errors.New("a bad size"))
	}
	f, err := c.files.Open(name)
	if err != nil {
		return named(name, err)
	}
	defer f.Close()
	if err := c.tar.WriteHeader(header); err != nil {
		return named(name, err)
	}
	if _, err = io.CopyN(c.tar, f, info.Size()); errors.Is(err, io.EOF) {
		err = errors.New("it became shorter")
	}
	return named(name, err)
}
