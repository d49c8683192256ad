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

	// Destroy removes the instance and all that Boot made for it. Destroying what is already gone is not an error.
	Destroy(ctx context.Context, inst Instance) error
}

// A Lister can find what it made, so that a daemon that lost its memory adopts or reaps it.
type Lister interface {
	// List returns every instance that carries this daemon's label, running or not.
	List(ctx context.Context) ([]Instance, error)
}

// An Inspector can say how an instance is without talking to its guest.
type Inspector interface {
	// Inspect returns ErrGone when there is no such instance.
	Inspect(ctx context.Context, inst Instance) (Status, error)
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

// Spec is what a sandbox is made from. The zero value of each field means the backend's documented default.
type Spec struct {
	// ID is chosen by the daemon and stored before Boot; it becomes a label, a directory and a host name. It is a DNS
	// label of at most 32 characters. Required.
	ID string
	// Name is what people call the sandbox. It is shown in prompts and never becomes a path, label or mount.
	Name string

	Image      string     // image reference; empty means DefaultImage
	Network    Network    // empty means NetworkNone
	Limits     Limits     //
	User       string     // "name", "uid" or "uid:gid" inside; empty means the image's USER, else root
	Sudo       bool       // leave out no-new-privileges, so that setuid programs work
	Env        []string   // "K=V", on top of the image's ENV
	Entrypoint Entrypoint // whether the image's ENTRYPOINT and CMD run as a session
	Trust      Trust      // whose certificate authorities programs inside trust
	Isolation  string     // runtime asked for by name ("runc"); empty means the engine's default

	// Progress, if set, receives one line at a time of what Boot is doing when that takes long. It is not stored.
	Progress func(line string) `json:"-"`
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

// Limits bound what a sandbox may use. Zero means the default named beside the field.
type Limits struct {
	Memory int64   `json:"memory"` // bytes, swap included; 2 GiB
	CPUs   float64 `json:"cpus"`   // cores; 2
	PIDs   int64   `json:"pids"`   // processes and threads; 512
	Shm    int64   `json:"shm"`    // bytes of /dev/shm; 64 MiB
	NoFile int64   `json:"nofile"` // descriptors a process; the smaller of 65536 and the engine's own
}

// Instance is plain data: what a backend returned and can dial again after a restart of the daemon. It names
// credentials and never holds them.
type Instance struct {
	Backend string    `json:"backend"`         // name of the backend that made it
	ID      string    `json:"id"`              // Spec.ID
	Ref     string    `json:"ref"`             // the backend's own identifier, such as a container ID
	Image   string    `json:"image"`           // what was asked for
	Digest  string    `json:"digest"`          // what that was at the time
	Created time.Time `json:"created"`         //
	User    string    `json:"user"`            // the user that sessions run as
	Runtime string    `json:"runtime"`         // isolation level: runc, runsc, host
	Network Network   `json:"network"`         //
	Limits  Limits    `json:"limits"`          // as applied, no zero fields
	Notes   []string  `json:"notes,omitempty"` // what a person should know about it, for describe
}

// Peer is where an instance's SSH server answers, and how to log in to it.
type Peer struct {
	Conn     net.Conn
	User     string
	HostKeys []ssh.PublicKey // the only keys that the server may present; never empty
	Auth     []ssh.AuthMethod
}

// Status is what a backend knows about an instance without talking to its guest.
type Status struct {
	Running   bool
	Paused    bool
	ExitCode  int  // of PID 1, when not running
	OOMKilled bool // as far as the backend can tell
	Notes     []string
}

// Errors that callers branch on. Backends wrap them with what they were doing to what.
var (
	ErrGone        = errors.New("no such instance")
	ErrStopped     = errors.New("not running")
	ErrUnsupported = errors.New("not supported by this backend")
	ErrNoImage     = errors.New("no such image")
	ErrEngine      = errors.New("engine does not answer")
)

// BootError is an error of Boot or Start with the stage at which it happened.
type BootError struct {
	Stage string // validate, engine, image, keys, create, attach, start, guest, login
	Hint  string // what to do about it, in one sentence; may be empty
	Err   error
}

func (e *BootError) Error() string { return fmt.Sprintf("boot: %s: %v", e.Stage, e.Err) }
func (e *BootError) Unwrap() error { return e.Err }
