// Package sandbox is the contract between the daemon and its backends: the specification of a
// sandbox, the instance that a backend returns, and the interfaces of a backend. Import it to write
// a backend, or to create sandboxes from Go. It does not know any backend, the gateway or
// terminals.
//
// A backend returns a peer: a connection to an SSH server, and the credentials to log in to it.
// Commands, files, forwarding and terminals use SSH, and are therefore not part of this package.
package sandbox

import (
	"cmp"
	"context"
	"time"
)

// Spec is what a sandbox is made from. The zero value of each field means the backend's documented
// default.
type Spec struct {
	// ID is chosen by the daemon and stored before Boot. It becomes a label, a directory and,
	// without Name, the host name. It is a DNS label of at most 32 characters. Required.
	ID string
	// Name is the user's name for the sandbox. Prompts show it, and it is the host name if it is a
	// DNS label. It never becomes a path, label or mount. A guest that was booted without a name
	// accepts one later, once (wire.Control).
	Name string
	// Owner is the principal whose images the sandbox may use.
	Owner string

	Image   string  // image reference; empty means DefaultImage
	Network Network // empty means NetworkNone
	Via     Via     // how the daemon carries Network; empty means the best available
	Limits  Limits  //
	// "name", "uid" or "uid:gid" inside; empty means the image's USER, else root.
	User       string
	Sudo       bool       // leave out no-new-privileges, so that setuid programs work
	Env        []string   // "K=V", added to the image's ENV
	Entrypoint Entrypoint // whether the image's ENTRYPOINT and CMD run as a session
	Trust      Trust      // whose certificate authorities programs inside trust
	// Authorities are more certificate authorities that programs trust, in PEM; see Truster. With
	// TrustImage, or without a bundle on the host, Boot returns ErrUnsupported. They are not
	// stored.
	Authorities []byte   `json:"-"`
	Isolation   string   // runtime by name ("runc"); empty means the engine's default
	Options     []string // NAME=VALUE by the engine's names; unsupported options are errors

	// Mounts are directories of the machine, each at the same absolute path inside. If one is
	// writable and User is empty, sessions run as the owner of the first such directory, and Sudo
	// is implied unless the owner is root.
	Mounts []Mount
	// Where commands begin; empty means the first of Mounts, else the image's WORKDIR.
	Workdir string
	// Volume keeps files while the sandbox is stopped, for a backend whose other files end with the
	// processes. Other backends return ErrUnsupported.
	Volume Volume

	Host Host // the machine, for the backend that boots none

	// Progress, if set, receives progress of slow steps of Boot, a line at a time. It is not
	// stored.
	Progress func(line string) `json:"-"`

	// Begin, if set, is called by Boot when the image is there, before anything is made: it waits
	// until the boot may go on. An image can take any time, and the rest takes the machine. Its
	// error ends the boot. A backend of machines that run already need not call it. It is not
	// stored.
	Begin func(ctx context.Context) error `json:"-"`
}

// Await calls Begin, if it is set.
func (s Spec) Await(ctx context.Context) error {
	if s.Begin == nil {
		return nil
	}
	return s.Begin(ctx)
}

// Mount is a directory of the backend's machine, bound into a sandbox.
type Mount struct {
	Path string `json:"path"` // without symbolic links once Boot has checked it
	// Target is the absolute path inside. Empty means the same as Path.
	Target string `json:"target,omitempty"`
	// ReadOnly leaves out file systems that are mounted below Path: they could be written to.
	ReadOnly bool `json:"read_only,omitempty"`
}

// Inside returns the path of the directory in the sandbox.
func (m Mount) Inside() string { return cmp.Or(m.Target, m.Path) }

// Volume is storage that outlives the processes of a sandbox and ends with the sandbox. The zero
// value means none.
type Volume struct {
	Size int64 `json:"size"` // bytes
	// Path is the absolute path of its directory inside, whose files in the image it hides.
	Path string `json:"path"`
}

// DefaultImage is the image of a Spec that names none.
const DefaultImage = "sandboxd/base:latest"

// Network is how a sandbox reaches other machines.
type Network string

// The network modes. A backend refuses those it does not have with ErrUnsupported and never falls
// back to another.
const (
	NetworkNone      Network = "none"      // loopback only
	NetworkFiltered  Network = "filtered"  // public addresses through the daemon's policy
	NetworkAllowlist Network = "allowlist" // listed names only
	NetworkBridge    Network = "bridge"    // the engine's own, with access to the host and the LAN
	NetworkHost      Network = "host"      // the machine's own; for hosts only
)

// Carried reports whether the daemon carries the connections, and so decides on each.
func (n Network) Carried() bool { return n == NetworkFiltered || n == NetworkAllowlist }

// Via is how connections of a carried network get to the daemon.
type Via string

const (
	// ViaTUN carries the packets of a network device: programs need no setup.
	ViaTUN Via = "tun"
	// ViaProxy is an HTTP and SOCKS5 proxy on loopback, for programs that obey the proxy variables.
	ViaProxy Via = "proxy"
)

// Entrypoint is what happens to an image's ENTRYPOINT and CMD.
type Entrypoint string

const (
	// EntrypointSession runs it as the session "entrypoint", unless it is only a shell.
	EntrypointSession Entrypoint = ""
	EntrypointOff     Entrypoint = "off" // does not run
)

// Trust selects the certificate authorities that the programs of a sandbox trust.
type Trust string

const (
	// TrustHost is the host's bundle, mounted read-only and set in the usual variables. The
	// default.
	TrustHost  Trust = "host"
	TrustImage Trust = "image" // the image's own
)

// Instance is plain data: what a backend returned and can dial again after a restart of the daemon.
// It names credentials and never contains them.
type Instance struct {
	Backend string `json:"backend"` // name of the backend that made it
	ID      string `json:"id"`      // Spec.ID
	Ref     string `json:"ref"`     // the backend's own identifier, such as a container ID
	Image   string `json:"image"`   // the image that the Spec named
	Digest  string `json:"digest"`  // the digest of that image at the time
	// Revision identifies the other inputs that it was made with; see Reviser.Revision.
	Revision string    `json:"revision,omitempty"`
	Created  time.Time `json:"created"`
	User     string    `json:"user"`    // the user that sessions run as
	Runtime  string    `json:"runtime"` // isolation level: runc, runsc, host
	Network  Network   `json:"network"`
	// Via is how the daemon carries Network, if it does; empty means ViaTUN.
	Via    Via     `json:"via,omitempty"`
	Limits Limits  `json:"limits"`           // as applied, no zero fields
	Mounts []Mount `json:"mounts,omitempty"` // directories of the machine
	// DiskQuota reports that the storage enforces Limits.Disk, which then cannot change.
	DiskQuota bool   `json:"disk_quota,omitempty"`
	Volume    Volume `json:"volume,omitzero"`
	// Facts that users should know about it, for describe.
	Notes []string `json:"notes,omitempty"`
	Host  Host     `json:"host,omitzero"` // the machine, if the backend boots none
}

// Host is a machine that already answers SSH, and how to log in to it. It names credentials and
// never contains them.
type Host struct {
	URI string `json:"uri"` // ssh://[user@]host[:port], or an alias of ssh_config
	// Identity is the one private key file to use; empty means those of ssh_config and the agent.
	Identity string `json:"identity,omitempty"`
	// PasswordFile is a file whose first line is the password; empty means none.
	PasswordFile string `json:"password_file,omitempty"`
	// Accept is the fingerprint (SHA256:…) of a host key that no known_hosts file has.
	Accept string `json:"accept,omitempty"`
	// Keys is the accepted key, in authorized_keys format: from then on the only one.
	Keys []string `json:"keys,omitempty"`
	// Tier is the best tier to use: guest, marks or screen. Empty means the best available.
	Tier string `json:"tier,omitempty"`
	// Prompt is a regular expression of the prompt, for tier screen.
	Prompt string `json:"prompt,omitempty"`
}
