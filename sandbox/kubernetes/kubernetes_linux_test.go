package kubernetes

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/kubernetes/cluster"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
)

func TestContractOnFake(t *testing.T) {
	sandboxtest.Run(t, sandboxtest.Suite{
		Open:    func(t *testing.T) sandbox.Backend { return newFake(t).backend() },
		Spec:    plainSpec,
		NoImage: "none:latest",
		// Nothing enforces their policy.
		Refused: []sandbox.Network{sandbox.NetworkNone, sandbox.NetworkFiltered,
			sandbox.NetworkAllowlist},
	})
}

// The daemon may also connect by a program in the container.
func TestContractRelayed(t *testing.T) {
	sandboxtest.Run(t, sandboxtest.Suite{
		Open: func(t *testing.T) sandbox.Backend {
			return newFake(t).backend(func(o *Options) { o.Relayed = true })
		},
		Spec: plainSpec, NoImage: "none:latest",
	})
}

// A sandbox with a volume can also be stopped.
func TestContractWithVolume(t *testing.T) {
	spec := plainSpec
	spec.Volume = sandbox.Volume{Size: 1 << 20}
	sandboxtest.Run(t, sandboxtest.Suite{
		Open: func(t *testing.T) sandbox.Backend {
			f := newFake(t)
			t.Cleanup(func() {
				if len(f.claims) != 0 {
					t.Errorf("claims are left: %v", f.claims)
				}
			})
			return f.backend()
		},
		Spec: spec, NoImage: "none:latest",
	})
}

// With a network that enforces policies, a sandbox has the closed network that it asks for, and
// each node is tested once.
func TestClosedNetworks(t *testing.T) {
	f := newFake(t)
	f.enforces = true
	b := f.backend()
	for _, network := range []sandbox.Network{sandbox.NetworkNone, sandbox.NetworkFiltered} {
		inst, err := b.Boot(t.Context(), sandbox.Spec{ID: string(network), Network: network})
		if err != nil {
			t.Fatal(err)
		}
		p := f.pod(podName(inst.ID))
		if p.Metadata.Labels[labelNetwork] != closed || p.Spec.DNSPolicy != "None" {
			t.Errorf("%s: pod %+v", network, p)
		}
		want := map[sandbox.Network]sandbox.Via{sandbox.NetworkFiltered: sandbox.ViaProxy}[network]
		if inst.Network != network || inst.Via != want {
			t.Errorf("%+v", inst)
		}
	}
	probes := 0
	for _, e := range f.events {
		if e.Type == "ADDED" && e.Object.Metadata.Labels[labelProbe] != "" {
			probes++
		}
	}
	if probes != 2 || len(f.policies) != 2 {
		t.Errorf("%d probes, policies %v, want 2 of both", probes, f.policies)
	}
	if list, err := b.List(t.Context()); err != nil || len(list) != 2 {
		t.Errorf("%+v, %v, want the sandboxes alone", list, err)
	}
}

// Without one, a sandbox that asks for a closed network is refused, and nothing is left.
func TestOpenCluster(t *testing.T) {
	f := newFake(t)
	b := f.backend()
	_, err := b.Boot(t.Context(), sandbox.Spec{ID: "s1"})
	boot, ok := errors.AsType[*sandbox.BootError](err)
	if !ok || !errors.Is(err, sandbox.ErrUnsupported) ||
		!strings.Contains(boot.Hint, "--network bridge") {
		t.Errorf("%v", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.pods) > 0 {
		t.Errorf("%d pods are left", len(f.pods))
	}
}

// plainSpec is a sandbox that any cluster can have.
var plainSpec = sandbox.Spec{Network: sandbox.NetworkBridge, Trust: sandbox.TrustImage}

// What a cluster changes of a pod, in a way that a sandbox must not have, is refused by name.
func TestChangedPods(t *testing.T) {
	yes := true
	for name, tt := range map[string]struct {
		change func(*cluster.Pod)
		want   string
	}{
		"label": {func(p *cluster.Pod) { delete(p.Metadata.Labels, labelNetwork) },
			"its label sandboxd.io/network"},
		"no seccomp": {func(p *cluster.Pod) { p.Spec.Security.Seccomp = nil }, "seccomp profile"},
		"seccomp": {func(p *cluster.Pod) {
			p.Spec.Containers[0].Security.Seccomp = &cluster.Seccomp{Type: "Unconfined"}
		}, "seccomp profile"},
		"escalation": {func(p *cluster.Pod) { p.Spec.Containers[0].Security.Escalation = &yes },
			"may gain rights"},
		"sidecar": {func(p *cluster.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, cluster.Container{Name: "proxy"})
		}, "another container"},
		"init container": {func(p *cluster.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, cluster.Container{Name: "iptables"})
		}, "another init container"},
		"host network":     {func(p *cluster.Pod) { p.Spec.HostNetwork = true }, "shares a namespace"},
		"shared processes": {func(p *cluster.Pod) { p.Spec.SharePID = &yes }, "shares a namespace"},
		"command": {func(p *cluster.Pod) {
			p.Spec.Containers[0].Command = []string{"/wrap\x1b", "x"}
		}, "its command is /wrap  x"},
		"arguments": {func(p *cluster.Pod) { p.Spec.Containers[0].Args = []string{"x"} },
			"its command is"},
		"image": {func(p *cluster.Pod) { p.Spec.Containers[0].Image = "mirror/base" },
			"its image is mirror/base"},
		"input":      {func(p *cluster.Pod) { p.Spec.Containers[0].StdinOnce = true }, "standard input"},
		"privileged": {func(p *cluster.Pod) { p.Spec.Containers[0].Security.Privileged = true }, "more rights"},
		"capability": {func(p *cluster.Pod) {
			p.Spec.Containers[0].Security.Capabilities.Add = []string{"SYS_ADMIN"}
		}, "more rights"},
		"capabilities": {func(p *cluster.Pod) { p.Spec.Containers[0].Security.Capabilities = nil },
			"more rights"},
		"user":    {func(p *cluster.Pod) { p.Spec.Containers[0].Security.User = number(1000) }, "its user"},
		"restart": {func(p *cluster.Pod) { p.Spec.Restart = "Always" }, "it restarts"},
		"token":   {func(p *cluster.Pod) { p.Spec.MountToken = nil }, "service account"},
		"host path": {func(p *cluster.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, cluster.Volume{Name: "host", HostPath: new(struct{})})
		}, "directory of the node, in volume host"},
		"guest": {func(p *cluster.Pod) { p.Spec.Containers[0].Mounts[0].Name = "shm" },
			"another mount at /dev/.sandboxd"},
		"mount": {func(p *cluster.Pod) {
			c := &p.Spec.Containers[0]
			c.Mounts = append(c.Mounts, cluster.VolumeMount{Name: "token", Path: "/token"})
		}, "another mount at /token"},
		"source of the guest": {func(p *cluster.Pod) {
			p.Spec.Volumes[0].Image = &cluster.ImageVolume{Reference: "evil"}
		}, "its volume guest"},
		"runtime": {func(p *cluster.Pod) { p.Spec.RuntimeClass = "runc" }, "its runtime class is runc"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.change = tt.change
			b := f.backend()
			_, err := b.Boot(t.Context(), sandbox.Spec{ID: "s1"})
			boot, ok := errors.AsType[*sandbox.BootError](err)
			if !ok || boot.Stage != sandbox.StageCreate || boot.Hint == "" ||
				!strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if f.pod(podName("s1")) != nil {
				t.Error("the pod is left behind")
			}
			if _, err := os.Stat(b.state.Dir("s1")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("its directory is left behind: %v", err)
			}
		})
	}
}

// A daemon that ended while it sent the configuration does not keep the next one out.
func TestHalfConfigured(t *testing.T) {
	f := newFake(t)
	f.sent = `{"version": 1, "host_key": "of a daemon that en`
	b := f.backend()
	spec := plainSpec
	spec.ID = "s1"
	inst, err := b.Boot(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Trust(t.Context(), inst, []byte("x")); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("authorities for a sandbox that trusts those of its image: %v", err)
	}
}

// Why a sandbox ended is in its status, and a new daemon says so, too.
func TestEnded(t *testing.T) {
	f := newFake(t)
	b := f.backend()
	spec := plainSpec
	spec.ID, spec.Name = "s1", "demo"
	inst, err := b.Boot(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	f.fail("s1", cluster.Terminated{ExitCode: 137, Reason: "OOMKilled"})
	st, err := b.Inspect(t.Context(), inst)
	if err != nil || st.Running || !st.OOMKilled || st.ExitCode != 137 {
		t.Errorf("%+v, %v", st, err)
	}
	if _, err := b.Dial(t.Context(), inst); !errors.Is(err, sandbox.ErrStopped) {
		t.Errorf("dial: %v", err)
	}
	list, err := b.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Ref != inst.Ref {
		t.Errorf("list: %+v, %v", list, err)
	}
	if err := b.Trust(t.Context(), inst, nil); !errors.Is(err, sandbox.ErrStopped) {
		t.Errorf("trust: %v", err)
	}
	other := inst
	other.Ref = "uid-of-another"
	if _, err := b.Inspect(t.Context(), other); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("another pod with its name: %v", err)
	}
	if err := b.Destroy(t.Context(), other); err != nil || f.pod(podName("s1")) == nil {
		t.Errorf("Destroy of another: %v, %v", err, f.pods)
	}
}

// Pods of others are left alone, with or without our labels.
func TestStrangers(t *testing.T) {
	f := newFake(t)
	mine, theirs := f.backend(), f.backend(func(o *Options) { o.DaemonID = "d2" })
	spec := plainSpec
	spec.ID = "s1"
	inst, err := theirs.Boot(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if list, err := mine.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("list: %+v, %v", list, err)
	}
	if err := mine.Destroy(t.Context(), inst); err != nil || f.pod(podName("s1")) == nil {
		t.Errorf("destroy: %v", err)
	}
	if _, err := mine.Boot(t.Context(), spec); !errors.Is(err, os.ErrExist) {
		t.Errorf("boot: %v", err)
	}
	if f.pod(podName("s1")) == nil {
		t.Error("the other daemon's pod is gone")
	}
}

// A pod that no daemon can log in to is removed, but not one that is being made.
func TestOrphans(t *testing.T) {
	f := newFake(t)
	b := f.backend()
	for _, id := range []string{"young", "old"} {
		spec := plainSpec
		spec.ID = id
		if _, err := b.Boot(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(b.state.Dir(id)); err != nil {
			t.Fatal(err)
		}
	}
	unlock, err := b.locks.Lock(t.Context(), "young")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if list, err := b.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	if f.pod(podName("old")) != nil || f.pod(podName("young")) == nil {
		t.Errorf("left: %v", f.pods)
	}
}

// So are probes that a daemon left behind, and no young ones.
func TestSweepOfProbes(t *testing.T) {
	f := newFake(t)
	b := f.backend()
	var ids []string
	for range 2 {
		p, err := b.newProbe(t.Context(), probe{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.client.Close()
		ids = append(ids, p.id)
	}
	f.pods[podName(ids[0])].Metadata.Created = time.Now().Add(-2 * probeAge)
	if err := b.Sweep(t.Context()); err != nil || len(f.pods) != 2 {
		t.Errorf("sweep of probes in use: %v, %v", err, f.pods)
	}
	if err := f.backend().Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f.pod(podName(ids[0])) != nil || f.pod(podName(ids[1])) == nil {
		t.Error("want the young one alone")
	}
}

func TestRefusedSpecs(t *testing.T) {
	b := newFake(t).backend()
	for name, tt := range map[string]struct {
		change func(*sandbox.Spec)
		want   string
	}{
		"authorities": {func(s *sandbox.Spec) {
			s.Trust, s.Authorities = sandbox.TrustImage, []byte("x")
		}, "more certificate authorities"},
		"mount": {func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Path: "/"}} }, "mounted directories"},
		"tun": {func(s *sandbox.Spec) {
			s.Network, s.Via = sandbox.NetworkFiltered, sandbox.ViaTUN
		}, "network filtered=tun"},
		"pids":   {func(s *sandbox.Spec) { s.Limits.PIDs = 100 }, "limit pids"},
		"nofile": {func(s *sandbox.Spec) { s.Limits.NoFile = 100 }, "limit nofile"},
		"swap":   {func(s *sandbox.Spec) { s.Limits.Swap = 1 << 30 }, "swap"},
	} {
		spec := plainSpec
		spec.ID = "s1"
		tt.change(&spec)
		_, err := b.Boot(t.Context(), spec)
		boot, ok := errors.AsType[*sandbox.BootError](err)
		if !ok || boot.Stage != sandbox.StageValidate || boot.Hint == "" ||
			!errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// What a cluster refuses comes with what to do.
func TestRefusalHints(t *testing.T) {
	b := newFake(t).backend()
	for text, want := range map[string]string{
		`pods "x" is forbidden: violates PodSecurity "restricted:latest": …`:         "enforce=baseline",
		`pods "x" is forbidden: exceeded quota: few, …`:                              "raise the quota",
		`unable to create new content in namespace x because it is being terminated`: "another namespace",
		`pods is forbidden: User "u" cannot create resource "pods"`:                  "sandboxd doctor",
		`maximum memory usage per Container is 1Gi, but limit is 2Gi`:                "LimitRange",
		`pod rejected: RuntimeClass "x" not found`:                                   "",
	} {
		err := b.refused(&cluster.Status{Reason: "Forbidden", Message: text})
		hint := sandbox.HintOf(err)
		if !errors.Is(err, sandbox.ErrRefused) || !strings.Contains(hint, want) ||
			(hint == "") != (want == "") {
			t.Errorf("%s: %v, %q; want %q", text, err, hint, want)
		}
	}
}

// Why a pod ended does not speak of the container that copied the guest, unless that failed.
func TestEndOfPods(t *testing.T) {
	ended := func(name string, code int) cluster.ContainerStatus {
		return cluster.ContainerStatus{Name: name, State: cluster.ContainerState{
			Terminated: &cluster.Terminated{Reason: "Ended", ExitCode: code, Message: "of " + name}}}
	}
	for _, tt := range []struct {
		guest, sandbox int
		want           string
	}{
		{0, 0, "Ended, exit code 0 of sandbox"},
		{0, 78, "Ended, exit code 78 of sandbox"},
		{1, 0, "Ended, exit code 1 of guest Ended, exit code 0 of sandbox"},
	} {
		p := cluster.Pod{}
		p.Status.Init = []cluster.ContainerStatus{ended("guest", tt.guest)}
		p.Status.Containers = []cluster.ContainerStatus{ended(container, tt.sandbox)}
		if got := strings.TrimSpace(endOf(&p)); got != tt.want {
			t.Errorf("%+v: %q", tt, got)
		}
	}
}

// An image that cannot be had is named, also if the kubelet blames the container that mounts it.
func TestMissingImages(t *testing.T) {
	s := &booting{b: newFake(t).backend()}
	guest := s.b.opts.GuestImage
	for _, tt := range []struct{ container, message, want string }{
		{container, `failed to pull image "box"`, "image box: "},
		{container, `failed to mount: failed to pull image "` + guest + `"`, "image " + guest + ": "},
		{"guest", `failed to pull image "` + guest + `"`, "image " + guest + ": "},
		{container, "pull QPS exceeded", ""},
	} {
		p := cluster.Pod{}
		p.Status.Containers = []cluster.ContainerStatus{{Name: tt.container, State: cluster.ContainerState{
			Waiting: &cluster.Waiting{Reason: "ErrImagePull", Message: tt.message}}}}
		err := s.noImage(&p, "box")
		if (err == nil) != (tt.want == "") || err != nil && (!errors.Is(err, sandbox.ErrNoImage) ||
			!strings.HasPrefix(err.Error(), tt.want)) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

// A server that goes away in the middle is an engine that does not answer.
func TestServerIsAway(t *testing.T) {
	f := newFake(t)
	b := f.backend()
	spec := plainSpec
	spec.ID = "s1"
	inst, err := b.Boot(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	f.http.CloseClientConnections()
	f.http.Listener.Close()
	if _, err := b.Dial(t.Context(), inst); !errors.Is(err, sandbox.ErrEngine) {
		t.Errorf("dial: %v", err)
	}
	if err := b.Destroy(t.Context(), inst); !errors.Is(err, sandbox.ErrEngine) {
		t.Errorf("destroy: %v", err)
	}
	if _, err := b.List(t.Context()); !errors.Is(err, sandbox.ErrEngine) {
		t.Errorf("list: %v", err)
	}
}

var update = flag.Bool("update", false, "write the golden files")

// What a pod may do is reviewed as text.
func TestPodOf(t *testing.T) {
	parsed, err := ParseTemplate([]byte(template))
	if err != nil {
		t.Fatal(err)
	}
	base := plan{Daemon: "d1", ID: "s1", Host: "demo", Image: "sandboxd/base:latest",
		GuestImage: "sandboxd/guest:1", ImageVolumes: true, Limits: sandbox.DefaultLimits}
	for name, change := range map[string]func(*plan){
		"plain": func(*plan) {},
		"copy":  func(p *plan) { p.ImageVolumes = false },
		"closed": func(p *plan) {
			p.Closed, p.Sudo, p.Runtime = true, true, "gvisor"
		},
		"volume": func(p *plan) {
			p.Claim, p.Volume = "uid1", sandbox.Volume{Size: 1 << 30, Path: "/root"}
		},
		"template": func(p *plan) { p.Template = parsed },
		"probe":    func(p *plan) { p.Probe, p.Image = true, p.GuestImage },
	} {
		t.Run(name, func(t *testing.T) {
			p := base
			change(&p)
			got, err := json.MarshalIndent(podOf(p), "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			file := filepath.Join("testdata", name+".json")
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if diff := cmp.Diff(string(want), string(got)); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}
