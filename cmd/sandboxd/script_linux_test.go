package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sandboxd/sandboxd/agent/task/modeltest"
	"github.com/sandboxd/sandboxd/sandbox/oci"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/shortdir"
	"github.com/sandboxd/sandboxd/sandbox/signals"
)

// guestBinaries is the directory of the guest binaries for the tests. TestMain builds them.
var guestBinaries string

// stories is the number of stories that run at the same time. With more on two processors, the
// stories exceed their own time limits.
const stories = "4"

func TestMain(m *testing.M) {
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	// not in a sandboxd that a script or a container runs
	if os.Getenv("SANDBOXD_TEST_GUESTS") == "" && filepath.Base(os.Args[0]) != "sandboxd" &&
		filepath.Base(os.Args[0]) != "model" {
		// Stories mostly wait. A -parallel on the command line overrides this: it is read later.
		if err := flag.Set("test.parallel", stories); err != nil {
			panic(err)
		}
		// stories and machines have sockets below their directories
		os.Setenv("TMPDIR", shortdir.Parent())
		signals.DefaultForChildren() // not in sandboxd, whose own behavior is tested
		dir, err := os.MkdirTemp("", "sandboxd-guests-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		guest, err := sandboxtest.BuildGuest(dir)
		if err == nil {
			err = os.Symlink(guest, filepath.Join(dir, "sandboxd-guest-linux-amd64"))
		}
		if err != nil {
			panic(err)
		}
		guestBinaries = dir
		os.Setenv("SANDBOXD_TEST_GUESTS", dir)
	}
	testscript.Main(m, map[string]func(){
		"sandboxd": func() { os.Exit(run()) },
		"model":    func() { os.Exit(modeltest.Main()) },
	})
	return 0
}

// TestScripts runs the stories in testdata/script with the real binary, ssh and engine. Each has
// its own state directory, home and daemon, and is cleaned up afterwards.
func TestScripts(t *testing.T) {
	p := story(t)
	p.Dir = "testdata/script"
	testscript.Run(t, p)
}

// machineVariables are taken from this machine. With SANDBOXD_BACKEND=oci, stories run without an
// engine, also those of an ordinary user, who has a directory of a session; see scripts/stories-oci
// and scripts/rootless.
var machineVariables = []string{"DOCKER_HOST", "GORACE", "SANDBOXD_BACKEND", "SANDBOXD_OCI_IMAGES",
	"XDG_RUNTIME_DIR"}

// story returns what stories run with. Without an engine it skips or fails the test, if the stories
// need one.
func story(t *testing.T) testscript.Params {
	t.Helper()
	if os.Getenv("SANDBOXD_BACKEND") != oci.Name {
		requireEngine(t)
	}
	return testscript.Params{
		Setup: func(e *testscript.Env) error {
			state := filepath.Join(e.WorkDir, "state")
			home := filepath.Join(e.WorkDir, "home")
			if err := os.MkdirAll(filepath.Join(home, ".ssh"), 0o700); err != nil {
				return err
			}
			e.Setenv("HOME", home)
			e.Setenv("XDG_CONFIG_HOME", filepath.Join(home, ".config"))
			e.Setenv("SANDBOXD_STATE", state)
			examples, err := filepath.Abs("../../docs/examples")
			if err != nil {
				return err
			}
			e.Setenv("EXAMPLES", examples)
			e.Setenv("SANDBOXD_GUEST_DIR", guestBinaries)
			e.Setenv("SANDBOXD_SSH", "127.0.0.1:0")
			e.Setenv("SANDBOXD_TEST_GUESTS", guestBinaries)
			e.Setenv("TERM", "xterm-256color")
			for _, name := range machineVariables {
				if v := os.Getenv(name); v != "" {
					e.Setenv(name, v)
				}
			}
			e.Values[reachedKey{}] = new(atomic.Int64)
			e.Defer(func() {
				cleanUp(t, e, state)
				// a story may have mounted a file system there
				_ = syscall.Unmount(state, syscall.MNT_DETACH)
			})
			return nil
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "root":
				return os.Geteuid() == 0, nil
			case "engine":
				return os.Getenv("SANDBOXD_BACKEND") != oci.Name, nil
			case "terminals":
				return makesTerminals()
			}
			return false, fmt.Errorf("no condition %s", name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"closed":     closedCmd,
			"daemon":     daemonCmd,
			"goinstall":  goInstallCmd,
			"kill9":      kill9Cmd,
			"page":       pageCmd,
			"samepixels": samePixelsCmd,
			"sshd":       sshdCmd,
			"terminal":   terminalCmd,
			"tools":      toolsCmd,
			"waitfor":    waitForCmd,
		},
	}
}

// needRoot skips stories that need root. No setup gives that to another user, so
// SANDBOXD_TEST_REQUIRE does not apply.
func needRoot(t *testing.T, what string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skipf("%s takes root", what)
	}
}

func requireEngine(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("an engine is not for short tests")
	}
	if err := exec.Command("docker", "version").Run(); err == nil {
		return
	}
	if os.Getenv("CI") == "true" || os.Getenv("SANDBOXD_TEST_REQUIRE") != "" {
		t.Fatal("no Docker engine answers; scripts/setup test starts one")
	}
	t.Skip("no Docker engine answers; scripts/setup test starts one")
}

// cleanUp removes the sandboxes of a story and stops its daemon, in any state.
func cleanUp(t *testing.T, e *testscript.Env, state string) {
	if _, err := os.Stat(filepath.Join(state, "sandboxd.db")); err != nil {
		return
	}
	sandboxd := func(args ...string) *exec.Cmd {
		cmd := exec.Command("sandboxd", args...)
		cmd.Env = e.Vars
		if path, err := lookIn(e.Getenv("PATH"), "sandboxd"); err == nil {
			cmd.Path, cmd.Err = path, nil
		}
		return cmd
	}
	_ = sandboxd("up").Run()
	if out, err := sandboxd("rm", "--force", "--discard", "--all").CombinedOutput(); err != nil &&
		!strings.Contains(string(out), "name the sandboxes") {
		t.Errorf("clean up: %v: %s", err, out)
	}
	if out, err := sandboxd("pool", "--drain").CombinedOutput(); err != nil {
		t.Errorf("clean up: %v: %s", err, out)
	}
	// Images that were built for sandboxes stay for later ones, and sandboxes of other principals
	// are theirs; here there are none.
	if id, err := os.ReadFile(filepath.Join(state, "daemon_id")); err == nil {
		removeMade(strings.TrimSpace(string(id)))
		defer func() {
			out, _ := exec.Command("docker", "ps", "-aq", "--filter",
				"label=sandboxd.daemon="+strings.TrimSpace(string(id))).Output()
			if ids := strings.Fields(string(out)); len(ids) > 0 {
				_ = exec.Command("docker", append([]string{"rm", "-f"}, ids...)...).Run()
			}
		}()
	}
	if out, err := sandboxd("down").CombinedOutput(); err != nil {
		t.Errorf("clean up: %v: %s", err, out)
	}
}

func lookIn(path, name string) (string, error) {
	for _, dir := range filepath.SplitList(path) {
		if p := filepath.Join(dir, name); exec.Command(p, "version").Run() == nil {
			return p, nil
		}
	}
	return "", os.ErrNotExist
}

// daemonCmd starts a daemon for the story, or another one after kill9, and writes an ssh
// configuration for it: ssh demo@sbx.
//
//	        daemon [FLAGS OF serve]
//		daemon [flags of serve]
func daemonCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("unsupported: ! daemon")
	}
	path, err := lookIn(ts.Getenv("PATH"), "sandboxd")
	ts.Check(err)
	cmd := exec.Command(path, append([]string{"serve", "--json"}, args...)...)
	cmd.Dir = ts.MkAbs(".")
	for _, name := range []string{"PATH", "HOME", "XDG_CONFIG_HOME", "SANDBOXD_STATE",
		"SANDBOXD_GUEST_DIR", "SANDBOXD_SSH", "SANDBOXD_TEST_GUESTS", "DOCKER_HOST",
		"SANDBOXD_BACKEND", "SANDBOXD_OCI_IMAGES", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR"} {
		if v := ts.Getenv(name); v != "" {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	log, err := os.OpenFile(ts.MkAbs("daemon.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	ts.Check(err)
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	log.Close()
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		cmd.Wait()
		ts.Fatalf("the daemon ended: %s", ts.ReadFile("daemon.log"))
	}
	go cmd.Wait() // ended by kill9, down or the clean-up
	var e endpoint
	ts.Check(json.Unmarshal(line, &e))
	ts.Setenv("DAEMON_PID", fmt.Sprint(e.PID))
	g := e.gateway()
	ts.Setenv("PORT", g.Port)
	config := ts.MkAbs("ssh_config")
	ts.Check(os.WriteFile(config,
		[]byte(sshConfigBlock(e.gateway(), nil)+"\tIdentitiesOnly yes\n\tLogLevel ERROR\n"), 0o600))
	ts.Setenv("SSHCONFIG", config)
}

// kill9Cmd kills the story's daemon and waits until it is gone.
func kill9Cmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: kill9")
	}
	var pid int
	_, err := fmt.Sscan(ts.Getenv("DAEMON_PID"), &pid)
	ts.Check(err)
	ts.Check(syscall.Kill(pid, syscall.SIGKILL))
	for range 6000 {
		if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
			return
		}
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // no event reports its end
	}
	ts.Fatalf("daemon %d does not die", pid)
}

// waitForCmd runs a shell command until it succeeds, for at most a minute.
//
//	waitfor COMMAND
func waitForCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: waitfor COMMAND")
	}
	deadline := time.Now().Add(time.Minute)
	for {
		err := ts.Exec("sh", "-c", args[0])
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%s: %v", args[0], err)
		}
		time.Sleep(50 * time.Millisecond) //nolint:forbidigo // waits for another program
	}
}

// removeMade removes the images that a daemon has made for Dockerfiles and setups. An image goes
// with its last name, unless another one is made from it: then it goes with that one.
func removeMade(daemon string) {
	// Those without a name last.
	for _, which := range []string{"{{.Repository}}:{{.Tag}}", "{{.ID}}"} {
		out, _ := exec.Command("docker", "images", "--filter", "label=sandboxd.made="+daemon,
			"--format", which).Output()
		for name := range strings.FieldsSeq(string(out)) {
			if !strings.Contains(name, "<none>") {
				_ = exec.Command("docker", "rmi", "-f", name).Run()
			}
		}
	}
}
