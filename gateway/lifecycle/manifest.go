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

// manifest is the copy of a sandbox's spec beside its records. It rebuilds a lost store.
type manifest struct {
	Name    string    `json:"name"`
	Owner   string    `json:"owner"`
	Created time.Time `json:"created"`
	Spec    Asked     `json:"spec"`
}

// manifests reads and writes the manifests of all sandboxes.
type manifests struct {
	dir func(id string) string // of a sandbox's records
	log *slog.Logger
}

const manifestFile = "sandbox.json"

// write stores the manifest of a sandbox durably.
func (m manifests) write(id string, f Record) error {
	text, err := json.Marshal(manifest{Name: f.Name, Owner: f.Owner, Created: f.Created,
		Spec: f.Asked})
	if err != nil {
		return err
	}
	dir := m.dir(id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	fresh := filepath.Join(dir, manifestFile+".new")
	file, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err == nil {
		err = file.Sync() // the manifest must survive a lost store
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return os.Rename(fresh, filepath.Join(dir, manifestFile))
}

// read returns the manifest of a sandbox; false if it is missing or invalid.
func (m manifests) read(id string) (manifest, bool) {
	var found manifest
	text, err := os.ReadFile(filepath.Join(m.dir(id), manifestFile))
	if err != nil || json.Unmarshal(text, &found) != nil {
		return manifest{}, false
	}
	// Older manifests have Life, End and Labels beside the spec.
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
		return manifest{}, false
	}
	return found, true
}

// remove removes the manifest of a sandbox.
func (m manifests) remove(id string) {
	if err := os.Remove(filepath.Join(m.dir(id), manifestFile)); err != nil &&
		!errors.Is(err, fs.ErrNotExist) {
		m.log.Warn("sandbox.json not removed", "id", id, "err", err)
	}
}
