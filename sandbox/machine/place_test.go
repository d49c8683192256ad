package machine

import (
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"
)

func TestPlacer(t *testing.T) {
	p := placer{dir: t.TempDir()}
	source := filepath.Join(t.TempDir(), "guest")
	write := func(text string, at time.Time) {
		t.Helper()
		if err := os.WriteFile(source, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(source, at, at); err != nil {
			t.Fatal(err)
		}
	}
	place := func() string {
		t.Helper()
		path, err := p.place(source, "guest", 0o555)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	read := func(path string) string {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	now := time.Now()
	write("one", now)
	one := place()
	if !regexp.MustCompile(`^guest-[0-9a-f]{12}$`).MatchString(filepath.Base(one)) {
		t.Errorf("got name %s, want guest- and 12 hexadecimal digits", one)
	}
	if info, err := os.Stat(one); err != nil || info.Mode() != 0o555 {
		t.Errorf("got mode %v, %v; want 0555", info.Mode(), err)
	}
	write("two", now.Add(time.Second))
	two := place()
	if one == two || read(one) != "one" || read(two) != "two" {
		t.Errorf("a new guest replaced the old one: %s holds %q, %s holds %q", one, read(one), two,
			read(two))
	}

	// Another daemon replaces a damaged copy, and leaves the file that containers have open
	// unchanged.
	if err := os.Chmod(two, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(two, []byte("tw"), 0o644); err != nil {
		t.Fatal(err)
	}
	opened, err := os.Open(two)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	p = placer{dir: p.dir}
	if got := place(); got != two || read(two) != "two" {
		t.Errorf("damaged copy: got %s holding %q, want a repaired copy", got, read(two))
	}

	if err := os.Remove(two); err != nil {
		t.Fatal(err)
	}
	if got := place(); got != two || read(two) != "two" {
		t.Errorf("removed copy: got %s", got)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := p.place(source, "guest", 0o555); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if left, _ := filepath.Glob(filepath.Join(p.dir, ".new-*")); len(left) > 0 {
		t.Errorf("got temporary files %q left", left)
	}
	if _, err := p.place(source+".none", "guest", 0o555); err == nil {
		t.Error("missing source: got no error")
	}
}
