package docker

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/sandbox"
)

func TestValidateImage(t *testing.T) {
	digest := "registry.example:5000/a/b@sha256:" + strings.Repeat("0", 64)
	for image, want := range map[string]string{"": sandbox.DefaultImage, "debian": "debian:latest",
		digest: digest} {
		got, err := validate(sandbox.Spec{ID: "s1", Image: image})
		if err != nil || got.Image != want || got.Network != sandbox.NetworkNone {
			t.Errorf("%q: %+v, %v, want image %s", image, got, err, want)
		}
	}
	for _, image := range []string{"a b", "--privileged"} {
		if _, err := validate(sandbox.Spec{ID: "s1", Image: image}); err == nil ||
			!strings.Contains(err.Error(), "image") {
			t.Errorf("%q: got error %v, want one about the image", image, err)
		}
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
