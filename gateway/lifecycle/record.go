package lifecycle

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
)

// Record is one sandbox as the store has it.
type Record struct {
	Name  string
	Owner string
	Asked
	Instance sandbox.Instance // its ID is empty until it is booted
	State    State
	Since    time.Time // of State
	Created  time.Time
	Reason   string // why stopped, broken or lost
	Held     bool   // if it is paused, only Resume and Start continue it
}

// spec is what the store has as the spec of a Record.
type spec struct {
	Asked
	Held bool `json:"held,omitempty"`
}

// Asked is the spec, with the daemon's defaults filled in. Its JSON is one flat object.
type Asked struct {
	sandbox.Spec // for the backend

	Allow       []string          // additions to the network policy
	Dir         string            // the directory that this is the own sandbox of
	Recipe      string            // checksum of the sandbox file in Dir
	ImageSource string            `json:"Made"` // how Image was made, for people
	About       string            // notes for users and models
	Labels      map[string]string `json:"labels,omitempty"` // replaced as a whole, never modified
	NoSecrets   bool              `json:"no_secrets,omitempty"`

	Life
	End End `json:"end,omitzero"`
}

// recordOf parses a row of the store.
func recordOf(row store.Sandbox) (Record, error) {
	f := Record{Name: row.Name, Owner: row.Owner, State: State(row.State), Since: row.Since,
		Created: row.Created, Reason: row.Error}
	var s spec
	if err := json.Unmarshal(row.Spec, &s); err != nil {
		return f, fmt.Errorf("spec: %w", err)
	}
	f.Asked, f.Held = s.Asked, s.Held
	if len(row.Instance) > 0 {
		if err := json.Unmarshal(row.Instance, &f.Instance); err != nil {
			return f, fmt.Errorf("instance: %w", err)
		}
	}
	return f, nil
}

// row returns f as a row of the store.
func (f Record) row(id string) (store.Sandbox, error) {
	row := store.Sandbox{ID: id, Name: f.Name, Owner: f.Owner, State: string(f.State),
		Since: f.Since, Created: f.Created, Error: f.Reason}
	var err error
	if row.Spec, err = json.Marshal(spec{f.Asked, f.Held}); err != nil {
		return row, fmt.Errorf("spec: %w", err)
	}
	if f.Instance.Backend != "" {
		if row.Instance, err = json.Marshal(f.Instance); err != nil {
			return row, fmt.Errorf("instance: %w", err)
		}
	}
	return row, nil
}

// limits returns the limits of the instance, or before the boot those that it will have. Hosts have
// none.
func (f Record) limits() sandbox.Limits {
	switch {
	case f.Host.URI != "":
		return sandbox.Limits{}
	case f.Instance.ID != "":
		return f.Instance.Limits.Or(f.Limits)
	}
	return f.Limits.Or(sandbox.DefaultLimits)
}

// isPooled reports whether f is a pooled sandbox, or one being booted.
func (f Record) isPooled() bool { return f.Owner == nobody }

// writes reports whether processes may be writing to its disk. A broken sandbox may run, and one
// being created runs its setup.
func (f Record) writes() bool {
	return f.State == Running || f.State == Broken || f.State == Warm || f.State == Creating &&
		f.Instance.ID != ""
}

// overdue reports whether its scheduled end has come.
func (f Record) overdue() bool {
	switch f.State {
	case Creating, Deleting, Lost, Warm:
		return false
	}
	return !f.End.At.IsZero() && !time.Now().Before(f.End.At)
}
