package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// R10: an error names its cause: the sandbox, the gateway, the network, or a rejected login.
// Programs see it in the code, users in the text and the hint.
func TestR10KindsOfErrors(t *testing.T) {
	m := newMachine(t)
	m.start()
	m.control("new " + small + "gone")
	m.control("new " + small + "dumb")
	boxes := m.list()

	type failure struct {
		code wire.Code
		says string // in message and hint
	}
	// fails runs the command line tool with --json, and compares what it prints.
	fails := func(what string, want failure, exit int, args ...string) {
		t.Helper()
		cmd := m.command(args...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		var ended *exec.ExitError
		if !errors.As(err, &ended) || ended.ExitCode() != exit {
			t.Errorf("%s: %v, want exit code %d: %s%s", what, err, exit, out.String(),
				errs.String())
		}
		var got struct{ Error *wire.Error }
		if err := json.Unmarshal(out.Bytes(), &got); err != nil || got.Error == nil {
			t.Errorf("%s: %v: %s%s", what, err, out.String(), errs.String())
			return
		}
		if text := got.Error.Message + "; " + got.Error.Hint; got.Error.Code != want.code ||
			!strings.Contains(text, want.says) {
			t.Errorf("%s: got %s %q, want %s that says %q", what, got.Error.Code, text, want.code,
				want.says)
		}
	}

	// The sandbox: gone, and one that does not answer.
	m.engine("rm", "-f", "sandboxd-"+boxes["gone"].ID)
	// A look between its end and its removal sees it stopped.
	m.eventually("that is noticed", func() bool {
		return m.list()["gone"].State != lifecycle.Running
	})
	fails("a sandbox that is gone", failure{wire.CodeLost, "sandbox gone is gone"}, 125, "start",
		"--json", "gone")
	signal := func(name string) { m.engine("kill", "--signal", name, "sandboxd-"+boxes["dumb"].ID) }
	signal("STOP") // from outside: processes of the sandbox may not
	t.Cleanup(func() { signal("CONT") })
	m.kill() // with all connections: a live one is closed only after two minutes
	m.start()
	c, err := m.client(m.ctx(), "dumb")
	if err != nil {
		t.Fatal(err)
	}
	if s, err := ask(m.ctx(), c, "true"); err != nil || s.code != 255 ||
		!strings.Contains(s.err, "sandbox dumb does not answer") {
		t.Errorf("a sandbox that does not answer: %+v, %v", s, err)
	}
	c.Close()
	signal("CONT")
	fails("no such sandbox", failure{wire.CodeNotFound, "no sandbox nobody"}, 125, "screen",
		"--json", "nobody")

	// The login.
	stranger := filepath.Join(m.dir, "stranger")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
		stranger).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dial := func(at string, o agent.Options) error {
		o.Kind, o.DialTimeout = agent.KindGateway, 3*time.Second
		c, err := agent.Dial(m.ctx(), "ssh://dumb@"+at, o)
		if err == nil {
			c.Close()
		}
		return err
	}
	wants := func(what string, err error, want failure) {
		t.Helper()
		var e *agent.Error
		if !errors.As(err, &e) || wire.Code(e.Code) != want.code ||
			!strings.Contains(e.Message+"; "+e.Hint, want.says) {
			t.Errorf("%s: got %v, want %s that says %q", what, err, want.code, want.says)
		}
	}
	known := []string{m.at.KnownHosts}
	wants("an unknown key", dial(m.at.SSH,
		agent.Options{Identity: stranger, KnownHosts: known}),
		failure{wire.CodeDenied, "authorized_keys"})
	empty := filepath.Join(m.dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wants("an unknown server", dial(m.at.SSH,
		agent.Options{Identity: m.at.Identity, KnownHosts: []string{empty}}),
		failure{wire.CodeDenied, "host key"})

	// The network: an address that does not answer, and one that accepts and stays silent.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	wants("a network that swallows", dial(l.Addr().String(),
		agent.Options{Identity: m.at.Identity, KnownHosts: known}),
		failure{wire.CodeUnavailable, l.Addr().String()})
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := free.Addr().String()
	free.Close()
	wants("a port without a listener", dial(nobody, agent.Options{Identity: m.at.Identity,
		KnownHosts: known}), failure{wire.CodeUnavailable, "connection refused"})

	// The gateway: during a call, and before one.
	call := m.command("run", "--json", "-n", "dumb", "--", "sleep 1000")
	var out bytes.Buffer
	call.Stdout = &out
	if err := call.Start(); err != nil {
		t.Fatal(err)
	}
	control, err := m.client(m.ctx(), "sandboxd")
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	m.eventually("it runs", func() bool {
		s, err := ask(m.ctx(), control, "screen dumb")
		return err == nil && strings.Contains(s.out, "sleep 1000")
	})
	m.kill()
	var ended *exec.ExitError
	if err := call.Wait(); !errors.As(err, &ended) || ended.ExitCode() != 125 ||
		!strings.Contains(out.String(), `"code":"lost"`) ||
		!strings.Contains(out.String(), "the daemon") {
		t.Errorf("a daemon that dies in a call: %v, %s", err, out.String())
	}
	fails("no daemon", failure{wire.CodeUnavailable, "no daemon runs"}, 125, "ls", "--json")
	wants("no daemon, for the library", dial(m.at.SSH,
		agent.Options{Identity: m.at.Identity, KnownHosts: known}),
		failure{wire.CodeUnavailable, "is the daemon up"})
}

// R6: nothing is deleted because state is missing. A store that is lost, damaged, older or from a
// later version costs no sandbox: containers with our label are found again, those of others are
// left alone, and an unreadable store is an error with a way out.
func TestR6StateIsMissing(t *testing.T) {
	m := newMachine(t)
	other := newMachine(t)
	m.start()
	other.start()
	other.control("new " + small + "others")
	m.control("new " + small + "one")
	m.shell("one", "echo kept >/file")
	one := m.list()["one"]
	store := filepath.Join(m.state, "sandboxd.db")
	older := filepath.Join(m.dir, "older.db")
	copyStore := func(to, from string) {
		t.Helper()
		script := "rm -f " + to + "-wal " + to + "-shm; cp " + from + " " + to + "; [ ! -e " +
			from + "-wal ] || cp " + from + "-wal " + to + "-wal"
		if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	m.end(syscall.SIGTERM)
	copyStore(older, store)
	m.start()
	m.control("new " + small + "two")
	two := m.list()["two"]

	for _, tt := range []struct {
		name    string
		damage  func()
		refused string // error of the daemon; empty: it starts
		mend    func()
	}{
		{"lost", func() {
			copyStore(older+".none", store)
			os.Remove(store)
			os.Remove(store + "-wal")
			os.Remove(store + "-shm")
		}, "", nil},
		{"older", func() { copyStore(store, older) }, "", nil},
		{"damaged", func() {
			text, err := os.ReadFile(store)
			if err == nil {
				err = os.WriteFile(store, append(bytes.Repeat([]byte("x"), 4096), text[4096:]...),
					0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, "is damaged", func() {
			os.Remove(store)
			os.Remove(store + "-wal")
			os.Remove(store + "-shm")
		}},
		{"empty", func() {
			os.Remove(store + "-wal")
			if err := os.WriteFile(store, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "is damaged", func() { os.Remove(store) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m.end(syscall.SIGTERM)
			tt.damage()
			if tt.refused != "" {
				if err := m.tryStart(); err == nil || !strings.Contains(err.Error(), tt.refused) ||
					!strings.Contains(err.Error(), "finds sandboxes by their labels") {
					t.Errorf("a daemon on it: %v, want a refusal with a way out", err)
				}
				tt.mend()
			}
			m.start()
			m.eventually("all are found again", func() bool { return len(m.list()) == 2 })
			got := m.list()
			if got["one"].ID != one.ID || got["two"].ID != two.ID ||
				got["one"].State != lifecycle.Running || got["two"].State != lifecycle.Running {
				t.Errorf("found: %+v", got)
			}
			if text := m.shell("one", "cat /file"); text != "kept\n" {
				t.Errorf("the file has %q", text)
			}
			m.nothingElse(false)
			if theirs := other.list()["others"]; theirs.State != lifecycle.Running {
				t.Errorf("another daemon's sandbox is %s", theirs.State)
			}
		})
	}
	other.shell("others", "true")

	// Two daemons: the second one does not start, and does not affect the first one.
	second := m.command("serve", "--ssh", "127.0.0.1:0")
	if out, err := second.CombinedOutput(); err == nil || !strings.Contains(string(out), "pid") {
		t.Errorf("a second daemon: %v, %s", err, out)
	}
	m.shell("one", "true")
}

// R7: watchers that read nothing, or whose connection is stalled, slow down nothing: the command
// ends with all its output, and others see it.
func TestR7StalledWatchers(t *testing.T) {
	m := newMachine(t)
	m.start()
	m.control("new --network none demo")
	c, err := m.client(m.ctx(), "demo")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sh, err := c.Shell(m.ctx(), "main")
	if err != nil {
		t.Fatal(err)
	}
	const flood = `seq -f "line %.0f of a flood that fills the windows of all who look on" 1 150000 | tail -n 150000; echo e''nd`
	run := func() time.Duration {
		t.Helper()
		began := time.Now()
		r, err := sh.Run(m.ctx(), flood)
		if err != nil || r.Ended != agent.EndedDone || !strings.Contains(r.Output, "end") {
			t.Fatalf("run: %+v, %v", r.Ended, err)
		}
		return time.Since(began)
	}
	run() // warm
	alone := run()
	for range 4 { // by ssh, stopped as soon as they are shown something
		ssh := exec.Command("ssh", "-tt", "-F", "none", "-p", portOf(m.at.SSH), "-i", m.at.Identity,
			"-o", "UserKnownHostsFile="+m.at.KnownHosts,
			"-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none", "demo@127.0.0.1")
		ssh.Env = append(os.Environ(), "TERM=xterm-256color")
		out, err := ssh.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := ssh.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = ssh.Process.Kill()
			_ = ssh.Wait()
		})
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if err := ssh.Process.Signal(unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	with := run()
	t.Logf("alone %v, with four stalled watchers %v", alone, with)
	if with > 3*alone+2*time.Second { // the machine does other things, too
		t.Errorf("with stalled watchers it took %v, without %v", with, alone)
	}
	if out := m.control("screen demo"); !strings.Contains(out, "end") {
		t.Errorf("others see %q", out)
	}
}

// Running out of descriptors is reported to callers that need one, and does not affect others. When
// there are some again, everything works.
func TestDescriptorsRunOut(t *testing.T) {
	m := newMachine(t)
	m.start()
	m.control("new " + small + "demo")
	m.begins("demo", `i=0; while :; do i=$((i+1)); echo "tick $i"; sleep 0.05; done`)
	c, err := m.client(m.ctx(), "demo")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := ask(m.ctx(), c, "true"); err != nil {
		t.Fatal(err)
	}
	used := func() int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", m.at.PID))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	var before unix.Rlimit
	if err := unix.Prlimit(m.at.PID, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(m.at.PID, unix.RLIMIT_NOFILE,
		&unix.Rlimit{Cur: uint64(used()), Max: before.Max}, nil); err != nil {
		t.Fatal(err)
	}
	if s, err := ask(m.ctx(), c, "echo on"); err != nil || s.out != "on\n" {
		t.Errorf("who is connected: %+v, %v", s, err)
	}
	for range 5 { // no login: it waits, or gets an error
		conn, err := net.Dial("tcp", m.at.SSH)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if s, err := ask(m.ctx(), c, "echo still"); err != nil || s.out != "still\n" {
		t.Errorf("who is connected, afterwards: %+v, %v", s, err)
	}
	if err := unix.Prlimit(m.at.PID, unix.RLIMIT_NOFILE, &before, nil); err != nil {
		t.Fatal(err)
	}
	m.eventually("others get in again", func() bool {
		c, err := m.client(m.ctx(), "sandboxd")
		if err != nil {
			return false
		}
		defer c.Close()
		s, err := ask(m.ctx(), c, "new "+small+"another")
		return err == nil && s.code == 0
	})
	select {
	case <-m.ended:
		t.Fatal("the daemon has ended")
	default:
	}
	ticks := strings.Count(m.control("log --raw demo"), "tick")
	m.eventually("the session is followed", func() bool {
		return strings.Count(m.control("log --raw demo"), "tick") > ticks
	})
	m.nothingElse(false)
}
