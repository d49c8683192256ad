package dockerfile

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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
		bind(source+"/dir/c", "file"), bind(source+"/dir", "hollow"), made(cache, "cache"),
		made(cache, "full"), made(tmpfs, "new/tmp")})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"new/": "", "new/b": "2", "new/*": "3", "new/c": "4",
		"file": "4", "hollow/": "", "hollow/b": "2", "hollow/*": "3",
		"hollow/c": "4", "cache/": "", "full/": "", "full/a": "1",
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
	if err := os.Symlink("nowhere", at("link")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []copying{bind(source+"/dir", "full"), bind(source+"/dir/c", "full/a"),
		made(tmpfs, "full"), made(cache, "full/a"), bind(source+"/dir/c", "link"),
		made(cache, "link")} {
		_, err := w.mount(t.Context(), files, []copying{c})
		if err == nil || !strings.Contains(err.Error(), "a mount cannot hide it") {
			t.Errorf("%s at %s: %v", c.Mount, c.Dest, err)
		}
	}
	_, err = w.mount(t.Context(), files, []copying{bind(source+"/dir/c", "hollow")})
	if err == nil || !strings.Contains(err.Error(), "a file cannot be mounted on a directory") {
		t.Errorf("a file at a directory: %v", err)
	}
}

// Directories above a mount are removed with it, unless the command has put files there.
func TestMissingAbove(t *testing.T) {
	dir := directory(t, map[string]string{"a/kept": "1"}).Name()
	files := localFiles(t)
	above, err := missingAbove(files, dir+"/a/b/c/d")
	if want := []string{dir + "/a/b/c", dir + "/a/b"}; err != nil || !slices.Equal(above, want) {
		t.Fatalf("got %q, %v; want %q", above, err, want)
	}
	if err := os.MkdirAll(dir+"/a/b/c/d/e", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/a/b/mine", []byte("2"), 0o644); err != nil {
		t.Fatal(err)
	}
	clean := &collecting{ctx: t.Context(), files: files}
	if err := clean.unmount(dir+"/a/b/c/d", above); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"a/": "", "a/kept": "1", "a/b/": "", "a/b/mine": "2"},
		tree(t, dir)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A command that has put a link in the place of a mount leads root nowhere else.
func TestMountReplaced(t *testing.T) {
	outside := directory(t, map[string]string{"kept": "1"}).Name()
	dir := t.TempDir()
	files := localFiles(t)
	was, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	clean := &collecting{ctx: t.Context(), files: files}
	at := dir + "/link"
	if err := os.Symlink(outside, at); err != nil {
		t.Fatal(err)
	}
	if err := clean.restore(at, was); err == nil || !strings.Contains(err.Error(), "replaced it") {
		t.Errorf("restore: %v", err)
	}
	if err := clean.unmount(at, nil); err != nil {
		t.Errorf("unmount: %v", err)
	}
	if _, err := os.Lstat(at); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the link: %v", err)
	}
	if got := tree(t, outside); len(got) != 1 {
		t.Errorf("outside: %v", got)
	}
}

// A walk holds a bounded number of entries.
func TestWalkIsBounded(t *testing.T) {
	dir := directory(t, map[string]string{"a/b/c": "1", "a/d": "2"}).Name()
	for room, want := range map[int]bool{4: true, 3: false} {
		c := &collecting{ctx: t.Context(), files: localFiles(t), held: maxHeld - room,
			tar: tar.NewWriter(io.Discard)}
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.tree(dir, ".", info); (err == nil) != want {
			t.Errorf("room for %d: copy: %v", room, err)
		}
		c.held = maxHeld - room
		if err := c.empty(dir); (err == nil) != want {
			t.Errorf("room for %d: remove: %v", room, err)
		}
		if want {
			dir = directory(t, map[string]string{"a/b/c": "1", "a/d": "2"}).Name()
		}
	}
}
