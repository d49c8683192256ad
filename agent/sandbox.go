package agent

import (
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

// SandboxState is where a sandbox is in its life.
type SandboxState string

const (
	SandboxCreating SandboxState = "creating" // it is being made
	SandboxRunning  SandboxState = "running"  //
	SandboxPaused   SandboxState = "paused"   // its processes are frozen; they keep their memory
	SandboxStopped  SandboxState = "stopped"  // it has no processes; its files stay; work in it starts it
	SandboxBroken   SandboxState = "broken"   // it does not answer, or cannot start; see Reason
	SandboxDeleting SandboxState = "deleting" // it is being removed
	SandboxLost     SandboxState = "lost"     // the engine has it, and the daemon did not know it
)

// Sandbox is one sandbox as [Gateway.List] returns it: what the daemon knows without asking it.
type Sandbox struct {
	Name    string       `json:"name"`
	ID      string       `json:"id"`
	Owner   string       `json:"owner"`
	State   SandboxState `json:"state"`
	Since   time.Time    `json:"since"`            // of State
	Reason  string       `json:"reason,omitempty"` // why it is stopped, broken or lost
	Created time.Time    `json:"created"`
	About   string       `json:"about,omitempty"` // notes of the one who made it

	Backend   string          `json:"backend"` // docker, or host for a machine of its own
	Image     string          `json:"image"`
	ImageOf   string          `json:"image_of,omitempty"` // what Image was made from: a Dockerfile, setup commands
	Digest    string          `json:"digest,omitempty"`
	User      string          `json:"user,omitempty"`
	Network   sandbox.Network `json:"network"`
	Via       sandbox.Via     `json:"via,omitempty"` // how the network is carried
	Allow     []string        `json:"allow,omitempty"`
	Isolation string          `json:"isolation,omitempty"`
	Limits    sandbox.Limits  `json:"limits"`
	Sessions  []Session       `json:"sessions"`

	Dir    string          `json:"dir,omitempty"`    // the directory whose own sandbox it is
	Recipe string          `json:"recipe,omitempty"` // checksum of the file in Dir that it was made by
	Mounts []sandbox.Mount `json:"mounts,omitempty"`

	TTLMS         int64      `json:"ttl_ms"`               // unused for so many ms it is stopped; 0 is never
	StopsAt       *time.Time `json:"stops_at,omitempty"`   // when that is, unless it is used before
	UsedBy        string     `json:"used_by,omitempty"`    // what uses it now; with a TTL only
	DeleteAfterMS int64      `json:"delete_after_ms"`      // stopped for so many ms it is removed; 0 is never
	RemovedAt     *time.Time `json:"removed_at,omitempty"` // when that is, unless it is started before
	End           *End       `json:"end,omitempty"`        // nil is no such time

	Labels     map[string]string `json:"labels,omitempty"`
	SharedWith []Share           `json:"shared_with"`
	Notes      []string          `json:"notes,omitempty"`

	SSHURI     string `json:"ssh_uri"`     // for Dial
	SSHCommand string `json:"ssh_command"` // for a person's shell
	KnownHosts string `json:"known_hosts"` // file on the daemon's machine with its host key
}

// End is when a sandbox ends, used or not.
type End struct {
	At    time.Time `json:"at,omitzero"`
	Pause bool      `json:"pause,omitempty"` // it is paused then, and not removed
}

// Share is a principal that may use a sandbox of another.
type Share struct {
	Principal string `json:"principal"`
	Rights    string `json:"rights"` // watch or drive
}

// Session is one terminal of a sandbox.
type Session struct {
	Name      string   `json:"name"`
	State     State    `json:"state"`
	Keyboard  string   `json:"keyboard"` // who has it, such as person:alice; empty is nobody
	Cols      int      `json:"cols"`
	Rows      int      `json:"rows"`
	Parties   []Party  `json:"parties"`           // who is attached
	Argv      []string `json:"argv,omitempty"`    // of a session that runs a program in place of a shell
	CreatedMS int64    `json:"created_unix_ms"`   //
	Offset    uint64   `json:"offset"`            // bytes that it has printed
	Private   string   `json:"private,omitempty"` // who is in private mode
}

// Party is one that is attached to a session.
type Party struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"`   // agent or person
	Rights string `json:"rights"` // drive or watch
	ID     string `json:"id,omitempty"`
	Owner  bool   `json:"owner,omitempty"` // of the sandbox
}

// Description is a sandbox as [Gateway.Describe] returns it. What the sandbox itself has to report
// is empty where it does not answer; Health says why. The texts are safe to show.
type Description struct {
	Sandbox
	Health      string            `json:"health"`       // ok, or what is wrong
	OS          string            `json:"os,omitempty"` // such as "Debian GNU/Linux 12 (bookworm)"
	Kernel      string            `json:"kernel,omitempty"`
	Arch        string            `json:"arch,omitempty"`
	Account     string            `json:"account,omitempty"` // user name and UID inside
	Cwd         string            `json:"cwd,omitempty"`     // where sessions and commands begin
	Shell       string            `json:"shell,omitempty"`
	Tools       map[string]string `json:"tools,omitempty"`    // path by program, of those that agents ask for
	Packages    []Packages        `json:"packages,omitempty"` // of DescribePackages
	NetworkText string            `json:"network_text"`
	LimitsText  string            `json:"limits_text"`
	Used        *Used             `json:"used,omitempty"`  // while it runs
	Usage       string            `json:"usage,omitempty"` // processes and memory, as the sandbox reports them
	Tier        string            `json:"tier,omitempty"`  // of a host: guest, marks or screen
	TierText    string            `json:"tier_text,omitempty"`
}

// Packages are those of one package manager.
type Packages struct {
	By    string    `json:"by"` // dpkg, apk, rpm, pacman or python
	Count int       `json:"count"`
	List  []Package `json:"list,omitempty"` // of python alone, at most 1,000
	Cut   bool      `json:"cut,omitempty"`  // there are more than List has
}

// Package is one installed package.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Used is what a sandbox uses of its limits.
type Used struct {
	Memory      int64 `json:"memory"` // bytes
	PIDs        int64 `json:"pids"`
	CPUMS       int64 `json:"cpu_ms"` // since it was started
	Disk        int64 `json:"disk"`   // bytes, as measured last; 0 before the first time
	Files       int64 `json:"files"`  // likewise
	OOMKills    int64 `json:"oom_kills"`
	PIDsRefused int64 `json:"pids_refused"` // processes that could not be started
}
