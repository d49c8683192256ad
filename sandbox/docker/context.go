package docker

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

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
	"syscall"

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
	ignore  []byte // text of .dockerignore
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
	c.ignore = text
	return c, nil
}

// pack writes the files as a tar archive and returns a checksum of everything that steps can see of
// them: names, types, modes and contents, but not times. It skips everything but regular files,
// directories and links. All files belong to root, as with docker build.
func (c *buildContext) pack(ctx context.Context, w io.Writer) (sum string, err error) {
	p := packing{buildContext: c, ctx: ctx, tar: tar.NewWriter(w), sum: sha256.New()}
	if err := fs.WalkDir(c.root.FS(), ".", p.entry); err != nil {
		return "", err
	}
	return hex.EncodeToString(p.sum.Sum(nil)), p.tar.Flush()
}

// packing is one run of pack.
type packing struct {
	*buildContext
	ctx   context.Context //nolint:containedctx // of one walk, whose callback has no ctx parameter
	tar   *tar.Writer
	sum   hash.Hash
	files int
	bytes int64
}

func (p *packing) entry(name string, entry fs.DirEntry, err error) error {
	switch {
	case p.ctx.Err() != nil:
		return context.Cause(p.ctx)
	case err != nil:
		return fmt.Errorf("build context: %w", err)
	case name == ".":
		return nil
	}
	skip, err := p.ignored.MatchesOrParentMatches(name)
	if err != nil {
		return fmt.Errorf("%s: %w", ignoreFile, err)
	}
	if skip && entry.IsDir() && !p.ignored.Exclusions() {
		return fs.SkipDir
	}
	if skip {
		return nil
	}
	if p.files++; p.files > maxContextFiles {
		return fmt.Errorf("build context: %w",
			p.tooMuch(fmt.Sprintf("more than %d files", maxContextFiles)))
	}
	if err := p.add(name, entry); err != nil {
		return fmt.Errorf("build context: %w", err)
	}
	return nil
}

func (p *packing) tooMuch(what string) error {
	return sandbox.Hint(fmt.Errorf("%s: it contains %s", p.root.Name(), what),
		"list files that the build does not need in "+ignoreFile)
}

func (p *packing) add(name string, entry fs.DirEntry) error {
	var f *os.File
	info, err := entry.Info()
	if err != nil {
		return err
	}
	link := ""
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
		if p.bytes += info.Size(); p.bytes > maxContext {
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
	header.Name = path.Clean(name)
	if info.IsDir() {
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
	_, err = io.CopyN(io.MultiWriter(p.tar, p.sum), f, info.Size())
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%s: file became shorter during the build", name)
	}
	return err
}

// send writes the archive for the engine, with our Dockerfile under a name that is hidden from
// steps. sum is the result of an earlier pack; files that changed since then are an error.
func (c *buildContext) send(ctx context.Context, w io.Writer, dockerfile []byte, sum string) error {
	again, err := c.pack(ctx, w)
	if err != nil {
		return err
	}
	if again != sum {
		return sandbox.Hint(errors.New("build context: files changed during the build"),
			"try again when nothing writes to the directory")
	}
	t := tar.NewWriter(w)
	hidden := "\n" + sentDockerfile + "\n"
	if len(c.ignore) == 0 {
		hidden += ignoreFile + "\n"
	}
	for _, f := range []struct {
		name string
		text []byte
	}{{sentDockerfile, dockerfile}, {ignoreFile, append(bytes.Clone(c.ignore), hidden...)}} {
		if err := t.WriteHeader(&tar.Header{Name: f.name, Mode: 0o644, Size: int64(len(f.text)),
			Format: tar.FormatPAX}); err != nil {
			return err
		}
		if _, err := t.Write(f.text); err != nil {
			return err
		}
	}
	return t.Close()
}

// sentDockerfile is the name of our Dockerfile in the archive.
const sentDockerfile = ".sandboxd.Dockerfile"
