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
	"time"

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
	all, err := filepath.Glob(filepath.Join(string(r), "*.json"))
	return err == nil && len(all) > 0
}

// lock waits until no other program fetches from the sandbox with an ID. The caller calls unlock.
func (r Records) lock(ctx context.Context, id string) (unlock func(), err error) {
	path, err := r.path(id)
	if err != nil {
		return nil, err
	}
	path = strings.TrimSuffix(path, ".json") + lockSuffix
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock of a clone: %w", err)
	}
	for {
		locked, err := lockFile(f)
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("lock of a clone: %s: %w", path, err)
		}
		if locked {
			return func() {
				// A program that is just being started has the descriptor, too.
				unlockFile(f)
				f.Close()
			}, nil
		}
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		}
	}
}

// lockSuffix ends the names of files that a fetch locks. They are as many as the records.
const lockSuffix = ".lock"

// Fetch is Clone.Fetch, after fetches of the same sandbox by other programs.
func (r Records) Fetch(ctx context.Context, c *Clone, box Sandbox, most int64) (*Fetched, error) {
	unlock, err := r.lock(ctx, c.ID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return c.Fetch(ctx, box, most)
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

// Add stores the record of a clone.
func (r Records) Add(c *Clone) error {
	path, err := r.path(c.ID)
	if err != nil {
		return err
	}
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(string(r), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(string(r), "*.new") // other programs may write the same record
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// Remove removes the record of a sandbox, and the remote of the repository unless it is another
// sandbox's. The fetched refs stay.
func (r Records) Remove(ctx context.Context, c *Clone) error {
	path, err := r.path(c.ID)
	if err != nil {
		return err
	}
	// Without the key, or a remote, this is an exit status of 1.
	id, _ := repository{c.Repository}.line(ctx, "config", "--get", c.remote()+"."+remoteID)
	if id == c.ID || id == "" {
		c.removeRemote(ctx)
	}
	os.Remove(strings.TrimSuffix(path, ".json") + lockSuffix)
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// remote returns the section of the repository's configuration for the sandbox.
func (c *Clone) remote() string { return "remote.sandbox-" + c.Sandbox }

// remoteID is the key of a remote for the ID of its sandbox.
const remoteID = "sandboxId"

// removeRemote removes the remote, if there is one. It is not git remote remove, which deletes what
// was fetched.
func (c *Clone) removeRemote(ctx context.Context) {
	_ = repository{c.Repository}.configure(ctx, "--remove-section", c.remote())
}

// AddRemote configures the remote sandbox-NAME with the URL of the clone. git only pushes to it: a
// fetch would not check what the sandbox sends, git pull without another remote would merge it, and
// git switch would find its branches.
func (c *Clone) AddRemote(ctx context.Context, url string) error {
	c.removeRemote(ctx) // of an earlier sandbox of the name
	r := repository{c.Repository}
	for _, kv := range [][2]string{{"pushurl", url}, {remoteID, c.ID}, {"skipFetchAll", "true"},
		{"skipDefaultUpdate", "true"}} {
		if err := r.configure(ctx, "--replace-all", c.remote()+"."+kv[0], kv[1]); err != nil {
			return err
		}
	}
	return nil
}

// How long configure waits for another program that changes the configuration.
const (
	lockTime = 5 * time.Second
	lockPoll = 20 * time.Millisecond
)

// configure runs git config. git itself does not wait while another program has the lock.
func (r repository) configure(ctx context.Context, args ...string) error {
	for end := time.Now().Add(lockTime); ; {
		_, err := r.git(ctx, append([]string{"config"}, args...)...)
		failed, ok := errors.AsType[*gitError](err)
		if !ok || !strings.Contains(failed.errors, "could not lock config file") ||
			time.Now().After(end) {
			return err
		}
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
