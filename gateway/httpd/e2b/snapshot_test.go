package e2b

import (
	"bufio"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestChanges(t *testing.T) {
	file := func(inode, modified, size string) fileState {
		return fileState{inode, modified, size, "644", false}
	}
	before := map[string]fileState{"same": file("1", "1", "1"), "old": file("2", "1", "1"),
		"gone": file("3", "1", "1"), "grows": file("4", "1", "1"),
		"sub": {"5", "1", "1", "755", true}}
	after := map[string]fileState{"same": file("1", "1", "1"), "sub/new": file("2", "1", "1"),
		"grows": file("4", "2", "1"), "sub": {"5", "2", "2", "700", true},
		"empty": file("6", "1", "0"), "full": file("7", "1", "5")}
	want := []change{{"gone", removed}, {"old", renamed}, {"empty", created}, {"full", created},
		{"full", wrote}, {"grows", wrote}, {"sub", chmodded}, {"sub/new", created}}
	if diff := cmp.Diff(want, changes(before, after), cmp.AllowUnexported(change{})); diff != "" {
		t.Error(diff)
	}
	if got := changes(after, after); got != nil {
		t.Errorf("nothing has changed: %v", got)
	}
}

// Any output of find results in a snapshot or an error.
func FuzzSnapshot(f *testing.F) {
	f.Add("12 1.5 3 644 f name with\nblank\x00\x00")
	f.Add("1 2\x00")
	f.Fuzz(func(t *testing.T, text string) {
		all, size, err := snapshotOf(bufio.NewReaderSize(strings.NewReader(text), watchedPath),
			1<<20)
		if err == nil && (len(all) > strings.Count(text, "\x00") ||
			size > len(text)+entryBytes*strings.Count(text, "\x00")) {
			t.Errorf("%d entries, %d bytes, of %q", len(all), size, text)
		}
	})
}

// endless is a find whose output never ends.
type endless struct{ record string }

func (e endless) Read(p []byte) (int, error) { return copy(p, e.record), nil }

// No output of find blocks the daemon or exhausts its memory: endless repetition, very long names
// (A112).
func TestSnapshotBounds(t *testing.T) {
	for name, path := range map[string]string{"one name": "same",
		"long names": strings.Repeat("x", 4000)} {
		r := endless{"1 2 3 644 f " + path + "\x00"}
		if all, _, err := snapshotOf(bufio.NewReaderSize(r, watchedPath), 1<<20); err == nil ||
			all != nil {
			t.Errorf("%s: %d entries, %v", name, len(all), err)
		}
	}
	pl := &place{}
	a, b := new(watcher), new(watcher)
	if !pl.hold(a, watchedBytes-10) || pl.hold(b, 20) || !pl.hold(b, 10) || !pl.hold(a, 5) ||
		!pl.hold(b, 100) || !pl.hold(a, 0) || !pl.hold(b, 0) || pl.held != 0 {
		t.Errorf("the watchers hold %d bytes", pl.held)
	}
	w := &watcher{wake: make(chan struct{})}
	w.add([]change{{strings.Repeat("x", maxChangeBytes), wrote}}, nil)
	w.add([]change{{"y", wrote}}, nil)
	if all, _, _ := w.take(); len(all) != 1 {
		t.Errorf("%d changes are kept", len(all))
	}
	if _, _, err := w.take(); err == nil {
		t.Error("the loss is not reported")
	}
}

// A command reaches the shell unchanged.
func TestLine(t *testing.T) {
	odd := "a b'c\"$d`e\\f\n*~é"
	c := processConfig{Cmd: "/usr/bin/printf", Args: []string{"%s|", odd, "-x", ""},
		Env: map[string]string{"ODD": odd}}
	line, err := c.line(account{own: true}, "word")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("/bin/sh", "-c", line).CombinedOutput()
	if _, got, _ := strings.Cut(string(out), "\n"); err != nil || got != odd+"|-x||" ||
		!strings.HasPrefix(string(out), "word ") {
		t.Errorf("%q, %v", out, err)
	}
	for _, bad := range []processConfig{{Cmd: "a\x00"},
		{Cmd: "a", Env: map[string]string{"A;B": ""}},
		{Cmd: "a", Env: map[string]string{"A": "\x00"}}} {
		if line, err := bad.line(account{own: true}, "word"); err == nil {
			t.Errorf("%+v is %q", bad, line)
		}
	}
}
