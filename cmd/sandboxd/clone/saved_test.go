package clone

import (
	"slices"
	"strings"
	"sync"
	"testing"
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
