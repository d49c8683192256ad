package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
)

// A sandbox with a requested runtime never gets another one: with new, use of a new name, fork,
// start, a login to a stopped sandbox, the pool, or a Dockerfile. The engine loses the runtime in
// between.
func TestIsolationIsNeverAnother(t *testing.T) {
	runc, err := exec.LookPath("runc")
	if err != nil {
		if os.Getenv("SANDBOXD_TEST_REQUIRE") != "" {
			t.Fatalf("scripts/setup installs runc: %v", err)
		}
		t.Skipf("needs runc, for a runtime of another name: %v", err)
	}
	d := newDockerd(t, "--add-runtime", "crun="+runc)
	m := newMachine(t)
	m.docker = d.host()
	m.env = []string{"SANDBOXD_ISOLATION=crun", "SANDBOXD_POOL_SIZE=1",
		"SANDBOXD_IMAGE=sandboxd/busybox:latest", "SANDBOXD_NETWORK=none"}
	m.start()
	pooled := func(want string) {
		t.Helper()
		m.eventually("the pool says "+want, func() bool {
			return strings.Contains(m.control("pool --json"), want)
		})
	}
	runtimes := func(want string) {
		t.Helper()
		for _, id := range m.engine("ps", "-aq") {
			if got := m.engine("inspect", "-f", "{{.HostConfig.Runtime}}", id); len(got) != 1 ||
				got[0] != want {
				t.Errorf("a container has runtime %v, want %s", got, want)
			}
		}
	}
	pooled(`"ready":1`)
	m.control("new claimed")
	m.control("new --memory 64m booted")
	m.control("fork booted forked")
	m.control("stop booted")
	runtimes("crun")
	app := filepath.Join(m.dir, "app")
	if err := os.Mkdir(app, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(app, "Dockerfile"),
		[]byte("FROM sandboxd/busybox\nRUN echo ran\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	d.end(syscall.SIGTERM) // with what runs in it
	d.start()
	m.end(syscall.SIGTERM)
	m.start()
	refused := func(user, command string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		c, err := m.client(ctx, user)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if s, err := ask(ctx, c, command); err == nil &&
			(s.code == 0 || !strings.Contains(s.err, "crun")) {
			t.Errorf("%s, as %s: %+v, want an error that names the runtime", command, user, s)
		}
	}
	refused("sandboxd", "new other")
	refused("sandboxd", "new --isolation crun other")
	refused("sandboxd", "run -n fresh true")
	refused("sandboxd", "fork forked again")
	refused("sandboxd", "start booted")
	refused("claimed", "true")
	refused("sandboxd", "new --dockerfile "+app+" built")
	pooled(`isolation \"crun\": not supported by this backend`)
	for name, info := range m.list() {
		if info.State == lifecycle.Running {
			t.Errorf("%s runs", name)
		}
	}
	if running := m.engine("ps", "-q"); len(running) > 0 {
		t.Errorf("containers run: %v", running)
	}
	// A request for another runtime by name gets it.
	m.control("new --isolation runc plain")
	if got := m.describe("plain").Isolation; got != "runc" {
		t.Errorf("plain has isolation %q", got)
	}
}
