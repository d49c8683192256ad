package docker

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/machine"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Labels that identify our containers. Besides them the engine learns only a sandbox's name, as its
// host name.
const (
	ourLabels    = "sandboxd." // prefix of all of them
	labelDaemon  = "sandboxd.daemon"
	labelID      = "sandboxd.id"
	labelCreated = "sandboxd.created"
)

// plan is all input that decides what a container may do.
type plan struct {
	Via     sandbox.Via // how the daemon carries its network
	Daemon  string
	ID      string
	Host    string // its host name; empty: ID
	Created time.Time
	Image   string // the image's ID: a tag may have moved since the check
	Network sandbox.Network
	Limits  sandbox.Limits // resolved; NoFile 0 leaves the engine's own
	Sized   bool           // the storage enforces Limits.Disk
	Sudo    bool
	Runtime string          // empty: the engine's default
	Logs    string          // one of logDrivers
	Filter  string          // file of the seccomp profile; empty: the engine's default
	Mounts  []sandbox.Mount // with checked paths
	Options options         // options of docker run

	// GuestVolume is the engine's volume with the guest, if the engine is remote. Nothing of this
	// machine is mounted then.
	GuestVolume string

	// Files of this machine.
	GuestFile string
	RunDir    string
	TrustDir  string // with the file of machine.GuestCA; empty: none
	Resolver  string // file mounted as its resolv.conf; empty: the engine's
}

// createRequest decides what a container may do. It is a pure function of p, and the only path from
// a user's request to the engine.
func createRequest(p plan) container.CreateRequest {
	no := false
	pids := p.Limits.PIDs
	ulimits := []*container.Ulimit{{Name: "core", Soft: 0, Hard: 0}}
	if p.Limits.NoFile > 0 {
		ulimits = append(ulimits, &container.Ulimit{Name: "nofile", Soft: p.Limits.NoFile,
			Hard: p.Limits.NoFile})
	}
	program := machine.GuestProgram(p.GuestFile)
	mounts := []mount.Mount{
		readOnly(p.RunDir, machine.GuestRun),
		readOnly(p.GuestFile, program),
	}
	if p.GuestVolume != "" {
		program = remoteGuest
		mounts = []mount.Mount{guestMount(p.GuestVolume, true)}
	}
	if p.TrustDir != "" {
		mounts = append(mounts, readOnly(p.TrustDir, machine.GuestTrust))
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
			Hostname: cmp.Or(p.Host, p.ID),
			Image:    p.Image,
			User:     "0:0", // of the guest; sessions run as the image's user
			// Not the image's: /proc/self/fd/N escaped from older runtimes (CVE-2024-21626).
			WorkingDir: "/",
			Entrypoint: []string{program},
			Cmd:        []string{},
			// The engine adds the image's variables. An image must not set those that the Go
			// runtime reads.
			Env: []string{"GODEBUG=", "GOGC=", "GOMAXPROCS=", "GOMEMLIMIT=", "GOTRACEBACK="},
			Labels: map[string]string{labelDaemon: p.Daemon, labelID: p.ID,
				labelCreated: p.Created.UTC().Format(time.RFC3339)},
			// A health check would be an exec.
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
			AttachStdin: true,
			OpenStdin:   true,
			StdinOnce:   true, // the key line, then the end of input
			// The guest ignores signals, so an engine that first sends another would wait in vain.
			StopSignal: "SIGKILL",
		},
		HostConfig: &container.HostConfig{
			Runtime:     p.Runtime,
			NetworkMode: container.NetworkMode(p.Network),
			// Only this package starts it: a guest needs its keys.
			RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
			Init:          &no, // the guest is PID 1
			IpcMode:       container.IPCModePrivate,
			CgroupnsMode:  container.CgroupnsModePrivate,
			CapDrop:       []string{"ALL"},
			CapAdd:        slices.Clone(machine.Capabilities),
			SecurityOpt:   security,
			ShmSize:       p.Limits.Shm,
			Mounts:        mounts,
			StorageOpt:    storage,
			LogConfig: container.LogConfig{Type: p.Logs,
				Config: map[string]string{"max-size": "10m", "max-file": "3"}},
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
		// Programs that look up the host's own name, such as sudo, do not wait for an answer.
		r.HostConfig.ExtraHosts = []string{cmp.Or(p.Host, p.ID) + ":127.0.1.1"}
	}
	p.Options.apply(&r)
	if p.Network.Carried() {
		// The engine adds none of its own.
		r.HostConfig.NetworkMode = container.NetworkMode(sandbox.NetworkNone)
	}
	if p.Network.Carried() && p.Via != sandbox.ViaProxy {
		r.HostConfig.CapAdd = append(r.HostConfig.CapAdd, "NET_ADMIN")
		r.HostConfig.Devices = []container.DeviceMapping{{PathOnHost: machine.TunDevice,
			PathInContainer: machine.TunDevice, CgroupPermissions: "rw"}}
		r.HostConfig.DNS = []netip.Addr{netip.AddrFrom4(wire.TunDNS)}
	}
	return r
}

func readOnly(source, target string) mount.Mount {
	return mount.Mount{Type: mount.TypeBind, Source: source, Target: target, ReadOnly: true,
		BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate}}
}

// workspace binds a directory. It includes mounts below the directory only if the
// mount is writable: engines before 25.0 leave those below a read-only one writable.
func workspace(m sandbox.Mount) mount.Mount {
	return mount.Mount{Type: mount.TypeBind, Source: m.Path, Target: m.Inside(),
		ReadOnly: m.ReadOnly,
		BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate,
			NonRecursive: m.ReadOnly}}
}
