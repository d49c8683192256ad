package lifecycle

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
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

// notes are those of all sandboxes.
type notes struct {
	dir func(id string) string // of a sandbox's records
	log *slog.Logger
}

const noteFile = "sandbox.json"

// write writes the note of a sandbox. It is on the disk when it returns.
func (n notes) write(id string, f Record) error {
	text, err := json.Marshal(note{Name: f.Name, Owner: f.Owner, Created: f.Created, Spec: f.Asked})
	if err != nil {
		return err
	}
	dir := n.dir(id)
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

// read returns what write wrote, and false if that is not there or not whole.
func (n notes) read(id string) (note, bool) {
	var found note
	text, err := os.ReadFile(filepath.Join(n.dir(id), noteFile))
	if err != nil || json.Unmarshal(text, &found) != nil {
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
			found.Spec.Life = beside.Life
		}
		if beside.End != (End{}) {
			found.Spec.End = beside.End
		}
		if beside.Labels != nil {
			found.Spec.Labels = beside.Labels
		}
	}
	if _, err := wire.ParseSandbox(found.Name); err != nil || found.Owner == "" {
		return note{}, false
	}
	return found, true
}

// remove removes what write wrote.
func (n notes) remove(id string) {
	if err := os.Remove(filepath.Join(n.dir(id), noteFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.log.Warn("note not removed", "id", id, "err", err)
	}
}
