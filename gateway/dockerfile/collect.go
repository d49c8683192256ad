package dockerfile

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/pkg/sftp"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
)

// maxCollected is how much one source of COPY --from may name, in bytes.
const maxCollected = 4 << 30

// collecting reads files from a sandbox, which is not trusted.
type collecting struct {
	files *connect.Files
	tar   *tar.Writer
	count int
	bytes int64
}

// collect writes the files that a source names in a sandbox as pack does, with their owners.
func collect(w io.Writer, files *connect.Files, source string) error {
	c := &collecting{files: files, tar: tar.NewWriter(w)}
	names, err := c.find(path.Clean("/" + source))
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

// find returns the files that match a pattern of path.Match.
func (c *collecting) find(pattern string) ([]string, error) {
	if !strings.ContainsAny(pattern, `*?[\`) {
		return []string{pattern}, nil
	}
	dirs, err := c.find(path.Dir(pattern))
	if err != nil {
		return nil, err
	}
	last, found := path.Base(pattern), []string(nil)
	for _, dir := range dirs {
		list, err := c.list(dir)
		if err != nil {
			continue // not a directory
		}
		for _, info := range list {
			match, err := path.Match(last, info.Name())
			if err != nil {
				return nil, fmt.Errorf("%s: %w", brief(pattern), err)
			}
			if match {
				found = append(found, path.Join(dir, info.Name()))
			}
		}
	}
	return found, nil
}

// list reads a directory.
func (c *collecting) list(dir string) ([]os.FileInfo, error) {
	list, err := c.files.ReadDir(dir)
	if err != nil {
		return nil, named(dir, err)
	}
	for _, info := range list {
		if n := info.Name(); n == "" || n == "." || n == ".." || strings.ContainsAny(n, "/\x00") {
			return nil, fmt.Errorf("%s: a file has a bad name", brief(dir))
		}
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
	for _, info := range list {
		add := c.add
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
	link := ""
	switch mode := info.Mode(); {
	case mode&fs.ModeSymlink != 0:
		var err error
		if link, err = c.files.ReadLink(name); err != nil {
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
	if c.bytes += max(info.Size(), 0); info.Size() < 0 || c.bytes > maxCollected {
		return fmt.Errorf("more than %s of files", sandbox.FormatSize(maxCollected))
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
