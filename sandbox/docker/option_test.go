package docker

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/moby/moby/api/types/container"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/machine"
)

// The supported options, with their effect in the engine's description of the container, and on a
// program inside. The second value is invalid.
var optionCases = []struct {
	name, value, bad string
	engine           func(container.InspectResponse) bool
	inside, want     string
}{
	{"add-host", "db:10.1.2.3", "db", func(c container.InspectResponse) bool { return slices.Contains(c.HostConfig.ExtraHosts, "db:10.1.2.3") },
		"grep -w db /etc/hosts | tr '\\t' ' '", "10.1.2.3 db"},
	{"blkio-weight", "300", "5", func(c container.InspectResponse) bool { return c.HostConfig.BlkioWeight == 300 }, "", ""},
	{"cpu-shares", "512", "2048", func(c container.InspectResponse) bool { return c.HostConfig.CPUShares == 512 },
		"cat /sys/fs/cgroup/cpu/cpu.shares 2>/dev/null || { test $(cat " +
			"/sys/fs/cgroup/cpu.weight) -lt 100 && echo 512; }", "512"},
	{"cpuset-cpus", "0", "0-", func(c container.InspectResponse) bool { return c.HostConfig.CpusetCpus == "0" },
		"grep Cpus_allowed_list /proc/self/status | tr '\\t' ' '", "Cpus_allowed_list: 0"},
	{"dns", "192.0.2.1", "one.example", func(c container.InspectResponse) bool {
		return len(c.HostConfig.DNS) == 1 && c.HostConfig.DNS[0].String() == "192.0.2.1"
	}, "grep nameserver /etc/resolv.conf", "nameserver 192.0.2.1"},
	{"dns-search", "lab.example", "a b", func(c container.InspectResponse) bool {
		return slices.Equal(c.HostConfig.DNSSearch, []string{"lab.example"})
	},
		"grep search /etc/resolv.conf", "search lab.example"},
	{"env", "GREETING=hello there", "GREETING", func(c container.InspectResponse) bool { return !slices.ContainsFunc(c.Config.Env, isGreeting) },
		"echo $GREETING", "hello there"}, // the guest sets it, not the engine
	{"hostname", "box.example", "-x", func(c container.InspectResponse) bool { return c.Config.Hostname == "box.example" },
		"hostname; hostname -f", "box.example\nbox.example"},
	{"label", "team=blue=green", "sandboxd.id=x", func(c container.InspectResponse) bool { return c.Config.Labels["team"] == "blue=green" }, "", ""},
	{"oom-score-adj", "700", "-1", func(c container.InspectResponse) bool { return c.HostConfig.OomScoreAdj == 700 },
		// The guest raises it right after the start of the shell.
		"i=0; while test $i -lt 1000 -a $(cat /proc/$$/oom_score_adj) = 700; do i=$((i+1)); " +
			"done; cat /proc/1/oom_score_adj /proc/$$/oom_score_adj | xargs", "700 900"},
	{"read-only", "true", "perhaps", func(c container.InspectResponse) bool { return c.HostConfig.ReadonlyRootfs },
		"touch /x 2>/dev/null || echo closed; touch /dev/shm/x && echo open", "closed\nopen"},
	{"sysctl", "net.core.somaxconn=99", "kernel.core_pattern=1", func(c container.InspectResponse) bool { return c.HostConfig.Sysctls["net.core.somaxconn"] == "99" },
		"cat /proc/sys/net/core/somaxconn", "99"},
	{"tmpfs", "/scratch:size=8m,exec,uid=12,gid=34", "/dev/x",
		func(c container.InspectResponse) bool {
			return strings.Contains(c.HostConfig.Tmpfs["/scratch"], "size=8388608")
		},
		`df -k /scratch | awk 'END{print $2}'; stat -c '%a %u:%g' /scratch; grep ' /scratch ' /proc/mounts | grep -o nosuid,nodev; cp /bin/busybox /scratch/busybox && /scratch/busybox echo runs`, "8192\n755 12:34\nnosuid,nodev\nruns"},
	{"ulimit", "memlock=65536:131072", "nofile=9", func(c container.InspectResponse) bool {
		return slices.ContainsFunc(c.HostConfig.Ulimits, func(u *container.Ulimit) bool {
			return u.Name == "memlock" && u.Soft == 65536 && u.Hard == 131072
		})
	}, "ulimit -l; grep 'locked memory' /proc/self/limits | tr -s ' '",
		"64\nMax locked memory 65536 131072 bytes "},
}

func isGreeting(s string) bool { return strings.HasPrefix(s, "GREETING=") }

// Each option has its effect, in the engine and inside, also after a stop; and the guest works with
// each.
func TestOptions(t *testing.T) {
	var tried []string
	for _, tt := range optionCases {
		tried = append(tried, tt.name)
		t.Run(tt.name, func(t *testing.T) {
			b := testBackend(t)
			if err := CheckOptions([]string{tt.name + "=" + tt.bad}); err == nil ||
				!strings.Contains(err.Error(), "docker option "+tt.name) {
				t.Errorf("%s=%s: got %v, want it refused by name", tt.name, tt.bad, err)
			}
			f := factsFor(t, b)
			if f.compatible && !slices.Contains(compatibleOptions, tt.name) || !passesDescriptors(
				cmp.Or(testIsolation, f.defaultRuntime)) && !slices.Contains(ownKernel, tt.name) {
				_, err := b.Boot(t.Context(),
					sandbox.Spec{ID: newID(), Image: busybox, Isolation: testIsolation,
						Network: sandbox.NetworkBridge,
						Options: []string{tt.name + "=" + tt.value}})
				if !errors.Is(err, sandbox.ErrUnsupported) ||
					!strings.Contains(err.Error(), tt.name) {
					t.Errorf("on an engine that may ignore it: got %v, want an error with its name",
						err)
				}
				return
			}
			spec := sandbox.Spec{ID: newID(), Image: busybox, Isolation: testIsolation,
				Options: []string{tt.name + "=" + tt.value}}
			if strings.HasPrefix(tt.name, "dns") {
				spec.Network = sandbox.NetworkBridge
			}
			if _, err := os.Stat("/sys/fs/cgroup/blkio/blkio.weight"); err != nil &&
				tt.name == "blkio-weight" {
				// The engine silently makes the container without it.
				if inst, err := b.Boot(t.Context(), spec); err == nil {
					if c, err := b.engine.container(t.Context(), inst.Ref); err != nil ||
						!tt.engine(c) {
						t.Errorf("the engine does not support it, and Boot reported no error: %v",
							err)
					}
				} else if !errors.Is(err, sandbox.ErrUnsupported) {
					t.Errorf("got %v, want %v where the kernel does not have it", err,
						sandbox.ErrUnsupported)
				}
				return
			}
			inst := boot(t, b, spec)
			look := func(when string) {
				c, err := b.engine.container(t.Context(), inst.Ref)
				if err != nil || !tt.engine(c) {
					t.Errorf("%s: the engine has not heard of it: %v", when, err)
				}
				if tt.inside == "" {
					return
				}
				if got := mustSh(t, login(t, b, inst), tt.inside); got != tt.want {
					t.Errorf("%s: got %q inside, want %q", when, got, tt.want)
				}
			}
			look("after boot")
			if !slices.ContainsFunc(inst.Notes, func(s string) bool {
				return strings.HasPrefix(s, "docker options: "+tt.name+"=")
			}) {
				t.Errorf("got notes %q, want it named", inst.Notes)
			}
			if strings.Contains(strings.Join(inst.Notes, "\n"), "hello") {
				t.Errorf("got notes %q, which say what a variable holds", inst.Notes)
			}
			if err := b.Stop(t.Context(), inst, 0); err != nil {
				t.Fatal(err)
			}
			var err error
			if inst, err = b.Start(t.Context(), inst); err != nil {
				t.Fatal(err)
			}
			look("after stop and start")
		})
	}
	if got := OptionNames(); !slices.Equal(got, tried) {
		t.Errorf("tried %q, but there are %q", tried, got)
	}
}

// Options work together, with a network that the daemon carries and a user from the spec.
func TestOptionsTogether(t *testing.T) {
	b := testBackend(t)
	if f := factsFor(t, b); f.compatible ||
		!passesDescriptors(cmp.Or(testIsolation, f.defaultRuntime)) {
		t.Skip("this engine, or runtime, has hardly any option")
	}
	inst := boot(t, b, sandbox.Spec{Network: sandbox.NetworkFiltered, User: "1234:1234",
		Options: []string{"read-only=true", "tmpfs=/tmp", "tmpfs=/work:size=1m,uid=1234",
			"sysctl=net.ipv4.ip_unprivileged_port_start=80", "hostname=box", "ulimit=stack=-1",
			"label=a=b", "label=c=d"}})
	look := func(when string) {
		got := mustSh(t, login(t, b, inst),
			"id -u; ls /sys/class/net; touch /tmp/a /work/b && hostname; cat "+
				"/proc/sys/net/ipv4/ip_unprivileged_port_start")
		if want := "1234\nlo\ntun0\nbox\n80"; got != want {
			t.Errorf("%s: got %q, want %q", when, got, want)
		}
	}
	look("after boot")
	if err := b.Stop(t.Context(), inst, 0); err != nil {
		t.Fatal(err)
	}
	var err error
	if inst, err = b.Start(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
	look("after stop and start")
}

// Options that have another setting, or would give more of the machine, are rejected by name, with
// the alternative.
func TestReservedOptions(t *testing.T) {
	for name, instead := range reserved {
		for _, text := range []string{name + "=x", name} {
			err := CheckOptions([]string{text})
			if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), name) ||
				sandbox.HintOf(err) != instead {
				t.Errorf("%s: got %v, hint %q; want %v and %q", text, err, sandbox.HintOf(err),
					sandbox.ErrUnsupported, instead)
			}
		}
		if _, both := optionsByName[name]; both {
			t.Errorf("%s is reserved, and had", name)
		}
	}
	for name, want := range map[string]string{"cap_add": "docs/concepts/security.md",
		"volumes": "--mount", "mem_limit": "--memory", "--network": "--network", "devices": "device",
		"Hostname": "use hostname", "cpu_shares": "use cpu-shares", "environment": "use env", "extra_hosts": "use add-host", "ulimits": "use ulimit",
		"hostnmae": "supported options: add-host", "": "supported options",
		"\x1b[31m": "supported options"} {
		err := CheckOptions([]string{name + "=1"})
		if err == nil || !strings.Contains(sandbox.HintOf(err), want) ||
			strings.ContainsRune(err.Error(), 0x1b) {
			t.Errorf("%q: got %v, hint %q; want %q", name, err, sandbox.HintOf(err), want)
		}
	}
}

func TestOptionConflicts(t *testing.T) {
	docker, other := facts{defaultRuntime: "runc"}, facts{compatible: true, defaultRuntime: "crun"}
	for _, tt := range []struct {
		list []string
		spec sandbox.Spec
		f    facts
		want string
	}{
		{[]string{"dns=1.1.1.1"}, sandbox.Spec{Network: sandbox.NetworkBridge}, docker, ""},
		{[]string{"dns=1.1.1.1"}, sandbox.Spec{Network: sandbox.NetworkFiltered}, docker, "with network filtered"},
		{[]string{"dns-search=a.example"}, sandbox.Spec{Network: sandbox.NetworkNone}, docker, "with network none"},
		{[]string{"tmpfs=/a/b"}, sandbox.Spec{Mounts: []sandbox.Mount{{Path: "/a/b"}}}, docker, "is mounted there"},
		{[]string{"tmpfs=/a/b/c"}, sandbox.Spec{Mounts: []sandbox.Mount{{Path: "/a/b"}}}, docker, "is mounted there"},
		{[]string{"tmpfs=/a"}, sandbox.Spec{Mounts: []sandbox.Mount{{Path: "/a/b"}}}, docker, "is mounted there"},
		{[]string{"tmpfs=/a"}, sandbox.Spec{Mounts: []sandbox.Mount{{Path: "/ab"}}}, docker, ""},
		{[]string{"tmpfs=/a:size=2g"}, sandbox.Spec{}, docker, "more than the memory limit, 1g"},
		{[]string{"env=A=b"}, sandbox.Spec{}, other, ""},
		{[]string{"env=A=b", "label=a=b", "add-host=a:10.0.0.1"}, sandbox.Spec{Isolation: "runsc"}, docker, ""},
		{[]string{"env=A=b", "sysctl=kernel.shmmax=1"}, sandbox.Spec{Isolation: "runsc"}, docker, "docker option sysctl"},
		{[]string{"env=A=b", "read-only=true"}, sandbox.Spec{}, other, "docker option read-only"},
	} {
		o, err := parseOptions(tt.list)
		if err != nil {
			t.Fatal(err)
		}
		err = o.fit(tt.spec, 1<<30, tt.f)
		if (err == nil) != (tt.want == "") || err != nil &&
			!strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: got %v, want %q", tt.list, err, tt.want)
		}
	}
	for _, list := range [][]string{{"hostname=a", "hostname=b"}, {"label=a=b", "label=a=c"},
		{"tmpfs=/a", "tmpfs=/a:size=1m"}, {"sysctl=kernel.shmmax=1", "sysctl=kernel.shmmax=2"},
		{"ulimit=stack=1048576", "ulimit=stack=-1"}, slices.Repeat([]string{"env=A=b"}, maxOptions+1), {"env=A=" + strings.Repeat("x", maxOptionLen)}, {"env=A=b\nC=d"}, {"hostname"}, {"hostname="},
		{"tmpfs=/"}, {"tmpfs=/proc"}, {"tmpfs=/etc/x"}, {"tmpfs=/a/../dev"}, {"tmpfs=a"}, {"tmpfs=/a:mode=700"}, {"tmpfs=/a:uid=-1"}, {"tmpfs=/a:size=1m,size="}, {"tmpfs=/a:suid"}, {"tmpfs=/a:size=0"}, {"tmpfs=/a,b"},
		{"ulimit=memlock=5:4"}, {"ulimit=memlock=-1:4"}, {"ulimit=memlock=-2"}, {"ulimit=rtprio=9"}, {"ulimit=stack=262143"}, {"ulimit=stack=4096:-1"}, {"label=com.docker.compose.project=x"}, {"label=SANDBOXD.id=x"},
		{"label=io.containers.autoupdate=x"}, {"sysctl=net.core.somaxconn=1;2"},
		{"add-host=a:host-gateway"}, {"oom-score-adj=1001"}, {"cpu-shares=0"}} {
		if err := CheckOptions(list); err == nil {
			t.Errorf("%.60q: no error", list)
		}
	}
}

// An option that the engine discards is an error, not a warning in a log.
func TestOptionsThatTheEngineDiscards(t *testing.T) {
	f := newFlaky(t)
	b := testBackend(t, f.use)
	factsFor(t, b)
	f.set(func(w http.ResponseWriter, r *http.Request) bool {
		if !asks(r, "POST /containers/create") {
			return false
		}
		forward(t, r.WithContext(context.WithoutCancel(r.Context())))
		c, err := b.engine.container(context.WithoutCancel(r.Context()), r.URL.Query().Get("name"))
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		w.Write([]byte(`{"Id":"` + c.ID +
			`","Warnings":["Your kernel does not support CPU shares or the cgroup is not mounted. Shares discarded."]}`))
		return true
	})
	id := newID()
	_, err := b.Boot(t.Context(), sandbox.Spec{ID: id, Image: busybox,
		Options: []string{"env=A=b"}})
	boot := wantStage(t, err, sandbox.StageCreate)
	if !errors.Is(err, sandbox.ErrUnsupported) ||
		!strings.Contains(err.Error(), "Shares discarded") || boot.Hint == "" {
		t.Errorf("got %v, hint %q; want %v, what was left out, and what to do", err, boot.Hint,
			sandbox.ErrUnsupported)
	}
	nothingLeft(t, b, id)
}

// No option gives a container more rights.
func FuzzOptions(f *testing.F) {
	for _, tt := range optionCases {
		f.Add(tt.name + "=" + tt.value)
		f.Add(tt.name + "=" + tt.bad)
	}
	f.Add("privileged=true\nlabel=sandboxd.id=x\ntmpfs=/dev/../x")
	base := createRequest(plan{ID: "s1", Network: sandbox.NetworkNone,
		Limits: sandbox.DefaultLimits, GuestFile: "/g/guest-1", RunDir: "/r"})
	f.Fuzz(func(t *testing.T, text string) {
		o, err := parseOptions(strings.Split(text, "\n"))
		if err != nil {
			return
		}
		r := createRequest(plan{ID: "s1", Network: sandbox.NetworkNone,
			Limits: sandbox.DefaultLimits, GuestFile: "/g/guest-1", RunDir: "/r", Options: o})
		for path, said := range r.HostConfig.Tmpfs {
			if machine.Within(path, "/dev") || machine.Within(path, "/.sandboxd") ||
				!strings.HasPrefix(path, "/") || !strings.Contains(said, "nosuid,nodev") {
				t.Errorf("tmpfs at %q: %s", path, said)
			}
		}
		for name := range r.Config.Labels {
			if strings.HasPrefix(name, ourLabels) &&
				base.Config.Labels[name] != r.Config.Labels[name] {
				t.Errorf("label %s is %q", name, r.Config.Labels[name])
			}
		}
		for name := range r.HostConfig.Sysctls {
			if !slices.Contains(sysctls, name) {
				t.Errorf("sysctl %s", name)
			}
		}
		// The rest is unchanged.
		h := *r.HostConfig
		h.ExtraHosts, h.DNS, h.DNSSearch, h.OomScoreAdj, h.ReadonlyRootfs, h.Sysctls,
			h.Tmpfs = base.HostConfig.ExtraHosts, base.HostConfig.DNS, base.HostConfig.DNSSearch, 0,
			false, nil, nil
		h.CPUShares, h.CpusetCpus, h.BlkioWeight, h.Ulimits = 0, "", 0, base.HostConfig.Ulimits
		c := *r.Config
		c.Hostname, c.Labels = base.Config.Hostname, base.Config.Labels
		got := container.CreateRequest{Config: &c, HostConfig: &h,
			NetworkingConfig: r.NetworkingConfig}
		if diff := gocmp.Diff(base, got, cmpopts.EquateComparable(netip.Addr{}),
			cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("options change more (-without +with):\n%s", diff)
		}
	})
}

// docs/concepts/isolation.md lists each option with its syntax, and each reserved name with its
// alternative.
func TestOptionsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/concepts/isolation.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range optionsByName {
		if row := "| `" + name + "` | " + o.takes + " |\n"; !strings.Contains(string(text), row) {
			t.Errorf("this row is missing: %s", row)
		}
	}
	rows := make(map[string][]string)
	for name, instead := range reserved {
		rows[instead] = append(rows[instead], "`"+name+"`")
	}
	for instead, names := range rows {
		slices.Sort(names)
		if row := "| " + strings.Join(names, ", ") + " | " + instead +
			" |\n"; !strings.Contains(string(text), row) {
			t.Errorf("this row is missing: %s", row)
		}
	}
}
