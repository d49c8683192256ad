package clone

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Options are what a clone has. The zero value is the last commit of the current branch.
type Options struct {
	Base    string   // commit to begin at; empty means HEAD
	Dirty   bool     // add a commit with the uncommitted changes of tracked files
	Include []string // untracked files to copy, too; relative to the directory
	Dir     string   // directory in the sandbox; empty means the path of the work tree
}

// Source is a repository of this machine that can be cloned. Its commit exists; no ref of the
// repository has changed.
type Source struct {
	Top    string // work tree
	Dir    string // directory in the sandbox
	Commit string // where the clone begins
	Wip    bool   // Commit has the uncommitted changes

	repo        repository
	format      string   // sha1 or sha256
	name, email string   // of the user; empty without
	include     []string // relative to Top, with slashes
}

// Open checks the repository that the directory dir belongs to. What cannot be cloned is an error
// of code usage.
func Open(ctx context.Context, dir string, o Options) (*Source, error) {
	if err := checkGit(ctx); err != nil {
		return nil, err
	}
	s := &Source{repo: repository{dir}}
	if err := s.find(ctx, dir); err != nil {
		return nil, err
	}
	s.Dir = cmp.Or(o.Dir, s.Top)
	if !filepath.IsAbs(s.Dir) || filepath.Clean(s.Dir) != s.Dir || s.Dir == "/" {
		return nil, mistake("write an absolute path, such as /srv/project",
			"directory in the sandbox %q: not a clean absolute path", s.Dir)
	}
	if !utf8.ValidString(s.Top) { // the record of the clone is JSON
		return nil, mistake("rename the directory", "path %q: not UTF-8", s.Top)
	}
	if !utf8.ValidString(s.Dir) {
		return nil, mistake("name another directory in the sandbox: --clone-dir DIR",
			"directory in the sandbox %q: not UTF-8", s.Dir)
	}
	if s.Dir == "/dev" || strings.HasPrefix(s.Dir, "/dev/") {
		return nil, mistake("name another directory in the sandbox: --clone-dir DIR",
			"directory in the sandbox %q: its files are lost when the sandbox stops", s.Dir)
	}
	if strings.ContainsFunc(s.Dir, unicode.IsControl) {
		return nil, mistake("name another directory in the sandbox: --clone-dir DIR",
			"directory in the sandbox %q: has control characters", s.Dir)
	}
	if err := s.choose(ctx, o); err != nil {
		return nil, err
	}
	if err := s.checkTree(ctx); err != nil {
		return nil, err
	}
	for _, name := range o.Include {
		if err := s.includes(ctx, dir, name); err != nil {
			return nil, err
		}
	}
	slices.Sort(s.include)
	s.include = slices.Compact(s.include)
	// A missing key is an exit status of 1.
	s.name, _ = s.repo.line(ctx, "config", "--get", "user.name")
	s.email, _ = s.repo.line(ctx, "config", "--get", "user.email")
	return s, nil
}

func mistake(hint, format string, args ...any) *wire.Error {
	return &wire.Error{Code: wire.CodeUsage, Message: fmt.Sprintf(format, args...), Hint: hint}
}

// find sets the work tree that dir is in.
func (s *Source) find(ctx context.Context, dir string) error {
	bare, err := s.repo.line(ctx, "rev-parse", "--is-bare-repository")
	if failed, ok := errors.AsType[*gitError](err); ok {
		if strings.Contains(failed.errors, "not a git repository") {
			return mistake("run it in a repository; to make one: git init",
				"%s is in no git repository", text.Line(dir, 200))
		}
		return mistake("check it with: git status", "%v", err)
	} else if err != nil {
		return err
	}
	if bare == "true" {
		return mistake("run it in a work tree; to make one: git clone",
			"%s is a bare repository", text.Line(dir, 200))
	}
	if inside, err := s.repo.line(ctx, "rev-parse", "--is-inside-work-tree"); err != nil {
		return err
	} else if inside != "true" {
		return mistake("run it in the work tree", "%s is not in the work tree of its repository",
			text.Line(dir, 200))
	}
	if s.Top, err = s.repo.line(ctx, "rev-parse", "--show-toplevel"); err != nil {
		return err
	}
	s.repo = repository{s.Top}
	s.format, err = s.repo.line(ctx, "rev-parse", "--show-object-format")
	return err
}

// choose sets the commit to begin at.
func (s *Source) choose(ctx context.Context, o Options) error {
	base := cmp.Or(o.Base, "HEAD")
	commit, err := s.commit(ctx, base)
	if err != nil {
		if _, head := s.repo.git(ctx, "rev-parse", "--verify", "--quiet", "HEAD"); head != nil &&
			base == "HEAD" {
			return mistake("commit first: git commit", "%s has no commit yet",
				text.Line(s.Top, 200))
		}
		return mistake("name a branch, a tag or a commit", "base %q: not a commit of %s",
			text.Line(base, 100), text.Line(s.Top, 200))
	}
	s.Commit = commit
	if !o.Dirty {
		return nil
	}
	if head, err := s.commit(ctx, "HEAD"); err != nil || head != commit {
		return mistake("omit --base, or check it out first",
			"--dirty: the uncommitted changes are of HEAD, not of %q", text.Line(base, 100))
	}
	return s.addChanges(ctx)
}

// commit returns the name of the commit that ref means.
func (s *Source) commit(ctx context.Context, ref string) (string, error) {
	if strings.HasPrefix(ref, "-") {
		return "", errors.New("begins with -")
	}
	out, err := s.repo.line(ctx, "rev-parse", "--verify", "--quiet", ref+"^{commit}")
	if err == nil && !isObject(out) {
		return "", fmt.Errorf("git rev-parse: %q", text.Line(out, 100))
	}
	return out, err
}

// addChanges makes a commit with the changes of tracked files. It uses an index of its own, so that
// the user's index, work tree and stash stay as they are.
func (s *Source) addChanges(ctx context.Context) error {
	unmerged, err := s.repo.git(ctx, "ls-files", "-u", "-z")
	if err != nil {
		return err
	}
	if len(unmerged) > 0 {
		return mistake("finish or abort the merge first",
			"--dirty: %s has unmerged files", text.Line(s.Top, 200))
	}
	index, err := s.repo.line(ctx, "rev-parse", "--path-format=absolute", "--git-path", "index")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sandboxd-clone-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	own := filepath.Join(dir, "index")
	if err := copyIndex(own, index); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("index of %s: %w", s.Top, err)
	}
	o := call{env: []string{"GIT_INDEX_FILE=" + own}}
	if _, err := s.repo.call(ctx, o, "add", "-u", "--", ":/"); err != nil {
		return err
	}
	tree, err := s.repo.call(ctx, o, "write-tree")
	if err != nil {
		return err
	}
	now, made := "", strings.TrimSpace(string(tree))
	if now, err = s.repo.line(ctx, "rev-parse", "--verify", "--quiet",
		s.Commit+"^{tree}"); err != nil {
		return err
	}
	if now == made {
		return nil // nothing has changed
	}
	if _, err := s.repo.git(ctx, "var", "GIT_COMMITTER_IDENT"); err != nil {
		o.env = append(o.env, unnamed...)
	}
	out, err := s.repo.call(ctx, o, "commit-tree", "--no-gpg-sign", "-p", s.Commit, "-m",
		"wip: uncommitted changes", made)
	if err != nil {
		return err
	}
	s.Commit, s.Wip = strings.TrimSpace(string(out)), true
	return nil
}

// unnamed are the names in commits of a user who has configured none.
var unnamed = []string{"GIT_AUTHOR_NAME=sandboxd", "GIT_AUTHOR_EMAIL=sandboxd@localhost",
	"GIT_COMMITTER_NAME=sandboxd", "GIT_COMMITTER_EMAIL=sandboxd@localhost"}

// copyIndex copies an index with its time: git reads a file again that is not older than the index.
func copyIndex(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	about, statErr := in.Stat()
	if err = errors.Join(err, statErr, out.Close()); err == nil {
		err = os.Chtimes(to, time.Time{}, about.ModTime())
	}
	return err
}

// Bounds of a tree that is cloned: the listing of its files, and the names in an error.
const (
	maxListing = 512 << 20
	maxNamed   = 3
)

// checkTree rejects submodules and files of Git LFS. Their content is not in the repository.
func (s *Source) checkTree(ctx context.Context) error {
	out, err := s.repo.call(ctx, call{output: maxListing}, "ls-tree", "-r", "-z", "--full-tree",
		s.Commit)
	if err != nil {
		return err
	}
	var submodules []string
	attributes := false
	for _, entry := range fields(out) {
		about, name, _ := strings.Cut(entry, "\t")
		if strings.HasPrefix(about, "160000 ") {
			submodules = append(submodules, name)
		}
		attributes = attributes || name == ".gitattributes" ||
			strings.HasSuffix(name, "/.gitattributes")
	}
	if len(submodules) > 0 {
		return mistake("clone it in the sandbox instead: git clone --recurse-submodules URL",
			"%s has submodules, which clones do not support: %s", text.Line(s.Top, 200),
			named(submodules))
	}
	if !attributes {
		return nil
	}
	// git grep ends with 1 if it finds nothing.
	_, err = s.grep(ctx, "filter=lfs", ":(top,glob)**/.gitattributes")
	if isExit(err, 1) {
		return nil
	} else if err != nil {
		return err
	}
	pointers, err := s.grep(ctx, "^version https://git-lfs.github.com/spec/v1$", ":/")
	if isExit(err, 1) {
		return nil
	} else if err != nil {
		return err
	}
	return mistake("clone it in the sandbox instead, with git-lfs",
		"%s has files of Git LFS, which clones do not support: %s", text.Line(s.Top, 200),
		named(pointers))
}

// grep returns the files of the commit that have a line that matches pattern.
func (s *Source) grep(ctx context.Context, pattern, where string) ([]string, error) {
	out, err := s.repo.call(ctx, call{output: maxListing}, "grep", "-l", "-z", "--no-textconv",
		"--full-name", "-e", pattern, s.Commit, "--", where)
	names := fields(out)
	for i := range names {
		names[i] = strings.TrimPrefix(names[i], s.Commit+":")
	}
	return names, err
}

func isExit(err error, code int) bool {
	failed, ok := errors.AsType[*gitError](err)
	return ok && failed.code == code
}

// named lists the first of names.
func named(names []string) string {
	var said []string
	for _, name := range names[:min(len(names), maxNamed)] {
		said = append(said, text.Line(name, 100))
	}
	if more := len(names) - len(said); more > 0 {
		said = append(said, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(said, ", ")
}

// includes adds the untracked file name, relative to dir, to the files to copy.
func (s *Source) includes(ctx context.Context, dir, name string) error {
	path := name
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	shown := text.Line(name, 200)
	parent, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return mistake("name an untracked file of the work tree", "--include %s: %v", shown, err)
	}
	rel, err := filepath.Rel(s.Top, filepath.Join(parent, filepath.Base(path)))
	if err != nil || !filepath.IsLocal(rel) {
		return mistake("copy it into the work tree first, or use sandboxd cp",
			"--include %s: not in %s", shown, text.Line(s.Top, 200))
	}
	if first, _, _ := strings.Cut(filepath.ToSlash(rel), "/"); strings.EqualFold(first, ".git") {
		return mistake("name a file of the work tree", "--include %s: part of the repository",
			shown)
	}
	f, err := os.Lstat(filepath.Join(s.Top, rel))
	switch {
	case err != nil:
		return mistake("name an untracked file of the work tree", "--include %s: %v", shown, err)
	case f.IsDir():
		return mistake("name its files, or use sandboxd cp", "--include %s: is a directory", shown)
	case !f.Mode().IsRegular():
		return mistake("name a file that is no link", "--include %s: not a regular file", shown)
	}
	tracked, err := s.repo.git(ctx, "ls-files", "-z", "--", ":(top,literal)"+filepath.ToSlash(rel))
	if err != nil {
		return err
	}
	if len(tracked) > 0 {
		return mistake("to copy its uncommitted changes, use --dirty",
			"--include %s: is tracked", shown)
	}
	s.include = append(s.include, filepath.ToSlash(rel))
	return nil
}
