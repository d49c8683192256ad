package docker

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/shortdir"
)

func TestFactsOf(t *testing.T) {
	good := func() system.Info {
		return system.Info{ServerVersion: "20.10", OSType: "linux", Architecture: "x86_64",
			OperatingSystem: "Debian", NCPU: 2, MemoryLimit: true,
			SwapLimit: true, PidsLimit: true, CPUCfsQuota: true,
			SecurityOptions: []string{"name=apparmor", "name=seccomp,profile=default"},
			DefaultRuntime:  "runc", Runtimes: map[string]system.RuntimeWithStatus{"runc": {},
				"crun": {}, "io.containerd.runc.v2": {}},
			Plugins: system.PluginsInfo{Log: []string{"json-file", "local"}}}
	}
	for _, tt := range []struct {
		name   string
		change func(*system.Info)
		want   string // in the error
	}{
		{"good", func(*system.Info) {}, ""},
		{"arm", func(i *system.Info) { i.Architecture = "aarch64" }, ""},
		{"other architecture", func(i *system.Info) { i.Architecture = "riscv64" }, `architecture "riscv64"`},
		{"windows", func(i *system.Info) { i.OSType = "windows" }, "windows containers"},
		{"users mapped", func(i *system.Info) { i.SecurityOptions = append(i.SecurityOptions, "name=userns") }, "userns-remap"},
		{"no seccomp", func(i *system.Info) { i.SecurityOptions = []string{"name=apparmor"} }, "it has name=apparmor, no default seccomp"},
		{"unconfined", func(i *system.Info) { i.SecurityOptions = []string{"name=seccomp,profile=unconfined"} }, "no default seccomp"},
		{"no memory", func(i *system.Info) { i.MemoryLimit = false }, "memory cgroup"},
		{"no pids", func(i *system.Info) { i.PidsLimit = false }, "pids cgroup"},
		{"no log that is bounded", func(i *system.Info) { i.Plugins.Log = []string{"journald", "none"} }, "none of its log drivers (journald, none)"},
		{"unknown cpu", func(i *system.Info) { i.CPUCfsQuota, i.CgroupVersion = false, "2" }, ""},
		{"no cpu", func(i *system.Info) { i.CPUCfsQuota = false }, "CFS quota"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			info := good()
			tt.change(&info)
			got, err := factsOf(info)
			if tt.want != "" {
				if !errors.Is(err, sandbox.ErrUnsupported) ||
					!strings.Contains(err.Error(), tt.want) {
					t.Errorf("got error %v, want unsupported with %q in it", err, tt.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"crun", "runc"}, got.runtimes); diff != "" {
				t.Errorf("runtimes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMissingFlags(t *testing.T) {
	for _, tt := range []struct{ program, args, want string }{
		{"runc", "", ""},
		{"/usr/bin/crun", "--debug", ""},
		{"runsc", "", "--overlay2=none --host-uds=all"},
		{"/opt/bin/runsc", "--platform=systrap --host-uds=all", "--overlay2=none"},
		{"/opt/bin/runsc", "-overlay2=none --host-uds=all", ""},
		{"runsc", "--overlay2=root:self --host-uds=open", "--overlay2=none --host-uds=all"},
	} {
		if got := missingFlags(tt.program, strings.Fields(tt.args)); got != tt.want {
			t.Errorf("%s %s: missing %q, want %q", tt.program, tt.args, got, tt.want)
		}
	}
}

func TestDefaultNoFile(t *testing.T) {
	var c engineCache
	for _, tt := range []struct{ engine, want int64 }{{0, 65536}, {20000, 20000},
		{1 << 20, 65536}} {
		if got := c.defaultNoFile(facts{noFile: tt.engine}); got != tt.want {
			t.Errorf("engine has %d: got %d, want %d", tt.engine, got, tt.want)
		}
	}
	c.refusedNoFile()
	if got := c.defaultNoFile(facts{noFile: 1 << 20}); got != 0 {
		t.Errorf("after a refusal: got %d, want 0", got)
	}
}

// The engine's own limit is that of the process that listens on its socket: here this process.
func TestEngineNoFile(t *testing.T) {
	path := filepath.Join(shortdir.New(t), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	limits, err := os.ReadFile("/proc/self/limits")
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(engineNoFile(t.Context(), path))
	for line := range strings.Lines(string(limits)) {
		if fields := strings.Fields(line); strings.HasPrefix(line, "Max open files") &&
			fields[4] != got {
			t.Errorf("got %s, want the hard limit of: %s", got, line)
		}
	}
	if got := engineNoFile(t.Context(), path+".none"); got != 0 {
		t.Errorf("no socket: got %d, want 0", got)
	}
}

func TestNewClient(t *testing.T) {
	t.Setenv("DOCKER_CERT_PATH", "")
	for _, tt := range []struct {
		host string
		want string // in the error
	}{
		{"unix:///var/run/docker.sock", ""},
		{"ssh://root@far", ""},
		{"tcp://127.0.0.1:2375", ""},
		{"tcp://localhost:2375", ""},
		{"tcp://10.0.0.1:2376", "DOCKER_CERT_PATH"},
		{"ssh://root@far/path?x=y", "ssh"},
		{"/var/run/docker.sock", "unix:///PATH"},
		{"unix://docker.sock", "absolute path"},
		{"unix://%zz", "not a URL"},
	} {
		c, err := NewClient(tt.host)
		if tt.want == "" && err != nil || tt.want != "" &&
			(err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: got error %v, want %q in it", tt.host, err, tt.want)
		}
		if err == nil {
			c.Close()
		}
	}
	t.Setenv("DOCKER_CERT_PATH", t.TempDir())
	if _, err := NewClient("tcp://far:2376"); err == nil ||
		!strings.Contains(err.Error(), "ca.pem") {
		t.Errorf("certificates that are missing: got error %v", err)
	}
}

// Requests that a compatible engine would silently ignore are rejected.
func TestSpeaker(t *testing.T) {
	own := client.ServerVersionResult{Components: []system.ComponentVersion{{Name: "Engine"},
		{Name: "containerd"}}}
	other :=
		client.ServerVersionResult{Components: []system.ComponentVersion{{Name: "Podman Engine"}, {Name: "Conmon"}}}
	if !IsDockers(own) || IsDockers(other) || IsDockers(client.ServerVersionResult{}) {
		t.Error("IsDockers mistakes an engine")
	}
	docker, podman := facts{defaultRuntime: "runc"},
		facts{defaultRuntime: "crun", runtimes: []string{"crun", "kata"}, cpus: 2}
	podman.adapt(system.Info{CgroupVersion: "1"})
	if _, err := fit(sandbox.Spec{Isolation: "kata"}, podman, 1024); !errors.Is(
		err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "the engine has crun") {
		t.Errorf("a runtime that it ignores: got error %v", err)
	}
	if got := notes(plan{}, podman, sandbox.Image{}); !strings.Contains(strings.Join(got, "\n"),
		"no control group namespace") {
		t.Errorf("got notes %q", got)
	}
	for path, fine := range map[string]bool{"/home/u/a b": true, "/home/u/a,ro=false": false,
		`/home/u/a"b`: false, "/home/u/a\nb": false} {
		if err := podman.mayMount("", path); (err == nil) != fine {
			t.Errorf("mount %q: got error %v", path, err)
		}
		if err := docker.mayMount(path); err != nil {
			t.Errorf("mount %q by Docker: got error %v", path, err)
		}
	}
	for tag, want := range map[string]string{
		"docker.io/sandboxd-snapshot/ab/x:latest": "sandboxd-snapshot/ab/x:latest",
		"docker.io/library/debian:12":             "debian:12",
		"sandboxd-build/ab:cd":                    "sandboxd-build/ab:cd",
		"localhost/sandboxd/base:latest":          "localhost/sandboxd/base:latest",
		"<none>:<none>":                           "<none>:<none>"} {
		if got := dockersName(tag); got != want {
			t.Errorf("%s: got %s, want %s", tag, got, want)
		}
	}
}
