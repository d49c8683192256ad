package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
)

// making runs sandboxd new with args until happens, and expects it to run until the daemon ends.
func (m *machine) making(what string, happens func() bool, args ...string) {
	m.t.Helper()
	cmd := m.command(append([]string{"new"}, args...)...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // its daemon goes
	}()
	m.eventually(what, func() bool {
		select {
		case <-ended:
			return true
		default:
			return happens()
		}
	})
	m.kill()
	select {
	case <-ended:
	case <-time.After(patience):
		_ = cmd.Process.Kill()
		m.t.Fatalf("sandboxd new outlives its daemon by %v", patience)
	}
	m.t.Logf("killed when %s: %s", what, said.String())
}

// left returns the images of this machine's builds that have no name, and that no other image
// uses.
func (m *machine) left() []string {
	m.t.Helper()
	id, err := os.ReadFile(filepath.Join(m.state, "daemon_id"))
	if err != nil {
		m.t.Fatal(err)
	}
	made := "label=sandboxd.made=" + strings.TrimSpace(string(id))
	return m.engine("images", "-q", "--filter", "dangling=true", "--filter", made)
}

// sleeps reports whether a sandbox runs sleep 1000.
func (m *machine) sleeps() bool {
	for _, id := range m.containers() {
		if top, err := exec.Command("docker", "top", id).Output(); err == nil &&
			strings.Contains(string(top), "sleep 1000") {
			return true
		}
	}
	return false
}

// containers returns the containers of sandboxes.
func (m *machine) containers() []string {
	m.t.Helper()
	id, err := os.ReadFile(filepath.Join(m.state, "daemon_id"))
	if err != nil {
		m.t.Fatal(err)
	}
	return m.engine("ps", "-q", "--filter", "label=sandboxd.daemon="+strings.TrimSpace(string(id)))
}

// R5: kill -9 of the daemon during a build or a setup leaves no container, no sandbox and no
// unnamed image, and the same sandbox can be created afterwards.
func TestR5KilledWhileMaking(t *testing.T) {
	m := newMachine(t)
	m.start()
	app := filepath.Join(m.dir, "app")
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(app, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(app, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		id, err := os.ReadFile(filepath.Join(m.state, "daemon_id"))
		if err != nil {
			t.Fatal(err)
		}
		removeMade(strings.TrimSpace(string(id)))
	})
	const begun, whole = "FROM sandboxd/busybox:latest\nCOPY data /data\nRUN echo one >/one\n",
		"RUN sleep 0.3; echo two >/two\nRUN sleep 0.3; echo three >/three\n"
	nothing := func(when string) {
		t.Helper()
		// the engine may still create one: the daemon looks for it, and its sandbox is being
		// deleted until then
		m.nothingElse(false)
		for name, info := range m.list() {
			if info.State != lifecycle.Deleting {
				t.Errorf("%s: there is a sandbox: %s, %s", when, name, info.State)
			}
		}
		m.eventually(when+": nothing of a build is left", func() bool {
			return len(m.left()) == 0
		})
	}
	makes := func(when string, args ...string) {
		t.Helper()
		if out, err := m.command(append([]string{"new"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", when, err, out)
		}
		m.control("rm -f " + args[0])
	}

	for _, network := range []string{"none", "filtered"} {
		write("data", fmt.Sprint(time.Now().UnixNano()))
		write("Dockerfile", begun+"RUN echo now; sleep 1000\n")
		args := []string{"in-" + network, "--dockerfile", app, "--network", network}
		m.making("a step of the build runs", m.sleeps, args...)
		m.start()
		nothing("killed in a step, network " + network)
		write("Dockerfile", begun+whole)
		makes("after a kill in a step, network "+network, args...)
	}

	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	for round := range times(t, "SANDBOXD_TEST_KILLS", 4) {
		write("data", fmt.Sprint(time.Now().UnixNano()))
		at := time.Now().Add(time.Duration(random.Int64N(int64(2500 * time.Millisecond))))
		// only of this round: those of earlier rounds may still be looked for
		name := fmt.Sprint("round", round)
		m.making("a while is over", func() bool {
			return time.Now().After(at)
		}, name, "--dockerfile", app, "--network", "filtered")
		m.start()
		m.settled(false)
		// it exists already
		if made, there := m.list()[name]; there && made.State != lifecycle.Deleting {
			m.control("rm -f " + name)
		}
		nothing(fmt.Sprintf("killed at random, round %d", round))
	}
	makes("after all", "last", "--dockerfile", app)

	// A setup: its sandbox is removed, and another one is set up.
	write("data", "")
	setup := func(command string) []string {
		write(".sandboxd.yaml",
			"image: sandboxd/busybox:latest\nnetwork: none\nsetup: "+command+"\n")
		return []string{"run", "--dir", app, "--timeout", "60s", "--", "cat /set"}
	}
	cmd := m.command(setup("echo now >/set; sleep 1000")...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	m.eventually("the setup runs", m.sleeps)
	m.kill()
	_ = cmd.Wait() // its daemon has gone
	m.start()
	nothing("killed in a setup")
	if out, err := m.command(setup("echo then >/set")...).CombinedOutput(); err != nil ||
		!strings.Contains(string(out), "then") {
		t.Errorf("after a kill in a setup: %v: %s", err, out)
	}
}
