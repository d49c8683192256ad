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

// Bounds of files that code made.
const (
	maxFiles     = 64        // of a call
	maxDirs      = 64        // that are looked into
	maxFileBytes = 64 << 20  // of one
	maxCallBytes = 128 << 20 // of a call's together
	maxKept      = 1 << 30   // of all calls; the oldest go of whoever has most
	keepFiles    = time.Hour
	expireEvery  = time.Minute
	fetchWithin  = 30 * time.Second
)

// Artifact is a file that code made in its working directory.
type Artifact struct {
	Name    string `json:"name" doc:"its path below the working directory"`
	Size    int64  `json:"size" doc:"in bytes"`
	URL     string `json:"url,omitempty" doc:"where it can be had for an hour, by range too"`
	LeftOut string `json:"left_out,omitempty" doc:"why it cannot"`
}

// files are artifacts on the daemon's disk: under names of its own, for whoever made the call, for a while.
type files struct {
	root *os.Root

	mu   sync.Mutex
	kept []*kept // guarded by mu; oldest first
	size int64   // guarded by mu; of all
}

// kept are the files of one call.
type kept struct {
	id, owner string
	names     []string // the file's own name is its index
	size      int64
	until     time.Time
}

// newFiles keeps files in a directory, and removes what is there.
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

// expire removes what was kept long enough, until ctx ends.
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

// trim removes what is too old or too much.
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

// largestLocked is the oldest call of the owner whose files take most: nobody's go for somebody else's. It is called with mu held.
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

// removeLocked is called with mu held.
func (f *files) removeLocked(i int) {
	k := f.kept[i]
	f.kept, f.size = slices.Delete(f.kept, i, i+1), f.size-k.size
	_ = f.root.RemoveAll(k.id) // New removes what is left
}

// open is the file of that name of a call of owner's.
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

// collect copies the files of the working directory out of the sandbox. Links are not followed; what is no file is left.
func (b *box) collect(ctx context.Context) (all []Artifact, err error) {
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
			continue // it is gone, or not to be read
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

// keep puts a call's files where they can be found.
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
	errLarge  = errors.New("it is too large")
	errUnread = errors.New("it cannot be read")
)

// copy writes a file of the sandbox, of so many bytes, into the place of the next one.
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
	to, err := root.OpenFile(filepath.Join(k.id, strconv.Itoa(len(k.names))), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return size, errUnread
	}
	defer to.Close()
	n, err := io.Copy(to, io.LimitReader(from, most+1)) // it may grow meanwhile
	switch {
	case err != nil:
		return size, errUnread
	case n > most:
		return size, errLarge
	}
	return n, nil
}
