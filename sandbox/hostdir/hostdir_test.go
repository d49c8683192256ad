package hostdir

import (
	"testing"
)

func FuzzCheck(f *testing.F) {
	for _, path := range []string{"/", "/etc/../tmp", "/tmp", "x", "", "/a\x00b", "/proc/self/root",
		"//tmp///"} {
		f.Add(path)
	}
	rules := Rules{Roots: []string{"/tmp"}}
	f.Fuzz(func(t *testing.T, path string) {
		got, err := rules.Check(path)
		if err == nil && !within(got.Path, "/tmp") {
			t.Fatalf("%q gives %q", path, got.Path)
		}
	})
}
