package dockerfile

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
)

// A command finds its mounts. Afterwards, the directory is what it was, but for what the command
// wrote elsewhere.
func TestMount(t *testing.T) {
	outside := directory(t, map[string]string{"kept": "1"}).Name()
	source := directory(t, map[string]string{"dir/b": "2", "dir/*": "3", "dir/c": "4"}).Name()
	dir := directory(t, map[string]string{"full/a": "1"}).Name()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.Mkdir(at("hollow"), 0o700); err != nil {
		t.Fatal(err)
	}
	files, room := localFiles(t), int64(1<<20)
	bind := func(source, dest string) copying {
		f, err := spool(t.Context(), t.TempDir(), &room, files, source)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return copying{Mount: instructions.MountTypeBind, Dest: at(dest), From: "image", spool: f}
	}
	made := func(kind instructions.MountType, dest string) copying {
		return copying{Mount: kind, Dest: at(dest), MakeDir: true, Mode: fs.ModeDir | 0o711,
			Owner: fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid())}
	}
	cache, tmpfs := instructions.MountTypeCache, instructions.MountTypeTmpfs
	w := &worker{build: &build{}}
	want := tree(t, dir)
	unmount, err := w.mount(t.Context(), files, []copying{bind(source+"/dir", "new"),
		bind(source+"/dir/c", "file"), bind(source+"/dir/c", "hollow"), made(cache, "cache"),
		made(cache, "full"), made(tmpfs, "new/tmp")})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"new/": "", "new/b": "2", "new/*": "3", "new/c": "4",
		"file": "4", "hollow/": "", "hollow/c": "4", "cache/": "", "full/": "", "full/a": "1",
		"new/tmp/": ""}, tree(t, dir)); diff != "" {
		t.Errorf("the command finds (-want +got):\n%s", diff)
	}
	if info, err := os.Stat(at("cache")); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("the cache: %v, %v", info.Mode(), err)
	}
	for _, err := range []error{os.MkdirAll(at("cache/deep/er"), 0o755),
		os.WriteFile(at("cache/deep/er/file"), nil, 0o600),
		os.Symlink(outside, at("cache/out")), os.Symlink(outside, at("hollow/out")),
		os.WriteFile(at("new/tmp/x"), nil, 0o600), os.Remove(at("file")),
		os.WriteFile(at("full/mine"), []byte("5"), 0o644)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := unmount(); err != nil {
		t.Fatal(err)
	}
	want["full/mine"] = "5"
	if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	if info, err := os.Stat(at("hollow")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory that was empty: %v, %v", info.Mode(), err)
	}
	if got := tree(t, outside); len(got) != 1 {
		t.Errorf("outside: %v", got)
	}
	for _, c := range []copying{bind(source+"/dir", "full"), bind(source+"/dir/c", "full/a"),
		made(tmpfs, "full"), made(cache, "full/a")} {
		_, err := w.mount(t.Context(), files, []copying{c})
		if err == nil || !strings.Contains(err.Error(), "which a mount would hide") {
			t.Errorf("%s at %s: %v", c.Mount, c.Dest, err)
		}
	}
}
