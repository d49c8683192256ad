package docker

import (
	"cmp"
	"math"
	"net/netip"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/docker/guestsock"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Labels that identify our containers. Beside them the engine is told only a sandbox's name, as
// its host name.
const (
	ourLabels    = "sandboxd." // all of them begin so
	labelDaemon  = "sandboxd.daemon"
	labelID      = "sandboxd.id"
	labelCreated = "sandboxd.created"
)

// Paths inside a sandbox. All are mounted read-only: a socket on a read-only mount accepts
// connections, and a writable one would let the sandbox fill this machine's disk and leave setuid
// files there.
const (
	// The guest program is below /dev, which is new and empty at each start. In a lasting
	// directory root in the sandbox could leave a symbolic link that leads to one file when the
	// runtime mounts (/proc/self/cwd is then the runtime's) and to another when it executes, and
	// so be PID 1 at the next start, with its keys and capabilities.
	guestBin    = "/dev/.sandboxd"
	guestRun    = "/.sandboxd/run"
	guestSocket = guestRun + "/" + guestsock.SSH
	guestTun    = guestRun + "/" + guestsock.Tun
	guestCA     = "/.sandboxd/ca.crt"
)

// capabilities are what apt, PostgreSQL, nginx and gcc need of root, and two that the guest takes
// from everything that it starts: SYS_PTRACE, to see what programs of other users wait for, and
// SETPCAP, to take them.
var capabilities = []string{"CHOWN", "DAC_OVERRIDE", "SETUID", "SETGID", "SYS_CHROOT", "AUDIT_WRITE", "FOWNER", "FSETID",
	"KILL", "SETFCAP", "NET_BIND_SERVICE", "SYS_PTRACE", "SETPCAP"}

// tunDevice is what a guest makes its network device of. NET_ADMIN goes with it; the guest gives
// it up before it starts anything.
const tunDevice = "/dev/net/tun"

// plan is everything that decides what a container may do.
type plan struct {
	Via     sandbox.Via // how its network is carried
	Daemon  string
	ID      string
	Host    string // the name that it has for itself; empty: ID
	Created time.Time
	Image   string // the image's own ID: a tag may have moved since we looked
	Network sandbox.Network
	Limits  sandbox.Limits // resolved; NoFile 0 leaves the engine's own
	Sized   bool           // the storage holds Limits.Disk
	Sudo    bool
	Runtime string          // empty: the engine's default
	Logs    string          // one of logDrivers
	Filter  string          // file of the profile of system calls; empty: the engine's default
	Mounts  []sandbox.Mount // paths that were checked
	Options options         // of the engine's own

	// Files of this machine.
	GuestFile string
	RunDir    string
	CAFile    string // empty: none
	Resolver  string // what it has as resolv.conf; empty: the engine's
}

// createRequest decides what a container may do. It is a pure function of p, and the only way from
// a user's request to the engine.
func createRequest(p plan) container.CreateRequest {
	no := false
	pids := p.Limits.PIDs
	ulimits := []*container.Ulimit{{Name: "core", Soft: 0, Hard: 0}}
	if p.Limits.NoFile > 0 {
		ulimits = append(ulimits, &container.Ulimit{Name: "nofile", Soft: p.Limits.NoFile, Hard: p.Limits.NoFile})
	}
	mounts := []mount.Mount{
		readOnly(p.RunDir, guestRun),
		readOnly(p.GuestFile, guestProgram(p.GuestFile)),
	}
	if p.CAFile != "" {
		mounts = append(mounts, readOnly(p.CAFile, guestCA))
	}
	if p.Resolver != "" {
		mounts = append(mounts, readOnly(p.Resolver, "/etc/resolv.conf"))
	}
	for _, m := range p.Mounts {
		mounts = append(mounts, workspace(m))
	}
	var security []string
	if !p.Sudo {
		security = append(security, "no-new-privileges")
	}
	if p.Filter != "" {
		security = append(security, "seccomp="+p.Filter)
	}
	var storage map[string]string
	if p.Sized {
		storage = map[string]string{"size": strconv.FormatInt(p.Limits.Disk, 10)}
	}
	r := container.CreateRequest{
		Config: &container.Config{
			Hostname:   cmp.Or(p.Host, p.ID),
			Image:      p.Image,
			User:       "0:0", // of the guest; sessions run as the image says
			WorkingDir: "/",   // not the image's: one at /proc/self/fd/N led out of older runtimes (CVE-2024-21626)
			Entrypoint: []string{guestProgram(p.GuestFile)},
			Cmd:        []string{},
			// The engine adds the image's variables. Those that a Go program obeys are not the image's to set.
			Env:         []string{"GODEBUG=", "GOGC=", "GOMAXPROCS=", "GOMEMLIMIT=", "GOTRACEBACK="},
			Labels:      map[string]string{labelDaemon: p.Daemon, labelID: p.ID, labelCreated: p.Created.UTC().Format(time.RFC3339)},
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}}, // it would be an exec
			AttachStdin: true,
			OpenStdin:   true,
			StdinOnce:   true,      // the key line, then nothing
			StopSignal:  "SIGKILL", // the guest obeys none; an engine that asks first, before it stops or removes, waits in vain
		},
		HostConfig: &container.HostConfig{
			Runtime:       p.Runtime,
			NetworkMode:   container.NetworkMode(p.Network),
			RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled}, // only we start it: a guest needs its keys
			Init:          &no,                                                            // the guest is PID 1
			IpcMode:       container.IPCModePrivate,
			CgroupnsMode:  container.CgroupnsModePrivate,
			CapDrop:       []string{"ALL"},
			CapAdd:        slices.Clone(capabilities),
			SecurityOpt:   security,
			ShmSize:       p.Limits.Shm,
			Mounts:        mounts,
			StorageOpt:    storage,
			LogConfig:     container.LogConfig{Type: p.Logs, Config: map[string]string{"max-size": "10m", "max-file": "3"}},
			Resources: container.Resources{
				Memory:     p.Limits.Memory,
				MemorySwap: p.Limits.Memory + p.Limits.Swap, // memory and swap together
				NanoCPUs:   int64(math.Round(p.Limits.CPUs * 1e9)),
				PidsLimit:  &pids,
				Ulimits:    ulimits,
			},
		},
		NetworkingConfig: &network.NetworkingConfig{},
	}
	if p.Network != sandbox.NetworkBridge {
		r.HostConfig.ExtraHosts = []string{cmp.Or(p.Host, p.ID) + ":127.0.1.1"} // who asks for the host's own name, as sudo does, waits for no answer
	}
	p.Options.apply(&r)
	if p.Network.Carried() {
		r.HostConfig.NetworkMode = container.NetworkMode(sandbox.NetworkNone) // the engine adds none of its own
	}
	if p.Network.Carried() && p.Via != sandbox.ViaProxy {
		r.HostConfig.CapAdd = append(r.HostConfig.CapAdd, "NET_ADMIN")
		r.HostConfig.Devices = []container.DeviceMapping{{PathOnHost: tunDevice, PathInContainer: tunDevice, CgroupPermissions: "rw"}}
		r.HostConfig.DNS = []netip.Addr{netip.AddrFrom4(wire.TunDNS)}
	}
	return r
}

func readOnly(source, target string) mount.Mount {
	return mount.Mount{Type: mount.TypeBind, Source: source, Target: target, ReadOnly: true,
		BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate}}
}

// workspace binds a directory. Mounts below it are included only if it is
// writable: engines before 25.0 leave them writable below a read-only one.
func workspace(m sandbox.Mount) mount.Mount {
	return mount.Mount{Type: mount.TypeBind, Source: m.Path, Target: m.Inside(), ReadOnly: m.ReadOnly,
		BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate, NonRecursive: m.ReadOnly}}
}

// guestProgram is where a guest file is mounted: by its own name, so that ps shows which one a
// sandbox has.
func guestProgram(file string) string { return path.Join(guestBin, filepath.Base(file)) }
