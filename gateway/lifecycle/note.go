package lifecycle

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// note is written beside a sandbox's records, so that a lost store can be rebuilt.
type note struct {
	Name    string    `json:"name"`
	Owner   string    `json:"owner"`
	Created time.Time `json:"created"`
	Spec    Asked     `json:"spec"`
}

const noteFile = "sandbox.json"

// note writes the note of a sandbox. It is on the disk when it returns.
func (reg *Registry) note(id string, f Record) error {
	text, err := json.Marshal(note{Name: f.Name, Owner: f.Owner, Created: f.Created, Spec: f.Asked})
	if err != nil {
		return err
	}
	dir := reg.records(id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	fresh := filepath.Join(dir, noteFile+".new")
	file, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err == nil {
		err = file.Sync() // it is for when all else is lost
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return os.Rename(fresh, filepath.Join(dir, noteFile))
}

// noted returns what note wrote, and false if that is not there or not whole.
func (reg *Registry) noted(id string) (note, bool) {
	var n note
	text, err := os.ReadFile(filepath.Join(reg.records(id), noteFile))
	if err != nil || json.Unmarshal(text, &n) != nil {
		return note{}, false
	}
	// Life, End and Labels were beside the spec once.
	var beside struct {
		Life   Life              `json:"life"`
		End    End               `json:"end"`
		Labels map[string]string `json:"labels"`
	}
	if err := json.Unmarshal(text, &beside); err == nil {
		if beside.Life != (Life{}) {
			n.Spec.Life = beside.Life
		}
		if beside.End != (End{}) {
			n.Spec.End = beside.End
		}
		if beside.Labels != nil {
			n.Spec.Labels = beside.Labels
		}
	}
	if _, err := wire.ParseSandbox(n.Name); err != nil || n.Owner == "" {
		return note{}, false
	}
	return n, true
}

// unnote removes what note wrote.
func (reg *Registry) unnote(id string) {
	if err := os.Remove(filepath.Join(reg.records(id), noteFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		reg.log.Warn("note not removed", "id", id, "err", err)
	}
}
