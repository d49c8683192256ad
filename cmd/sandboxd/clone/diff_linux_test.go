package clone

import (
	"errors"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A commit of a few objects that has millions of files can be fetched, but not compared.
func TestDiffOfBomb(t *testing.T) {
	w := newWorld(t)
	c := w.clone(Options{})
	// 10 levels of 10 directories each; the last has no files
	w.inside(`tree=$(git mktree </dev/null)
		for level in 1 2 3 4 5 6 7 8 9 10; do
			tree=$(for i in 0 1 2 3 4 5 6 7 8 9; do printf '040000 tree %s\t%s\n' $tree $i; done |
				git mktree)
		done
		git update-ref refs/heads/web $(git commit-tree $tree -p HEAD -m bomb)`)
	w.fetch(c)
	d, err := c.Diff(t.Context(), "web")
	if !errors.Is(err, &wire.Error{Code: wire.CodeUnavailable}) ||
		!strings.Contains(err.Error(), "more than 1000000 files and directories") {
		t.Errorf("%+v, %v", d, err)
	}
}

// git spends no memory on lines of a file that is too long.
func TestDiffOfLongFile(t *testing.T) {
	w := newWorld(t)
	c := w.clone(Options{})
	w.inside("head -c 5000000 /dev/zero | tr '\\0' '\\n' >long; echo two >>README; git add .; " +
		"git commit -qm long")
	w.fetch(c)
	d, err := c.Diff(t.Context(), "web")
	if err != nil || len(d.Files) != 2 || d.Files[0].Binary || !d.Files[1].Binary {
		t.Errorf("%+v, %v", d, err)
	}
}
