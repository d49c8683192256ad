package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/shortdir"
)

// dockerd is the engine of one test, which may kill it. It has its own directories, socket, bridge
// and containerd, so that no other engine is affected. (--bridge none would remove docker0 of the
// other engine.)
type dockerd struct {
	t          *testing.T
	dir        string
	bridge     string
	containerd *exec.Cmd
	cmd        *exec.Cmd
	ended      chan struct{}
}

// newDockerd starts an engine with the busybox image.
func newDockerd(t *testing.T, flags ...string) *dockerd {
	t.Helper()
	needRoot(t, "an engine of the test's own")
	if _, err := exec.LookPath("dockerd"); err != nil {
		if os.Getenv("SANDBOXD_TEST_REQUIRE") != "" {
			t.Fatalf("no dockerd, which scripts/setup installs: %v", err)
		}
		t.Skipf("no dockerd: %v", err)
	}
	dir, err := shortdir.Make() // sockets need short paths
	if err != nil {
		t.Fatal(err)
	}
	d := &dockerd{t: t, dir: dir, bridge: filepath.Base(dir)}
	d.bridge = d.bridge[:min(len(d.bridge), 15)]
	t.Cleanup(d.remove)
	subnet := os.Getpid() % 250
	for _, args := range [][]string{{"link", "add", d.bridge, "type", "bridge"},
		{"addr", "add", fmt.Sprintf("10.249.%d.1/24", subnet), "dev", d.bridge},
		{"link", "set", d.bridge, "up"}} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	// Not a child of the engine: that one dies when the engine is killed, and counts as alive until
	// its parent reaps it.
	config := fmt.Sprintf(
		"version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n"+
			"[grpc]\naddress = %q\n", dir+"/containerd", dir+"/run", dir+"/c.sock")
	if err := os.WriteFile(dir+"/containerd.toml", []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	d.containerd = exec.Command("containerd", "--config", dir+"/containerd.toml")
	if err := d.containerd.Start(); err != nil {
		t.Fatalf("containerd: %v", err)
	}
	d.start(flags...)
	// from the usual engine
	load := exec.Command("sh", "-c",
		"docker save sandboxd/busybox:latest | docker -H "+d.host()+" load")
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("image: %v: %s", err, out)
	}
	return d
}

func (d *dockerd) socket() string { return filepath.Join(d.dir, "docker.sock") }
func (d *dockerd) host() string   { return "unix://" + d.socket() }

// start starts the engine and waits until it answers.
func (d *dockerd) start(flags ...string) {
	d.t.Helper()
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	defer log.Close()
	d.cmd = exec.Command("dockerd", append([]string{"-H", d.host(), "--bridge", d.bridge,
		"--iptables=false", "--ip-masq=false",
		"--data-root", filepath.Join(d.dir, "data"), "--exec-root", filepath.Join(d.dir, "exec"),
		"--pidfile", filepath.Join(d.dir, "pid"),
		"--containerd", filepath.Join(d.dir, "c.sock")}, flags...)...)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	cmd, ended := d.cmd, make(chan struct{})
	d.ended = ended
	go func() {
		defer close(ended)
		_ = cmd.Wait() // by a signal
	}()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for exec.Command("docker", "-H", d.host(), "version").Run() != nil {
		select {
		case <-ended:
			d.t.Fatalf("the engine ended: %s", d.said())
		case <-tick.C:
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("the engine does not answer: %s", d.said())
		}
	}
}

func (d *dockerd) said() string {
	text, _ := os.ReadFile(filepath.Join(d.dir, "log"))
	return string(text[max(0, len(text)-3000):])
}

func (d *dockerd) end(sig syscall.Signal) {
	if err := d.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		d.t.Error(err)
	}
	select {
	case <-d.ended:
	case <-time.After(patience):
		d.t.Errorf("the engine does not end by %v", sig)
	}
}

// remove stops the engine and all processes that it started.
func (d *dockerd) remove() {
	if d.cmd != nil {
		for _, id := range strings.Fields(d.docker("ps", "-aq")) { // of a test that failed
			d.docker("rm", "-f", id)
		}
		d.end(syscall.SIGTERM)
	}
	if d.containerd != nil {
		_ = d.containerd.Process.Kill() // it may have ended
		_ = d.containerd.Wait()
	}
	if out, err := exec.Command("ip", "link", "del", d.bridge).CombinedOutput(); err != nil {
		d.t.Errorf("bridge: %v: %s", err, out)
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if words := strings.Fields(line); len(words) > 1 && strings.HasPrefix(words[1], d.dir+"/") {
			// removing another may have removed it
			_ = syscall.Unmount(words[1], syscall.MNT_DETACH)
		}
	}
	if err := os.RemoveAll(d.dir); err != nil {
		d.t.Error(err)
	}
}

// docker runs the client and returns its output.
func (d *dockerd) docker(args ...string) string {
	out, err := exec.Command("docker", append([]string{"-H", d.host()}, args...)...).Output()
	if err != nil {
		d.t.Logf("docker %v: %v", args, err)
	}
	return string(out)
}

// R3: an engine with live-restore that is killed or restarted loses no session, connection or
// process.
func TestR3EngineRestartedWithLiveRestore(t *testing.T) {
	d := newDockerd(t, "--live-restore")
	m := newMachine(t)
	m.docker = d.host()
	m.start()
	m.control("new " + small + "demo")
	id := m.list()["demo"].ID
	m.begins("demo", `i=0; while :; do i=$((i+1)); echo "tick $i"; sleep 0.05; done`)
	c, err := m.client(m.ctx(), "demo")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r, w := io.Pipe()
	done := make(chan said, 1)
	go func() {
		exit, err := c.Exec(m.ctx(), agent.Cmd{Command: "read line; echo $line; exit 3", Stdin: r})
		if err != nil {
			t.Errorf("the connection from before: %v", err)
		}
		done <- said{code: exit.Code}
	}()
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		d.end(sig)
		// While the engine is down, sandboxes can be used; operations that need it report that.
		if got := m.shell("demo", "echo on"); got != "on\n" {
			t.Errorf("%v: without the engine: %q", sig, got)
		}
		control, err := m.client(m.ctx(), "sandboxd")
		if err != nil {
			t.Fatal(err)
		}
		if s, err := ask(m.ctx(), control, "new --json "+small+"other"); err != nil ||
			s.code != 125 || !strings.Contains(s.out, `"code":"unavailable"`) ||
			!strings.Contains(s.out, "engine") {
			t.Errorf("%v: new without the engine: %+v, %v", sig, s, err)
		}
		control.Close()
		if got := m.list()["demo"]; got.State != lifecycle.Running {
			t.Errorf("%v: without the engine it is %s", sig, got.State)
		}
		d.start("--live-restore")
	}
	if _, err := w.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	if s := <-done; s.code != 3 {
		t.Errorf("the command from before ended with %d", s.code)
	}
	before := strings.Count(m.control("log --raw demo"), "tick")
	m.eventually("the session goes on", func() bool {
		return strings.Count(m.control("log --raw demo"), "tick") > before
	})
	if got := m.list()["demo"]; got.ID != id || got.State != lifecycle.Running {
		t.Errorf("it is %s, %s", got.ID, got.State)
	}
	m.control("new " + small + "other")
	m.nothingElse(false)
	if out, _ := m.command("doctor").CombinedOutput(); !strings.Contains(string(out),
		"live-restore   on") {
		t.Errorf("doctor: %s", out)
	}
}

// R3: without live-restore, processes end with the engine. The state gives the reason, files stay,
// and the next use starts the sandbox again.
func TestR3EngineRestartedWithout(t *testing.T) {
	d := newDockerd(t)
	m := newMachine(t)
	m.docker = d.host()
	m.start()
	m.control("new " + small + "demo")
	id := m.list()["demo"].ID
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		m.shell("demo", "echo kept >/file")
		m.control("run -n demo -- echo of-this-life")
		d.end(sig)
		d.start()
		m.eventually("it is noticed", func() bool {
			return m.list()["demo"].State == lifecycle.Stopped
		})
		if got := m.list()["demo"]; got.ID != id ||
			!strings.Contains(got.Reason, "the engine was restarted and its processes are lost") {
			t.Errorf("%v: it is %s for %q", sig, got.ID, got.Reason)
		}
		if got := m.shell("demo", "cat /file"); got != "kept\n" {
			t.Errorf("%v: started again the file has %q", sig, got)
		}
		if got := m.list()["demo"]; got.ID != id || got.State != lifecycle.Running {
			t.Errorf("%v: afterwards it is %s, %s", sig, got.ID, got.State)
		}
	}
	if out, _ := m.command("doctor").CombinedOutput(); !strings.Contains(string(out),
		"warn  live-restore   off") || !strings.Contains(string(out), "daemon.json") {
		t.Errorf("doctor: %s", out)
	}
}

// engineProxy is a proxy between a daemon and the engine: it can stall, go down and come back.
type engineProxy struct {
	t      *testing.T
	socket string

	mu     sync.Mutex
	gate   chan struct{} // guarded by mu; nil: open; closed when it opens
	listen net.Listener  // guarded by mu; nil while it is away
	conns  map[net.Conn]bool
	wg     sync.WaitGroup
}

func newEngineProxy(t *testing.T) *engineProxy {
	t.Helper()
	p := &engineProxy{t: t, socket: filepath.Join(shortdir.New(t), "docker.sock"),
		conns: make(map[net.Conn]bool)}
	p.back()
	t.Cleanup(func() { p.flow(); p.away(); p.wg.Wait() })
	return p
}

// stall passes no byte in either direction until flow.
func (p *engineProxy) stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gate = make(chan struct{})
}

func (p *engineProxy) flow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gate != nil {
		close(p.gate)
	}
	p.gate = nil
}

// pass waits while the proxy is stalled.
func (p *engineProxy) pass() {
	p.mu.Lock()
	gate := p.gate
	p.mu.Unlock()
	if gate != nil {
		<-gate
	}
}

// back listens.
func (p *engineProxy) back() {
	p.t.Helper()
	l, err := net.Listen("unix", p.socket)
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	p.listen = l
	p.mu.Unlock()
	p.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(conn) })
		}
	})
}

// away removes the socket and ends all connections.
func (p *engineProxy) away() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listen != nil {
		p.listen.Close() // which removes the file
		p.listen = nil
	}
	for conn := range p.conns {
		conn.Close()
	}
}

func (p *engineProxy) serve(conn net.Conn) {
	defer conn.Close()
	real, err := net.Dial("unix", "/var/run/docker.sock")
	if err != nil {
		return
	}
	defer real.Close()
	p.mu.Lock()
	p.conns[conn], p.conns[real] = true, true
	p.mu.Unlock()
	var both sync.WaitGroup
	way := func(to, from net.Conn) {
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			p.pass()
			if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
				break
			}
		}
		if half, ok := to.(*net.UnixConn); ok {
			_ = half.CloseWrite() // of one that has ended
		}
	}
	both.Go(func() { way(conn, real) })
	both.Go(func() { way(real, conn) })
	both.Wait()
	p.mu.Lock()
	delete(p.conns, conn)
	delete(p.conns, real)
	p.mu.Unlock()
}

// R3: an engine that hangs, or whose socket is gone, delays nothing that does not need it. The
// daemon starts without it, removes nothing, and works again when the engine is back.
func TestR3EngineHangs(t *testing.T) {
	p := newEngineProxy(t)
	m := newMachine(t)
	m.docker = "unix://" + p.socket
	m.start()
	m.control("new " + small + "demo")
	id := m.list()["demo"].ID
	for _, tt := range []struct {
		name    string
		on, off func()
	}{{"hangs", p.stall, p.flow}, {"is gone", p.away, p.back}} {
		t.Run(tt.name, func(t *testing.T) {
			tt.on()
			quick := func(what string, f func()) {
				t.Helper()
				began := time.Now()
				if f(); time.Since(began) > 5*time.Second {
					t.Errorf("%s took %v", what, time.Since(began))
				}
			}
			quick("exec", func() { m.shell("demo", "true") })
			quick("run", func() { m.control("run -n demo -- true") })
			quick("ls", func() { m.list() })
			quick("describe", func() { m.describe("demo") })
			c, err := m.client(m.ctx(), "sandboxd")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if s, err := ask(m.ctx(), c, "new --json "+small+"other"); err != nil ||
				s.code != 125 || !strings.Contains(s.out, "engine does not answer") {
				t.Errorf("new: %+v, %v", s, err)
			}
			m.kill()
			quick("the start of a daemon", func() { m.start() })
			if got := m.list()["demo"]; got.ID != id || got.State != lifecycle.Running {
				t.Errorf("after a restart without the engine it is %s, %s", got.ID, got.State)
			}
			m.shell("demo", "true")
			tt.off()
			m.eventually("sandboxes are made again", func() bool {
				c, err := m.client(m.ctx(), "sandboxd")
				if err != nil {
					return false
				}
				defer c.Close()
				s, err := ask(m.ctx(), c, "new "+small+"later")
				return err == nil && s.code == 0
			})
			m.control("rm -f later")
			m.nothingElse(false)
		})
	}
}
