package docker

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/hostdir"
)

// owned makes a directory that belongs to uid, if this test has the permission.
func owned(t *testing.T, path string, uid int) string {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, uid, uid); err != nil && os.Geteuid() == 0 {
		t.Fatal(err)
	} else if err != nil {
		t.Skip("giving a directory away takes root")
	}
	return path
}

// binding returns a backend that may mount directories below the returned one.
func binding(t *testing.T) (*Backend, string) {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	// So that other users than root can reach it.
	for dir := root; dir != "/"; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err != nil {
			t.Fatal(err)
		} else if info.Mode().Perm()&0o005 != 0o005 {
			if err := os.Chmod(dir, info.Mode()|0o055); err != nil {
				t.Fatal(err)
			}
		}
	}
	return testBackend(t, func(o *Options) {
		o.Dirs = hostdir.Rules{Roots: []string{root}, Never: []string{root + "/never"}}
	}), root
}

// A directory appears at its target, which is the working directory, and the target of /work.
func TestMountTarget(t *testing.T) {
	b, root := binding(t)
	project, data := owned(t, root+"/project", 12345), owned(t, root+"/data", 0)
	inst := boot(t, b, sandbox.Spec{Mounts: []sandbox.Mount{{Path: project, Target: "/srv/app"},
		{Path: data, Target: "/data", ReadOnly: true},
		{Path: project, Target: "/home/user12345/again"}}})
	c := login(t, b, inst)
	for command, want := range map[string]string{
		"pwd": "/srv/app", "id -u": "12345", "readlink /work": "/srv/app", "test -e " + project + " || echo none": "none",
		"stat -c %u $HOME": "12345", "touch made && ls $HOME/again": "made",
	} {
		if got := mustSh(t, c, command); got != want {
			t.Errorf("%s: got %q, want %q", command, got, want)
		}
	}
	if out, err := sh(t, c, "sudo -n touch /data/x"); err == nil {
		t.Errorf("writing to a read-only directory: %q", out)
	}
	if _, err := os.Stat(project + "/made"); err != nil {
		t.Error(err)
	}
	// A start uses the directory that is then at the same path on the machine.
	if err := b.Stop(t.Context(), inst, time.Second); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(project, project+".old"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Start(t.Context(), inst); err == nil || !strings.Contains(err.Error(), project) {
		t.Errorf("start without the directory: got error %v, want one that names %s", err, project)
	}
}

// Mounts that are not allowed are rejected before the first request to the engine.
func TestMountRefused(t *testing.T) {
	b, root := binding(t)
	project := owned(t, root+"/project", 0)
	owned(t, root+"/never", 0)
	owned(t, root+"/other", 0)
	for name, mounts := range map[string][]sandbox.Mount{
		"outside of":              {{Path: "/home"}},
		"not allowed for sandbox": {{Path: root + "/never"}},
		"given twice":             {{Path: project}, {Path: project + "/", ReadOnly: true}},
		"does not exist":          {{Path: root + "/missing"}},
		"is not absolute":         {{Path: "project"}},
		"at most 16":              make([]sandbox.Mount, 17),
		"is in /etc":              {{Path: project, Target: "/etc/project"}},
		"already mounted at /srv": {{Path: project, Target: "/srv"}, {Path: root + "/other", Target: "/srv"}},
		"must not contain each":   {{Path: project, Target: "/srv/a"}, {Path: root + "/other", Target: "/srv"}},
		"not contain each other":  {{Path: project}, {Path: root + "/other", Target: project + "/x"}},
	} {
		id := newID()
		_, err := b.Boot(t.Context(), sandbox.Spec{ID: id, Image: busybox, Mounts: mounts})
		if boot := wantStage(t, err, sandbox.StageValidate); !strings.Contains(boot.Error(), name) {
			t.Errorf("got error %v, want %q", err, name)
		}
		nothingLeft(t, b, id)
	}
}

// A directory that is replaced between check and mount fails the boot before any process of the
// sandbox runs.
func TestMountSwapped(t *testing.T) {
	b, root := binding(t)
	secret := owned(t, root+"/never", 0)
	for how, swap := range map[string]func(dir string) error{
		"link":            func(dir string) error { return os.Symlink(secret, dir) },
		"other directory": func(dir string) error { return os.Mkdir(dir, 0o755) },
		"nothing":         func(string) error { return nil },
		"file":            func(dir string) error { return os.WriteFile(dir, nil, 0o644) },
	} {
		t.Run(how, func(t *testing.T) {
			dir := owned(t, root+"/"+strings.ReplaceAll(how, " ", "-"), 12345)
			b.at = func(stage sandbox.Stage) {
				if stage == sandbox.StageCreate {
					if err := errors.Join(os.Rename(dir, dir+".aside"), swap(dir)); err != nil {
						t.Error(err)
					}
				}
			}
			defer func() { b.at = nil }()
			id := newID()
			_, err := b.Boot(t.Context(),
				sandbox.Spec{ID: id, Image: busybox, Mounts: []sandbox.Mount{{Path: dir}}})
			wantStage(t, err, "")
			t.Log(err)
			nothingLeft(t, b, id)
		})
	}
	if left, err := os.ReadDir(secret); err != nil || len(left) > 0 {
		t.Errorf("something was written where the link led: %v, error %v", left, err)
	}
}

// A stopped sandbox starts with the directory that then exists; if it is missing or replaced by a
// link, the start fails.
func TestMountStart(t *testing.T) {
	b, root := binding(t)
	dir := owned(t, root+"/project", 12345)
	inst := boot(t, b, sandbox.Spec{Mounts: []sandbox.Mount{{Path: dir}}})
	if err := b.Stop(t.Context(), inst, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	_, err := b.Start(t.Context(), inst)
	if wantStage(t, err, sandbox.StageValidate); !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("start without the directory: %v", err)
	}
	other := owned(t, root+"/other", 12345)
	if err := os.Symlink(other, dir); err != nil {
		t.Fatal(err)
	}
	_, err = b.Start(t.Context(), inst)
	if wantStage(t, err, sandbox.StageValidate); !strings.Contains(err.Error(), "is now a link") {
		t.Errorf("start with a link in its place: %v", err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	owned(t, dir, 12345)
	if err := os.WriteFile(dir+"/new", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if inst, err = b.Start(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
	if got := mustSh(t, login(t, b, inst),
		"ls; id -un; ls -d $HOME"); got != "new\nuser12345\n/home/user12345" {
		t.Errorf("after the directory was made anew: %q", got)
	}
}
