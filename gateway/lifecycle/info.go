package lifecycle

import (
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// State is the state of a sandbox. The store has it before and after each act that changes it.
type State string

const (
	Warm     State = "warm"     // pooled: without an owner, and in no list
	Creating State = "creating" // Boot is under way; undone after a crash
	Running  State = "running"  //
	Paused   State = "paused"   // frozen by its backend
	Stopped  State = "stopped"  // no processes; files stay; a connection starts it
	Broken   State = "broken"   // does not answer or cannot start: Reason says why
	Deleting State = "deleting" // Destroy is under way; finished after a crash
	// Lost sandboxes are known to a backend but not to the store; they are never removed
	// automatically.
	Lost State = "lost"
)

// NewSpec is what a caller may ask for. Zero fields mean the daemon's defaults.
type NewSpec struct {
	Name    string // a label that is not reserved; empty generates one
	Backend string // empty is Options.Backend
	// Return the caller's existing sandbox of that name instead of failing, whatever its spec.
	Reuse bool

	Image      string
	Build      *Build   // builds the image; only for the admin
	Setup      []string // commands run once in the image; the result is reused for equal specs
	Network    sandbox.Network
	Via        sandbox.Via // how Network is carried; only with NetworkFiltered and NetworkAllowlist
	Limits     sandbox.Limits
	User       string
	Sudo       bool
	Env        []string
	Entrypoint sandbox.Entrypoint
	Trust      sandbox.Trust
	Isolation  string
	// Engine options, NAME=VALUE; others than the admin may use only those of Options.Engine.
	Options   []string
	About     string // notes for users and models
	NoSecrets bool   // it uses none of its owner's secrets
	// Additions to the network policy, as of egress.Rules; only with NetworkFiltered and
	// NetworkAllowlist.
	Allow []string

	// Directories of the daemon's machine: only for the admin, and only those of Options.Dirs.
	Mounts []sandbox.Mount
	// Where sessions begin; empty is the first of Mounts, else the image's WORKDIR.
	Workdir string
	Volume  sandbox.Volume
	Dir     string // the directory that this is the own sandbox of; mounted first
	Recipe  string // checksum of the sandbox file in Dir
	// Unused for this long, it is stopped; 0 is the daemon's default, Never indefinitely.
	TTL         time.Duration
	DeleteAfter time.Duration // stopped for this long, it is removed; 0 and Never as for TTL

	End    End               // scheduled end, even while in use
	Labels map[string]string // the caller's own data; the daemon does not interpret it

	// An existing machine that answers SSH; besides it only Name, Reuse, About and Labels apply.
	Host sandbox.Host
}

// Info describes a sandbox in lists. It contains only what the daemon already knows; reading it
// calls no engine and no guest.
type Info struct {
	Name  string    `json:"name"`
	ID    string    `json:"id"`
	Owner string    `json:"owner"`
	State State     `json:"state"`
	Since time.Time `json:"since"`
	// Why broken, stopped or lost: oom_killed, engine: …
	Reason string `json:"reason,omitempty"`
	// Paused until a user resumes it: commands are rejected.
	Held    bool      `json:"held,omitempty"`
	Created time.Time `json:"created"`
	Backend string    `json:"backend"`
	Image   string    `json:"image"`
	About   string    `json:"about,omitempty"` // notes for users and models
	// How Image was made: a Dockerfile, a setup.
	ImageOf   string             `json:"image_of,omitempty"`
	Digest    string             `json:"digest,omitempty"`
	User      string             `json:"user,omitempty"`
	Network   sandbox.Network    `json:"network"`
	Via       sandbox.Via        `json:"via,omitempty"` // "proxy" where a proxy carries the network
	Isolation string             `json:"isolation,omitempty"`
	Limits    sandbox.Limits     `json:"limits"`
	Allow     []string           `json:"allow,omitempty"`   // additions to the network policy
	Secrets   []string           `json:"secrets,omitempty"` // names of those that it uses
	Sessions  []wire.SessionInfo `json:"sessions"`

	// The directory that this is the own sandbox of.
	Dir string `json:"dir,omitempty"`
	// Checksum of the sandbox file in Dir.
	Recipe string `json:"recipe,omitempty"`
	// Directories of the daemon's machine.
	Mounts []sandbox.Mount `json:"mounts,omitempty"`
	Volume sandbox.Volume  `json:"volume,omitzero"`
	// Unused for this long, it is stopped; 0 is never.
	TTLms int64 `json:"ttl_ms"`
	// When TTL elapses, unless it is used.
	StopsAt *time.Time `json:"stops_at,omitempty"`
	// What keeps it from being idle; only with a TTL.
	UsedBy string `json:"used_by,omitempty"`
	// Stopped for this long, it is removed; 0 is never.
	DeleteAfterMS int64 `json:"delete_after_ms"`
	// When DeleteAfter elapses, unless it is started.
	RemovedAt *time.Time `json:"removed_at,omitempty"`

	End *End `json:"end,omitempty"` // scheduled end; nil for none

	Labels     map[string]string `json:"labels,omitempty"`
	SharedWith []Share           `json:"shared_with"`
	Command    string            `json:"ssh_command,omitempty"`
	Notes      []string          `json:"notes,omitempty"`
}

// ShortImage returns the image for lists: without prefix and tag if it is one of sandboxd's, such
// as base for sandboxd/base:latest, and how it was made if it was made for the sandbox.
func (i Info) ShortImage() string {
	switch {
	case strings.HasPrefix(i.Image, "sandboxd-build/"):
		return "built"
	case strings.HasPrefix(i.Image, "sandboxd-setup/"):
		return "set up"
	}
	return strings.TrimSuffix(strings.TrimPrefix(i.Image, "sandboxd/"), ":latest")
}

// Used is what a sandbox uses, and how often it hit its limits since its start.
type Used struct {
	Memory      int64 `json:"memory"` // bytes
	PIDs        int64 `json:"pids"`
	CPUms       int64 `json:"cpu_ms"` // since its start
	Disk        int64 `json:"disk"`   // bytes, last measurement; 0 before the first
	Files       int64 `json:"files"`  // last measurement
	OOMKills    int64 `json:"oom_kills"`
	PIDsRefused int64 `json:"pids_refused"` // processes that could not be started
}

// Description is everything known about a sandbox, for its users. Fields that need the sandbox's
// answer are empty without one; Health then says why.
type Description struct {
	Info
	// Ok, limit_pids: …, broken: …, or the state.
	Health  string `json:"health"`
	OS      string `json:"os,omitempty"` // PRETTY_NAME of os-release
	Kernel  string `json:"kernel,omitempty"`
	Arch    string `json:"arch,omitempty"`
	Account string `json:"account,omitempty"` // user name and uid inside
	Cwd     string `json:"cwd,omitempty"`     // where sessions and commands begin
	Shell   string `json:"shell,omitempty"`
	// Path by program, of those that agents look for.
	Tools       map[string]string `json:"tools,omitempty"`
	Packages    []Packages        `json:"packages,omitempty"` // only by DescribePackages
	NetworkText string            `json:"network_text"`       // what the network mode means
	LimitsText  string            `json:"limits_text"`
	// Measured by the backend while the sandbox runs.
	Used  *Used  `json:"used,omitempty"`
	Usage string `json:"usage,omitempty"` // processes, memory and disk now
	// Of a host: guest, marks or screen, how well its terminals are known.
	Tier     string `json:"tier,omitempty"`
	TierText string `json:"tier_text,omitempty"`
}
