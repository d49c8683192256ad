// Package sandbox says what a sandbox is to the daemon: the specification it is made from, the instance that a
// backend returned, and the contract between the two. It knows no backend, no gateway and no terminal.
//
// A backend gives a peer – bytes on which an SSH server answers, and what is needed to log in to it. Everything
// else (commands, files, forwarding, terminals) is SSH, and therefore not here.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/crypto/ssh"
)

// A Backend makes sandboxes. Its methods may be called at once, also for one instance.
type Backend interface {
	// Boot makes a sandbox to spec and returns when its guest has called in. It is atomic: on error, and when ctx ends
	// before it returns, nothing is left behind. The error says at which stage it failed (*BootError). Progress that a
	// person may want to see (an image being built) is reported through spec.Progress.
	Boot(ctx context.Context, spec Spec) (Instance, error)

	// Dial returns a connection to the instance's SSH server and what is needed to log in to it. ctx bounds the dial, not
	// the connection. The caller closes Peer.Conn. Errors that callers branch on: ErrGone, ErrStopped.
	Dial(ctx context.Context, inst Instance) (Peer, error)

	// Destroy removes the instance and all that Boot made for it. Destroying what is already gone is not an error. After an error
	// it may be called again and goes on where it was, but for *LeftError: then the instance is given up.
	Destroy(ctx context.Context, inst Instance) error
}

// A Lister can find what it made, so that a daemon that lost its memory adopts or reaps it.
type Lister interface {
	// List returns every instance that carries this daemon's label, running or not.
	List(ctx context.Context) ([]Instance, error)
}

// A Sweeper can find what calls of an earlier daemon left that no List shows, such as the images of builds that were cut short.
type Sweeper interface {
	// Sweep removes it. It is called more than once while a daemon is young: an engine finishes late what it was asked for. What calls of this
	// daemon make it leaves alone.
	Sweep(ctx context.Context) error
}

// An Inspector can say how an instance is without talking to its guest.
type Inspector interface {
	// Inspect returns ErrGone when there is no such instance.
	Inspect(ctx context.Context, inst Instance) (Status, error)
}

// A Resolver knows what an image's name means at the moment.
type Resolver interface {
	// Resolve returns what Instance.Digest of a sandbox made from image now would be. It makes and fetches no image: one that is
	// not there is ErrNoImage.
	Resolve(ctx context.Context, image string) (digest string, err error)
}

// A Reviser is a backend whose instances are made with more than a Spec and an image say, such as the program of their guest.
type Reviser interface {
	// Revision returns what Instance.Revision of an instance made of spec now would be.
	Revision(ctx context.Context, spec Spec) (string, error)
}

// A Stopper can end all processes of an instance and start it again with its files.
type Stopper interface {
	// Stop ends the instance's processes; its files stay. grace bounds the orderly part; zero means 10 s. Stopping what
	// is stopped is not an error.
	Stop(ctx context.Context, inst Instance, grace time.Duration) error
	// Start starts a stopped instance and returns when its guest has called in. Starting what runs is not an error. The
	// returned instance replaces inst.
	Start(ctx context.Context, inst Instance) (Instance, error)
}

// A Tunneler has sandboxes whose packets the daemon carries: those with NetworkFiltered and NetworkAllowlist that are not ViaProxy.
type Tunneler interface {
	// Tunnel waits for the instance's guest to hand over its network device, as package wire describes it, and returns it.
	// A device is handed over again to every call, and should be held by one at a time. Errors that callers branch on:
	// ErrGone, ErrStopped.
	Tunnel(ctx context.Context, inst Instance) (Tunnel, error)
}

// Tunnel is a sandbox's network device. The caller closes both.
type Tunnel struct {
	Device *os.File // packets; not blocking
	Hold   net.Conn // ends when the guest has gone
}

// A Snapshotter can keep the files of an instance, as they are at one moment and whether it runs or not, as an image. Nothing
// else of it goes along: no process, no session, no key, nothing that the daemon told its guest. Files that it cannot keep, such as those
// of volumes, are an error with ErrUnsupported.
type Snapshotter interface {
	// Snapshot makes the image called name:tag of owner's, both DNS labels, and returns the reference by which a Spec of the same
	// Owner, and of nobody else, names it. fs.ErrExist says that there is one. The image stays until somebody removes it.
	Snapshot(ctx context.Context, inst Instance, owner, name, tag string) (image string, err error)
	// Fork makes an image for the instance that is to have the ID id, and returns its reference for that Spec alone. Destroy of that
	// instance removes it, be it that it was never booted.
	Fork(ctx context.Context, inst Instance, id string) (image string, err error)
	// Weight is how many bytes an image of the instance's files would take now: more than what they occupy where they have holes.
	Weight(ctx context.Context, inst Instance) (int64, error)
	// Kept is how many bytes the images take that Snapshot, Build and Prepare made for owner, and Fork for the instances with these IDs,
	// without what they have of the images below, which are others'.
	Kept(ctx context.Context, owner string, ids []string) (int64, error)
}

// A Pauser can freeze all processes of an instance where they are, and let them go on.
type Pauser interface {
	// Pause freezes what runs: it keeps its memory and uses no processor. Connections stay open and are not answered. Pausing
	// what is paused is not an error; ErrStopped says that nothing runs.
	Pause(ctx context.Context, inst Instance) error
	// Resume lets it go on. Resuming what is not paused is not an error, be it that it does not run.
	Resume(ctx context.Context, inst Instance) error
}

// Spec is what a sandbox is made from. The zero value of each field means the backend's documented default.
type Spec struct {
	// ID is chosen by the daemon and stored before Boot; it becomes a label, a directory and, without Name, the host name. It is a DNS
	// label of at most 32 characters. Required.
	ID string
	// Name is what people call the sandbox. It is shown in prompts, is the host name where it is a DNS label, and never becomes a path, label
	// or mount. A guest that was
	// booted without one takes it by an order, once (wire.Control).
	Name string
	// Owner is whose it is: whose snapshots it may be made from.
	Owner string

	Image      string     // image reference; empty means DefaultImage
	Network    Network    // empty means NetworkNone
	Via        Via        // how it has to be carried, where the daemon carries it; empty means the best that there is
	Allow      []string   // what Network opens beside its defaults; the daemon's matter, not the backend's
	Limits     Limits     //
	User       string     // "name", "uid" or "uid:gid" inside; empty means the image's USER, else root
	Sudo       bool       // leave out no-new-privileges, so that setuid programs work
	Env        []string   // "K=V", on top of the image's ENV
	Entrypoint Entrypoint // whether the image's ENTRYPOINT and CMD run as a session
	Trust      Trust      // whose certificate authorities programs inside trust
	Isolation  string     // runtime asked for by name ("runc"); empty means the engine's default
	Options    []string   // NAME=VALUE, further ones by the names that the backend's engine has for them; those that it may not or cannot give are errors

	// Mounts are directories of the machine, each at the same absolute path inside. Where one can be written to, and User is empty,
	// sessions run as the user who owns the first such directory, and Sudo is implied unless that is root.
	Mounts  []Mount
	Workdir string // where sessions and commands begin; empty means the first of Mounts, else the image's WORKDIR
	Dir     string // the directory whose own sandbox this is; for who looks for it, and nothing to a backend
	Recipe  string // checksum of the file in Dir that this was made by, empty without one; nothing to a backend
	Made    string // what Image was made of, for a person; nothing to a backend
	About   string // what its maker says of it, for who is to work in it; nothing to a backend

	Host Host // the machine, for the backend that boots none

	// Progress, if set, receives one line at a time of what Boot is doing when that takes long. It is not stored.
	Progress func(line string) `json:"-"`
}

// Mount is a directory of the backend's machine that is bound into a sandbox at the same absolute path.
type Mount struct {
	Path     string `json:"path"`                // without symbolic links, after Boot looked at it
	ReadOnly bool   `json:"read_only,omitempty"` // without file systems that are mounted below it, which could be written to
}

// DefaultImage is used where a Spec names none.
const DefaultImage = "sandboxd/base:latest"

// Network is how a sandbox reaches other machines.
type Network string

// The network modes. A backend refuses those it does not have with ErrUnsupported; none falls back to another.
const (
	NetworkNone      Network = "none"      // loopback only
	NetworkFiltered  Network = "filtered"  // public addresses through the daemon's policy
	NetworkAllowlist Network = "allowlist" // listed names only
	NetworkBridge    Network = "bridge"    // the engine's own network: the host and the LAN are open from it
	NetworkHost      Network = "host"      // a machine's own; of hosts only
)

// Carried reports whether the daemon carries the connections, which it then decides on.
func (n Network) Carried() bool { return n == NetworkFiltered || n == NetworkAllowlist }

// Via is how the connections of a sandbox whose network is carried get to the daemon.
type Via string

const (
	ViaTUN   Via = "tun"   // packets, by a network device: programs work as they are
	ViaProxy Via = "proxy" // an HTTP and SOCKS5 proxy on the sandbox's loopback: programs work that heed the variables which name one
)

// Entrypoint is what happens to an image's ENTRYPOINT and CMD.
type Entrypoint string

const (
	EntrypointSession Entrypoint = ""    // runs as the session "entrypoint" unless it is just a shell
	EntrypointOff     Entrypoint = "off" // does not run
)

// Trust says whose certificate authorities the programs of a sandbox are told to trust.
type Trust string

const (
	TrustHost  Trust = "host"  // the host's bundle, mounted read-only and named in the usual variables; the default
	TrustImage Trust = "image" // what the image brings
)

// Instance is plain data: what a backend returned and can dial again after a restart of the daemon. It names
// credentials and never holds them.
type Instance struct {
	Backend   string    `json:"backend"`              // name of the backend that made it
	ID        string    `json:"id"`                   // Spec.ID
	Ref       string    `json:"ref"`                  // the backend's own identifier, such as a container ID
	Image     string    `json:"image"`                // what was asked for
	Digest    string    `json:"digest"`               // what that was at the time
	Revision  string    `json:"revision,omitempty"`   // of a Reviser: what else it was made with; another is not the same
	Created   time.Time `json:"created"`              //
	User      string    `json:"user"`                 // the user that sessions run as
	Runtime   string    `json:"runtime"`              // isolation level: runc, runsc, host
	Network   Network   `json:"network"`              //
	Via       Via       `json:"via,omitempty"`        // where the daemon carries it; empty is ViaTUN then
	Limits    Limits    `json:"limits"`               // as applied, no zero fields
	Mounts    []Mount   `json:"mounts,omitempty"`     // directories of the machine
	DiskQuota bool      `json:"disk_quota,omitempty"` // the storage itself holds Limits.Disk, which cannot change then
	Notes     []string  `json:"notes,omitempty"`      // what a person should know about it, for describe
	Host      Host      `json:"host,omitzero"`        // the machine, where the backend boots none
}

// Host is a machine that answers SSH already, and how to log in to it. It names credentials and never holds them.
type Host struct {
	URI          string   `json:"uri"`                     // ssh://[user@]host[:port], or an alias of ssh_config
	Identity     string   `json:"identity,omitempty"`      // file of the one private key to use; empty means those of ssh_config and the agent
	PasswordFile string   `json:"password_file,omitempty"` // file whose first line is the password; empty means that none is given
	Accept       string   `json:"accept,omitempty"`        // fingerprint (SHA256:…) of a host key that no known_hosts file has
	Keys         []string `json:"keys,omitempty"`          // the key so accepted, as in authorized_keys: the only one from then on
	Tier         string   `json:"tier,omitempty"`          // guest, marks or screen: at most that; empty means the best there is
	Prompt       string   `json:"prompt,omitempty"`        // regular expression of the prompt, for tier screen
}

// Peer is where an instance's SSH server answers, and how to log in to it.
type Peer struct {
	Conn     net.Conn
	User     string
	HostKeys []ssh.PublicKey // the only keys that the server may present; never empty without Known
	Auth     []ssh.AuthMethod

	// Known decides about a server's key where that takes more than a list: known_hosts files have certificate authorities
	// and revoked keys. Nil leaves it to HostKeys. Algorithms are then the kinds of keys to ask for; none means any.
	Known      func(key ssh.PublicKey) error
	Algorithms []string
}

// Status is what a backend knows about an instance without talking to its guest.
type Status struct {
	Running   bool
	Paused    bool
	ExitCode  int  // of PID 1, when not running
	OOMKilled bool // as far as the backend can tell
	// EngineRestarted says, of what does not run, that the engine was restarted since it ran, and ended it, as far as the backend can tell.
	EngineRestarted bool
	Notes           []string
}

// Errors that callers branch on. Backends wrap them with what they were doing to what.
var (
	ErrGone        = errors.New("no such instance")
	ErrStopped     = errors.New("not running")
	ErrUnsupported = errors.New("not supported by this backend")
	ErrNoImage     = errors.New("no such image")
	ErrEngine      = errors.New("engine does not answer")
	ErrRefused     = errors.New("engine refused") // the error that wraps it says in the engine's words what, and why
)

// LeftError is an error of Destroy that trying again does not mend: what is left is where the daemon cannot get at it any more.
type LeftError struct {
	Where string // the machine
	Hint  string // how somebody removes it, in one sentence; may be empty
	Err   error  // why
}

func (e *LeftError) Error() string { return fmt.Sprintf("%s was not cleaned up: %v", e.Where, e.Err) }
func (e *LeftError) Unwrap() error { return e.Err }

// BootError is an error of Boot or Start with the stage at which it happened.
type BootError struct {
	Stage string // validate, engine, image, keys, create, attach, start, guest, connect, host key, login
	Hint  string // what to do about it, in one sentence; may be empty
	Err   error
}

func (e *BootError) Error() string { return fmt.Sprintf("boot: %s: %v", e.Stage, e.Err) }
func (e *BootError) Unwrap() error { return e.Err }
