package clone

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// saveScript saves what is on no branch. It runs in the sandbox, with whatever sh and git are
// there.
//
//go:embed save.sh
var saveScript string

// MaxFetch is the most that one fetch may receive, in bytes, if the caller sets no other limit.
const MaxFetch = 2 << 30

// Bounds of the number of refs of a sandbox: of one fetch, and of those on this machine, where
// branches stay that the sandbox has deleted.
const (
	maxRefs = 5000
	maxKept = 20_000
)

// Ref is a ref of the repository of this machine that a fetch set.
type Ref struct {
	Name    string `json:"ref"`
	Commit  string `json:"commit"`
	Before  string `json:"before"`  // empty if the ref is new
	Commits int    `json:"commits"` // on it and not on Base; −1 if there was no time to count them
	New     int    `json:"new"`     // those of Commits that are not on Before; −1 as well
}

// Fetched is the result of a fetch.
type Fetched struct {
	Sandbox    string   `json:"sandbox"`
	Repository string   `json:"repository"`
	Base       string   `json:"base"`
	Head       string   `json:"head"`    // ref of the current branch of the sandbox, or empty
	Refs       []Ref    `json:"refs"`    // all of the sandbox, also unchanged ones
	Lost       []string `json:"lost"`    // what could not be saved in the sandbox
	Skipped    []string `json:"skipped"` // repositories and missing work trees: not fetched

	space space
}

// Branch returns the current branch of the sandbox, or empty.
func (f *Fetched) Branch() string {
	branch, _ := strings.CutPrefix(f.Head, f.space.branch(""))
	return branch
}

// Fetch saves what is on no branch in the sandbox, and fetches all branches and saved commits into
// the repository of this machine. most bounds what the sandbox may send, in bytes. After an error,
// no ref has changed.
func (c *Clone) Fetch(ctx context.Context, box Sandbox, most int64) (*Fetched, error) {
	if err := checkGit(ctx); err != nil {
		return nil, err
	}
	r := repository{c.Repository}
	if _, err := r.git(ctx, "rev-parse", "--git-dir"); err != nil {
		return nil, &wire.Error{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("repository %s: %v", text.Line(c.Repository, 200), err),
			Hint:    "restore it, or clone again"}
	}
	out, said, exit, err := script(ctx, box, nil, saveScript, c.Dir)
	if err := c.failed(said, exit, err); err != nil {
		return nil, err
	}
	f := &Fetched{Sandbox: c.Sandbox, Repository: c.Repository, Base: c.Base, Refs: []Ref{},
		Lost: []string{}, Skipped: []string{}}
	if f.space, err = c.ownSpace(ctx, r); err != nil {
		return nil, err
	}
	refs, err := f.parse(string(out))
	if err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", c.Sandbox, err)
	}
	before, err := f.space.refs(ctx, r, branchRefs, savedRefs)
	if err != nil {
		return nil, err
	}
	gone, err := f.space.refs(ctx, r, goneRefs)
	if err != nil {
		return nil, err
	}
	if n := len(before) + len(gone); n > maxKept {
		return nil, &wire.Error{Code: wire.CodeUnavailable, Message: fmt.Sprintf(
			"repository %s has %d refs of sandbox %s: too many", text.Line(c.Repository, 200), n,
			c.Sandbox),
			Hint: "delete those that you do not need: git update-ref -d REF"}
	}
	if len(f.Lost) > 0 { // what an earlier fetch saved may be the last copy
		for name := range before {
			if _, found := refs[name]; !found && strings.HasPrefix(name, savedRefs) {
				delete(before, name)
			}
		}
	}
	if err := c.receive(ctx, r, box, f.space, refs, before, most); err != nil {
		return nil, err
	}
	within, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	counts := make(map[string]int) // many branches may be the same
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		ref := Ref{Name: name, Commit: refs[name], Before: before[name]}
		if _, known := counts[ref.Commit]; !known {
			counts[ref.Commit] = c.count(within, r, ref.Commit)
		}
		ref.Commits = counts[ref.Commit]
		switch ref.Before {
		case ref.Commit:
		case "":
			ref.New = ref.Commits
		default:
			ref.New = c.count(within, r, ref.Commit, "^"+ref.Before)
		}
		f.Refs = append(f.Refs, ref)
	}
	return f, nil
}

// countTime bounds the time to count the commits of all refs.
const countTime = time.Minute

// parse reads the output of saveScript. It returns the objects of the sandbox by the names of their
// refs on this machine.
func (f *Fetched) parse(out string) (map[string]string, error) {
	refs := make(map[string]string)
	body, whole := strings.CutSuffix(out, "end\n")
	if !whole {
		return nil, errors.New("list of refs: has no end")
	}
	for line := range strings.Lines(body) {
		word, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch word {
		case "lost":
			f.Lost = append(f.Lost, text.Line(rest, 60))
		case "skipped":
			f.Skipped = append(f.Skipped, text.Line(rest, 200))
		case "head":
			if name, ok := strings.CutPrefix(rest, insideHeads); ok && isRefName(rest) {
				f.Head = f.space.branch(name)
			}
		case "ref":
			object, name, _ := strings.Cut(rest, " ")
			own, err := f.space.ownName(name)
			if err != nil {
				return nil, err
			}
			if !isObject(object) {
				return nil, fmt.Errorf("ref %s: %q is no object", text.Line(name, 100),
					text.Line(object, 100))
			}
			if refs[own] = object; len(refs) > maxRefs {
				return nil, fmt.Errorf("more than %d refs", maxRefs)
			}
		default:
			return nil, fmt.Errorf("list of refs: unexpected line %q", text.Line(line, 100))
		}
	}
	return refs, nil
}

// ownName returns the name on this machine of a ref of the sandbox. Any other ref than a branch or
// a saved commit is an error.
func (s space) ownName(name string) (string, error) {
	if !isRefName(name) {
		return "", fmt.Errorf("ref %q: not a valid name", text.Line(name, 100))
	}
	if rest, ok := strings.CutPrefix(name, insideHeads); ok {
		return s.branch(rest), nil
	}
	if rest, ok := strings.CutPrefix(name, insideSaved); ok && isSaved(rest) {
		return savedRefs + s.name + "/" + rest, nil
	}
	return "", fmt.Errorf("ref %q: not a branch", text.Line(name, 100))
}

// isSaved reports whether name is one that saveScript gives: wip, or wip-N, detached-N or stash-N.
func isSaved(name string) bool {
	kind, number, _ := strings.Cut(name, "-")
	n, err := strconv.Atoi(number)
	return name == "wip" || slices.Contains([]string{"wip", "detached", "stash"}, kind) &&
		err == nil && n >= 0 && n < maxRefs && number == strconv.Itoa(n)
}

// isRefName reports whether name is a full name of a ref, by the rules of git-check-ref-format(1).
// Such a name cannot leave its namespace, and is no option and no pattern.
func isRefName(name string) bool {
	if !strings.HasPrefix(name, "refs/") || len(name) > 1000 || strings.HasSuffix(name, ".") ||
		strings.Contains(name, "..") || strings.Contains(name, "@{") ||
		strings.ContainsAny(name, " ~^:?*[\\") {
		return false
	}
	for _, b := range []byte(name) {
		if b < ' ' || b == 0x7f {
			return false
		}
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part[0] == '.' || strings.HasSuffix(part, ".lock") || len(part) > 250 {
			return false
		}
	}
	return true
}

// receive fetches the objects of refs, and then sets the refs. The objects first arrive in a
// directory of their own. They become part of the repository after git has checked all of them.
func (c *Clone) receive(ctx context.Context, r repository, box Sandbox, own space,
	refs, before map[string]string, most int64) error {
	wanted := make(map[string]bool)
	for name, object := range refs {
		if before[name] != object {
			wanted[object] = true
		}
	}
	if len(wanted) > 0 {
		objects, err := r.line(ctx, "rev-parse", "--path-format=absolute", "--git-path", "objects")
		if err != nil {
			return err
		}
		// git prune removes directories with this prefix, which a killed process leaves behind.
		quarantine, err := os.MkdirTemp(objects, "tmp_objdir-sandboxd-")
		if err != nil {
			return fmt.Errorf("repository %s: %w", r.dir, err)
		}
		defer os.RemoveAll(quarantine)
		if err := c.fetch(ctx, r, box, own, objects, quarantine, wanted, most); err != nil {
			return fmt.Errorf("sandbox %s: %w", c.Sandbox, err)
		}
		if err := c.checkHistory(ctx, r, objects, quarantine, wanted); err != nil {
			return err
		}
		if err := migrate(quarantine, objects); err != nil {
			return fmt.Errorf("repository %s: %w", r.dir, err)
		}
	}
	err := own.set(ctx, r, refs, before)
	if err != nil { // another fetch of the sandbox may have set them
		now, again := own.refs(ctx, r, branchRefs, savedRefs)
		if again != nil {
			return again
		}
		for name := range now {
			if before[name] == "" && refs[name] == "" {
				delete(now, name) // it stays
			}
		}
		err = own.set(ctx, r, refs, now)
	}
	if err != nil {
		return &wire.Error{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("repository %s: %v", text.Line(r.dir, 200), err),
			Hint: "fetch again; if that fails, too, rename or delete the ref that it names, with " +
				"git update-ref"}
	}
	return nil
}

// checkHistory returns an error unless all that wanted needs is here or in quarantine. git accepts
// a commit without its parents from a shallow repository, which the sandbox's may have become.
func (c *Clone) checkHistory(ctx context.Context, r repository, objects, quarantine string,
	wanted map[string]bool) error {
	_, err := r.call(ctx, call{stdin: strings.Join(slices.Sorted(maps.Keys(wanted)), "\n") + "\n",
		env: quarantined(objects, quarantine)}, "rev-list", "--objects", "--quiet", "--stdin",
		"--not", "--all")
	if err != nil {
		return &wire.Error{Code: wire.CodeUnavailable, Message: fmt.Sprintf(
			"sandbox %s: the history of its branches is not complete: %s", c.Sandbox,
			text.Line(err.Error(), 200)),
			Hint: "if it is shallow, run in the sandbox: git fetch --unshallow"}
	}
	return nil
}

// quarantined returns the environment in which git also finds, and writes, objects in quarantine.
func quarantined(objects, quarantine string) []string {
	return []string{"GIT_OBJECT_DIRECTORY=" + quarantine,
		"GIT_ALTERNATE_OBJECT_DIRECTORIES=" + quoted(objects)}
}

// fetch fetches objects from the sandbox into the directory quarantine.
func (c *Clone) fetch(ctx context.Context, r repository, box Sandbox, own space,
	objects, quarantine string, wanted map[string]bool, most int64) error {
	// Objects by name: git sets no ref, and the sandbox cannot add any.
	var args []string
	for _, s := range fetchSettings {
		args = append(args, "-c", s)
	}
	args = append(args, "fetch", "--quiet", "--no-tags", "--no-recurse-submodules",
		"--no-write-fetch-head", "--no-auto-maintenance", "--no-write-commit-graph", "--no-prune",
		"--no-show-forced-updates")
	// The sandbox learns only of commits that it has had.
	tips := []string{c.Base}
	if refs, err := own.refs(ctx, r, branchRefs, savedRefs); err == nil {
		tips = slices.AppendSeq(tips, maps.Values(refs))
	}
	known, err := r.commits(ctx, tips)
	if err != nil {
		return err
	}
	for _, tip := range known {
		args = append(args, "--negotiation-tip="+tip)
	}
	if len(known) == 0 { // git would offer all commits of this machine
		args = append([]string{"-c", "fetch.negotiationAlgorithm=noop"}, args...)
	}
	args = append(args, url)
	args = append(args, slices.Sorted(maps.Keys(wanted))...)
	o := call{env: append(quarantined(objects, quarantine), "GIT_ALLOW_PROTOCOL=fd",
		"GIT_ALLOC_LIMIT=1g")}
	// What is on no branch has no ref in the sandbox.
	line := []string{"git", "-c", "uploadpack.allowAnySHA1InWant=true", "upload-pack", c.Dir}
	return runLinked(ctx, r, box, line, most, o, args...)
}

// fetchSettings make git check all objects and accept them from this connection only. A rule that
// the user has relaxed applies again where a tree would be dangerous to check out.
var fetchSettings = []string{
	"transfer.fsckObjects=true", "fetch.fsckObjects=true", "fetch.unpackLimit=1",
	"core.bigFileThreshold=64m", "transfer.bundleURI=false", "fetch.uriProtocols=",
	// Old histories have such commits. They are harmless.
	"fetch.fsck.badTimezone=ignore", "fetch.fsck.badDate=ignore",
	"fetch.fsck.badDateOverflow=ignore", "fetch.fsck.zeroPaddedDate=ignore",
	"fetch.fsck.missingSpaceBeforeDate=ignore", "fetch.fsck.missingSpaceBeforeEmail=ignore",
	"fetch.fsck.missingNameBeforeEmail=ignore", "fetch.fsck.missingEmail=ignore",
	"fetch.fsck.badName=ignore", "fetch.fsck.badEmail=ignore",
	"fetch.fsck.zeroPaddedFilemode=ignore",
	// Without it, git would list all refs of this machine to the sandbox.
	"core.alternateRefsCommand=true",
	"fetch.fsck.hasDot=error", "fetch.fsck.hasDotdot=error", "fetch.fsck.hasDotgit=error",
	"fetch.fsck.fullPathname=error", "fetch.fsck.emptyName=error",
	"fetch.fsck.gitmodulesBlob=error", "fetch.fsck.gitmodulesLarge=error",
	"fetch.fsck.gitmodulesName=error", "fetch.fsck.gitmodulesPath=error",
	"fetch.fsck.gitmodulesSymlink=error", "fetch.fsck.gitmodulesUpdate=error",
	"fetch.fsck.gitmodulesUrl=error",
}

// quoted quotes a path for a list that git splits at colons.
func quoted(path string) string {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
	return `"` + escape.Replace(path) + `"`
}

// migrate moves the packs in quarantine to objects. A pack is there before its index, which makes
// it known.
func migrate(quarantine, objects string) error {
	files, err := os.ReadDir(filepath.Join(quarantine, "pack"))
	if errors.Is(err, os.ErrNotExist) {
		return nil // the repository had all objects
	}
	if err != nil {
		return err
	}
	to := filepath.Join(objects, "pack")
	if err := os.MkdirAll(to, 0o777); err != nil {
		return err
	}
	for _, last := range []bool{false, true} {
		for _, f := range files {
			name := f.Name()
			if !strings.HasPrefix(name, "pack-") || strings.HasSuffix(name, ".idx") != last ||
				strings.HasSuffix(name, ".keep") {
				continue
			}
			if err := os.Rename(filepath.Join(quarantine, "pack", name),
				filepath.Join(to, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// count returns the number of commits of a ref that neither Base nor others (^COMMIT) have; 0 if it
// is no commit, −1 if ctx has ended.
func (c *Clone) count(ctx context.Context, r repository, object string, others ...string) int {
	out, err := r.line(ctx, slices.Concat([]string{"rev-list", "--count", object, "^" + c.Base},
		others, []string{"--"})...)
	if ctx.Err() != nil {
		return -1
	}
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(out)
	return n
}
