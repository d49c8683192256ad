package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// machine is a state directory and the daemon that fault tests run on it, kill and run again. The
// daemon is built without the race detector: the tests measure its time.
type machine struct {
	t      *testing.T
	dir    string // of the test
	state  string
	docker string // DOCKER_HOST; empty is the usual one
	env    []string
	hosts  string // file that the daemon sees as /etc/hosts; empty: this machine's

	at    endpoint
	cmd   *exec.Cmd
	ended chan struct{} // closed when cmd has
}

// patience is the longest time that a test waits for an expected event.
const patience = 90 * time.Second

// product builds sandboxd once.
var product = sync.OnceValues(func() (string, error) {
	path := filepath.Join(guestBinaries, "sandboxd")
	build := exec.Command("go", "build", "-trimpath", "-o", path, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build sandboxd: %w: %s", err, out)
	}
	return path, nil
})

// newMachine returns a machine without a daemon. The end of the test removes what its daemons
// created.
func newMachine(t *testing.T) *machine {
	t.Helper()
	requireEngine(t)
	if _, err := product(); err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, dir: t.TempDir(), docker: os.Getenv("DOCKER_HOST")}
	m.state = filepath.Join(m.dir, "state")
	t.Cleanup(m.cleanUp)
	return m
}

// times returns how often a fault test repeats: as set in the environment, or less, to fit with all
// other tests.
func times(t *testing.T, variable string, few int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return few
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is no number", variable, text)
	}
	return n
}

func (m *machine) ctx() context.Context {
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	m.t.Cleanup(cancel)
	return ctx
}

// command returns a sandboxd command in the machine's environment.
func (m *machine) command(args ...string) *exec.Cmd {
	path, err := product()
	if err != nil {
		m.t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = m.dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + m.dir, "SANDBOXD_STATE=" +
		m.state, "SANDBOXD_GUEST_DIR=" + guestBinaries,
		"DOCKER_HOST=" + m.docker}, m.env...)
	return cmd
}

// start starts a daemon at the address of the previous one, and waits until clients can connect.
func (m *machine) start(args ...string) {
	m.t.Helper()
	if err := m.tryStart(args...); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) tryStart(args ...string) error {
	m.cmd = m.command(append([]string{"serve", "--json", "--ssh", cmp.Or(m.at.SSH, "127.0.0.1:0")},
		args...)...)
	if m.hosts != "" {
		m.cmd.Path, m.cmd.Args = "/usr/bin/unshare", slices.Concat([]string{"unshare", "-m", "sh",
			"-c", `mount --bind "$1" /etc/hosts && shift && exec "$@"`, "sh", m.hosts,
			m.cmd.Path}, m.cmd.Args[1:])
	}
	log, err := os.OpenFile(m.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	m.cmd.Stderr = log
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := m.cmd.Start(); err != nil {
		return err
	}
	cmd, ended := m.cmd, make(chan struct{})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	m.ended = ended
	go func() {
		defer close(ended)
		_ = cmd.Wait() // by a signal, mostly
	}()
	if err != nil {
		<-ended
		text, _ := os.ReadFile(m.log())
		return fmt.Errorf("the daemon ended: %s", text[max(0, len(text)-2000):])
	}
	var failed struct{ Error *wire.Error }
	if err := json.Unmarshal(line, &failed); err != nil || failed.Error != nil {
		<-ended
		return cmp.Or(err, error(failed.Error))
	}
	return json.Unmarshal(line, &m.at)
}

func (m *machine) log() string { return filepath.Join(m.dir, "daemon.log") }

// end sends a signal to the daemon and waits for its end.
func (m *machine) end(sig syscall.Signal) {
	m.t.Helper()
	if err := m.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		m.t.Fatal(err)
	}
	select {
	case <-m.ended:
	case <-time.After(patience):
		m.t.Fatalf("the daemon does not end by %v", sig)
	}
}

func (m *machine) kill() { m.t.Helper(); m.end(syscall.SIGKILL) }

// running reports whether the daemon runs.
func (m *machine) running() bool {
	if m.ended == nil {
		return false
	}
	select {
	case <-m.ended:
		return false
	default:
		return true
	}
}

// cleanUp removes everything that was created.
func (m *machine) cleanUp() {
	if m.t.Failed() {
		text, _ := os.ReadFile(m.log())
		m.t.Logf("the daemon's log ends:\n%s", text[max(0, len(text)-6000):])
	}
	if m.at.SSH == "" {
		return
	}
	if !m.running() {
		if err := m.tryStart(); err != nil {
			m.t.Errorf("clean up: %v", err)
		}
	}
	if out, err := m.command("rm", "--force", "--discard", "--all").CombinedOutput(); err != nil &&
		!strings.Contains(string(out), "name the sandboxes") {
		m.t.Errorf("clean up: %v: %s", err, out)
	}
	if m.running() {
		m.end(syscall.SIGTERM)
	}
	m.at = endpoint{}
}

// client logs in as a user.
func (m *machine) client(ctx context.Context, user string) (*agent.Client, error) {
	return agent.Dial(ctx, "ssh://"+user+"@"+m.at.SSH,
		agent.Options{Kind: agent.KindGateway, State: m.state,
			KnownHosts: []string{m.at.KnownHosts}, Identity: m.at.Identity, DialTimeout: patience})
}

// said is the output and the exit code of a command.
type said struct {
	code     int
	out, err string
}

// ask runs a command. It returns an error only for the connection.
func ask(ctx context.Context, c *agent.Client, command string) (said, error) {
	var out, errs bytes.Buffer
	exit, err := c.Exec(ctx, agent.Cmd{Command: command, Stdout: &out, Stderr: &errs})
	return said{exit.Code, out.String(), errs.String()}, err
}

// control runs a command, which must succeed.
func (m *machine) control(command string) string {
	m.t.Helper()
	c, err := m.client(m.ctx(), "sandboxd")
	if err != nil {
		m.t.Fatal(err)
	}
	defer c.Close()
	s, err := ask(m.ctx(), c, command)
	if err != nil || s.code != 0 {
		m.t.Fatalf("%s: %v, %+v", command, err, s)
	}
	return s.out
}

// begins starts an endless script in the session main of a sandbox.
func (m *machine) begins(name, script string) {
	m.t.Helper()
	c, err := m.client(m.ctx(), "sandboxd")
	if err != nil {
		m.t.Fatal(err)
	}
	defer c.Close()
	if s, err := ask(m.ctx(), c, text.Quote("run", "-n", name, "--timeout", "500ms", "--",
		script)); err != nil || s.code != wire.ExitDeadline {
		m.t.Fatalf("%s: %v, %+v", script, err, s)
	}
}

// shell runs a command in a sandbox, without a terminal. It must succeed.
func (m *machine) shell(name, command string) string {
	m.t.Helper()
	c, err := m.client(m.ctx(), name)
	if err != nil {
		m.t.Fatal(err)
	}
	defer c.Close()
	s, err := ask(m.ctx(), c, command)
	if err != nil || s.code != 0 {
		m.t.Fatalf("%s: %s: %v, %+v", name, command, err, s)
	}
	return s.out
}

// list returns the sandboxes by name.
func (m *machine) list() map[string]lifecycle.Info {
	m.t.Helper()
	all := make(map[string]lifecycle.Info)
	for _, line := range strings.Split(strings.TrimSpace(m.control("ls --json")), "\n") {
		if line == "" {
			continue
		}
		var info lifecycle.Info
		if err := json.Unmarshal([]byte(line), &info); err != nil {
			m.t.Fatal(err)
		}
		all[info.Name] = info
	}
	return all
}

// describe returns the JSON of describe.
func (m *machine) describe(name string) lifecycle.Description {
	m.t.Helper()
	var d lifecycle.Description
	if err := json.Unmarshal([]byte(m.control("describe --json "+name)), &d); err != nil {
		m.t.Fatal(err)
	}
	return d
}

// eventually polls until a condition holds.
func (m *machine) eventually(what string, f func() bool) {
	m.t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		if time.Now().After(deadline) {
			m.t.Fatalf("it never came to this: %s", what)
		}
		<-tick.C
	}
}

// engine runs docker on the machine's engine, and returns the lines of its output.
func (m *machine) engine(args ...string) []string {
	m.t.Helper()
	cmd := exec.Command("docker", args...)
	cmd.Env = append(os.Environ(), "DOCKER_HOST="+m.docker)
	out, err := cmd.Output()
	if err != nil {
		m.t.Fatalf("docker %v: %v", args, err)
	}
	return strings.Fields(string(out))
}

// interrupted is the reason of a sandbox whose creation a crash ended. The daemon looks for it for
// a while, because the engine may still create it.
const interrupted = "its creation was interrupted"

// settled waits until no sandbox is being created or removed, apart from interrupted ones.
func (m *machine) settled(thorough bool) {
	m.t.Helper()
	m.eventually("no creation or removal is under way", func() bool {
		for _, info := range m.list() {
			if info.State == lifecycle.Creating || info.State == lifecycle.Deleting &&
				(thorough || info.Reason != interrupted) {
				return false
			}
		}
		return true
	})
}

// nothingElse fails the test if a container, directory or image of this daemon belongs to none of
// its sandboxes. Unless thorough, it does not wait for the end of interrupted creations.
func (m *machine) nothingElse(thorough bool) {
	m.t.Helper()
	m.settled(thorough)
	var ids, late []string
	for _, info := range m.list() {
		if ids = append(ids, info.ID); info.State == lifecycle.Deleting {
			late = append(late, info.ID)
		}
	}
	slices.Sort(ids)
	id, err := os.ReadFile(filepath.Join(m.state, "daemon_id"))
	if err != nil {
		m.t.Fatal(err)
	}
	containers := m.engine("ps", "-a", "--filter",
		"label=sandboxd.daemon="+strings.TrimSpace(string(id)), "--format",
		`{{.Label "sandboxd.id"}}`)
	missing := slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		return slices.Contains(containers, id) || slices.Contains(late, id)
	})
	if len(missing) > 0 || slices.ContainsFunc(containers,
		func(id string) bool { return !slices.Contains(ids, id) }) {
		m.t.Errorf("containers %v, sandboxes %v", containers, ids)
	}
	// The daemon asks the engine for a file, and removes it then.
	m.eventually("no file for the engine is left", func() bool {
		seen, err := filepath.Glob(filepath.Join(m.state, "instances", ".seen-*"))
		return err == nil && len(seen) == 0
	})
	for _, dir := range []string{"instances", "records"} {
		entries, err := os.ReadDir(filepath.Join(m.state, dir))
		if err != nil {
			m.t.Fatal(err)
		}
		for _, e := range entries {
			if !slices.Contains(ids, e.Name()) {
				m.t.Errorf("%s of no sandbox: %s", dir, e.Name())
			}
		}
	}
	for _, image := range m.engine("images", "sandboxd-fork/*", "--format", "{{.Repository}}") {
		if of := strings.TrimPrefix(image, "sandboxd-fork/"); m.had(of) &&
			!slices.Contains(ids, of) {
			m.t.Errorf("image of no fork: %s", image)
		}
	}
}

// had tells the IDs of this machine's sandboxes from those of others on the same engine.
func (m *machine) had(id string) bool {
	text, err := os.ReadFile(m.log())
	return err == nil && bytes.Contains(text, []byte(id))
}
