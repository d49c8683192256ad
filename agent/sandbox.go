package agent

import (
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

// SandboxState is the state of a sandbox.
type SandboxState string

const (
	SandboxCreating SandboxState = "creating" // it is being created
	SandboxRunning  SandboxState = "running"  // its processes run
	SandboxPaused   SandboxState = "paused"   // its processes are frozen and keep their memory
	// SandboxStopped means that the sandbox has files but no processes; its next use starts it.
	SandboxStopped  SandboxState = "stopped"
	SandboxBroken   SandboxState = "broken"   // it does not respond or cannot start; see Reason
	SandboxDeleting SandboxState = "deleting" // it is being removed
	SandboxLost     SandboxState = "lost"     // only the container engine has a record of it
)

// Sandbox is one sandbox as [Gateway.List] returns it. It has the facts that the daemon stores.
type Sandbox struct {
	Name    string       `json:"name"`
	ID      string       `json:"id"`
	Owner   string       `json:"owner"`
	State   SandboxState `json:"state"`
	Since   time.Time    `json:"since"`            // when State began
	Reason  string       `json:"reason,omitempty"` // why it is stopped, broken or lost
	Held    bool         `json:"held,omitempty"`   // paused until a user resumes it
	Created time.Time    `json:"created"`
	About   string       `json:"about,omitempty"` // notes of its creator for users and models

	Backend string `json:"backend"` // docker or kubernetes; host for a machine that was added
	Image   string `json:"image"`
	// what Image was built from: a Dockerfile or setup commands
	ImageOf string          `json:"image_of,omitempty"`
	Digest  string          `json:"digest,omitempty"`
	User    string          `json:"user,omitempty"`
	Network sandbox.Network `json:"network"`
	// how the daemon carries its network: tun or proxy
	Via       sandbox.Via    `json:"via,omitempty"`
	Allow     []string       `json:"allow,omitempty"`
	Secrets   []string       `json:"secrets,omitempty"` // names of those that it uses
	Isolation string         `json:"isolation,omitempty"`
	Limits    sandbox.Limits `json:"limits"`
	Sessions  []Session      `json:"sessions"`

	Dir string `json:"dir,omitempty"` // directory of the workspace that it belongs to
	// checksum of the file in Dir that defines it
	Recipe string          `json:"recipe,omitempty"`
	Mounts []sandbox.Mount `json:"mounts,omitempty"`
	Volume sandbox.Volume  `json:"volume,omitzero"`

	// TTLMS is the idle time in milliseconds after which it is stopped; 0 means never. StopsAt is
	// the time of that if it is not used before. UsedBy says what uses it now, and is set only with
	// a TTL.
	TTLMS   int64      `json:"ttl_ms"`
	StopsAt *time.Time `json:"stops_at,omitempty"`
	UsedBy  string     `json:"used_by,omitempty"`

	// DeleteAfterMS is how many milliseconds after its stop it is removed; 0 means never. RemovedAt
	// is the time of that if it is not started before.
	DeleteAfterMS int64      `json:"delete_after_ms"`
	RemovedAt     *time.Time `json:"removed_at,omitempty"`

	End *End `json:"end,omitempty"` // fixed end of its life; nil means none

	Labels     map[string]string `json:"labels,omitempty"`
	SharedWith []Share           `json:"shared_with"`
	Notes      []string          `json:"notes,omitempty"`

	SSHURI     string `json:"ssh_uri"`     // URI for Dial
	SSHCommand string `json:"ssh_command"` // command that opens a shell for a person
	KnownHosts string `json:"known_hosts"` // known_hosts file on the daemon's machine
}

// End is the time at which a sandbox ends, whether it is used or not.
type End struct {
	At    time.Time `json:"at,omitzero"`
	Pause bool      `json:"pause,omitempty"` // it is paused instead of removed
}

// Share grants a principal access to a sandbox of another owner.
type Share struct {
	Principal string `json:"principal"`
	Rights    string `json:"rights"` // watch or drive
}

// Session is one terminal of a sandbox.
type Session struct {
	Name     string  `json:"name"`
	State    State   `json:"state"`
	Keyboard string  `json:"keyboard"` // who holds it, such as person:alice; empty means free
	Cols     int     `json:"cols"`
	Rows     int     `json:"rows"`
	Parties  []Party `json:"parties"` // attached clients
	// program that runs instead of a shell; empty means a shell
	Argv      []string `json:"argv,omitempty"`
	CreatedMS int64    `json:"created_unix_ms"`   // in milliseconds of Unix time
	Offset    uint64   `json:"offset"`            // length of its log in bytes
	Private   string   `json:"private,omitempty"` // person in private mode; empty means none
}

// Party is a client that is attached to a session.
type Party struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"`   // agent or person
	Rights string `json:"rights"` // drive or watch
	ID     string `json:"id,omitempty"`
	Owner  bool   `json:"owner,omitempty"` // it owns the sandbox
}

// Description is a sandbox as [Gateway.Describe] returns it. Fields that the sandbox reports are
// empty if it does not respond; Health says why. The texts have no control characters.
type Description struct {
	Sandbox
	Health  string `json:"health"`       // ok, or the problem
	OS      string `json:"os,omitempty"` // such as "Debian GNU/Linux 12 (bookworm)"
	Kernel  string `json:"kernel,omitempty"`
	Arch    string `json:"arch,omitempty"`
	Account string `json:"account,omitempty"` // user name and UID inside
	Cwd     string `json:"cwd,omitempty"`     // working directory of new sessions and commands
	Shell   string `json:"shell,omitempty"`
	// paths of common programs, by name
	Tools       map[string]string `json:"tools,omitempty"`
	Packages    []Packages        `json:"packages,omitempty"` // set by DescribePackages
	NetworkText string            `json:"network_text"`
	LimitsText  string            `json:"limits_text"`
	Used        *Used             `json:"used,omitempty"` // nil unless it runs
	// processes and memory, reported by the sandbox
	Usage    string `json:"usage,omitempty"`
	Tier     string `json:"tier,omitempty"` // for a host: guest, marks or screen
	TierText string `json:"tier_text,omitempty"`
}

// Packages are the installed packages of one package manager.
type Packages struct {
	By    string    `json:"by"` // dpkg, apk, rpm, pacman or python
	Count int       `json:"count"`
	List  []Package `json:"list,omitempty"` // only for python, at most 1,000
	Cut   bool      `json:"cut,omitempty"`  // List is incomplete
}

// Package is one installed package.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Used is how much of its limits a sandbox uses.
type Used struct {
	Memory      int64 `json:"memory"` // bytes
	PIDs        int64 `json:"pids"`
	CPUMS       int64 `json:"cpu_ms"` // CPU milliseconds since it was started
	Disk        int64 `json:"disk"`   // bytes at the last measurement; 0 before the first
	Files       int64 `json:"files"`  // number of files, likewise
	OOMKills    int64 `json:"oom_kills"`
	PIDsRefused int64 `json:"pids_refused"` // processes that could not be started
}
