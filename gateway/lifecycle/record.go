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
	Instance sandbox.Instance // its ID is empty until there is one
	State    State
	Since    time.Time // of State
	Created  time.Time
	Reason   string // why it is stopped, broken or lost
}

// Asked is what was asked for, with the daemon's defaults filled in. Its JSON is one flat object.
type Asked struct {
	sandbox.Spec // for the backend

	Allow  []string          // what Network opens besides its defaults
	Dir    string            // the directory whose own sandbox this is
	Recipe string            // checksum of the file in Dir that it was made by
	Made   string            // what Image was made from, for people
	About  string            // the maker's notes for its users
	Labels map[string]string `json:"labels,omitempty"` // replaced, never changed

	Life
	End End `json:"end,omitzero"`
}

// recordOf reads a row of the store.
func recordOf(row store.Sandbox) (Record, error) {
	f := Record{Name: row.Name, Owner: row.Owner, State: State(row.State), Since: row.Since, Created: row.Created, Reason: row.Error}
	if err := json.Unmarshal(row.Spec, &f.Asked); err != nil {
		return f, fmt.Errorf("spec: %w", err)
	}
	if len(row.Instance) > 0 {
		if err := json.Unmarshal(row.Instance, &f.Instance); err != nil {
			return f, fmt.Errorf("instance: %w", err)
		}
	}
	return f, nil
}

// row is f for the store.
func (f Record) row(id string) (store.Sandbox, error) {
	row := store.Sandbox{ID: id, Name: f.Name, Owner: f.Owner, State: string(f.State), Since: f.Since, Created: f.Created, Error: f.Reason}
	var err error
	if row.Spec, err = json.Marshal(f.Asked); err != nil {
		return row, fmt.Errorf("spec: %w", err)
	}
	if f.Instance.Backend != "" {
		if row.Instance, err = json.Marshal(f.Instance); err != nil {
			return row, fmt.Errorf("instance: %w", err)
		}
	}
	return row, nil
}

// limits are those of the instance, and those that it is going to have while there is none. A
// machine that is taken as it is has none.
func (f Record) limits() sandbox.Limits {
	switch {
	case f.Host.URI != "":
		return sandbox.Limits{}
	case f.Instance.ID != "":
		return f.Instance.Limits.Or(f.Limits)
	}
	return f.Limits.Or(sandbox.DefaultLimits)
}

// isPooled reports whether that is a pooled sandbox, or one in the making.
func (f Record) isPooled() bool { return f.Owner == nobody }

// writes reports whether there may be processes that write: a sandbox that does not answer may well
// run, so does a pooled one, and one that is being made has an instance while it is set up.
func (f Record) writes() bool {
	return f.State == Running || f.State == Broken || f.State == Warm || f.State == Creating && f.Instance.ID != ""
}

// overdue reports whether its end has come.
func (f Record) overdue() bool {
	switch f.State {
	case Creating, Deleting, Lost, Warm:
		return false
	}
	return !f.End.At.IsZero() && !time.Now().Before(f.End.At)
}
