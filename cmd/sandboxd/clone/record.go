package clone

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Records is a directory with a file for each sandbox that has a clone of a repository of this
// machine. It may be missing.
type Records string

// path returns the file of a sandbox. The ID is what the daemon reports.
func (r Records) path(id string) (string, error) {
	if _, err := wire.ParseLabel("sandbox id", id); err != nil {
		return "", err
	}
	return filepath.Join(string(r), id+".json"), nil
}

// Any reports whether there is a record.
func (r Records) Any() bool {
	entries, err := os.ReadDir(string(r))
	return err == nil && len(entries) > 0
}

// Find returns the clone of the sandbox with an ID; nil if there is none.
func (r Records) Find(id string) (*Clone, error) {
	path, err := r.path(id)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	c := new(Clone)
	if err == nil {
		err = json.Unmarshal(data, c)
	}
	if err != nil {
		return nil, fmt.Errorf("record of a clone: %s: %w", path, err)
	}
	return c, nil
}

// Named returns the clone of a sandbox with a name; nil if there is none. Sandboxes of several
// daemons may have the name: then it is one of theirs.
func (r Records) Named(name string) (*Clone, error) {
	entries, err := os.ReadDir(string(r))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, entry := range entries {
		id, ok := strings.CutSuffix(entry.Name(), ".json")
		if !ok {
			continue
		}
		if c, err := r.Find(id); err == nil && c != nil && c.Sandbox == name {
			return c, nil
		}
	}
	return nil, err
}

// lock excludes other callers, also of other processes, until unlock is called. git does not wait
// for another git that changes the configuration.
func (r Records) lock() (unlock func(), err error) {
	if err := os.MkdirAll(string(r), 0o700); err != nil {
		return nil, err
	}
	dir, err := os.Open(string(r))
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		dir.Close()
		return nil, fmt.Errorf("lock %s: %w", r, err)
	}
	return func() { dir.Close() }, nil
}

// Add stores the record of a clone, and configures the remote sandbox-NAME of its repository with
// the URL of the clone. Commands for all remotes skip it.
func (r Records) Add(ctx context.Context, c *Clone, url string) error {
	path, err := r.path(c.ID)
	if err != nil {
		return err
	}
	unlock, err := r.lock()
	if err != nil {
		return err
	}
	defer unlock()
	repo := repository{c.Repository}
	for _, kv := range [][2]string{{"url", url},
		{"fetch", "+refs/heads/*:" + branchRefs + c.Sandbox + "/*"}, {"tagOpt", "--no-tags"},
		{"skipFetchAll", "true"}, {"skipDefaultUpdate", "true"}} {
		if _, err := repo.git(ctx, "config", "--replace-all", c.remote()+"."+kv[0],
			kv[1]); err != nil {
			return err
		}
	}
	return store(path, c)
}

// Leave removes a clone from its group.
func (r Records) Leave(c *Clone) error {
	path, err := r.path(c.ID)
	if err != nil {
		return err
	}
	unlock, err := r.lock()
	if err != nil {
		return err
	}
	defer unlock()
	c.Group = ""
	return store(path, c)
}

func store(path string, c *Clone) error {
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Remove removes the record of a sandbox, and the remote of the repository. The fetched refs stay.
func (r Records) Remove(ctx context.Context, c *Clone) error {
	path, err := r.path(c.ID)
	if err != nil {
		return err
	}
	unlock, err := r.lock()
	if err != nil {
		return err
	}
	defer unlock()
	// Not git remote remove, which deletes what was fetched. It fails if there is no remote.
	_, _ = repository{c.Repository}.git(ctx, "config", "--remove-section", c.remote())
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// remote returns the section of the repository's configuration for the sandbox.
func (c *Clone) remote() string { return "remote.sandbox-" + c.Sandbox }
