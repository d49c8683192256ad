package docker

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/signals"
)

const (
	busybox = "sandboxd/busybox:latest"
	empty   = "sandboxd/empty:latest"
)

// The tested engine, and the runtime of its sandboxes: the machine's own engine and its default
// unless scripts/engines sets others.
var (
	testEngine    = cmp.Or(os.Getenv("SANDBOXD_TEST_ENGINE"), DefaultHost)
	testIsolation = os.Getenv("SANDBOXD_TEST_ISOLATION")
)

// shared is built at most once for all tests of this package.
var shared struct {
	dir   string // removed at the end
	guest func() (string, error)
}

func TestMain(m *testing.M) {
	signals.DefaultForChildren()
	dir, err := os.MkdirTemp("", "sandboxd-docker-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	shared.dir = dir
	shared.guest = sync.OnceValues(func() (string, error) { return sandboxtest.BuildGuest(dir) })
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

// needEngine skips the test if there is no engine, unless this run must not skip: in CI, or when
// SANDBOXD_TEST_REQUIRE is set.
func needEngine(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("an engine is not for short tests")
	}
	conn, err := net.DialTimeout("unix", strings.TrimPrefix(testEngine, "unix://"), time.Second)
	if err == nil {
		conn.Close()
		return
	}
	if os.Getenv("SANDBOXD_TEST_REQUIRE") != "" || os.Getenv("CI") == "true" {
		t.Fatalf("no Docker engine: %v (scripts/setup test installs one)", err)
	}
	t.Skipf("no Docker engine: %v (scripts/setup test installs one)", err)
}

// needImage builds a test image if it is missing.
func needImage(t *testing.T, b *Backend, ref string) {
	t.Helper()
	if _, err := b.engine.inspectImage(t.Context(), ref); err == nil {
		return
	}
	name := strings.TrimSuffix(strings.TrimPrefix(ref, "sandboxd/"), ":latest")
	build := exec.Command("../../images/" + name + "/build")
	build.Env = append(os.Environ(), "DOCKER_HOST="+testEngine)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build image %s: %v\n%s", ref, err, out)
	}
}

func factsFor(t *testing.T, b *Backend) facts {
	t.Helper()
	f, err := b.engine.facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func newID() string {
	var b [8]byte
	rand.Read(b[:])
	return "t" + hex.EncodeToString(b[:])
}

// testBackend returns a Backend with its own state directory and identity. At the end of the test
// it removes all containers, and fails if there are any that the test did not know of.
func testBackend(t *testing.T, change ...func(*Options)) *Backend {
	t.Helper()
	needEngine(t)
	// Longer than the address of a socket may be.
	o := Options{Host: testEngine, Dir: filepath.Join(t.TempDir(), strings.Repeat("long", 30),
		"instances"), GuestDir: filepath.Join(t.TempDir(), "guest"), DaemonID: newID(),
		Guest: func(string) (string, error) { return shared.guest() }}
	for _, f := range change {
		f(&o)
	}
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	needImage(t, b, busybox)
	// Not counted as boot time: a first build may take minutes.
	if _, err := shared.guest(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		sweep(ctx, t, b)
		if f, err := b.engine.facts(ctx); err == nil && f.remote {
			guest, _, err := b.files.Place(f.arch, sandbox.TrustImage)
			if err == nil { // another test may use it, and remove it then
				_, _ = b.engine.api.VolumeRemove(ctx, guestVolume(guest),
					client.VolumeRemoveOptions{})
			}
		}
		made, err := b.engine.api.ImageList(
			ctx, client.ImageListOptions{Filters: make(client.Filters).Add(
				"label", labelMade+"="+b.opts.DaemonID)})
		if err != nil {
			t.Error(err)
		}
		for _, image := range made.Items {
			removeImage(t, b, image.ID)
		}
		b.Close()
	})
	return b
}

// removeImage removes an image that a test made.
func removeImage(t *testing.T, b *Backend, ref string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := b.engine.removeImage(ctx, ref); err != nil {
		t.Error(err)
	}
}

// sweep destroys the remaining containers of b.
func sweep(ctx context.Context, t *testing.T, b *Backend) {
	left, err := b.List(ctx)
	if err != nil {
		t.Errorf("list what the test left: %v", err)
	}
	for _, inst := range left {
		if err := b.Destroy(ctx, inst); err != nil {
			t.Error(err)
		}
	}
}

func boot(t *testing.T, b *Backend, spec sandbox.Spec) sandbox.Instance {
	t.Helper()
	if spec.ID == "" {
		spec.ID = newID()
	}
	if spec.Image == "" {
		spec.Image = busybox
	}
	spec.Isolation = cmp.Or(spec.Isolation, testIsolation)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	inst, err := b.Boot(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	return inst
}

// login returns an SSH client of a sandbox.
func login(t *testing.T, b *Backend, inst sandbox.Instance) *ssh.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	peer, err := b.Dial(ctx, inst)
	if err != nil {
		t.Fatal(err)
	}
	return sandboxtest.Login(t, peer)
}

// Both run a command in a sandbox.
var sh, mustSh = sandboxtest.Sh, sandboxtest.MustSh

func TestContract(t *testing.T) {
	sandboxtest.Run(t, sandboxtest.Suite{
		Open:    func(t *testing.T) sandbox.Backend { return testBackend(t) },
		Spec:    sandbox.Spec{Image: busybox, Isolation: testIsolation},
		NoImage: "registry.invalid/none:latest",
	})
}
