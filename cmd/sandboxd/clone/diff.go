package clone

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// File is a file that a branch changed.
type File struct {
	Path    string `json:"path"`
	From    string `json:"from,omitempty"` // its path before, if it was renamed
	Added   int    `json:"added"`          // lines
	Deleted int    `json:"deleted"`        // lines
	Binary  bool   `json:"binary,omitempty"`
}

// Diff is the difference between the base of a clone and a branch.
type Diff struct {
	Sandbox    string `json:"sandbox"`
	Repository string `json:"repository"`
	Base       string `json:"base"`
	Ref        string `json:"ref"`
	Commit     string `json:"commit"`
	Wip        string `json:"wip"` // ref of changes that were not committed in the sandbox, or empty
	Files      []File `json:"files"`

	repo repository
}

// diffOptions compare commits without programs that the configuration or attributes name, and with
// little memory: a longer file counts as binary, and only so many are searched for renames.
var diffOptions = []string{"-c", "core.bigFileThreshold=4m", "diff", "-l1000", "--no-ext-diff",
	"--no-textconv", "--submodule=short", "--ignore-submodules=none", "--no-color"}

// littleMemory bounds each allocation of git. An attribute of this machine may say that files are
// text, however long they are.
var littleMemory = []string{"GIT_ALLOC_LIMIT=512m"}

// Bounds of a comparison: a small commit of a hostile sandbox can have any number of files, and
// files that take git hours.
const (
	maxFiles = 1_000_000 // and directories, of a commit
	maxNames = 256 << 20 // bytes of their paths
	diffTime = time.Minute
)

// Diff compares what was last fetched of a branch of the sandbox.
func (c *Clone) Diff(ctx context.Context, branch string) (*Diff, error) {
	own, err := c.space(ctx, repository{c.Repository})
	if err != nil {
		return nil, err
	}
	return newDiff(ctx, c.Repository, c.Sandbox, own, c.Base, branch, false)
}

// NewDiff compares what was fetched of the sandbox that owns a name into the repository of the
// directory dir. ref is a branch of the sandbox; empty means the one with the sandbox's name, or
// the only one. With wip, it is the changes that were not committed.
func NewDiff(ctx context.Context, dir, sandbox, ref string, wip bool) (*Diff, error) {
	return newDiff(ctx, dir, sandbox, space{name: sandbox}, "", ref, wip)
}

// newDiff compares refs of a space. base is where the clone begins if no ref says it.
func newDiff(ctx context.Context, dir, sandbox string, own space, base, ref string, wip bool) (
	*Diff, error) {
	if err := checkGit(ctx); err != nil {
		return nil, err
	}
	d := &Diff{Sandbox: sandbox, Files: []File{}, repo: repository{dir}}
	var err error
	if d.Repository, err = d.repo.line(ctx, "rev-parse", "--show-toplevel"); err != nil {
		return nil, mistake("run it in the repository that was cloned", "%v", err)
	}
	resolve := func(ref string) (string, bool) {
		if !isRefName(ref) {
			return "", false
		}
		commit, err := d.repo.line(ctx, "rev-parse", "--verify", "--quiet", ref+"^{commit}")
		return commit, err == nil && isObject(commit)
	}
	var ok bool
	if d.Base, ok = resolve(baseRefs + own.name); !ok && base != "" {
		d.Base, ok = base, true
	}
	if !ok {
		return nil, mistake("run it in the repository that was cloned",
			"%s was not cloned into sandbox %s", text.Line(d.Repository, 200), sandbox)
	}
	d.Ref = own.branch(cmp.Or(ref, sandbox))
	if _, ok := resolve(d.Ref); ref == "" && !ok {
		out, err := d.repo.git(ctx, "for-each-ref", "--format=%(refname)", own.branch(""))
		if err != nil {
			return nil, err
		}
		if all := strings.Fields(string(out)); len(all) == 1 {
			d.Ref = all[0]
		}
	}
	if saved := savedRefs + own.name + "/wip"; wip {
		d.Ref = saved
	} else if _, ok := resolve(saved); ok {
		d.Wip = saved
	}
	if d.Commit, ok = resolve(d.Ref); !ok {
		return nil, &wire.Error{Code: wire.CodeNotFound,
			Message: fmt.Sprintf("%s was not fetched into %s", text.Line(d.Ref, 200),
				text.Line(d.Repository, 200)), Hint: "fetch first: sandboxd fetch " + sandbox}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, diffTime, d.tooLarge(
		fmt.Sprintf("git has not compared it for %v", diffTime)))
	defer cancel()
	if err := d.checkSize(ctx); err != nil {
		return nil, err
	}
	return d, d.count(ctx)
}

// tooLarge returns the error for a commit that cannot be compared.
func (d *Diff) tooLarge(why string) error {
	return &wire.Error{Code: wire.CodeUnavailable,
		Message: fmt.Sprintf("%s: %s", text.Line(d.Ref, 200), why),
		Hint:    "see its commits: git log " + d.Commit}
}

// checkSize returns an error if the commit has too many files. git diff would store them all.
func (d *Diff) checkSize(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	files, names := 0, 0
	return d.repo.run(ctx, call{}, writerFunc(func(p []byte) (int, error) {
		files, names = files+bytes.Count(p, []byte{0}), names+len(p)
		if files > maxFiles || names > maxNames {
			cancel(d.tooLarge(fmt.Sprintf("more than %d files and directories, or %s of their paths",
				maxFiles, size(maxNames))))
		}
		return len(p), nil
	}), "ls-tree", "-r", "-t", "-z", "--name-only", "--full-tree", d.Commit)
}

// writerFunc is an io.Writer.
type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// count fills in Files.
func (d *Diff) count(ctx context.Context) error {
	o := call{env: littleMemory, output: maxListing}
	out, err := d.repo.call(ctx, o, append(slices.Clone(diffOptions), "--numstat", "-z", d.Base,
		d.Commit, "--")...)
	if err != nil {
		return err
	}
	records := fields(out)
	for len(records) > 0 {
		parts := strings.SplitN(records[0], "\t", 3)
		if len(parts) != 3 {
			return fmt.Errorf("git diff: unexpected line %q", text.Line(records[0], 100))
		}
		f := File{Path: parts[2], Binary: parts[0] == "-"}
		f.Added, _ = strconv.Atoi(parts[0]) // "-" of a binary file
		f.Deleted, _ = strconv.Atoi(parts[1])
		records = records[1:]
		if f.Path == "" && len(records) >= 2 { // renamed: both paths follow
			f.From, f.Path, records = records[0], records[1], records[2:]
		}
		d.Files = append(d.Files, f)
	}
	return nil
}

// Write writes the difference as git prints it, or with stat a table of the changed files. The
// content is that of the sandbox: it may have escape sequences.
func (d *Diff) Write(ctx context.Context, w io.Writer, stat bool) error {
	args := slices.Clone(diffOptions)
	if stat {
		args = append(args, "--stat")
	}
	return d.repo.run(ctx, call{env: littleMemory}, w, append(args, d.Base, d.Commit, "--")...)
}
