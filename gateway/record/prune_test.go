package record

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestPrune(t *testing.T) {
	now := time.Now()
	// make returns a directory of records, the oldest first, an hour apart, of about 64 KiB each. A
	// record is finished unless its name begins with an underscore.
	make := func(t *testing.T, names ...string) string {
		dir := t.TempDir()
		for i, name := range names {
			open := strings.HasPrefix(name, "_")
			path := filepath.Join(dir, strings.TrimPrefix(name, "_"))
			w, err := Create(path, Options{})
			if err != nil {
				t.Fatal(err)
			}
			appendAll(t, w, 0, strings.Repeat("x", 60<<10))
			if open {
				err = w.Close()
			} else {
				err = w.Finish(wire.State{Phase: wire.PhaseDead, Basis: []wire.Basis{}})
			}
			if err != nil {
				t.Fatal(err)
			}
			at := now.Add(time.Duration(i-len(names)) * time.Hour)
			if err := os.Chtimes(filepath.Join(path, EventsFile), at, at); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	live := func(names ...string) func(string) bool {
		return func(s string) bool {
			return strings.Contains(" "+strings.Join(names, " ")+" ", " "+s+" ")
		}
	}
	for name, c := range map[string]struct {
		names []string
		o     PruneOptions
		want  []string
	}{
		"nothing":             {[]string{"a", "b"}, PruneOptions{Live: live()}, nil},
		"age":                 {[]string{"a", "b", "c"}, PruneOptions{Keep: 90 * time.Minute, Live: live()}, []string{"a", "b"}},
		"total":               {[]string{"a", "b", "c"}, PruneOptions{Total: 140 << 10, Live: live()}, []string{"a"}},
		"never the live":      {[]string{"a", "b", "c"}, PruneOptions{Total: 1, Keep: 1, Live: live("b")}, []string{"a", "c"}},
		"never without end":   {[]string{"_a", "b"}, PruneOptions{Total: 1, Live: live()}, []string{"b"}},
		"older run of a live": {[]string{"_a.1", "_a"}, PruneOptions{Total: 1, Live: live("a")}, []string{"a.1"}},
		"sandbox is gone":     {[]string{"_a", "b"}, PruneOptions{Total: 1}, []string{"a", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := make(t, c.names...)
			if err := os.WriteFile(filepath.Join(dir, "other file"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			c.o.Now = now
			got, err := Prune(dir, c.o)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("removed (-want +got):\n%s", diff)
			}
			for _, name := range c.names {
				_, err := os.Stat(filepath.Join(dir, strings.TrimPrefix(name, "_")))
				gone := strings.Contains(" "+strings.Join(c.want, " ")+" ",
					" "+strings.TrimPrefix(name, "_")+" ")
				if os.IsNotExist(err) != gone {
					t.Errorf("%s: %v, want gone: %v", name, err, gone)
				}
			}
		})
	}
	t.Run("started again meanwhile", func(t *testing.T) {
		dir := make(t, "a", "b")
		again := func(session string) bool { // b's, while a is removed
			_, err := os.Stat(filepath.Join(dir, "a"))
			return session == "b" && os.IsNotExist(err)
		}
		got, err := Prune(dir, PruneOptions{Total: 1, Live: again, Now: now})
		if diff := cmp.Diff([]string{"a"}, got); diff != "" || err != nil {
			t.Errorf("removed (-want +got):\n%s%v", diff, err)
		}
	})
	if got, err := Prune(filepath.Join(t.TempDir(), "none"), PruneOptions{Total: 1}); got != nil ||
		err != nil {
		t.Errorf("no directory: %v, %v", got, err)
	}
}
