package dockerfile

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/hostdir"
)

// Bounds of a build context.
const (
	maxContext      = 1 << 30 // bytes of all files
	maxContextFiles = 100_000
	maxIgnore       = 64 << 10 // bytes of .dockerignore
	maxPatterns     = 1000     // of its lines: each file is matched against each pattern
)

const ignoreFile = ".dockerignore"

// buildContext is the directory that build steps copy from. It follows no link out of it.
type buildContext struct {
	root    *os.Root
	ignored *patternmatcher.PatternMatcher
}

// openContext reads .dockerignore.
func openContext(root *os.Root) (*buildContext, error) {
	c := &buildContext{root: root}
	text, err := hostdir.ReadFile(root, ignoreFile, maxIgnore)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", ignoreFile, err)
	}
	patterns, err := ignorefile.ReadAll(bytes.NewReader(text))
	if err == nil && len(patterns) > maxPatterns {
		err = fmt.Errorf("it has more than %d lines", maxPatterns)
	}
	if err == nil {
		c.ignored, err = patternmatcher.New(patterns)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ignoreFile, err)
	}
	return c, nil
}

// pack writes the files that a COPY or ADD names as a tar archive: a file by the last part of its
// name, and what a directory contains, after an entry "." for itself. It returns a checksum of
// everything that steps can see of them: names, types, modes and contents, but not times. It skips
// everything but regular files, directories and links. All files belong to root, as with docker
// build.
func (c *buildContext) pack(ctx context.Context, w io.Writer, source string) (sum string,
	err error) {
	p := packing{buildContext: c, ctx: ctx, tar: tar.NewWriter(w), sum: sha256.New()}
	names, err := match(ctx, relative(source), func(dir string) (names []string, err error) {
		list, err := fs.ReadDir(c.root.FS(), dir)
		for _, entry := range list {
			names = append(names, entry.Name())
		}
		return names, err
	})
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if err := p.source(name); err != nil {
			return "", err
		}
	}
	if p.files == 0 {
		return "", missing(source)
	}
	return hex.EncodeToString(p.sum.Sum(nil)), p.tar.Close()
}

// missing is the error of a source that names no file.
func missing(source string) error {
	return fmt.Errorf("%s: no such file in the build context, or %s excludes it", brief(source),
		ignoreFile)
}

// relative returns the path of a source in the build context.
func relative(source string) string {
	if name := strings.TrimPrefix(path.Clean("/"+source), "/"); name != "" {
		return name
	}
	return "."
}

// packing is one run of pack.
type packing struct {
	*buildContext
	ctx   context.Context //nolint:containedctx // of one walk, whose callback has no ctx parameter
	tar   *tar.Writer
	sum   hash.Hash
	top   func() error // adds the directory that is the source; nil when it has
	files int
	bytes int64
}

// source adds one source.
func (p *packing) source(name string) error {
	info, err := p.root.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return missing(name)
	case err != nil:
		return fmt.Errorf("build context: %w", err)
	case !info.IsDir():
		return p.entry(name, path.Base(name), fs.FileInfoToDirEntry(info))
	}
	skip, err := p.skips(name)
	if err != nil || skip && !p.ignored.Exclusions() {
		return err
	}
	// First in the archive, also for a directory that is excluded but for some files.
	p.top = func() error { return p.add(name, ".", fs.FileInfoToDirEntry(info)) }
	if !skip {
		if err := p.begin(); err != nil {
			return err
		}
	}
	defer func() { p.top = nil }()
	return fs.WalkDir(p.root.FS(), name, func(at string, entry fs.DirEntry, err error) error {
		switch {
		case p.ctx.Err() != nil:
			return context.Cause(p.ctx)
		case err != nil:
			return fmt.Errorf("build context: %w", err)
		case at == name:
			return nil
		}
		if entry.IsDir() && !p.ignored.Exclusions() {
			if skip, err := p.skips(at); skip || err != nil {
				return errors.Join(err, fs.SkipDir)
			}
		}
		if name == "." {
			return p.entry(at, at, entry)
		}
		return p.entry(at, strings.TrimPrefix(at, name+"/"), entry)
	})
}

// begin adds the directory that is the source, once.
func (p *packing) begin() error {
	top := p.top
	if p.top = nil; top == nil {
		return nil
	}
	p.files++
	if err := top(); err != nil {
		return fmt.Errorf("build context: %w", err)
	}
	return nil
}

// skips reports whether .dockerignore excludes a file.
func (p *packing) skips(name string) (bool, error) {
	if name == "." {
		return false, nil
	}
	skip, err := p.ignored.MatchesOrParentMatches(name)
	if err != nil {
		err = fmt.Errorf("%s: %w", ignoreFile, err)
	}
	return skip, err
}

// entry adds a file under a name, unless .dockerignore excludes it.
func (p *packing) entry(name, as string, entry fs.DirEntry) error {
	if skip, err := p.skips(name); skip || err != nil {
		return err
	}
	if p.files++; p.files > maxContextFiles {
		return fmt.Errorf("build context: %w",
			p.tooMuch(fmt.Sprintf("more than %d files", maxContextFiles)))
	}
	err := p.begin()
	if err == nil {
		err = p.add(name, as, entry)
	}
	if err != nil {
		return fmt.Errorf("build context: %w", err)
	}
	return nil
}

func (p *packing) tooMuch(what string) error {
	return sandbox.Hint(fmt.Errorf("%s: it contains %s", p.root.Name(), what),
		"list files that the build does not need in "+ignoreFile)
}

func (p *packing) add(name, as string, entry fs.DirEntry) error {
	var f *os.File
	info, err := entry.Info()
	if err != nil {
		return err
	}
	link := ""
	if p.ctx.Err() != nil {
		return context.Cause(p.ctx)
	}
	switch mode := info.Mode(); {
	case mode.IsRegular():
		// Not blocking: a FIFO may have replaced it.
		if f, err = p.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0); err != nil {
			return err
		}
		defer f.Close()
		// Of the opened file, which may differ from the listed one.
		if info, err = f.Stat(); err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s: file was replaced during the build", name)
		}
		if info.Size() < 0 || info.Size() > maxContext-p.bytes {
			return p.tooMuch("more than " + sandbox.FormatSize(maxContext) + " of files")
		}
	case mode&fs.ModeSymlink != 0:
		if link, err = p.root.Readlink(name); err != nil {
			return err
		}
	case mode.IsDir():
	default:
		return nil
	}
	header, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	header.Name = as
	if info.IsDir() && as != "." {
		header.Name += "/"
	}
	header.Uid, header.Gid, header.Uname, header.Gname = 0, 0, "", ""
	header.Format = tar.FormatPAX
	if err := p.tar.WriteHeader(header); err != nil {
		return err
	}
	fmt.Fprintf(p.sum, "%q %q %o %c %d\n", header.Name, link, header.Mode, header.Typeflag,
		header.Size)
	if f == nil {
		return nil
	}
	p.bytes += info.Size()
	_, err = io.CopyN(io.MultiWriter(p.tar, p.sum), untilDone{p.ctx, f}, info.Size())
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%s: file became shorter during the build", name)
	}
	return err
}

// untilDone reads until ctx ends.
type untilDone struct {
	ctx context.Context //nolint:containedctx // of one copy
	r   io.Reader
}

func (u untilDone) Read(p []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, context.Cause(u.ctx)
	}
	return u.r.Read(p)
}
