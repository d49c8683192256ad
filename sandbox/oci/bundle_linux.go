package oci

import (
	"cmp"
	"math"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/machine"
)

// plan is all input that decides what a container may do.
type plan struct {
	ID      string
	Ref     string
	Runtime string
	Host    string // its host name; empty: ID
	Network sandbox.Network
	Via     sandbox.Via    // how the daemon carries its network
	Limits  sandbox.Limits // resolved
	Swap    bool           // the kernel limits swap
	Sudo    bool
	ByUser  bool            // the daemon is an ordinary user's
	Profile string          // of AppArmor; empty: none
	Mounts  []sandbox.Mount // with checked paths

	// Files of this machine.
	Root      string // the container's files
	GuestFile string
	RunDir    string
	TrustDir  string   // with the file of machine.GuestCA; empty: none
	NamesDir  string   // with the files of nameFiles
	Throttles []string // see throttles
	// Locked are the options of the file systems of these files, by path, which an ordinary user
	// may not take away (mount_namespaces(7)).
	Locked map[string][]string
}

// nameFiles are files of /etc that are each container's own, as engines write them. Root in a
// sandbox may change them.
var nameFiles = []string{"hosts", "hostname", "resolv.conf"}

// groupsDir is the control group above those of containers.
const groupsDir = "/sandboxd"

// What later calls need of a bundle, which exists before its container does.
const (
	refNote     = "sandboxd.ref"
	runtimeNote = "sandboxd.runtime"
)

// period is the interval to which a limit of processors applies, in µs: the kernel's default.
const period = 100_000

// The number of the device from which a guest makes its network device
// (Documentation/admin-guide/devices.txt of the kernel).
const tunMajor, tunMinor = 10, 200

// bundle decides what a container may do, as an OCI runtime reads it. It is a pure function of p,
// and the only path from a user's request to the runtime. It has no filter of system calls.
func bundle(p plan) *specs.Spec {
	program := machine.GuestProgram(p.GuestFile)
	capabilities := make([]string, 0, len(machine.Capabilities)+1)
	for _, c := range machine.Capabilities {
		capabilities = append(capabilities, "CAP_"+c)
	}
	device := p.Network.Carried() && p.Via != sandbox.ViaProxy
	if device {
		capabilities = append(capabilities, "CAP_NET_ADMIN")
	}
	// Only for the container's own network: low ports and ping need no capability there.
	sysctl := map[string]string{"net.ipv4.ip_unprivileged_port_start": "0",
		"net.ipv4.ping_group_range": "0 2147483647"}
	group := path.Join(groupsDir, p.Ref)
	notes := map[string]string{refNote: p.Ref, runtimeNote: p.Runtime}
	oomScore := new(int) // not the daemon's own
	if p.ByUser {
		sysctl["net.ipv4.ping_group_range"] = "0 65535" // other groups do not exist
		group = slice + ":sandboxd:" + p.Ref
		oomScore = nil // it may not be less than the daemon's
		// A guest does not obey TERM, for which a machine that goes down would wait.
		notes["org.systemd.property.KillSignal"] = strconv.Itoa(int(unix.SIGKILL))
	}
	s := &specs.Spec{
		Version:     "1.0.2",
		Hostname:    cmp.Or(p.Host, p.ID),
		Annotations: notes,
		Root:        &specs.Root{Path: p.Root},
		Process: &specs.Process{
			Args: []string{program},
			Cwd:  "/",
			Env:  []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Capabilities: &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities,
				Permitted: capabilities},
			NoNewPrivileges: !p.Sudo,
			ApparmorProfile: p.Profile,
			OOMScoreAdj:     oomScore,
			Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_CORE"},
				{Type: "RLIMIT_NOFILE", Soft: uint64(p.Limits.NoFile),
					Hard: uint64(p.Limits.NoFile)}},
		},
		Mounts: append(kernelMounts(p.Limits.Shm), p.mounts(program)...),
		Linux: &specs.Linux{
			CgroupsPath: group,
			Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace},
				{Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
				{Type: specs.CgroupNamespace}},
			Resources:         resources(p.Limits, p.Swap, device),
			RootfsPropagation: "rprivate",
			Sysctl:            sysctl,
		},
	}
	hide(s.Linux, p.Throttles)
	if device {
		s.Linux.Devices = []specs.LinuxDevice{{Path: machine.TunDevice, Type: "c", Major: tunMajor,
			Minor: tunMinor}}
	}
	return s
}

// hide hides and protects the files of the kernel that Docker's engine does. throttles are such
// files of this machine.
func hide(l *specs.Linux, throttles []string) {
	l.MaskedPaths = append([]string{"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore",
		"/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats",
		"/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap"},
		throttles...)
	l.ReadonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys",
		"/proc/sysrq-trigger"}
}

// throttles are the files of this machine that count how often its processors were too hot, from
// which one sandbox could learn what others compute.
func throttles() []string {
	all, err := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	return all
}

// kernelMounts are the file systems of the kernel in each container.
func kernelMounts(shm int64) []specs.Mount {
	option := func(options string) []string { return strings.Split(options, ",") }
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc",
			Options: option("nosuid,noexec,nodev")},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs",
			Options: option("nosuid,strictatime,mode=755,size=65536k")},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts",
			Options: option("nosuid,noexec,newinstance,ptmxmode=0666,mode=0620,gid=5")},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs",
			Options: option("nosuid,noexec,nodev,ro")},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
			Options: option("ro,nosuid,noexec,nodev")},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue",
			Options: option("nosuid,noexec,nodev")},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm",
			Options: append(option("nosuid,noexec,nodev,mode=1777"),
				"size="+strconv.FormatInt(shm, 10))},
	}
}

// mounts are the files of this machine in the container. The guest program is last: nothing covers
// it.
func (p plan) mounts(program string) []specs.Mount {
	all := []specs.Mount{readOnly(p.RunDir, machine.GuestRun)}
	if p.TrustDir != "" {
		all = append(all, readOnly(p.TrustDir, machine.GuestTrust))
	}
	for _, name := range nameFiles {
		all = append(all, specs.Mount{Destination: "/etc/" + name, Type: "bind",
			Source: path.Join(p.NamesDir, name), Options: []string{"bind", "rprivate"}})
	}
	for _, m := range p.Mounts {
		// What is mounted below a read-only directory would stay writable.
		options := []string{"rbind", "rprivate"}
		if m.ReadOnly {
			options = []string{"bind", "ro", "rprivate"}
		}
		all = append(all, specs.Mount{Destination: m.Inside(), Type: "bind", Source: m.Path,
			Options: options})
	}
	all = append(all, readOnly(p.GuestFile, program))
	for i, m := range all {
		all[i].Options = append(m.Options, p.Locked[m.Source]...)
	}
	return all
}

func readOnly(source, target string) specs.Mount {
	return specs.Mount{Destination: target, Type: "bind", Source: source,
		Options: []string{"rbind", "ro", "rprivate"}}
}

// resources are the limits of a container's control groups. Of devices it has those that the
// runtime always allows (OCI runtime specification, "Default Devices"), and with device that of
// network devices.
func resources(l sandbox.Limits, swap, device bool) *specs.LinuxResources {
	interval := uint64(period)
	quota := int64(math.Round(l.CPUs * period))
	r := &specs.LinuxResources{
		Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}},
		Memory:  &specs.LinuxMemory{Limit: &l.Memory},
		CPU:     &specs.LinuxCPU{Quota: &quota, Period: &interval},
		Pids:    &specs.LinuxPids{Limit: &l.PIDs},
	}
	if swap {
		both := l.Memory + l.Swap // memory and swap together
		r.Memory.Swap = &both
	}
	if device {
		major, minor := int64(tunMajor), int64(tunMinor)
		r.Devices = append(r.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c",
			Major: &major, Minor: &minor, Access: "rw"})
	}
	return r
}
