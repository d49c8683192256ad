package oci

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/userns"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/hostdir"
)

// A sandbox has the walls of one of Docker's engine.
func TestPosture(t *testing.T) {
	b := testBackend(t)
	inst := boot(t, b, sandbox.Spec{Name: "demo",
		Limits: sandbox.Limits{Memory: 64 << 20, PIDs: 100, CPUs: 0.5}})
	c := login(t, b, inst)
	confined := ""
	if on, _ := os.ReadFile("/sys/module/apparmor/parameters/enabled"); string(on) == "Y\n" {
		confined = "sandboxd-default (enforce)"
		if userns.RunningInUserNS() {
			confined = "unconfined"
		}
	}
	// A number would be that of the same user in all sandboxes. To raise it takes CAP_SYS_RESOURCE.
	var mine unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &mine); err != nil {
		t.Fatal(err)
	}
	processes := strconv.FormatUint(mine.Cur, 10)
	if mine.Max = unix.RLIM_INFINITY; unix.Setrlimit(unix.RLIMIT_NPROC, &mine) == nil {
		processes = "unlimited"
	}
	for command, want := range map[string]string{
		"cat /proc/self/attr/current 2>/dev/null | tr -d '\\0'": confined,
		"id -u":    "0",
		"hostname": "demo",
		"grep -c . /proc/net/dev; ls /sys/class/net":   "3\nlo",
		"grep NoNewPrivs /proc/self/status | cut -f 2": "1",
		"grep Seccomp: /proc/self/status | cut -f 2":   "2",
		"grep CapBnd /proc/self/status | cut -f 2":     "00000000a00404fb",
		"ulimit -c": "0",
		"awk '/Max processes/ { print $3 }' /proc/self/limits":  processes,
		"cat /proc/1/oom_score_adj":                             "0",
		"cat /proc/1/environ >/dev/null 2>&1 || echo no":        "no",
		"mount -t tmpfs none /tmp 2>/dev/null || echo no":       "no",
		"unshare -U true 2>/dev/null || echo no":                "no",
		"mknod /tmp/x b 8 0 2>/dev/null || echo no":             "no",
		"echo 1 2>/dev/null >/proc/sys/kernel/panic || echo no": "no",
		"echo 1 2>/dev/null >/proc/sysrq-trigger || echo no":    "no",
		"cat /proc/kcore 2>/dev/null | wc -c":                   "0",
		"touch /sys/fs/cgroup/*/x 2>/dev/null || echo no":       "no",
		// core is /proc/kcore, where the kernel has it.
		"ls /dev | grep -vx core | tr '\\n' ' '":     "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero",
		"grep demo /etc/hosts":                       "127.0.1.1\tdemo",
		"df /dev/shm | tail -1 | awk '{ print $2 }'": "65536",
	} {
		if got := sh(t, c, command); got != want {
			t.Errorf("%s: got %q, want %q", command, got, want)
		}
	}
	u, err := b.Usage(t.Context(), inst)
	if err != nil || u.Memory == 0 || u.PIDs == 0 || u.CPU == 0 {
		t.Errorf("usage: %+v, %v", u, err)
	}
}

// The limits hold: more memory than allowed ends a program, more processes are refused.
func TestLimits(t *testing.T) {
	b := testBackend(t)
	inst := boot(t, b, sandbox.Spec{Limits: sandbox.Limits{Memory: 64 << 20, PIDs: 80}})
	c := login(t, b, inst)
	sh(t, c, "head -c 200m /dev/zero | tail -c 150m >/dev/null || true")
	sh(t, c, "(for i in $(seq 200); do sleep 2 & done) 2>/dev/null || true")
	u, err := b.Usage(t.Context(), inst)
	if err != nil || u.OOMKills == 0 || u.PIDsRefused == 0 {
		t.Errorf("usage: %+v, %v; want programs that were killed and refused", u, err)
	}
	if s, err := b.Inspect(t.Context(), inst); err != nil || !s.OOMKilled || !s.Running {
		t.Errorf("got %+v, %v", s, err)
	}
}

// A directory of the machine is mounted where it was asked for. A link that root in the sandbox
// leaves cannot lead it over the guest program at the next start.
func TestMounts(t *testing.T) {
	project := t.TempDir()
	if err := os.WriteFile(project+"/file", []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	b := testBackend(t, func(o *Options) { o.Dirs = hostdir.Rules{Roots: []string{project}} })
	inst := boot(t, b, sandbox.Spec{Mounts: []sandbox.Mount{{Path: project, Target: "/srv/app"},
		{Path: project, Target: "/data", ReadOnly: true}}})
	c := login(t, b, inst)
	if got := sh(t, c, "pwd; cat file; echo more >new; touch /data/x 2>/dev/null || echo no"); got !=
		"/srv/app\ntextno" {
		t.Errorf("got %q", got)
	}
	if text, err := os.ReadFile(project + "/new"); err != nil || string(text) != "more\n" {
		t.Errorf("got %q, %v", text, err)
	}
	if err := b.Stop(t.Context(), inst, time.Second); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadDir(project)
	if err != nil {
		t.Fatal(err)
	}
	app := b.in(inst.ID, upperDir) + "/srv/app"
	if err := os.RemoveAll(app); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{"/dev", "/dev/.sandboxd", "../dev/.sandboxd/guest", "/proc/sys",
		"/.sandboxd/run", "/.sandboxd/trust", "/etc", "/sys/fs/cgroup", "app"} {
		if err := os.Symlink(to, app); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Start(t.Context(), inst); err == nil {
			t.Errorf("started with a mount led to %s", to)
		}
		if s, err := b.Inspect(t.Context(), inst); err != nil || s.Running {
			t.Errorf("after a refused start: %+v, %v", s, err)
		}
		if err := os.Remove(app); err != nil {
			t.Fatal(err)
		}
	}
	// The runtime has mounted nothing there: it would have made devices in the directory.
	if after, err := os.ReadDir(project); err != nil || len(after) != len(before) {
		t.Errorf("the directory has %v, %v; before %v", after, err, before)
	}
	if err := os.MkdirAll(b.in(inst.ID, upperDir)+"/elsewhere", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/elsewhere", app); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Start(t.Context(), inst); err != nil {
		t.Errorf("with a link to another place of its own: %v", err)
	}
}

// Links in the place of what the runtime mounts or opens do not lead it elsewhere, nor do those to
// something that is missing.
func TestLinks(t *testing.T) {
	project := t.TempDir()
	b := testBackend(t, func(o *Options) { o.Dirs = hostdir.Rules{Roots: []string{project}} })
	inst := boot(t, b, sandbox.Spec{Mounts: []sandbox.Mount{{Path: project, Target: "/srv/app"}}})
	if err := b.Stop(t.Context(), inst, time.Second); err != nil {
		t.Fatal(err)
	}
	link := func(to, at string) {
		t.Helper()
		at = b.in(inst.ID, upperDir) + at
		if err := errors.Join(os.RemoveAll(at), os.Symlink(to, at)); err != nil {
			t.Fatal(err)
		}
	}
	dev := b.in(inst.ID, upperDir) + "/dev"
	if err := os.Rename(dev, dev+".old"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	link("/srv", "/dev") // where crun would make devices: CVE-2026-47766
	if _, err := b.Start(t.Context(), inst); err == nil {
		t.Error("started with a link in the place of /dev")
	}
	if err := os.Remove(dev); err != nil {
		t.Fatal(err)
	}
	link("proc/sysrq-trigger", "/etc/hosts")
	link("proc/sys/kernel", "/srv/app")
	if _, err := b.Start(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
	c := login(t, b, inst)
	got := sh(t, c, "touch /srv/proc/sys/kernel/new; grep -c -m 1 localhost /etc/proc/sysrq-trigger")
	if got != "1" {
		t.Errorf("got %q", got)
	}
	if _, err := os.Stat(project + "/new"); err != nil {
		t.Error(err)
	}
}

// What is not available is an error that says what to do.
func TestRefused(t *testing.T) {
	b := testBackend(t)
	for _, tt := range []struct {
		spec       sandbox.Spec
		want, hint string
	}{
		{sandbox.Spec{Isolation: "runsc"}, "runc or crun", "omit it"},
		{sandbox.Spec{Network: sandbox.NetworkBridge}, "network bridge", "filtered"},
		{sandbox.Spec{Options: []string{"shm-size=1g"}}, "options of docker run", "omit them"},
		{sandbox.Spec{Volume: sandbox.Volume{Size: 1 << 30}}, "volume", "omit the size"},
		{sandbox.Spec{Limits: sandbox.Limits{CPUs: 4000}}, "this machine has", ""},
		{sandbox.Spec{Limits: sandbox.Limits{Memory: 1 << 45}}, "this machine has", ""},
		{sandbox.Spec{User: "nobody-there"}, "guest ended", ""},
	} {
		tt.spec.ID, tt.spec.Image = newID(), busybox
		_, err := b.Boot(t.Context(), tt.spec)
		var boot *sandbox.BootError
		if !errors.As(err, &boot) || !strings.Contains(err.Error(), tt.want) ||
			!strings.Contains(boot.Hint, tt.hint) ||
			errors.Is(err, sandbox.ErrUnsupported) == (tt.spec.User != "") {
			t.Errorf("%+v: got %v, want %q and hint %q", tt.spec, err, tt.want, tt.hint)
		}
	}
}

// Runtimes open some files of the container. A FIFO there would make them wait, and keep all other
// sandboxes from starting meanwhile.
func TestStartWithPipes(t *testing.T) {
	b := testBackend(t)
	inst := boot(t, b, sandbox.Spec{})
	restart := func(before string) error {
		t.Helper()
		sh(t, login(t, b, inst), before)
		if err := b.Stop(t.Context(), inst, time.Second); err != nil {
			t.Fatal(err)
		}
		_, err := b.Start(t.Context(), inst)
		return err
	}
	for _, before := range []string{
		"rm -f /etc/passwd /etc/group; mkfifo /etc/passwd /etc/group",
		"rm -f /etc/passwd; mkfifo /tmp/pipe; ln -s ../tmp/pipe /etc/passwd",
	} {
		if err := restart(before); err != nil {
			t.Fatalf("after %s: %v", before, err)
		}
	}
	err := restart("rm -f /etc/passwd; ln -s /dev/zero /etc/passwd")
	if err == nil || !strings.Contains(err.Error(), `a link leads /etc/passwd to "/dev/zero"`) ||
		sandbox.HintOf(err) == "" {
		t.Errorf("got error %v, hint %q; want one that names the link", err, sandbox.HintOf(err))
	}
}

// A sandbox that an older daemon made is isolated as a new one when it starts again.
func TestIsolatedAgain(t *testing.T) {
	b := testBackend(t)
	inst := boot(t, b, sandbox.Spec{})
	const look = "wc -c </proc/timer_list; grep Seccomp_filters /proc/self/status | cut -f 2"
	want := sh(t, login(t, b, inst), look)
	if err := b.Stop(t.Context(), inst, time.Second); err != nil {
		t.Fatal(err)
	}
	made, err := b.bundle(inst.ID)
	if err != nil {
		t.Fatal(err)
	}
	made.Linux.Seccomp, made.Linux.MaskedPaths = nil, nil
	old, err := json.Marshal(made)
	if err == nil {
		err = b.writeBundle(inst.ID, old)
	}
	if err == nil {
		_, err = b.Start(t.Context(), inst)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := sh(t, login(t, b, inst), look); got != want || !strings.HasPrefix(got, "0\n") {
		t.Errorf("got %q, want %q as before", got, want)
	}
}

// A machine that loses power can leave a damaged bundle. The sandbox does not start, and can be
// removed.
func TestDamagedBundle(t *testing.T) {
	b := testBackend(t)
	inst := boot(t, b, sandbox.Spec{})
	if err := b.writeBundle(inst.ID, nil); err != nil {
		t.Fatal(err)
	}
	if err := b.Stop(t.Context(), inst, time.Second); err != nil {
		t.Error(err)
	}
	if _, err := b.Start(t.Context(), inst); err == nil {
		t.Error("it starts without a bundle")
	}
	if err := b.Destroy(t.Context(), inst); err != nil {
		t.Error(err)
	}
}
