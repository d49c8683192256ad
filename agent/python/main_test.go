package python_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/python"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/docker"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/signals"
)

// world is the local container engine and a sandbox with Python, which tests share. Each test uses
// its own context.
var world struct {
	dir     string
	backend *docker.Backend
	missing string // why there is no engine or image

	mu     sync.Mutex
	shared *sandbox.Instance // guarded by mu
	made   []sandbox.Instance
}

const pythonImage = "sandboxd/python:latest"

func TestMain(m *testing.M) {
	signals.DefaultForChildren()
	if err := open(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	for _, inst := range world.made {
		if err := world.backend.Destroy(context.Background(), inst); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if world.backend != nil {
		world.backend.Close()
	}
	os.RemoveAll(world.dir)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func open() (err error) {
	if out, err := exec.Command("docker", "image", "inspect", "--format", "{{.ID}}",
		pythonImage).CombinedOutput(); err != nil {
		world.missing = fmt.Sprintf("no engine with %s: scripts/setup test\n%s", pythonImage, out)
		return nil //nolint:nilerr // needPython reports it in each test
	}
	if world.dir, err = os.MkdirTemp("", "sandboxd-python-test-"); err != nil {
		return err
	}
	guest := sync.OnceValues(func() (string, error) {
		return sandboxtest.BuildGuest(world.dir)
	})
	world.backend, err = docker.New(
		docker.Options{
			Host:     os.Getenv("SANDBOXD_TEST_ENGINE"),
			Dir:      filepath.Join(world.dir, "instances"),
			GuestDir: filepath.Join(world.dir, "guest"),
			DaemonID: newID(),
			Guest:    func(string) (string, error) { return guest() },
		},
	)
	return err
}

func newID() string {
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func needPython(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("an engine is not for short tests")
	}
	if world.missing == "" {
		return
	}
	if os.Getenv("CI") == "true" || os.Getenv("SANDBOXD_TEST_REQUIRE") == "1" {
		t.Fatal(world.missing)
	}
	t.Skip(world.missing)
}

// patience bounds a wait, so that a test that waits in vain reports where.
const patience = 90 * time.Second

func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeoutCause(
		t.Context(),
		patience,
		errors.New("the test has waited too long"),
	)
	t.Cleanup(cancel)
	return ctx
}

// boot boots a sandbox without a network.
func boot(t testing.TB, image string) sandbox.Instance {
	t.Helper()
	inst, err := world.backend.Boot(
		bounded(t),
		sandbox.Spec{ID: newID(), Name: "box", Image: image, Network: sandbox.NetworkNone},
	)
	if err != nil {
		t.Fatal(err)
	}
	world.mu.Lock()
	world.made = append(world.made, inst)
	world.mu.Unlock()
	return inst
}

// dial returns a client of a sandbox.
func dial(t testing.TB, inst sandbox.Instance) *agent.Client {
	t.Helper()
	c := agent.NewClient("box", nil, func(ctx context.Context) (*connect.Conn, error) {
		peer, err := world.backend.Dial(ctx, inst)
		if err != nil {
			return nil, err
		}
		return connect.SSH(ctx, peer)
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// sharedClient returns a client of the shared sandbox.
func sharedClient(t testing.TB) *agent.Client {
	t.Helper()
	needPython(t)
	world.mu.Lock()
	have := world.shared
	world.mu.Unlock()
	if have == nil {
		inst := boot(t, pythonImage)
		have = &inst
		world.mu.Lock()
		world.shared = have
		world.mu.Unlock()
	}
	return dial(t, *have)
}

// interpreter opens the Python of a sandbox.
func interpreter(t testing.TB, c *agent.Client, o python.Options) *python.Interpreter {
	t.Helper()
	in, err := python.Open(bounded(t), c, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	return in
}

// fresh returns a new context of the shared sandbox for the test.
func fresh(t testing.TB, o python.Options) *python.Context {
	t.Helper()
	in := interpreter(t, sharedClient(t), o)
	c, err := in.Context(bounded(t), "t"+newID())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return c
}

// execute runs code and returns its Result.
func execute(t testing.TB, c *python.Context, code string) python.Result {
	t.Helper()
	res, err := c.Execute(bounded(t), python.Call{Code: code})
	if err != nil {
		t.Fatal(err)
	}
	return res
}
