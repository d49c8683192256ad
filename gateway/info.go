package gateway

import (
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// State is where a sandbox is in its life. It is written to the store before and after each act that changes it.
type State string

const (
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
	Network    sandbox.Network
	Limits     sandbox.Limits
	User       string
	Sudo       bool
	Env        []string
	Entrypoint sandbox.Entrypoint
	Trust      sandbox.Trust
	Isolation  string
}

// Info is a sandbox as lists show it, from what the hub knows already: making one asks no engine and no guest.
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
	Digest    string             `json:"digest,omitempty"`
	User      string             `json:"user,omitempty"`
	Network   sandbox.Network    `json:"network"`
	Isolation string             `json:"isolation,omitempty"`
	Limits    sandbox.Limits     `json:"limits"`
	Sessions  []wire.SessionInfo `json:"sessions"`
	Command   string             `json:"ssh_command,omitempty"`
	Notes     []string           `json:"notes,omitempty"`
}

// ShortImage is the image without what every image of ours has: base for sandboxd/base:latest.
func (i Info) ShortImage() string {
	return strings.TrimSuffix(strings.TrimPrefix(i.Image, "sandboxd/"), ":latest")
}

// Description is all that there is to say about a sandbox to somebody who is to work in it. What needs the sandbox's
// answer is empty when it did not give one; Health then says why.
type Description struct {
	Info
	Health      string            `json:"health"`       // ok, limit_pids: …, broken: …, or the state
	OS          string            `json:"os,omitempty"` // PRETTY_NAME of os-release
	Kernel      string            `json:"kernel,omitempty"`
	Arch        string            `json:"arch,omitempty"`
	Account     string            `json:"account,omitempty"` // user name and uid inside
	Cwd         string            `json:"cwd,omitempty"`     // where sessions and commands begin
	Shell       string            `json:"shell,omitempty"`
	Tools       map[string]string `json:"tools,omitempty"` // program to path, of those that agents ask for
	NetworkText string            `json:"network_text"`    // what the network mode means, loud where it is open
	LimitsText  string            `json:"limits_text"`
	Usage       string            `json:"usage,omitempty"` // processes and memory now, where the sandbox can tell
}
