package lifecycle

import (
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// State is where a sandbox is in its life. It is written to the store before and after each act
// that changes it.
type State string

const (
	Warm     State = "warm"     // pooled: nobody's, and in no list
	Creating State = "creating" // Boot is under way; after a crash it is undone
	Running  State = "running"  //
	Paused   State = "paused"   // frozen by its backend
	Stopped  State = "stopped"  // no processes; its files stay; starts again on connect
	Broken   State = "broken"   // runs but does not answer, or cannot start: Reason says why
	Deleting State = "deleting" // Destroy is under way; after a crash it is finished
	Lost     State = "lost"     // a backend has it and the store did not know it; never removed on its own
)

// NewSpec is what a caller may ask for. Zero fields mean the daemon's defaults.
type NewSpec struct {
	Name    string // a label that is not reserved; empty generates one
	Backend string // empty is Options.Backend
	Reuse   bool   // a sandbox of the caller that has the name already is the answer, whatever it was made from

	Image      string
	Build      *Build   // makes the image; for the daemon's own user only
	Setup      []string // commands that are run in it, once for all sandboxes of the same image that say the same
	Network    sandbox.Network
	Via        sandbox.Via // how Network has to be carried; with NetworkFiltered and NetworkAllowlist only
	Limits     sandbox.Limits
	User       string
	Sudo       bool
	Env        []string
	Entrypoint sandbox.Entrypoint
	Trust      sandbox.Trust
	Isolation  string
	Options    []string // NAME=VALUE, further ones of the backend's engine; those of Options.Engine, for others than the daemon's own user
	About      string   // what whoever is to work in it should know besides
	Allow      []string // what Network opens beside its defaults, as of egress.Rules; with NetworkFiltered and NetworkAllowlist only

	// Directories of the daemon's machine: for the daemon's own user only, and only those of
	// Options.Dirs.
	Mounts      []sandbox.Mount
	Workdir     string        // where sessions begin; empty is the first of Mounts, else the image's WORKDIR
	Dir         string        // the directory whose own sandbox it is to be; mounted, as the first one
	Recipe      string        // checksum of what Dir says of it
	TTL         time.Duration // nobody using it for so long stops it; 0 is the daemon's default, Never none
	DeleteAfter time.Duration // stopped for so long it is removed; as TTL

	End    End               // when it ends, used or not
	Labels map[string]string // what its maker wants to find again in Info; the daemon makes nothing of it

	Host sandbox.Host // a machine that answers SSH, taken as it is; nothing above but Name, Reuse, About and Labels goes with it
}

// Info is a sandbox as lists show it, from what the hub knows already: making one asks no engine
// and no guest.
type Info struct {
	Name      string             `json:"name"`
	ID        string             `json:"id"`
	Owner     string             `json:"owner"`
	State     State              `json:"state"`
	Since     time.Time          `json:"since"`
	Reason    string             `json:"reason,omitempty"` // why broken, stopped or lost: oom_killed, engine: …
	Created   time.Time          `json:"created"`
	Backend   string             `json:"backend"`
	Image     string             `json:"image"`
	About     string             `json:"about,omitempty"`    // what its maker says of it, for who is to work in it
	ImageOf   string             `json:"image_of,omitempty"` // what Image was made of: a Dockerfile, a set-up
	Digest    string             `json:"digest,omitempty"`
	User      string             `json:"user,omitempty"`
	Network   sandbox.Network    `json:"network"`
	Via       sandbox.Via        `json:"via,omitempty"` // proxy where the network is carried by one
	Isolation string             `json:"isolation,omitempty"`
	Limits    sandbox.Limits     `json:"limits"`
	Allow     []string           `json:"allow,omitempty"` // what the network opens beside its defaults
	Sessions  []wire.SessionInfo `json:"sessions"`

	Dir           string          `json:"dir,omitempty"`        // the directory whose own sandbox it is
	Recipe        string          `json:"recipe,omitempty"`     // checksum of the file in Dir that it was made by
	Mounts        []sandbox.Mount `json:"mounts,omitempty"`     // directories of the daemon's machine
	TTLms         int64           `json:"ttl_ms"`               // idle for so long it is stopped; 0 is never
	StopsAt       *time.Time      `json:"stops_at,omitempty"`   // when that is, unless somebody uses it before
	UsedBy        string          `json:"used_by,omitempty"`    // what keeps it from being idle now; only with a TTL
	DeleteAfterMS int64           `json:"delete_after_ms"`      // stopped for so long it is removed; 0 is never
	RemovedAt     *time.Time      `json:"removed_at,omitempty"` // when that is, unless it is started before

	End *End `json:"end,omitempty"` // when it ends, used or not; nil for none

	Labels     map[string]string `json:"labels,omitempty"`
	SharedWith []Share           `json:"shared_with"`
	Command    string            `json:"ssh_command,omitempty"`
	Notes      []string          `json:"notes,omitempty"`
}

// ShortImage is the image without what every image of ours has: base for sandboxd/base:latest. One
// that was made for the sandbox is called by how.
func (i Info) ShortImage() string {
	switch {
	case strings.HasPrefix(i.Image, "sandboxd-build/"):
		return "built"
	case strings.HasPrefix(i.Image, "sandboxd-setup/"):
		return "set up"
	}
	return strings.TrimSuffix(strings.TrimPrefix(i.Image, "sandboxd/"), ":latest")
}

// Used is what a sandbox uses of its limits, and what they did since it was started.
type Used struct {
	Memory      int64 `json:"memory"` // bytes
	PIDs        int64 `json:"pids"`
	CPUms       int64 `json:"cpu_ms"` // since it was started
	Disk        int64 `json:"disk"`   // bytes, as measured last; 0 before that
	Files       int64 `json:"files"`  // likewise
	OOMKills    int64 `json:"oom_kills"`
	PIDsRefused int64 `json:"pids_refused"` // that could not be started
}

// Description is all that there is to say about a sandbox to somebody who is to work in it. What
// needs the sandbox's answer is empty when it did not give one; Health then says why.
type Description struct {
	Info
	Health      string            `json:"health"`       // ok, limit_pids: …, broken: …, or the state
	OS          string            `json:"os,omitempty"` // PRETTY_NAME of os-release
	Kernel      string            `json:"kernel,omitempty"`
	Arch        string            `json:"arch,omitempty"`
	Account     string            `json:"account,omitempty"` // user name and uid inside
	Cwd         string            `json:"cwd,omitempty"`     // where sessions and commands begin
	Shell       string            `json:"shell,omitempty"`
	Tools       map[string]string `json:"tools,omitempty"`    // program to path, of those that agents ask for
	Packages    []Packages        `json:"packages,omitempty"` // where they were asked for
	NetworkText string            `json:"network_text"`       // what the network mode means, loud where it is open
	LimitsText  string            `json:"limits_text"`
	Used        *Used             `json:"used,omitempty"`  // as the backend counts it, while the sandbox runs
	Usage       string            `json:"usage,omitempty"` // processes and memory now, where the sandbox can tell
	Tier        string            `json:"tier,omitempty"`  // of a host: guest, marks or screen, how well its terminals are known
	TierText    string            `json:"tier_text,omitempty"`
}
