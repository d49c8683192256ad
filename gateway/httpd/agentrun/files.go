package agentrun

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/connect"
)

// Limits of artifacts.
const (
	maxFiles     = 64        // of a call
	maxDirs      = 64        // directories searched in a call
	maxFileBytes = 64 << 20  // of one file
	maxCallBytes = 128 << 20 // of a call
	maxKept      = 1 << 30   // of all calls; the oldest of the heaviest user are deleted first
	keepFiles    = time.Hour
	expireEvery  = time.Minute
	fetchWithin  = 30 * time.Second
)

// Artifact is a file that the code created in its working directory.
type Artifact struct {
	Name    string `json:"name" doc:"path below the working directory"`
	Size    int64  `json:"size" doc:"size in bytes"`
	URL     string `json:"url,omitempty" doc:"URL of the file, valid for an hour; supports Range"`
	LeftOut string `json:"left_out,omitempty" doc:"why the file is not available"`
}

// files stores artifacts on the daemon's disk for a while, for the principal who made the call. The
// names on disk are the daemon's.
type files struct {
	root *os.Root

	mu   sync.Mutex
	kept []*kept // guarded by mu; oldest first
	size int64   // guarded by mu; of all
}

// kept is the artifacts of one call.
type kept struct {
	id, owner string
	names     []string // the name on disk is the index
	size      int64
	until     time.Time
}

// newFiles returns a store in dir, and deletes what is there.
func newFiles(dir string) (*files, error) {
	if err := os.RemoveAll(dir); err != nil {
		return nil, fmt.Errorf("artifacts: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("artifacts: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("artifacts: %w", err)
	}
	return &files{root: root}, nil
}

func (f *files) close() error { return f.root.Close() }

// expire deletes expired artifacts, until ctx ends.
func (f *files) expire(ctx context.Context) {
	tick := time.NewTicker(expireEvery)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			f.trim(now)
		case <-ctx.Done():
			return
		}
	}
}

// trim deletes artifacts that are expired or exceed maxKept.
func (f *files) trim(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.kept) > 0 && now.After(f.kept[0].until) {
		f.removeLocked(0)
	}
	for len(f.kept) > 0 && f.size > maxKept {
		f.removeLocked(f.largestLocked())
	}
}

// largestLocked returns the oldest call of the owner with the most bytes, so that one owner does
// not displace another's files. The caller holds mu.
func (f *files) largestLocked() (i int) {
	sizes := make(map[string]int64)
	for _, k := range f.kept {
		sizes[k.owner] += k.size
	}
	for j, k := range f.kept {
		if sizes[k.owner] > sizes[f.kept[i].owner] {
			i = j
		}
	}
	return i
}

// removeLocked deletes the files of a call. The caller holds mu.
func (f *files) removeLocked(i int) {
	k := f.kept[i]
	f.kept, f.size = slices.Delete(f.kept, i, i+1), f.size-k.size
	_ = f.root.RemoveAll(k.id) // newFiles deletes leftovers
}

// open opens a file of a call. Only its owner can open it.
func (f *files) open(owner, id, name string) (*os.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range f.kept {
		if k.id != id || k.owner != owner {
			continue
		}
		if i := slices.Index(k.names, name); i >= 0 {
			return f.root.Open(filepath.Join(k.id, strconv.Itoa(i)))
		}
	}
	return nil, os.ErrNotExist
}

// collect copies the files of the working directory out of the sandbox. It skips links and special
// files.
func (b *conn) collect(ctx context.Context) (all []Artifact, err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchWithin)
	defer cancel()
	defer context.AfterFunc(ctx, func() { b.client.Close() })()
	c, err := connect.OpenFiles(b.client)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	f := b.r.files
	k := &kept{id: strings.ToLower(rand.Text()), owner: b.p.Name, until: time.Now().Add(keepFiles)}
	if err := f.root.Mkdir(k.id, 0o700); err != nil {
		return nil, err
	}
	dirs := []string{""}
	for n := 0; n < len(dirs) && n < maxDirs; n++ {
		entries, err := c.ReadDir(path.Join(workDir, dirs[n]))
		if err != nil {
			continue // deleted, or not readable
		}
		for _, e := range entries {
			name := path.Join(dirs[n], e.Name())
			switch {
			case e.IsDir() && e.Name() != "__pycache__":
				dirs = append(dirs, name)
				continue
			case !e.Mode().IsRegular(), name == script:
				continue
			case len(all) == maxFiles:
				return f.keep(k, all), nil
			}
			a := Artifact{Name: strings.ToValidUTF8(name, "\uFFFD"), Size: e.Size()}
			if a.Size, err = k.copy(c, f.root, name, e.Size()); err != nil {
				a.LeftOut = err.Error()
			} else {
				a.URL = "/v1/run/" + k.id + "/artifacts/" + (&url.URL{Path: a.Name}).EscapedPath()
				k.names, k.size = append(k.names, a.Name), k.size+a.Size
			}
			all = append(all, a)
		}
	}
	return f.keep(k, all), nil
}

// keep stores a call's files and returns all.
func (f *files) keep(k *kept, all []Artifact) []Artifact {
	if len(k.names) == 0 {
		_ = f.root.RemoveAll(k.id)
		return all
	}
	f.mu.Lock()
	f.kept, f.size = append(f.kept, k), f.size+k.size
	f.mu.Unlock()
	f.trim(time.Now())
	return all
}

var (
	errLarge  = errors.New("file too large")
	errUnread = errors.New("file not readable")
)

// copy stores a file of the sandbox as the next file of the call, and returns its size.
func (k *kept) copy(c *connect.Files, root *os.Root, name string, size int64) (int64, error) {
	most := min(maxFileBytes, maxCallBytes-k.size)
	if size > most {
		return size, errLarge
	}
	from, err := c.Open(path.Join(workDir, name))
	if err != nil {
		return size, errUnread
	}
	defer from.Close()
	to, err := root.OpenFile(filepath.Join(k.id, strconv.Itoa(len(k.names))),
		os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return size, errUnread
	}
	defer to.Close()
	n, err := io.Copy(to, io.LimitReader(from, most+1)) // the file may grow meanwhile
	switch {
	case err != nil:
		return size, errUnread
	case n > most:
		return size, errLarge
	}
	return n, nil
}
