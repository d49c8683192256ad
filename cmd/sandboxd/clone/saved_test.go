package clone

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
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
	for i, want := range []string{"third", "second", "first"} {
		if got := w.git("show", fmt.Sprintf("sandboxd/gone/web/wip@{%d}:README", i)); got != want {
			t.Errorf("%d: README: %q; want %q", i, got, want)
		}
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
	refs := w.git("for-each-ref", "--format=%(refname) %(contents:subject)")
	if want := `refs/heads/main one
refs/sandboxd/base/web one
refs/sandboxd/base/web.id1 wip: uncommitted changes
refs/sandboxd/gone/web.id1/wip wip: uncommitted changes
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
