package lifecycle_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/hostdir"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// preparing is a backend whose images are names, of which it keeps those that were set up.
type preparing struct {
	*sandboxtest.Backend
	sandboxtest.NoImages
	kept  map[string]bool // by owner and key
	based []sandbox.Spec  // whose images were asked for
}

func (b *preparing) Image(ctx context.Context, spec sandbox.Spec) (sandbox.Image, error) {
	if spec.Image != "set/up" {
		b.based = append(b.based, spec)
	}
	id, err := b.Resolve(ctx, spec.Image)
	return sandbox.Image{ID: id}, err
}

func (b *preparing) Prepared(_ context.Context, spec sandbox.Spec, l sandbox.Layer) (string,
	error) {
	if !b.kept[spec.Owner+l.Key] {
		return "", nil
	}
	return "set/up", nil
}

func (b *preparing) Prepare(_ context.Context, inst sandbox.Instance, owner string,
	l sandbox.Layer) (string, error) {
	b.kept[owner+l.Key] = true
	return "set/up", nil
}

func (b *preparing) Forget(context.Context, string, func(string) bool) (int, error) {
	n := len(b.kept)
	clear(b.kept)
	return n, nil
}

func newPreparing(t *testing.T) (*world, *preparing) {
	w := newWorld(t, sandboxtest.Options{})
	b := &preparing{Backend: w.Memory, kept: make(map[string]bool)}
	w.Backend = b
	return w, b
}

// A setup runs once for all sandboxes with equal specs, in order; a different one runs again.
func TestSetUp(t *testing.T) {
	w, _ := newPreparing(t)
	d := w.Start()
	log := filepath.Join(t.TempDir(), "log")
	runSetup := func(name string, commands ...string) []string {
		t.Helper()
		var lines []string
		info, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: name, Setup: commands,
			Env: []string{"LOG=" + log}}, func(l string) { lines = append(lines, l) })
		if err != nil {
			t.Fatal(err)
		}
		if info.State != lifecycle.Running || !strings.Contains(info.ImageOf, "setup: "+
			commands[0]) {
			t.Errorf("%s: %s, image of %q", name, info.State, info.ImageOf)
		}
		return lines
	}
	lines := runSetup("one", `echo one >>"$LOG"`, `cat "$LOG"`)
	if want := []string{`setup: cat "$LOG"`, "  one",
		"saving the result of the setup"}; !slices.Equal(lines[len(lines)-3:], want) {
		t.Errorf("progress ends with %q, want %q", lines, want)
	}
	lines = runSetup("two", `echo one >>"$LOG"`, `cat "$LOG"`)
	if slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "setup:") }) {
		t.Errorf("run again: %q", lines)
	}
	if info, err := d.Get(w.Ctx(), alice, "two"); err != nil || info.Image != "set/up" {
		t.Errorf("two is of %q, %v", info.Image, err)
	}
	runSetup("three", `echo three >>"$LOG"`)
	if text, err := os.ReadFile(log); err != nil || string(text) != "one\nthree\n" {
		t.Errorf("the commands left %q, %v", text, err)
	}
}

// A failed setup reports its exit code and last lines, saves no image, and leaves no sandbox. The
// same holds if the sandbox is removed during the setup.
func TestSetUpFails(t *testing.T) {
	w, b := newPreparing(t)
	d := w.Start()
	_, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "demo", Setup: []string{"true",
		"echo first; echo last; exit 5", "echo never"}}, nil)
	wantCode(t, err, wire.CodeUnavailable)
	want := "create demo: setup: echo first; echo last; exit 5: exit code 5: first; last"
	if d.Public(err).Message != want {
		t.Errorf("got %q, want %q", d.Public(err).Message, want)
	}
	_, err = d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "demo",
		Setup: []string{"kill -KILL $$"}}, nil)
	if got := d.Public(err).Message; !strings.Contains(got, "ended by signal KILL") {
		t.Errorf("got %q, want the signal", got)
	}
	created := make(chan error, 1)
	began := make(chan string, 1)
	go func() {
		_, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "demo",
			Setup: []string{"echo begun; sleep 1000"}}, func(l string) {
			if l == "  begun" {
				began <- l
			}
		})
		created <- err
	}()
	<-began
	if err := d.Discard(w.Ctx(), alice, "demo"); err != nil {
		t.Error(err)
	}
	wantCode(t, <-created, wire.CodeLost)
	if left, _ := w.Memory.List(t.Context()); len(left) != 0 || len(b.kept) != 0 {
		t.Errorf("left: %v, %v", left, b.kept)
	}
	w.Create(d, "demo") // its name is free
}

// Only the admin may build from a Dockerfile, and only from directories that the admin may mount.
// Nothing leads out of a directory that names one.
func TestBuildOfDirectory(t *testing.T) {
	w, b := newPreparing(t)
	root := t.TempDir()
	for name, text := range map[string]string{"app/Dockerfile": "FROM app\nUSER 1",
		"app/sub/Other": "FROM other\nUSER 1", "app/sub/file": "", "away/Dockerfile": "FROM away",
		"bad/Dockerfile": "FROM x\nRUN echo why; exit 3"} {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../away", filepath.Join(root, "app/out")); err != nil {
		t.Fatal(err)
	}
	w.Options.Dirs = hostdir.Rules{Roots: []string{root}}
	d := w.Start()
	app := filepath.Join(root, "app")
	for _, tt := range []struct {
		name  string
		who   gateway.Principal
		build lifecycle.Build
		want  string // a line of the progress, or what the error says
	}{
		{"a directory", alice, lifecycle.Build{Dockerfile: app},
			"[1/2] Dockerfile:1: FROM app"},
		{"a file", alice, lifecycle.Build{Dockerfile: app + "/sub/Other"},
			"[1/2] Other:1: FROM other"},
		{"with a context", alice, lifecycle.Build{Dockerfile: app + "/sub/Other", Context: app},
			"[1/2] sub/Other:1: FROM other"},
		{"in a directory", alice, lifecycle.Build{Dir: app, Dockerfile: "sub/Other",
			Context: "sub"}, "[1/2] sub/Other:1: FROM other"},
		{"another owner", bob, lifecycle.Build{Dockerfile: app}, "only the admin may build"},
		{"out of it", alice, lifecycle.Build{Dir: app, Dockerfile: "../away/Dockerfile"},
			"path escapes from parent"},
		{"by a link", alice, lifecycle.Build{Dir: app, Dockerfile: "out/Dockerfile"},
			"path escapes from parent"},
		{"context by a link", alice, lifecycle.Build{Dir: app, Context: "out"},
			"path escapes from parent"},
		{"context beside", alice, lifecycle.Build{Dockerfile: app, Context: root + "/away"},
			"path escapes from parent"},
		{"nothing there", alice, lifecycle.Build{Dockerfile: app + "/none"}, "no such file"},
		{"elsewhere", alice, lifecycle.Build{Dockerfile: "/etc"}, "is not allowed for sandboxes"},
		{"an argument", alice, lifecycle.Build{Dockerfile: app, Args: []string{"=x"}},
			"must be K=V"},
		{"a step", alice, lifecycle.Build{Dockerfile: root + "/bad"},
			"build: Dockerfile:2: RUN echo why; exit 3: exit code 3: why"},
	} {
		b.based = nil
		var lines []string
		_, err := d.Create(w.Ctx(), tt.who, lifecycle.NewSpec{Name: "demo", Build: &tt.build},
			func(line string) { lines = append(lines, line) })
		got := strings.Join(lines, "\n")
		switch {
		case err != nil:
			got = d.Public(err).Message
		case len(b.based) == 1:
			if b.based[0].Owner != "alice" || b.based[0].Network != sandbox.NetworkNone {
				t.Errorf("%s: built for %q with network %q", tt.name, b.based[0].Owner,
					b.based[0].Network)
			}
			err = d.Discard(w.Ctx(), alice, "demo")
		}
		clear(b.kept)
		if !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q (%v), want %q", tt.name, got, err, tt.want)
		}
	}
	if infos, err := d.List(w.Ctx(), alice); err != nil || len(infos) != 0 {
		t.Errorf("left: %v, %v", infos, err)
	}
}
