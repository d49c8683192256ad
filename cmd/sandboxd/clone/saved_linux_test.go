package clone

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sandboxd/sandboxd/agent"
)

// Neither another fetch nor what a killed one left behind makes a fetch lose anything.
func TestSavedByMany(t *testing.T) {
	w := newWorld(t)
	c := w.clone(Options{})
	w.inside("echo dirty >>README; mkdir -p .git/refs/sandboxd/saved; " +
		"touch .git/refs/sandboxd/saved/wip.lock")
	want := ""
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			f, err := c.Fetch(t.Context(), w.box, MaxFetch)
			if err != nil || len(f.Lost) != 0 || len(f.Refs) != 2 {
				t.Errorf("%+v, %v", f, err)
			}
		})
	}
	all.Wait()
	for range 2 {
		if got := w.git("rev-parse", "sandboxd/saved/web/wip"); want != "" && got != want {
			t.Errorf("commit %s, then %s", want, got)
		} else {
			want = got
		}
		w.fetch(c)
	}
}

// A sandbox whose git speaks only the old protocol gives what is on no branch, too.
func TestSavedByOldGit(t *testing.T) {
	w := newWorld(t)
	c := w.clone(Options{})
	program(w, "git", `unset GIT_PROTOCOL; exec /usr/bin/git "$@"`)
	w.inside("echo dirty >>README")
	w.fetch(c)
	if got := w.git("show", "sandboxd/saved/web/wip:README"); got != "one\ndirty" {
		t.Errorf("README: %q", got)
	}
}

// What cannot be saved now does not remove what was saved before.
func TestSavedStays(t *testing.T) {
	w := newWorld(t)
	c := w.clone(Options{})
	w.inside("echo stashed >>README; git stash -q; echo dirty >>README")
	w.fetch(c)
	before := w.git("for-each-ref", "refs/sandboxd/saved")
	program(w, "git", `case "$*" in *write-tree*|*"stash list"*) exit 1;; *) exec /usr/bin/git "$@";; esac`)
	f, err := c.Fetch(t.Context(), w.box, MaxFetch)
	if err != nil || !slices.Equal(f.Lost, []string{"wip", "stashes"}) {
		t.Errorf("%+v, %v", f, err)
	}
	if after := w.git("for-each-ref", "refs/sandboxd/saved"); after != before ||
		strings.Count(before, "\n") != 1 {
		t.Errorf("saved: %q, then %q", before, after)
	}
}

// What the sandbox no longer names, or has replaced, stays on this machine: it may say so of
// anything.
func TestSavedBefore(t *testing.T) {
	w := newWorld(t)
	c := w.clone(Options{})
	for _, lines := range []string{"first", "second third"} {
		for line := range strings.FieldsSeq(lines) {
			w.inside("echo " + line + " >README")
			w.fetch(c)
		}
		w.inside("git checkout -q README")
		w.fetch(c)
		if got := w.git("for-each-ref", "refs/sandboxd/saved"); got != "" {
			t.Errorf("saved: %q", got)
		}
	}
	w.inside("git commit -q --allow-empty -m replaced")
	w.fetch(c)
	w.inside("git commit -q --allow-empty -m more")
	w.fetch(c)
	w.inside("git reset -q --hard HEAD~2; git commit -q --allow-empty -m other")
	w.fetch(c)
	if got, want := w.gone("web"), []string{"first", "more", "second", "third"}; !slices.Equal(got,
		want) {
		t.Errorf("gone: %q, want %q", got, want)
	}
	w.second() // takes the name
	if got := w.gone("web.id1"); len(got) != 4 || len(w.gone("web")) != 0 {
		t.Errorf("gone: %q", got)
	}
}

// gone returns the content of README of what a sandbox has saved before, or the subject of other
// commits, sorted.
func (w *world) gone(space string) (all []string) {
	w.t.Helper()
	for ref := range strings.FieldsSeq(w.git("for-each-ref", "--format=%(refname)",
		"refs/sandboxd/gone/"+space)) {
		said := w.git("log", "-1", "--format=%s", ref)
		if strings.HasPrefix(said, "wip") {
			said = w.git("show", ref+":README")
		}
		all = append(all, said)
	}
	slices.Sort(all)
	return all
}

// Work that is in no branch, and that git status may not show.
func TestSavedFromEverywhere(t *testing.T) {
	for name, tt := range map[string]struct{ script, ref, want string }{
		"linked work tree": {"git worktree add -q ../other -b other; echo work >../other/README",
			"wip-0:README", "work"},
		"linked work tree in an ignored directory": {"echo /in >.git/info/exclude; " +
			"git worktree add -q in -b other; echo work >in/new", "wip-0:new", "work"},
		"assumed to be unchanged": {"git update-index --assume-unchanged README; echo work >README",
			"wip:README", "work"},
		"skipped": {"git update-index --skip-worktree README; echo work >README", "wip:README",
			"work"},
		"staged, and removed":  {"echo work >new; git add new; rm new", "wip^2:new", "work"},
		"staged, and reverted": {"echo work >README; git add .; echo one >README", "wip^2:README", "work"},
		"staged and ignored": {"echo new >.git/info/exclude; echo work >new; git add -f new; " +
			"git update-index --assume-unchanged README", "wip:new", "work"},
		"outside of a sparse checkout": {"mkdir a b; echo one >a/x; echo one >b/x; git add .; " +
			"git commit -qm dirs; git sparse-checkout set a; mkdir b; echo work >b/x", "wip:b/x", "work"},
		"new, outside of a sparse checkout": {"mkdir a b; echo one >a/x; echo one >b/x; git add .; " +
			"git commit -qm dirs; git sparse-checkout set a; mkdir b; echo work >b/new",
			"wip:b/new", "work"},
		"left out by a sparse checkout": {"mkdir a b; echo one >a/x; echo one >b/x; git add .; " +
			"git commit -qm dirs; git sparse-checkout set a; echo work >a/x", "wip:b/x", "one"},
		"path of a work tree that is another repository": {"git worktree add -q ../o -b o; " +
			"rm -rf ../o; git clone -q . ../o 2>/dev/null; echo no >../o/README; echo work >README",
			"wip:README", "work"},
		"path of a work tree that is a directory": {"git worktree add -q ../o -b o; rm -rf ../o; " +
			"mkdir ../o; echo work >README", "wip:README", "work"},
		"detached, in a rebase that stopped": {"git checkout -q --detach; echo d >a; git add a; " +
			"git commit -qm d; git checkout -q web; echo web >a; git add a; git commit -qm a; " +
			"git checkout -q --detach HEAD@{2}; git rebase -q web || true", "detached-0:a", "d"},
		"warnings of line ends": {"echo '* text=auto' >.gitattributes; for i in $(seq 9999); do " +
			"printf 'work\\r\\n' >file-with-a-rather-long-name-$i; done", "wip:.gitattributes",
			"* text=auto"},
		"stash of a merge": {"git checkout -q -b b; echo b >a; git add a; git commit -qm b; " +
			"git checkout -q web; echo web >a; git add a; git commit -qm a; echo work >README; " +
			"git merge -q --autostash b || true", "stash-0:README", "work"},
		"stash of a rebase": {"git checkout -q -b b; echo b >a; git add a; git commit -qm b; " +
			"git checkout -q web; echo web >a; git add a; git commit -qm a; echo work >README; " +
			"git rebase -q --autostash b || true", "stash-0:README", "work"},
		"repository elsewhere": {"git init -q --separate-git-dir=../elsewhere; echo work >README",
			"wip:README", "work"},
		"conflict": {"git checkout -q -b b; echo b >a; git add a; git commit -qm b; " +
			"git checkout -q web; echo web >a; git add a; git commit -qm a; git merge -q b || true; " +
			"echo work >README", "wip:README", "work"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := w.clone(Options{})
			w.inside(tt.script)
			for range 2 { // the same work gives the same commit
				if f := w.fetch(c); len(f.Lost) > 0 {
					t.Errorf("%+v", f)
				}
			}
			if got := w.git("show", "refs/sandboxd/saved/web/"+tt.ref); got != tt.want {
				t.Errorf("%s: %q, want %q", tt.ref, got, tt.want)
			}
			if got := w.gone("web"); len(got) > 0 {
				t.Errorf("gone: %q", got)
			}
		})
	}
}

// What cannot be saved is said to be lost.
func TestSavedNot(t *testing.T) {
	w := newWorld(t)
	c := w.clone(Options{})
	w.inside("git worktree add -q ../other -b other; echo gitdir: /nowhere >../other/.git")
	f, err := c.Fetch(t.Context(), w.box, MaxFetch)
	if err != nil || !slices.Equal(f.Lost, []string{"worktree"}) {
		t.Errorf("%+v, %v", f, err)
	}
	w.inside("rm -rf ../other; mkdir -p .git/lfs/objects/ab")
	f, err = c.Fetch(t.Context(), w.box, MaxFetch)
	if err != nil || !slices.Equal(f.Lost, []string{"files of Git LFS"}) ||
		len(f.Skipped) != 1 || !strings.HasSuffix(f.Skipped[0], "/other (missing work tree)") {
		t.Errorf("%+v, %v", f, err)
	}
}

// An old history has commits that git would not make any more.
func TestOldCommits(t *testing.T) {
	w := newWorld(t)
	c := w.clone(Options{})
	w.inside(`printf 'tree %s\nauthor A <a@a> 1 +51800\ncommitter A<a@a> 1 +0000\n\nold\n' \
		$(git rev-parse 'HEAD^{tree}') >old; git update-ref refs/heads/old \
		$(git hash-object -t commit -w --literally old); rm old`)
	if f := w.fetch(c); len(f.Refs) != 2 {
		t.Errorf("%+v", f)
	}
}

// A change in the second in which git wrote the file, and of the same length, is one.
func TestSavedAtOnce(t *testing.T) {
	const change = "git config core.trustctime false; touch -d @1700000000 README; " +
		"git update-index --refresh; echo two >README; touch -d @1700000000 README .git/index"
	w := newWorld(t)
	cmd := exec.Command("sh", "-c", change)
	cmd.Dir = w.top
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c := w.clone(Options{Dirty: true})
	if got := w.inside("git show HEAD:README"); got != "two" || !c.Wip {
		t.Errorf("README %q, %+v", got, c)
	}
	w.inside(strings.Replace(change, "two", "six", 1))
	w.fetch(c)
	if got := w.git("show", "sandboxd/saved/web/wip:README"); got != "six" {
		t.Errorf("README: %q", got)
	}
}

// second clones the repository into another sandbox of the same name.
func (w *world) second() (*Clone, *world) {
	w.t.Helper()
	other := *w
	other.dir += "2"
	s, err := Open(w.t.Context(), w.top, Options{Dir: other.dir})
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := s.Copy(w.t.Context(), "web", "id2", w.box)
	if err != nil {
		w.t.Fatal(err)
	}
	return c, &other
}

// Sandboxes of two gateways may have a name. Each has refs of its own.
func TestSharedName(t *testing.T) {
	w := newWorld(t)
	w.write("README", "dirty\n")
	first := w.clone(Options{Dirty: true})
	w.inside("git commit -q --allow-empty -m first; echo saved >README")
	w.fetch(first)
	w.inside("echo again >README")
	w.fetch(first)
	second, other := w.second()
	if second.Former != "refs/sandboxes/web.id1" {
		t.Errorf("former: %q", second.Former)
	}
	other.inside("git commit -q --allow-empty -m second")
	for range 2 {
		w.fetch(first)
		other.fetch(second)
	}
	w.inside("git commit -q --allow-empty -m more")
	if f := w.fetch(first); len(f.Refs) != 2 || f.Refs[1].New != 1 || f.Branch() != "web" {
		t.Errorf("fetch: %+v", f)
	}
	refs := regexp.MustCompile("[0-9a-f]{40}").ReplaceAllString(w.git("for-each-ref",
		"--format=%(refname) %(contents:subject)"), "GONE")
	if want := `refs/heads/main one
refs/sandboxd/base/web one
refs/sandboxd/base/web.id1 wip: uncommitted changes
refs/sandboxd/gone/web.id1/GONE wip: uncommitted changes
refs/sandboxd/gone/web.id1/GONE wip: uncommitted changes
refs/sandboxd/owner/web 
refs/sandboxd/saved/web.id1/wip wip: uncommitted changes
refs/sandboxes/web.id1/web more
refs/sandboxes/web/web second`; refs != want {
		t.Errorf("refs: %s", refs)
	}
	for c, want := range map[*Clone]string{first: "web.id1/web", second: "web/web"} {
		if d, err := c.Diff(t.Context(), "web"); err != nil || d.Ref != "refs/sandboxes/"+want {
			t.Errorf("%+v, %v", d, err)
		}
	}
	records := Records(t.TempDir())
	for _, c := range []*Clone{second, first} {
		if err := errors.Join(c.AddRemote(t.Context(), "ssh://"+c.ID), records.Add(c)); err != nil {
			t.Fatal(err)
		}
	}
	if err := records.Remove(t.Context(), second); err != nil {
		t.Error(err)
	}
	if got := w.git("remote", "get-url", "--push", "sandbox-web"); got != "ssh://id1" {
		t.Errorf("remote: %q", got)
	}
}

// A fetch that began before another sandbox took the name changes nothing of that one's.
func TestNameTakenMeanwhile(t *testing.T) {
	w := newWorld(t)
	first := w.clone(Options{})
	w.inside("echo saved >README")
	w.fetch(first)
	w.inside("git checkout -q README; git commit -q --allow-empty -m first")
	var second *Clone
	var other *world
	// In the middle of the first one's fetch.
	b := during{w.box, func() {
		second, other = w.second()
		other.inside("git commit -q --allow-empty -m second; echo saved >README")
		other.fetch(second)
	}}
	_, err := first.Fetch(t.Context(), &b, MaxFetch)
	if err == nil || !strings.Contains(err.Error(), "refs/sandboxd/owner/web") {
		t.Errorf("error %v", err)
	}
	before := w.git("rev-parse", "sandboxes/web/web", "sandboxd/saved/web/wip")
	w.fetch(first)
	after := w.git("rev-parse", "sandboxes/web/web", "sandboxd/saved/web/wip")
	if after != before || w.git("log", "-1", "--format=%s", "sandboxes/web/web") != "second" {
		t.Errorf("refs: %q, then %q", before, after)
	}
	if got := w.git("log", "-1", "--format=%s", "sandboxes/web.id1/web"); got != "first" {
		t.Errorf("first: %q", got)
	}
}

// A sandbox may lose its name and take it again, as often as it likes.
func TestNameTakenOften(t *testing.T) {
	w := newWorld(t)
	for i := range 6 {
		s, err := Open(t.Context(), w.top, Options{Dir: fmt.Sprint(w.dir, i)})
		if err != nil {
			t.Fatal(err)
		}
		c, err := s.Copy(t.Context(), "web", fmt.Sprint("id", i%2), w.box)
		if err != nil {
			t.Fatal(err)
		}
		other := *w
		other.dir = c.Dir
		other.inside(fmt.Sprint("git commit -q --allow-empty -m ", i))
		other.fetch(c)
	}
	var got []string
	for subject := range strings.FieldsSeq(w.git("for-each-ref", "--format=%(subject)",
		"refs/sandboxes")) {
		got = append(got, subject)
	}
	slices.Sort(got)
	if want := []string{"0", "1", "2", "3", "4", "5"}; !slices.Equal(got, want) {
		t.Errorf("branches: %q", got)
	}
}

// A branch may become a directory of branches, and the other way.
func TestBranchBecomesDirectory(t *testing.T) {
	w := newWorld(t)
	c := w.clone(Options{})
	for i, change := range []string{"git branch a; git branch c; git checkout -q --detach",
		"git branch -qD a c; git branch c/d; git checkout -q -b a/b",
		"git checkout -q web; git branch -qD a/b c/d; git branch a"} {
		w.inside(change + fmt.Sprint("; git commit -q --allow-empty -m ", i))
		w.fetch(c)
	}
	if got := w.git("for-each-ref", "--format=%(refname)", "refs/sandboxes"); got !=
		"refs/sandboxes/web/a\nrefs/sandboxes/web/c/d\nrefs/sandboxes/web/web" {
		t.Errorf("refs: %q", got)
	}
	if got := w.gone("web"); !slices.Equal(got, []string{"1", "one"}) {
		t.Errorf("gone: %q", got)
	}
}

// during is a sandbox that calls then once, before git sends its objects.
type during struct {
	Sandbox
	then func()
}

func (d *during) Exec(ctx context.Context, cmd agent.Cmd) (agent.Exit, error) {
	if then := d.then; then != nil && strings.Contains(cmd.Command, "upload-pack") {
		d.then = nil
		then()
	}
	return d.Sandbox.Exec(ctx, cmd)
}
