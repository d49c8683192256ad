package lifecycle_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// tooled is a world whose sandboxes find these programs first, and what alone may be found behind
// them.
func tooled(t *testing.T, programs map[string]string) *world {
	t.Helper()
	dir := t.TempDir()
	for name, text := range programs {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text),
			0o755); err != nil {
			t.Fatal(err)
		}
	}
	return newWorld(t, sandboxtest.Options{Env: []string{"PATH=" + dir + ":/usr/bin:/bin"}})
}

func TestDescribePackages(t *testing.T) {
	w := tooled(t, map[string]string{
		"dpkg-query": `printf 'ii \nrc \nhi \nun \nii \n'`,
		"python3":    `echo 'python=["numpy", "1.2"]'; echo 'python=["odd", null]'; echo 'python=[null, "1"]'`,
	})
	d := w.Start()
	if _, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "demo",
		About: "the table is in\n/data"}, nil); err != nil {
		t.Fatal(err)
	}
	got, err := d.DescribePackages(w.Ctx(), alice, "demo")
	if err != nil {
		t.Fatal(err)
	}
	want := []lifecycle.Packages{{By: "dpkg", Count: 3}, {By: "python", Count: 2,
		List: []lifecycle.Package{{"numpy", "1.2"}, {"odd", ""}}}}
	if diff := cmp.Diff(want, got.Packages); diff != "" {
		t.Errorf("packages (-want +got):\n%s", diff)
	}
	if got.About != "the table is in\n/data" || got.OS == "" {
		t.Errorf("description = %+v", got)
	}
	if got, err := d.Describe(w.Ctx(), alice, "demo"); err != nil || got.Packages != nil ||
		got.About == "" {
		t.Errorf("without asking for them: %+v, %v", got.Packages, err)
	}
	// They are found by programs, which are for who may run some.
	if err := d.Share(w.Ctx(), alice, "demo", "bob", wire.RightWatch); err != nil {
		t.Fatal(err)
	}
	watcher := alice
	watcher.Rights = wire.RightWatch
	for _, p := range []gateway.Principal{bob, watcher} {
		if _, err := d.DescribePackages(w.Ctx(), p, "demo"); !errors.Is(err,
			&wire.Error{Code: wire.CodeDenied}) {
			t.Errorf("%s with rights %q: got %v, want it denied", p.Name, p.Rights, err)
		}
	}
	if err := d.Stop(w.Ctx(), alice, "demo"); err != nil {
		t.Fatal(err)
	}
	if got, err := d.DescribePackages(w.Ctx(), alice, "demo"); err != nil || got.Packages != nil ||
		got.State != lifecycle.Stopped || got.About == "" {
		t.Errorf("of a stopped one: %+v, %v", got, err)
	}
}

// Whatever the programs of a sandbox say, it is bounded, in lines, and nothing that a terminal
// obeys.
func TestHostilePackages(t *testing.T) {
	t.Parallel()
	t.Run("without end", func(t *testing.T) {
		w := tooled(t, map[string]string{"dpkg-query": "exec yes ii",
			"python3": `exec yes 'python=["\u202e\u001b[31mevil", "1\u2066\n2"]'`,
			"grep":    "echo 99999999999999999999"})
		d := w.Start()
		w.Create(d, "demo")
		got, err := d.DescribePackages(w.Ctx(), alice, "demo")
		if err != nil || len(got.Packages) != 1 ||
			len(got.Packages[0].List) != lifecycle.MaxPackages || !got.Packages[0].Cut {
			t.Fatalf("got %.500v, %v; want %d of one kind, and that there are more", got.Packages,
				err, lifecycle.MaxPackages)
		}
		for _, p := range got.Packages[0].List {
			if strings.ContainsFunc(p.Name+p.Version, func(r rune) bool {
				return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)
			}) {
				t.Fatalf("package %q is not safe to show", p)
			}
		}
	})
	t.Run("nonsense without end", func(t *testing.T) {
		w := tooled(t, map[string]string{"dpkg-query": "echo ii", "python3": "exec yes"})
		d := w.Start()
		w.Create(d, "demo")
		got, err := d.DescribePackages(w.Ctx(), alice, "demo")
		if err != nil || len(got.Packages) != 1 || got.Packages[0].Cut ||
			!strings.Contains(strings.Join(got.Notes, "\n"), "the output is too long") {
			t.Errorf("got %v, notes %q, %v; want it said", got.Packages, got.Notes, err)
		}
	})
	t.Run("silent", func(t *testing.T) {
		w := tooled(t, map[string]string{"dpkg-query": "echo ii", "python3": "exec sleep 1000"})
		w.Options.SetPackagesWithin(2 * time.Second)
		d := w.Start()
		w.Create(d, "demo")
		got, err := d.DescribePackages(w.Ctx(), alice, "demo")
		if err != nil || !strings.Contains(strings.Join(got.Notes, "\n"),
			"packages unknown or incomplete") {
			t.Errorf("got notes %q, %v; want it said", got.Notes, err)
		}
	})
}
