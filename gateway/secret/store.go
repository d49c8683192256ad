package secret

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Store has the secrets of all owners. All but those for a session are in one file, which only its
// user can read. Its methods are safe for concurrent use.
type Store struct {
	path string // empty: in memory only
	// From which the keys of all certificate authorities derive. It is in the file, so that
	// programs that trust an authority do so after a restart of the daemon.
	seed []byte

	mu  sync.Mutex
	all map[key]*entry // guarded by mu; entries are replaced, never changed
}

type key struct{ owner, name string }

// entry is a secret with its value.
type entry struct {
	Secret
	value  Value    // if the source is not a command
	runner *command // if it is
	used   *usedAt
}

// usedAt is when a secret was last used.
type usedAt struct {
	mu sync.Mutex
	at time.Time // guarded by mu
}

func (u *usedAt) set() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.at = time.Now()
}

func (u *usedAt) get() time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.at
}

// Info is a secret for lists.
type Info struct {
	Secret
	// When a request was last sent with it, since the daemon began; nil: never.
	LastUsed *time.Time `json:"last_used"`
}

// stored is the content of the file.
type stored struct {
	Version int            `json:"version"`
	Seed    []byte         `json:"seed"` // of the certificate authorities
	Secrets []storedSecret `json:"secrets"`
}

type storedSecret struct {
	Owner string `json:"owner"`
	Secret
	Value string `json:"value,omitempty"`
}

const fileVersion = 1

// Open reads the secrets in the file at path. A missing file is an empty one. With an empty path,
// all secrets are only in memory.
func Open(path string) (*Store, error) {
	s := &Store{path: path, seed: newSeed(), all: make(map[key]*entry)}
	if path == "" {
		return s, nil
	}
	if err := removeUnfinished(path); err != nil {
		return nil, fmt.Errorf("secrets: %w", err)
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s, nil
	case err != nil:
		return nil, fmt.Errorf("secrets: %w", err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("secrets: %s is not a regular file", path)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("secrets: others can read %s (mode %04o); replace the secrets in "+
			"it, then chmod 600 %[1]s", path, info.Mode().Perm())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("secrets: %w", err)
	}
	var file stored
	// Not the decoder's error: it may quote the file.
	if json.Unmarshal(text, &file) != nil || file.Version != fileVersion ||
		len(file.Seed) != seedSize {
		return nil, fmt.Errorf("secrets: %s is damaged, or of another version of sandboxd; move it "+
			"away, and set the secrets again", path)
	}
	s.seed = file.Seed
	for _, f := range file.Secrets {
		f.Secret.Owner = f.Owner
		e, err := newEntry(f.Secret, f.Value)
		if err != nil {
			return nil, fmt.Errorf("secrets: %s: secret %s: %w", path, f.Name, err)
		}
		s.all[key{f.Owner, f.Name}] = e
	}
	return s, nil
}

// newEntry returns the entry of a checked secret.
func newEntry(sec Secret, text string) (*entry, error) {
	e := &entry{Secret: sec, used: new(usedAt)}
	if sec.Source.Kind == KindCmd {
		e.runner = &command{line: sec.Source.From}
		return e, nil
	}
	var err error
	e.value, err = ParseValue([]byte(text))
	return e, err
}

// Set adds a secret, or replaces the one of its name with its value. It returns it in canonical
// form. A secret from a command has no value.
func (s *Store) Set(sec Secret, v Value) (Secret, error) {
	sec, err := sec.check()
	if err != nil {
		return sec, err
	}
	if sec.Source.Kind != KindCmd && v.IsZero() {
		return sec, usage("secret "+sec.Name+": the value is empty", "")
	}
	sec.Created = time.Now().UTC().Truncate(time.Second)
	e, err := newEntry(sec, v.reveal())
	if err != nil {
		return sec, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for k, other := range s.all {
		if k.owner != sec.Owner || k.name == sec.Name {
			continue
		}
		n++
		if host := sec.clash(other.Secret); host != "" {
			return sec, &wire.Error{Code: wire.CodeUsage,
				Message: fmt.Sprintf("host %s is bound twice: secret %s binds it for the same "+
					"sandboxes", host, other.Name),
				Hint: "remove that one: sandboxd secret rm " + other.Name +
					", or give each its sandboxes with --for"}
		}
	}
	if n >= maxSecrets {
		return sec, usage(fmt.Sprintf("secret %s: you have %d secrets, the limit", sec.Name, n),
			"remove one: sandboxd secret rm NAME")
	}
	return sec, s.changeLocked(func(all map[key]*entry) { all[key{sec.Owner, sec.Name}] = e })
}

// Remove removes a secret.
func (s *Store) Remove(owner, name string) (Secret, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.all[key{owner, name}]
	if e == nil {
		return Secret{}, &wire.Error{Code: wire.CodeNotFound,
			Message: fmt.Sprintf("no secret %.64q", name), Hint: "to list them: sandboxd secret ls"}
	}
	return e.Secret, s.changeLocked(func(all map[key]*entry) { delete(all, key{owner, name}) })
}

// changeLocked applies change to the secrets if the file can be written. The caller holds mu.
func (s *Store) changeLocked(change func(map[key]*entry)) error {
	all := maps.Clone(s.all)
	change(all)
	if s.path != "" {
		if err := write(s.path, s.seed, all); err != nil {
			return fmt.Errorf("secrets: %w", err)
		}
	}
	s.all = all
	return nil
}

// write replaces the file, or removes it if nothing is to be stored.
func write(path string, seed []byte, all map[key]*entry) error {
	file := stored{Version: fileVersion, Seed: seed}
	for _, k := range slices.SortedFunc(maps.Keys(all), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.owner, b.owner), cmp.Compare(a.name, b.name))
	}) {
		if e := all[k]; !e.SessionOnly {
			file.Secrets = append(file.Secrets,
				storedSecret{Owner: k.owner, Secret: e.Secret, Value: e.value.reveal()})
		}
	}
	if len(file.Secrets) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", "\t")
	if err := encoder.Encode(file); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), unfinished) // with mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // no effect after the rename
	_, err = tmp.Write(text.Bytes())
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// unfinished is the pattern of files that are being written. They have values, too.
const unfinished = ".secrets-*"

// removeUnfinished removes what a daemon left that was killed while it wrote.
func removeUnfinished(path string) error {
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), unfinished))
	for _, file := range left {
		err = errors.Join(err, os.Remove(file))
	}
	return err
}

// Seed returns the seed of the certificate authority of the sandbox with this ID: see
// BrokerOptions.Seed.
func (s *Store) Seed(id string) []byte {
	mac := hmac.New(sha256.New, s.seed)
	mac.Write([]byte(id))
	return mac.Sum(nil)
}

// seedSize is the length of a seed in bytes.
const seedSize = sha256.Size

func newSeed() []byte {
	seed := make([]byte, seedSize)
	rand.Read(seed) // never fails: crypto/rand ends the program instead
	return seed
}

// List returns the secrets of an owner, by name.
func (s *Store) List(owner string) []Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []Info{}
	for k, e := range s.all {
		if k.owner != owner {
			continue
		}
		info := Info{Secret: e.Secret}
		if at := e.used.get(); !at.IsZero() {
			info.LastUsed = &at
		}
		all = append(all, info)
	}
	slices.SortFunc(all, func(a, b Info) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// For returns what applies to an owner's sandbox, by name of the secret.
func (s *Store) For(owner, sandbox string) []Bound {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Bound
	for k, e := range s.all {
		if k.owner != owner || !e.applies(sandbox) {
			continue
		}
		for _, b := range e.Bindings {
			all = append(all, Bound{Secret: e.Name, Named: len(e.Sandboxes) > 0, Binding: b,
				entry: e})
		}
	}
	slices.SortStableFunc(all, func(a, b Bound) int { return cmp.Compare(a.Secret, b.Secret) })
	return all
}

// Bound is a binding that applies to a sandbox.
type Bound struct {
	Secret string // name
	Named  bool   // the secret names the sandbox; otherwise it is for all of the owner
	Binding
	entry *entry
}

// header returns the credential as a header.
func (b Bound) header(ctx context.Context) (name, text string, err error) {
	value := b.entry.value
	if b.entry.runner != nil {
		if value, err = b.entry.runner.value(ctx); err != nil {
			return "", "", err
		}
	}
	return fill(b.Header, value)
}

// rejected reports that the server rejected the credential: a command runs again.
func (b Bound) rejected() {
	if b.entry.runner != nil {
		b.entry.runner.forget()
	}
}
