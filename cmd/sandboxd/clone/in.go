package clone

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Exit statuses of the scripts in the sandbox.
const (
	exitNoGit    = 71 // git is not installed
	exitOccupied = 72 // the directory is not empty
	exitDenied   = 73 // the directory cannot be made or written
	exitNoRepo   = 74 // the directory has no repository
)

// initScript makes an empty repository. Its arguments are the directory, the branch, the user's
// name and address, and the format of objects.
const initScript = `set -eu
dir=$1 branch=$2 name=$3 email=$4 format=$5
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
command -v git >/dev/null || exit 71
mkdir -p -- "$dir" || exit 73
if [ -n "$(ls -A -- "$dir")" ]; then exit 72; fi
[ -w "$dir" ] || exit 73
cd -- "$dir"
if [ "$format" = sha1 ]; then git init -q .; else git init -q --object-format="$format" .; fi
git symbolic-ref HEAD "refs/heads/$branch"
git config receive.shallowUpdate true
mkdir -p .git/info
[ -z "$name" ] || git config user.name "$name"
[ -z "$email" ] || git config user.email "$email"
`

// checkoutScript checks the branch out at the commit that was pushed, and prints its name.
const checkoutScript = `set -eu
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
cd -- "$1"
git -c advice.detachedHead=false checkout -q -B "$2" refs/sandboxd/base -- >&2
git rev-parse HEAD
`

// includeScript writes a file from standard input, with the directories that it needs, and makes
// git ignore it. Its arguments are the directory, the file, its mode and the pattern to ignore.
const includeScript = `set -eu
cd -- "$1"
case $2 in */*) mkdir -p -- "${2%/*}";; esac
umask 077
cat >"$2"
chmod "$3" "$2"
[ -z "$4" ] || printf '%s\n' "$4" >>.git/info/exclude
`

// Copy makes the repository in a sandbox, on a branch with the sandbox's name, and records it in
// the repository of this machine. The directory in the sandbox must be empty or missing.
func (s *Source) Copy(ctx context.Context, name, id string, box Sandbox) (*Clone, error) {
	c := &Clone{Sandbox: name, ID: id, Repository: s.Top, Dir: s.Dir, Branch: name, Base: s.Commit,
		Wip: s.Wip, Included: []string{}}
	if _, err := wire.ParseSandbox(name); err != nil {
		return nil, err // it becomes part of names of refs
	}
	_, said, exit, err := script(ctx, box, nil, initScript, s.Dir, name, s.name, s.email, s.format)
	if err := c.failed(said, exit, err); err != nil {
		return nil, err
	}
	if err := runLinked(ctx, s.repo, box, []string{"git", "receive-pack", s.Dir}, maxAnswer, call{},
		"push", "--quiet", "--no-verify", "--no-signed", "--no-follow-tags",
		"--recurse-submodules=no", url, s.Commit+":"+insideBase); err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", name, err)
	}
	out, said, exit, err := script(ctx, box, nil, checkoutScript, s.Dir, name)
	if err := c.failed(said, exit, err); err != nil {
		return nil, err
	}
	if strings.TrimSpace(string(out)) != s.Commit {
		return nil, &wire.Error{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("sandbox %s: git checked out another commit", name)}
	}
	for _, file := range s.include {
		if err := s.send(ctx, c, box, file); err != nil {
			return nil, err
		}
		c.Included = append(c.Included, file)
	}
	return c, c.takeName(ctx, s.repo)
}

// Fork returns the clone in a copy of the sandbox, and sets its base in the repository of this
// machine. It returns the clone also if it cannot do that, but not with a name that no sandbox can
// have.
func (c *Clone) Fork(ctx context.Context, name, id string) (*Clone, error) {
	if _, err := wire.ParseSandbox(name); err != nil {
		return nil, err
	}
	fork := *c
	fork.Sandbox, fork.ID, fork.Former, fork.Group, fork.Checked = name, id, "", "", nil
	return &fork, fork.takeName(ctx, repository{c.Repository})
}

// failed returns the error for a script that ended with an exit status other than 0.
func (c *Clone) failed(said string, exit int, err error) error {
	unavailable := func(hint, format string, args ...any) error {
		return &wire.Error{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("sandbox %s: ", c.Sandbox) + fmt.Sprintf(format, args...),
			Hint:    hint}
	}
	words := strings.TrimPrefix(lastWords(text.Lines(said)), "sandboxd: ") // of the daemon
	words = strings.TrimPrefix(words, "sandbox "+c.Sandbox+" ")
	switch {
	case err != nil:
		return fmt.Errorf("sandbox %s: %w", c.Sandbox, err)
	case exit == 0:
		return nil
	case exit == exitNoGit:
		return unavailable("use an image that has git, such as sandboxd/base",
			"git is not installed")
	case exit == exitOccupied:
		return unavailable("name another directory in the sandbox: --clone-dir DIR",
			"directory %s is not empty", text.Line(c.Dir, 200))
	case exit == exitDenied:
		return unavailable("name a directory that the sandbox's user can write: --clone-dir DIR",
			"directory %s: %s", text.Line(c.Dir, 200), cmp.Or(words, "not writable"))
	case exit == exitNoRepo:
		return unavailable("", "directory %s is not the top of a git repository any more",
			text.Line(c.Dir, 200))
	}
	return unavailable("", "%s", cmp.Or(words, fmt.Sprintf("git failed with exit status %d", exit)))
}

// send copies an untracked file into the clone. Links in the path of the file are not followed out
// of the work tree.
func (s *Source) send(ctx context.Context, c *Clone, box Sandbox, file string) error {
	root, err := os.OpenRoot(s.Top)
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := root.Open(file)
	if err != nil {
		return fmt.Errorf("--include %s: %w", text.Line(file, 200), err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return mistake("name a file that is no link", "--include %s: not a regular file",
			text.Line(file, 200))
	}
	_, said, exit, err := script(ctx, box, io.Reader(f), includeScript, c.Dir, "./"+file,
		fmt.Sprintf("%o", info.Mode().Perm()), ignored(file))
	return c.failed(said, exit, err)
}

// ignored returns the pattern of gitignore(5) for a file of the work tree, or "" if there is none.
func ignored(file string) string {
	if strings.Contains(file, "\n") {
		return ""
	}
	return "/" + strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`,
		" ", `\ `).Replace(file)
}
