package clone

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
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

// What the sandbox no longer names stays on this machine: it may say so of anything.
func TestSavedBefore(t *testing.T) {
	w := newWorld(t)
	c := w.clone(Options{})
	for _, line := range []string{"first", "second"} {
		w.inside("echo " + line + " >README")
		w.fetch(c)
		w.inside("git checkout -q README")
		w.fetch(c)
		if got := w.git("for-each-ref", "refs/sandboxd/saved"); got != "" {
			t.Errorf("saved: %q", got)
		}
		if got := w.git("show", "sandboxd/former/web/saved/wip:README"); got != line {
			t.Errorf("README: %q; want %q", got, line)
		}
	}
	if got := w.git("show", "sandboxd/former/web/saved/wip@{1}:README"); got != "first" {
		t.Errorf("README before: %q", got)
	}
}

// The refs of a name are those of one sandbox, also where those of two gateways have it.
func TestSharedName(t *testing.T) {
	w := newWorld(t)
	w.git("config", "core.logAllRefUpdates", "false")
	first := w.clone(Options{})
	w.inside("git commit -q --allow-empty -m first")
	w.fetch(first)
	w.dir += "2"
	s, err := Open(t.Context(), w.top, Options{Dir: w.dir})
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.Copy(t.Context(), "web", "id2", w.box)
	if err != nil || second.Former == "" {
		t.Fatalf("%+v, %v", second, err)
	}
	if got := w.git("log", "-1", "--format=%s", second.Former+"/branches/web"); got != "first" {
		t.Errorf("moved: %q", got)
	}
	if d, err := first.Diff(t.Context(), "web"); !errors.Is(err,
		&wire.Error{Code: wire.CodeNotFound}) {
		t.Errorf("diff of the other's refs: %+v, %v", d, err)
	}
	w.inside("git commit -q --allow-empty -m second; git branch other")
	if f := w.fetch(second); f.Former != "" || len(f.Refs) != 2 {
		t.Errorf("fetch: %+v", f)
	}
	f := w.fetch(first)
	if f.Former == "" || len(f.Refs) != 1 || f.Refs[0].Before != "" || f.Refs[0].Commits != 1 {
		t.Errorf("fetch: %+v", f)
	}
	if got := w.git("for-each-ref", "--format=%(refname) %(subject)", "refs/sandboxes",
		"refs/sandboxd/owner", f.Former); got != "refs/sandboxd/former/"+
		strings.TrimPrefix(f.Former, formerRefs)+"/branches/other second\n"+f.Former+
		"/branches/web second\nrefs/sandboxd/owner/web/id1 one\nrefs/sandboxes/web/web first" {
		t.Errorf("refs: %q", got)
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
