package docker

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/sandbox"
)

func TestValidate(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*sandbox.Spec)
		want   string // text of the error; empty: valid
	}{
		{"defaults", func(*sandbox.Spec) {}, ""},
		{"all set", func(s *sandbox.Spec) {
			s.Image, s.Network, s.User, s.Env = "Registry.example:5000/a/b@sha256:"+
				strings.Repeat("0", 64), sandbox.NetworkBridge, "1000:1000", []string{"A=", "B=c=d"}
			s.Image = strings.ToLower(s.Image)
			s.Limits = sandbox.Limits{Memory: 64 << 20, CPUs: 0.5, PIDs: 100, Shm: 1 << 20,
				NoFile: 1024}
			s.Entrypoint, s.Trust = sandbox.EntrypointOff, sandbox.TrustImage
		}, ""},
		{"no id", func(s *sandbox.Spec) { s.ID = "" }, "DNS label"},
		{"id that is a path", func(s *sandbox.Spec) { s.ID = "../x" }, "DNS label"},
		{"id with a newline", func(s *sandbox.Spec) { s.ID = "x\n" }, "DNS label"},
		{"id of 33", func(s *sandbox.Spec) { s.ID = strings.Repeat("x", 33) }, "DNS label"},
		{"image with spaces", func(s *sandbox.Spec) { s.Image = "a b" }, "image"},
		{"image that is an option", func(s *sandbox.Spec) { s.Image = "--privileged" }, "image"},
		{"filtered", func(s *sandbox.Spec) { s.Network = sandbox.NetworkFiltered }, ""},
		{"allowlist", func(s *sandbox.Spec) { s.Network = sandbox.NetworkAllowlist }, ""},
		{"host network", func(s *sandbox.Spec) { s.Network = "host" }, "must be none"},
		{"another container's network", func(s *sandbox.Spec) { s.Network = "container:x" }, "must be none"},
		{"entrypoint", func(s *sandbox.Spec) { s.Entrypoint = "on" }, "entrypoint"},
		{"trust", func(s *sandbox.Spec) { s.Trust = "me" }, "trust"},
		{"user with a newline", func(s *sandbox.Spec) { s.User = "root\nx" }, "user"},
		{"user with two groups", func(s *sandbox.Spec) { s.User = "a:b:c" }, "user"},
		{"variable without a value", func(s *sandbox.Spec) { s.Env = []string{"A"} }, "NAME=VALUE"},
		{"variable without a name", func(s *sandbox.Spec) { s.Env = []string{"=a"} }, "NAME=VALUE"},
		{"variable with NUL", func(s *sandbox.Spec) { s.Env = []string{"A=\x00"} }, "NUL"},
		{"too many variables", func(s *sandbox.Spec) { s.Env = make([]string, maxEnv+1) }, "at most 256"},
		{"too long variables", func(s *sandbox.Spec) { s.Env = []string{"A=" + strings.Repeat("x", maxEnvLen)} }, "more than"},
		{"negative memory", func(s *sandbox.Spec) { s.Limits.Memory = -1 }, "memory"},
		{"little memory", func(s *sandbox.Spec) { s.Limits.Memory = 1 << 20 }, "memory"},
		{"negative cpus", func(s *sandbox.Spec) { s.Limits.CPUs = -1 }, "cpus"},
		{"few pids", func(s *sandbox.Spec) { s.Limits.PIDs = 10 }, "pids"},
		{"unlimited pids", func(s *sandbox.Spec) { s.Limits.PIDs = -1 }, "pids"},
		{"many pids", func(s *sandbox.Spec) { s.Limits.PIDs = 1 << 40 }, "pids"},
		{"negative shm", func(s *sandbox.Spec) { s.Limits.Shm = -1 }, "shm"},
		{"few files", func(s *sandbox.Spec) { s.Limits.NoFile = 3 }, "nofile: 3 is out of bounds"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := sandbox.Spec{ID: "s1"}
			tt.change(&spec)
			got, err := validate(spec)
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("got error %v, want none", err)
			case tt.want == "" && (got.Network == "" || got.Image == ""):
				t.Errorf("got %+v, want its defaults filled in", got)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got error %v, want one with %q in it", err, tt.want)
			}
			if errors.Is(err, sandbox.ErrUnsupported) {
				t.Errorf("error %v wraps ErrUnsupported, want an invalid spec", err)
			}
		})
	}
}

func TestFit(t *testing.T) {
	two := facts{cpus: 2, runtimes: []string{"crun", "runc"}}
	for _, tt := range []struct {
		name string
		spec sandbox.Spec
		f    facts
		want sandbox.Limits
		err  string
	}{
		{"defaults", sandbox.Spec{}, two, sandbox.Limits{Memory: 2 << 30, CPUs: 2, PIDs: 512, Shm: 64 << 20, NoFile: 20000, Disk: 10 << 30, Sessions: 32, Connections: 1024}, ""},
		{"one core", sandbox.Spec{}, facts{cpus: 1}, sandbox.Limits{Memory: 2 << 30, CPUs: 1, PIDs: 512, Shm: 64 << 20, NoFile: 20000, Disk: 10 << 30, Sessions: 32, Connections: 1024}, ""},
		{"asked for", sandbox.Spec{Isolation: "runc", Limits: sandbox.Limits{Memory: 1, CPUs: 1.5,
			PIDs: 2, Shm: 3, NoFile: 4, Disk: 5, Sessions: 6}}, two,
			sandbox.Limits{Memory: 1, CPUs: 1.5, PIDs: 2, Shm: 3, NoFile: 4, Disk: 5, Sessions: 6, Connections: 1024}, ""},
		{"little memory", sandbox.Spec{}, facts{cpus: 2, memory: 1 << 30}, sandbox.Limits{Memory: 1 << 30, CPUs: 2, PIDs: 512, Shm: 64 << 20, NoFile: 20000, Disk: 10 << 30, Sessions: 32, Connections: 1024}, ""},
		{"less than /dev/shm", sandbox.Spec{Limits: sandbox.Limits{Memory: 32 << 20}}, two,
			sandbox.Limits{Memory: 32 << 20, CPUs: 2, PIDs: 512, Shm: 32 << 20, NoFile: 20000, Disk: 10 << 30, Sessions: 32, Connections: 1024}, ""},
		{"too much memory", sandbox.Spec{Limits: sandbox.Limits{Memory: 3 << 30}}, facts{cpus: 2, memory: 2<<30 + 5}, sandbox.Limits{}, "3g of memory: not supported by this backend: the engine has 2g"},
		{"too many cores", sandbox.Spec{Limits: sandbox.Limits{CPUs: 3}}, two, sandbox.Limits{}, "3 cpus: not supported by this backend: the engine has 2"},
		{"isolation", sandbox.Spec{Isolation: "runsc"}, two, sandbox.Limits{}, `isolation "runsc": not supported by this backend: the engine has crun, runc`},
		{"runsc as it comes", sandbox.Spec{Isolation: "runsc"}, facts{cpus: 2, runtimes: []string{"runsc"}, unfit: map[string]string{"runsc": "--overlay2=none"}}, sandbox.Limits{},
			`isolation "runsc": not supported by this backend: the engine starts it without --overlay2=none: sandboxes would lose their files or not answer`},
		{"runsc by default", sandbox.Spec{}, facts{cpus: 2, defaultRuntime: "runsc", unfit: map[string]string{"runsc": "x"}}, sandbox.Limits{},
			`isolation "runsc": not supported by this backend: the engine starts it without x: sandboxes would lose their files or not answer`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := fit(tt.spec, tt.f, 20000)
			if tt.err != "" {
				if err == nil || err.Error() != tt.err || !errors.Is(err, sandbox.ErrUnsupported) {
					t.Errorf("got error %v, want %s", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("limits (-want +got):\n%s", diff)
			}
		})
	}
}

// If the device cannot work the proxy is used, unless the spec asks for the device.
func TestVia(t *testing.T) {
	here, other := facts{defaultRuntime: "runc"}, facts{defaultRuntime: "runsc"}
	for _, tt := range []struct {
		spec sandbox.Spec
		f    facts
		want sandbox.Via
		err  string
	}{
		{sandbox.Spec{Network: sandbox.NetworkNone}, here, "", ""},
		{sandbox.Spec{Network: sandbox.NetworkBridge}, other, "", ""},
		{sandbox.Spec{Network: sandbox.NetworkFiltered}, here, sandbox.ViaTUN, ""},
		{sandbox.Spec{Network: sandbox.NetworkFiltered, Via: sandbox.ViaTUN}, here, sandbox.ViaTUN, ""},
		{sandbox.Spec{Network: sandbox.NetworkAllowlist, Via: sandbox.ViaProxy}, here, sandbox.ViaProxy, ""},
		{sandbox.Spec{Network: sandbox.NetworkFiltered}, other, sandbox.ViaProxy, ""},
		{sandbox.Spec{Network: sandbox.NetworkAllowlist, Isolation: "runsc"}, here, sandbox.ViaProxy, ""},
		{sandbox.Spec{Network: sandbox.NetworkFiltered, Via: sandbox.ViaTUN}, other, "", "network filtered=tun: not supported by this backend: a sandbox of runsc cannot hand its network device to the daemon"},
	} {
		got, err := via(tt.spec, tt.f)
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil &&
			(err.Error() != tt.err || !errors.Is(err, sandbox.ErrUnsupported)) {
			t.Errorf("%s=%s with %s: got %q, %v", tt.spec.Network, tt.spec.Via, tt.f.defaultRuntime,
				got, err)
		}
	}
	for _, spec := range []sandbox.Spec{{ID: "s1", Network: sandbox.NetworkBridge,
		Via: sandbox.ViaTUN}, {ID: "s1", Network: sandbox.NetworkFiltered, Via: "wire"}} {
		if _, err := validate(spec); err == nil {
			t.Errorf("%s=%s was taken", spec.Network, spec.Via)
		}
	}
}
