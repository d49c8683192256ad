package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/oci/store"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/signals"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// busybox is an image that the tests make: one static program and its links.
const busybox = "test/busybox:latest"

// shared is made once for all tests.
var shared struct {
	dir   string
	guest func() (string, error)
	files func() ([]byte, error) // tar file of busybox
}

func TestMain(m *testing.M) {
	if os.Getenv(entering) != "" {
		reportEnter()
	}
	signals.DefaultForChildren()
	if name := os.Getenv(onlyRuntime); name != "" {
		runtimeNames = []string{name}
	}
	dir, err := os.MkdirTemp("", "sandboxd-oci-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	shared.dir = dir
	shared.guest = sync.OnceValues(func() (string, error) { return sandboxtest.BuildGuest(dir) })
	shared.files = sync.OnceValues(busyboxFiles)
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

// busyboxFiles returns the files of the image busybox.
func busyboxFiles() ([]byte, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return nil, fmt.Errorf("%w; scripts/setup test installs it", err)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	list, err := exec.Command(path, "--list").Output()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(h tar.Header, text []byte) {
		if h.Size = int64(len(text)); h.Mode == 0 {
			h.Mode = 0o755
		}
		if err == nil {
			err = w.WriteHeader(&h)
		}
		if err == nil {
			_, err = w.Write(text)
		}
	}
	for _, dir := range []string{"bin/", "etc/", "root/", "proc/", "sys/", "dev/", "home/"} {
		add(tar.Header{Name: dir, Typeflag: tar.TypeDir}, nil)
	}
	add(tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, nil)
	add(tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg}, program)
	for _, name := range strings.Fields(string(list)) {
		if name != "busybox" {
			add(tar.Header{Name: "bin/" + name, Typeflag: tar.TypeSymlink,
				Linkname: "busybox"}, nil)
		}
	}
	add(tar.Header{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644},
		[]byte("root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home:/bin/sh\n"))
	add(tar.Header{Name: "etc/group", Typeflag: tar.TypeReg, Mode: 0o644},
		[]byte("root:x:0:\nann:x:1000:\n"))
	if err != nil {
		return nil, err
	}
	return out.Bytes(), w.Close()
}

// testBackend returns a backend whose sandboxes end with the test.
func testBackend(t testing.TB, change ...func(*Options)) *Backend {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("containers without an engine take root")
	}
	dir := t.TempDir()
	// Longer than the address of a socket may be.
	o := Options{Dir: filepath.Join(dir, strings.Repeat("long", 30), "instances"),
		Images: filepath.Join(dir, "images"), GuestDir: filepath.Join(dir, "guest"),
		DaemonID: newRef(), Guest: func(string) (string, error) { return shared.guest() }}
	for _, f := range change {
		f(&o)
	}
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	files, err := shared.files()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.images.Image(busybox); err != nil {
		config := v1.ImageConfig{Cmd: []string{"sh"}, Env: []string{"PATH=/bin"}}
		if _, err := b.images.Import(t.Context(), busybox, bytes.NewReader(files),
			store.Config{ImageConfig: config}); err != nil {
			t.Fatal(err)
		}
	}
	// Not counted as boot time: a first build may take minutes.
	if _, err := shared.guest(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		list, err := b.List(ctx)
		if err != nil {
			t.Error(err)
		}
		for _, inst := range list {
			if err := b.Destroy(ctx, inst); err != nil {
				t.Error(err)
			}
		}
		b.Close()
		if left, err := os.ReadDir(b.opts.Dir); err != nil || len(left) > 1 {
			t.Errorf("left in the state directory: %v, %v", left, err)
		}
		if left, err := os.ReadDir(b.runtime.root); err == nil && len(left) > 0 {
			t.Errorf("left of the runtime: %v", left)
		}
	})
	return b
}

func newID() string { return "t" + newRef()[:16] }

// boot boots a sandbox of busybox.
func boot(t testing.TB, b *Backend, spec sandbox.Spec) sandbox.Instance {
	t.Helper()
	spec.ID, spec.Image = newID(), busybox
	inst, err := b.Boot(t.Context(), spec)
	if err != nil {
		t.Fatalf("boot: %v", err)
	}
	return inst
}

func login(t testing.TB, b *Backend, inst sandbox.Instance) *ssh.Client {
	t.Helper()
	peer, err := b.Dial(t.Context(), inst)
	if err != nil {
		t.Fatal(err)
	}
	return sandboxtest.Login(t, peer)
}

// sh runs a command and returns its output.
func sh(t testing.TB, c *ssh.Client, command string) string {
	t.Helper()
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	out, err := s.CombinedOutput(command)
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestContract(t *testing.T) {
	sandboxtest.Run(t, sandboxtest.Suite{
		Open:    func(t *testing.T) sandbox.Backend { return testBackend(t) },
		Spec:    sandbox.Spec{Image: busybox},
		NoImage: "registry.invalid/none:latest",
		Refused: []sandbox.Network{sandbox.NetworkBridge},
	})
}

// The files of a sandbox outlive a stop, and a second daemon reaches a sandbox that the first made.
func TestDaemons(t *testing.T) {
	first := testBackend(t)
	inst := boot(t, first, sandbox.Spec{})
	sh(t, login(t, first, inst), "echo kept > /root/file; sync")
	first.sockets.Close()
	second, err := New(first.opts)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	list, err := second.List(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != inst.ID || list[0].Ref != inst.Ref {
		t.Fatalf("got %+v, %v; want %+v", list, err, inst)
	}
	if got := sh(t, login(t, second, inst), "cat /root/file"); got != "kept" {
		t.Errorf("got %q", got)
	}
	if err := second.Stop(t.Context(), inst, time.Second); err != nil {
		t.Fatal(err)
	}
	if s, err := second.Inspect(t.Context(), inst); err != nil || s.Running {
		t.Errorf("after stop: %+v, %v", s, err)
	}
	if _, err := second.Start(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, login(t, second, inst), "cat /root/file"); got != "kept" {
		t.Errorf("after start: got %q", got)
	}
	p, err := second.first(inst)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := p.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s, err := second.Inspect(t.Context(), inst); err != nil || s.Running || s.ExitCode != 137 {
		t.Errorf("killed: %+v, %v; want exit code 137", s, err)
	}
	if _, err := second.Start(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), first.opts.Dir) {
		t.Errorf("mounts are left while a sandbox runs, or %v", err)
	}
	if err := second.Destroy(t.Context(), inst); err != nil {
		t.Error(err)
	}
	if _, err := second.Inspect(t.Context(), inst); err == nil {
		t.Error("after destroy: no error")
	}
	if _, err := os.Stat(second.state.Dir(inst.ID)); err == nil || !os.IsNotExist(err) {
		t.Errorf("its directory: %v, want %v", err, fs.ErrNotExist)
	}
}

// Stop of a sandbox that was killed leaves what Stop of any other does.
func TestStopAfterKill(t *testing.T) {
	b := testBackend(t)
	inst := boot(t, b, sandbox.Spec{})
	if err := b.kill(t.Context(), inst.ID); err != nil {
		t.Fatal(err)
	}
	if s, err := b.Inspect(t.Context(), inst); err != nil || s.ExitCode != exitKilled {
		t.Errorf("after the kill: got %+v, %v", s, err)
	}
	for range 2 {
		if err := b.Stop(t.Context(), inst, time.Second); err != nil {
			t.Fatal(err)
		}
		if s, err := b.Inspect(t.Context(), inst); err != nil || s.Running || s.ExitCode != 0 {
			t.Errorf("after Stop: got %+v, %v", s, err)
		}
		if b.sockets.IsOpen(inst.ID) {
			t.Error("a socket is left")
		}
	}
}

// What an instance and its fork image alone had is free when they are removed.
func TestDestroyFreesLayers(t *testing.T) {
	b := testBackend(t)
	layers := func() int {
		t.Helper()
		all, err := os.ReadDir(filepath.Join(b.opts.Images, "layers"))
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	before := layers()
	inst := boot(t, b, sandbox.Spec{})
	sh(t, login(t, b, inst), "echo text >/file")
	id := newID()
	image, err := b.Fork(t.Context(), inst, id)
	if err != nil {
		t.Fatal(err)
	}
	fork, err := b.Boot(t.Context(), sandbox.Spec{ID: id, Image: image})
	if err != nil {
		t.Fatal(err)
	}
	if layers() != before+1 {
		t.Errorf("%d layers with a fork, %d before", layers(), before)
	}
	if n, err := b.Kept(t.Context(), "", []string{id}); err != nil || n == 0 {
		t.Errorf("a fork image keeps %d bytes, %v", n, err)
	}
	for _, inst := range []sandbox.Instance{inst, fork} {
		if err := b.Destroy(t.Context(), inst); err != nil {
			t.Fatal(err)
		}
	}
	if layers() != before {
		t.Errorf("%d layers are left, %d before", layers(), before)
	}
	holds, err := os.ReadDir(filepath.Join(b.opts.Images, "holds"))
	if err != nil || len(holds) > 0 {
		t.Errorf("holds are left: %v, %v", holds, err)
	}
}

// A sandbox whose boot a killed daemon did not complete is removed, one that is being made is not.
func TestListRemovesHalves(t *testing.T) {
	b := testBackend(t)
	inst := boot(t, b, sandbox.Spec{})
	p, err := b.first(inst)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(b.state.NotePath(inst.ID)); err != nil {
		t.Fatal(err)
	}
	unlock, err := b.Lock(t.Context(), inst.ID)
	if err != nil {
		t.Fatal(err)
	}
	if list, err := b.List(t.Context()); err != nil || len(list) > 0 || !p.runs() {
		t.Errorf("while it changes: %v, %v, runs: %v", list, err, p.runs())
	}
	unlock()
	if list, err := b.List(t.Context()); err != nil || len(list) > 0 || p.runs() {
		t.Errorf("afterwards: %v, %v, runs: %v", list, err, p.runs())
	}
	if _, err := os.Stat(b.state.Dir(inst.ID)); !os.IsNotExist(err) {
		t.Errorf("its directory: %v", err)
	}
}

// Directories inside each other by the thousand are removed like others, and make no image.
func TestDeepDirectories(t *testing.T) {
	b := testBackend(t)
	inst := boot(t, b, sandbox.Spec{})
	sh(t, login(t, b, inst), "i=0; while [ $i -lt 3000 ]; do mkdir a; cd a; i=$((i+1)); done")
	if _, err := b.Fork(t.Context(), inst, newID()); err == nil ||
		!strings.Contains(err.Error(), "directories inside each other") || len(err.Error()) > 1000 {
		t.Errorf("fork: error %v", err)
	}
	if got := sh(t, login(t, b, inst), "echo here"); got != "here" {
		t.Errorf("after a failed fork: %q", got)
	}
	if err := b.Destroy(t.Context(), inst); err != nil {
		t.Error(err)
	}
}
