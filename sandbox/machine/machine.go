// Package machine has what the backends share whose containers run on this machine's kernel: the
// files of the machine that containers mount, the directories that users may mount, what the guest
// must know of its container, what images are named and who may boot them, and what no engine or
// runtime sets. It knows no engine.
package machine

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/guestsock"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Paths inside a sandbox. All are mounted read-only. A socket on a read-only mount still accepts
// connections; a writable mount would let the sandbox fill this machine's disk and leave setuid
// files there.
const (
	// The guest program is below /dev, which is new and empty at each start. In a persistent
	// directory, root in the sandbox could leave a symbolic link such as /proc/self/cwd. It leads
	// to one file when the runtime mounts (it is the runtime's then) and to another when it
	// executes. That file would be PID 1 at the next start, with its keys and Capabilities.
	GuestBin    = "/dev/.sandboxd"
	GuestRun    = "/.sandboxd/run"
	GuestSocket = GuestRun + "/" + guestsock.SSH
	GuestTun    = GuestRun + "/" + guestsock.Tun
	// A directory, not the file: a mount of a file keeps showing what it was.
	GuestTrust = "/.sandboxd/trust"
	GuestCA    = GuestTrust + "/" + trustFile
)

// Capabilities are those of root that apt, PostgreSQL, nginx and gcc need, and two that the guest
// removes from every process that it starts: SYS_PTRACE, to see what processes of other users wait
// for, and SETPCAP, to remove both.
var Capabilities = []string{"CHOWN", "DAC_OVERRIDE", "SETUID", "SETGID", "SYS_CHROOT",
	"AUDIT_WRITE", "FOWNER", "FSETID",
	"KILL", "SETFCAP", "NET_BIND_SERVICE", "SYS_PTRACE", "SETPCAP"}

// TunDevice is the device from which a guest makes its network device. It needs NET_ADMIN, which
// the guest drops before it starts any process.
const TunDevice = "/dev/net/tun"

// GuestProgram is the path at which a guest file is mounted: by its own name, so that ps shows
// which one a sandbox runs.
func GuestProgram(file string) string { return path.Join(GuestBin, filepath.Base(file)) }

// GuestConfig returns the guest's configuration for an image and a spec, without keys.
func GuestConfig(spec sandbox.Spec, config v1.ImageConfig,
	ca string) wire.GuestConfig {
	g := wire.GuestConfig{Version: wire.Version, Name: spec.Name, Socket: GuestSocket,
		User:    spec.User,
		Workdir: config.WorkingDir, StopSignal: config.StopSignal, Sudo: spec.Sudo,
		Sessions: int(spec.Limits.Sessions)}
	if spec.Workdir != "" {
		g.Workdir = spec.Workdir
	}
	if spec.Network.Carried() && spec.Via != sandbox.ViaProxy {
		g.TunSocket = GuestTun
	}
	if g.User == "" {
		g.User = config.User
	}
	g.Env = guestconfig.MergeEnv([]string{"PATH=" + guestconfig.DefaultPath}, config.Env)
	if ca != "" {
		for _, name := range guestconfig.TrustVariables {
			g.Env = guestconfig.MergeEnv(g.Env, []string{name + "=" + ca})
		}
	}
	if spec.Via == sandbox.ViaProxy {
		g.Env = guestconfig.MergeEnv(g.Env, wire.ProxyEnv())
	}
	g.Env = guestconfig.MergeEnv(g.Env, spec.Env)
	if spec.Entrypoint == sandbox.EntrypointSession {
		if argv := slices.Concat(config.Entrypoint, config.Cmd); !isShell(argv) {
			g.Entrypoint = argv
		}
	}
	return g
}

// isShell reports whether an image's command is empty or an interactive shell, as in most base
// images.
func isShell(argv []string) bool {
	if len(argv) == 0 {
		return true
	}
	if !slices.Contains([]string{"sh", "bash", "ash", "dash", "zsh", "ksh", "fish"},
		path.Base(argv[0])) {
		return false
	}
	return !slices.ContainsFunc(argv[1:], func(arg string) bool {
		return arg != "-l" && arg != "-i" && arg != "--login" && arg != "-il"
	})
}

// Within reports whether a path is dir or below it.
func Within(at, dir string) bool {
	return at == dir || strings.HasPrefix(at, strings.TrimSuffix(dir, "/")+"/")
}

// Halted reports whether a signal stopped a process (proc_pid_stat(5)).
func Halted(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// The state follows the name, which may contain anything.
	return bytes.HasPrefix(text[bytes.LastIndexByte(text, ')')+1:], []byte(" T"))
}
