package store

import (
	"archive/tar"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// mountOverlay mounts the layers of an image, with an upper directory if it is not empty, and
// returns where.
func mountOverlay(t *testing.T, img Image, upper string) string {
	t.Helper()
	lower := slices.Clone(img.Layers)
	slices.Reverse(lower)
	options := "lowerdir=" + strings.Join(lower, ":")
	if upper == "" {
		options += ":" + t.TempDir() // a single layer is not mounted without an upper one
	} else {
		// On tmpfs, as this test may run on an overlay file system, which has no upper directories.
		options += ",upperdir=" + upper + ",workdir=" + filepath.Join(filepath.Dir(upper), "work")
	}
	at := t.TempDir()
	if err := unix.Mount("overlay", at, "overlay", 0, options); err != nil {
		t.Skip("cannot mount an overlay file system: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return at
}

func newUpper(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"); err != nil {
		t.Skip("cannot mount: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	for _, name := range []string{"upper", "work"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "upper")
}

// tree returns the names of all files below dir.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		names = append(names, strings.TrimPrefix(path, dir))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names[1:]
}

// TestOverlay mounts the layers of a pulled image as a kernel does, changes them, and makes an
// image of that.
func TestOverlay(t *testing.T) {
	r, s := newRegistry(t), newStore(t)
	ref := r.push(t, "a", imageOf(t, "amd64",
		tarOf(t, dirEntry("d"), regular("d/old", ""), regular("gone", ""), regular("kept", "1")),
		tarOf(t, regular(".wh.gone", ""), dirEntry("d"), regular("d/.wh..wh..opq", ""),
			regular("d/new", ""), regular("e/f", ""))))
	img, err := s.Pull(t.Context(), ref, "amd64", Anonymous, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := tree(t, mountOverlay(t, img, ""))
	if want := []string{"/d", "/d/new", "/e", "/e/f", "/kept"}; !slices.Equal(got, want) {
		t.Fatalf("mounted: got %q, want %q", got, want)
	}

	upper := newUpper(t)
	at := mountOverlay(t, img, upper)
	for _, err := range []error{
		os.RemoveAll(filepath.Join(at, "d")),
		os.Mkdir(filepath.Join(at, "d"), 0o711),
		os.WriteFile(filepath.Join(at, "d/newer"), []byte("x"), 0o600),
		os.Remove(filepath.Join(at, "e/f")),
		os.WriteFile(filepath.Join(at, "kept"), []byte("22"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	made, err := s.Add(t.Context(), "made", img, upper, Config{ImageConfig: v1.ImageConfig{User: "7"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(made.Layers) != 3 || made.Arch != "amd64" || made.Config.User != "7" ||
		made.ID == img.ID || made.Size <= img.Size {
		t.Errorf("got %+v", made)
	}
	again := mountOverlay(t, made, "")
	got = tree(t, again)
	if want := []string{"/d", "/d/newer", "/e", "/kept"}; !slices.Equal(got, want) {
		t.Errorf("mounted: got %q, want %q", got, want)
	}
	if data, err := os.ReadFile(filepath.Join(again, "kept")); err != nil || string(data) != "22" {
		t.Errorf("got %q, %v", data, err)
	}
	// The new image keeps the layers of the old.
	if err := s.Remove(ref); err != nil {
		t.Fatal(err)
	}
	collect(t, s)
	if _, err := s.Image("made"); err != nil {
		t.Error(err)
	}
}

func TestAddMissing(t *testing.T) {
	s := newStore(t)
	img := mustImport(t, s, "a", regular("x", "1"))
	for name, upper := range map[string]string{"nothing": "/nonexistent", "a file": "/etc/passwd"} {
		if _, err := s.Add(t.Context(), "b", img, upper, Config{}); err == nil {
			t.Errorf("upper is %s: got no error", name)
		}
	}
	if err := s.Remove("a"); err != nil {
		t.Fatal(err)
	}
	collect(t, s)
	_, err := s.Add(t.Context(), "b", img, t.TempDir(), Config{})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want fs.ErrNotExist", err)
	}
	if _, err := s.Add(t.Context(), "b", Image{Layers: []string{"/etc"}}, t.TempDir(),
		Config{}); err == nil {
		t.Error("layers outside of the store: got no error")
	}
	wantCounts(t, s, [4]int{})
}

func setxattr(t *testing.T, path, name, value string) {
	t.Helper()
	if err := unix.Lsetxattr(path, name, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
}

// TestCopy copies each kind of file.
func TestCopy(t *testing.T) {
	asRoot(t)
	secret, check := outside(t)
	from, to := t.TempDir(), t.TempDir()
	in := func(name string) string { return filepath.Join(from, name) }
	when := time.Unix(1234567890, 987654321)
	for _, err := range []error{
		os.Mkdir(in("d"), 0o755),
		os.WriteFile(in("d/su"), []byte("su"), 0o600),
		os.Lchown(in("d/su"), 1000, 1001),
		os.Chmod(in("d/su"), 0o755|os.ModeSetuid),
		os.Link(in("d/su"), in("same")),
		os.Symlink(filepath.Join(secret, "secret"), in("link")),
		os.Lchown(in("link"), 5, 6),
		os.Symlink(secret, in("dirlink")),
		unix.Mkfifo(in("fifo"), 0o644),
		unix.Mknod(in("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
		unix.Mknod(in("whiteout"), unix.S_IFCHR, 0),
		os.Link(in("whiteout"), in("whiteout2")),
		os.WriteFile(in("sparse"), nil, 0o644),
		os.Truncate(in("sparse"), 1<<30),
		os.WriteFile(in("empty"), nil, 0o400),
		os.Chtimes(in("d/su"), when, when),
		os.Chtimes(in("d"), when, when),
		os.Chmod(from, 0o700|os.ModeSticky),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.OpenFile(in("sparse"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{1 << 20, 1 << 29} {
		if _, err := f.WriteAt([]byte("data"), at); err != nil {
			t.Fatal(err)
		}
	}
	f.Close()
	l, err := net.Listen("unix", in("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	setxattr(t, in("d/su"), "security.capability",
		"\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	setxattr(t, in("d/su"), "user.a", "b\x00c")
	setxattr(t, in("d/su"), "user.empty", "")
	setxattr(t, in("d"), overlayPrefix+"opaque", "y")
	setxattr(t, in("d"), overlayPrefix+"origin", "x")
	setxattr(t, in("link"), "trusted.t", "l")

	if err := copyTree(t.Context(), from, to); err != nil {
		t.Fatal(err)
	}
	check()
	want := tree(t, from)
	want = slices.DeleteFunc(want, func(name string) bool { return name == "/socket" })
	if got := tree(t, to); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, name := range append(want, "") {
		a, b := lstat(t, from+name), lstat(t, to+name)
		if name != "" && strings.Count(name, "/") == 1 || name == "/d/su" {
			if a.Mtim != b.Mtim {
				t.Errorf("%s: got time %v, want %v", name, b.Mtim, a.Mtim)
			}
		}
		if strings.HasPrefix(name, "/whiteout") {
			b.Nlink = a.Nlink // not linked
		}
		if a.Mode&unix.S_IFMT == unix.S_IFDIR {
			a.Size = b.Size
		}
		if a.Mode != b.Mode || a.Uid != b.Uid || a.Gid != b.Gid || a.Nlink != b.Nlink ||
			a.Size != b.Size || a.Rdev != b.Rdev {
			t.Errorf("%s: got %+v, want %+v", name, b, a)
		}
		if b.Blocks > 1000 {
			t.Errorf("%s: %d blocks", name, b.Blocks)
		}
	}
	for name, want := range map[string][]string{
		"d/su": {"security.capability", "user.a", "user.empty"},
		"d":    {overlayPrefix + "opaque"},
		"link": {"trusted.t"},
	} {
		got, err := listAttributes(filepath.Join(to, name))
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got attributes %q, %v; want %q", name, got, err, want)
		}
	}
	value := make([]byte, 10)
	if n, err := unix.Lgetxattr(filepath.Join(to, "d/su"), "user.a", value); err != nil ||
		string(value[:n]) != "b\x00c" {
		t.Errorf("got %q, %v", value[:n], err)
	}
	if target, err := os.Readlink(filepath.Join(to, "dirlink")); err != nil || target != secret {
		t.Errorf("got %q, %v", target, err)
	}
	for _, at := range []int64{1 << 20, 1 << 29} {
		f, err := os.Open(filepath.Join(to, "sparse"))
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 4)
		if _, err := f.ReadAt(b, at); err != nil || string(b) != "data" {
			t.Errorf("got %q, %v", b, err)
		}
		f.Close()
	}
}

func lstat(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(path, err)
	}
	return st
}

// TestCopyChanging has a program replace files by links while they are copied.
func TestCopyChanging(t *testing.T) {
	s := newStore(t)
	secret, check := outside(t)
	base := mustImport(t, s, "a", file{Header: tar.Header{Name: "x"}})
	upper := t.TempDir()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		a, d := filepath.Join(upper, "a"), filepath.Join(upper, "d")
		for {
			select {
			case <-stop:
				return
			default:
			}
			os.Remove(a)
			os.WriteFile(a, []byte("x"), 0o777)
			os.Remove(a)
			os.Symlink(filepath.Join(secret, "secret"), a)
			os.Remove(a)
			unix.Mkfifo(a, 0o777)
			os.Remove(d)
			os.Mkdir(d, 0o777)
			os.Remove(d)
			os.Symlink(secret, d)
		}
	}()
	for range 30 {
		img, err := s.Add(t.Context(), "b", base, upper, Config{})
		if err != nil {
			continue // says that it changed, or that it is gone
		}
		for _, name := range tree(t, img.Layers[1]) {
			if strings.Contains(name, "secret") {
				t.Errorf("got %s", name)
			}
			st := lstat(t, img.Layers[1]+name)
			if st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size > 1 {
				t.Errorf("%s: got %d bytes", name, st.Size)
			}
		}
	}
	close(stop)
	<-stopped
	check()
}

func TestMetacopy(t *testing.T) {
	s := newStore(t)
	img := mustImport(t, s, "a", regular("x", "1"))
	upper := t.TempDir()
	path := filepath.Join(upper, "x")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	setxattr(t, path, overlayPrefix+"metacopy", "")
	if _, err := s.Add(t.Context(), "b", img, upper, Config{}); err == nil ||
		!strings.Contains(err.Error(), "metacopy=off") {
		t.Errorf("got error %v, want one about metacopy", err)
	}
	wantCounts(t, s, [4]int{1, 1, 0, 0})
}
