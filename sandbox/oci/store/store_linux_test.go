package store

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"
)

// callStore names the store in which this program, as another process of a test, begins a call
// until it is killed.
const callStore = "SANDBOXD_TEST_CALL_STORE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(callStore); dir != "" {
		beginForTest(dir, os.Getenv(callStore+"_NEEDS"))
	}
	goleak.VerifyTestMain(tests{m})
}

// tests closes what the transport of go-containerregistry keeps open for the next request.
type tests struct{ *testing.M }

func (m tests) Run() int {
	code := m.M.Run()
	if t, ok := remote.DefaultTransport.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
	return code
}

func beginForTest(dir, needs string) {
	s, err := Open(dir)
	if err != nil {
		panic(err)
	}
	call, err := s.begin()
	if err != nil {
		panic(err)
	}
	if _, err := call.need([]string{needs}); err != nil {
		panic(err)
	}
	if _, _, err := call.newLayer(); err != nil {
		panic(err)
	}
	os.Stdout.WriteString("ready\n")
	select {}
}

func asRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

func newStore(t *testing.T) *Store {
	t.Helper()
	asRoot(t)
	s, err := Open(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// file is an entry of a tar. Its zero values are those of a file of root with mode 0644.
type file struct {
	tar.Header
	body string
}

func dirEntry(name string) file {
	return file{Header: tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}}
}

func regular(name, body string) file { return file{tar.Header{Name: name}, body} }

func link(kind byte, name, to string) file {
	return file{Header: tar.Header{Name: name, Typeflag: kind, Linkname: to}}
}

func tarOf(t *testing.T, files ...file) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		if f.Typeflag == 0 {
			f.Typeflag = tar.TypeReg
		}
		if f.Mode == 0 {
			f.Mode = 0o644
		}
		f.Size = int64(len(f.body))
		if err := w.WriteHeader(&f.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func mustImport(t *testing.T, s *Store, ref string, files ...file) Image {
	t.Helper()
	img, err := s.Import(t.Context(), ref, bytes.NewReader(tarOf(t, files...)), Config{})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// counts returns how many entries the directories of a store have: layers, names, holds, tmp.
func counts(t *testing.T, s *Store) (n [4]int) {
	t.Helper()
	for i, sub := range []string{layersDir, namesDir, holdsDir, tmpDir} {
		entries, err := os.ReadDir(s.path(sub))
		if err != nil {
			t.Fatal(err)
		}
		n[i] = len(entries)
	}
	return n
}

func wantCounts(t *testing.T, s *Store, want [4]int) {
	t.Helper()
	if got := counts(t, s); got != want {
		t.Errorf("got %v layers, names, holds and temporary files; want %v", got, want)
	}
}

func collect(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	for _, bad := range []string{"relative", filepath.Join(dir, "a:b"), filepath.Join(dir, "a,b")} {
		if _, err := Open(bad); err == nil {
			t.Errorf("%s: got no error", bad)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "0700") {
		t.Errorf("open to others: got error %v, want one about mode 0700", err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(link); err == nil {
		t.Error("symbolic link: got no error")
	}
	store := filepath.Join(dir, "a", "b")
	for range 2 {
		if _, err := Open(store); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(store); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("got mode %v, %v; want 0700", info.Mode(), err)
	}
}

func TestImport(t *testing.T) {
	s := newStore(t)
	config := Config{ImageConfig: v1.ImageConfig{User: "1000", Env: []string{"A=b"},
		Cmd: []string{"sh"}, Entrypoint: []string{"/init"}, WorkingDir: "/w",
		Volumes: map[string]struct{}{"/v": {}}}}
	config.Shell, config.OnBuild = []string{"ash"}, []string{"RUN true"}
	big := strings.Repeat("x", 1<<20)
	img, err := s.Import(t.Context(), "sandboxd/base:latest",
		bytes.NewReader(tarOf(t, regular("etc/big", big))), config)
	if err != nil {
		t.Fatal(err)
	}
	if img.Ref != "sandboxd/base:latest" || img.Arch != runtime.GOARCH || len(img.Layers) != 1 ||
		img.Size < 1<<20 || img.Size > 2<<20 || img.Created.IsZero() ||
		!validID.MatchString(img.ID) {
		t.Errorf("got %+v", img)
	}
	for _, ref := range []string{"sandboxd/base", "docker.io/sandboxd/base:latest", img.ID} {
		got, err := s.Image(ref)
		if err != nil {
			t.Fatal(err)
		}
		if got.ID != img.ID || got.Config.User != "1000" || got.Size != img.Size ||
			len(got.Config.Volumes) != 1 || !got.Created.Equal(img.Created) {
			t.Errorf("%s: got %+v, want %+v", ref, got, img)
		}
	}
	data, err := os.ReadFile(filepath.Join(img.Layers[0], "etc/big"))
	if err != nil || string(data) != big {
		t.Errorf("got %d bytes, %v", len(data), err)
	}
	if info, err := os.Stat(img.Layers[0]); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("root of the layer: got %v, %v; want 0755", info.Mode(), err)
	}
	mustImport(t, s, "debian:12", regular("x", ""))
	mustImport(t, s, "docker.io/library/debian:12", regular("y", ""))
	all, err := s.List(nil)
	if err != nil || len(all) != 2 || all[0].Ref != "debian:12" || all[1].Ref != img.Ref {
		t.Errorf("got %+v, %v", all, err)
	}
	if _, err := s.Import(t.Context(), "A:b", bytes.NewReader(nil), config); err == nil {
		t.Error("reference with capitals: got no error")
	}
}

// The last use of an image is when it got its name, or a Touch.
func TestTouch(t *testing.T) {
	s := newStore(t)
	mustImport(t, s, "a", regular("x", "1"))
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(s.path(namesDir, fileName("a:latest")), old, old); err != nil {
		t.Fatal(err)
	}
	if img, err := s.Image("a"); err != nil || !img.Used.Equal(old) {
		t.Errorf("used %v, error %v; want %v", img.Used, err, old)
	}
	if err := s.Touch("a"); err != nil {
		t.Fatal(err)
	}
	if img, err := s.Image("a"); err != nil || time.Since(img.Used) > time.Minute {
		t.Errorf("after Touch: used %v, error %v", img.Used, err)
	}
	if err := s.Touch("b"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing image: %v, want fs.ErrNotExist", err)
	}
}

func TestMissing(t *testing.T) {
	s := newStore(t)
	img := mustImport(t, s, "a", regular("x", "1"))
	for _, ref := range []string{"b", "sha256:" + strings.Repeat("0", 64)} {
		if _, err := s.Image(ref); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: got %v, want fs.ErrNotExist", ref, err)
		}
		if err := s.Remove(ref); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("remove %s: got %v, want fs.ErrNotExist", ref, err)
		}
	}
	if err := s.Release("nobody"); err != nil {
		t.Error(err)
	}
	if err := s.Hold("h", Image{Layers: []string{"/etc"}}); err == nil {
		t.Error("hold outside of the store: got no error")
	}
	if err := os.RemoveAll(filepath.Dir(img.Layers[0])); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Image("a"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without its layer: got %v, want another error than that of a missing image", err)
	}
	if err := s.Hold("h", img); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("hold without its layer: got %v, want fs.ErrNotExist", err)
	}
	if err := os.WriteFile(s.path(namesDir, fileName("c:latest")), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Collect(t.Context()); err == nil {
		t.Error("collect with a damaged name: got no error")
	}
}

func TestCollect(t *testing.T) {
	s := newStore(t)
	one := mustImport(t, s, "one", regular("x", "1"))
	mustImport(t, s, "two", regular("x", "2"))
	for _, name := range []string{"three", "four"} {
		mustImport(t, s, name, regular("x", "3"))
	}
	wantCounts(t, s, [4]int{3, 4, 0, 0})
	if err := s.Hold("instance/1", one); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one", "two", "three"} {
		if err := s.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	again, err := Open(s.dir) // another daemon
	if err != nil {
		t.Fatal(err)
	}
	collect(t, again)
	wantCounts(t, s, [4]int{2, 1, 1, 0})
	if held, err := s.Image(one.ID); err != nil || held.Layers[0] != one.Layers[0] {
		t.Errorf("held image by its ID: got %+v, %v", held, err)
	}
	if err := s.Remove(one.ID); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("remove without a name: got %v, want fs.ErrNotExist", err)
	}
	if err := s.Release("instance/1"); err != nil {
		t.Fatal(err)
	}
	collect(t, s)
	wantCounts(t, s, [4]int{1, 1, 0, 0})
	if _, err := s.Image("four"); err != nil {
		t.Error(err)
	}
	// A pull over a name leaves the old layers to Collect.
	mustImport(t, s, "four", regular("x", "4"))
	collect(t, s)
	wantCounts(t, s, [4]int{1, 1, 0, 0})
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errStop)
	if err := s.Remove("four"); err != nil {
		t.Fatal(err)
	}
	if err := s.Collect(ended); !errors.Is(err, errStop) {
		t.Errorf("got %v, want the cause of the context", err)
	}
	collect(t, s)
	wantCounts(t, s, [4]int{})
}

var errStop = errors.New("stop of a test")

// TestCollectCalls has another process in the middle of a call, which is then killed.
func TestCollectCalls(t *testing.T) {
	s := newStore(t)
	img := mustImport(t, s, "one", regular("x", "1"))
	names, err := s.layerNames(img)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), callStore+"="+s.dir, callStore+"_NEEDS="+names[0])
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	if err := s.Remove("one"); err != nil {
		t.Fatal(err)
	}
	// What a call that was killed between two steps leaves.
	if err := os.WriteFile(s.path(tmpDir, "record-1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(s.path(tmpDir, "trash-1", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	collect(t, s)
	wantCounts(t, s, [4]int{1, 0, 0, 1})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	collect(t, s)
	wantCounts(t, s, [4]int{})
}

// TestTogether has several stores in one directory make, remove and collect the same images.
func TestTogether(t *testing.T) {
	s := newStore(t)
	data := tarOf(t, regular("a/x", "1"), regular("b/y", "2"))
	errs := make(chan error)
	const workers, rounds = 4, 10
	for w := range workers {
		go func() {
			errs <- func() error {
				s, err := Open(s.dir)
				if err != nil {
					return err
				}
				holder := string(rune('a' + w))
				for range rounds {
					img, err := s.Import(t.Context(), "shared", bytes.NewReader(data),
						Config{})
					if err != nil {
						return err
					}
					switch err := s.Hold(holder, img); {
					case errors.Is(err, fs.ErrNotExist): // removed and collected by another
						continue
					case err != nil:
						return err
					}
					if err := s.Remove("shared"); err != nil && !errors.Is(err, fs.ErrNotExist) {
						return err
					}
					if err := s.Collect(t.Context()); err != nil {
						return err
					}
					if _, err := os.ReadFile(filepath.Join(img.Layers[0], "b/y")); err != nil {
						return err
					}
					if err := s.Release(holder); err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range workers {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if err := s.Remove("shared"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	collect(t, s)
	wantCounts(t, s, [4]int{})
}

func TestOnceEach(t *testing.T) {
	got := onceEach([]string{"a", "b", "a", "c", "b"})
	if want := []string{"a", "c", "b"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
