package e2b

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Directories are watched by polling with find(1): SFTP reports no changes, and every image has
// find.
const (
	watchEvery     = 200 * time.Millisecond
	maxWatchers    = 32      // of a sandbox
	maxWatched     = 20_000  // entries of a directory
	maxChanges     = 20_000  // events that wait for the client
	maxChangeBytes = 2 << 20 // of their names
	watcherKept    = time.Hour
	watchedPath    = 8 << 10  // bytes of one record
	watchedBytes   = 16 << 20 // memory of all snapshots of a sandbox
	entryBytes     = 256      // memory of an entry besides its name
	// Entries a second that all watchers of a sandbox read; parsing them costs the daemon CPU time.
	watchedRate  = 50_000
	lookedWithin = 30 * time.Second // time for one poll
)

var errFindSlow = fmt.Errorf("reading the directory took longer than %v", lookedWithin)

// watcher polls one directory until it is closed.
type watcher struct {
	dir     string
	entries bool            // events include a description of the file
	life    context.Context //nolint:containedctx // ends when it is closed
	end     context.CancelCauseFunc
	holds   int // bytes of its snapshot; guarded by place.mu

	mu     sync.Mutex
	seen   []change      // guarded by mu; not fetched yet
	bytes  int           // guarded by mu; size of the names in seen
	err    error         // guarded by mu; why it ended
	wake   chan struct{} // guarded by mu; closed at the next event
	asked  time.Time     // guarded by mu; time of the last fetch
	polled bool          // the client fetches events by calls
}

type watchRequest struct {
	Path      string `json:"path"`
	Recursive bool   `json:"recursive"`
	Entries   bool   `json:"includeEntry"`
	Network   bool   `json:"allowNetworkMounts"` // ignored: polling works on network mounts, too
}

type fsEvent struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	Entry *entry `json:"entry,omitzero"`
}

type watchSaid struct {
	Start      *empty   `json:"start,omitzero"`
	Filesystem *fsEvent `json:"filesystem,omitzero"`
	Keepalive  *empty   `json:"keepalive,omitzero"`
}

// watch starts a watcher. When it returns, the watcher has the current state.
func (v *visit) watch(ctx context.Context, req *watchRequest, polled bool) (w *watcher, id string,
	err error) {
	id = strings.ToLower(rand.Text())
	err = v.on(ctx, req.Path, func(lk *link, a account, dir string) error {
		info, err := lk.files.Stat(dir)
		if err != nil {
			return at(dir, err)
		}
		if !info.IsDir() {
			return invalid("path %q is not a directory", dir)
		}
		w = &watcher{dir: dir, entries: req.Entries, wake: make(chan struct{}), asked: time.Now(),
			polled: polled}
		w.life, w.end = context.WithCancelCause(context.Background())
		v.mu.Lock()
		full := len(v.watchers) >= maxWatchers || v.ended
		if !full {
			v.watchers[id] = w
		}
		v.mu.Unlock()
		if full {
			w.end(nil)
			return &apiError{http.StatusTooManyRequests,
				fmt.Sprintf("limit of %d watchers in this sandbox reached", maxWatchers)}
		}
		if err := w.begin(ctx, lk, v, req.Recursive); err != nil {
			v.dropWatcher(id)
			return err
		}
		return nil
	})
	return w, id, err
}

// begin runs find and takes the first snapshot. Its goroutines end with w.life.
func (w *watcher) begin(ctx context.Context, lk *link, v *visit, recursive bool) error {
	stop := context.AfterFunc(ctx, func() { w.end(context.Cause(ctx)) })
	defer stop()
	lines, ask := io.Pipe()
	printed, stdout := io.Pipe()
	find, err := connect.Start(w.life, lk.client, connect.Command{
		Line: snapshotCommand(w.dir, recursive), Stdin: lines, Stdout: stdout,
	})
	if err != nil {
		return unreachable(v.name, cmp.Or(context.Cause(ctx), err))
	}
	v.places.start(func() {
		err := cmp.Or(find.Wait(), io.EOF)
		lines.CloseWithError(err)
		stdout.CloseWithError(err)
	})
	end := func() { w.end(nil); printed.Close(); v.hold(w, 0) }
	r := bufio.NewReaderSize(printed, watchedPath)
	look := func() (map[string]fileState, error) {
		slow := time.AfterFunc(lookedWithin, func() { w.end(errFindSlow) })
		defer slow.Stop()
		if _, err := io.WriteString(ask, "\n"); err != nil {
			return nil, err
		}
		all, size, err := snapshotOf(r, watchedBytes)
		if err == nil && !v.hold(w, size) {
			err = &apiError{http.StatusTooManyRequests,
				fmt.Sprintf("limit of %d MiB for all watchers of this sandbox reached",
					watchedBytes>>20)}
		}
		return all, err
	}
	first, err := look()
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		end()
		if exit, ok := errors.AsType[*connect.ExitError](err); ok && exit.Status == 64 {
			return &apiError{http.StatusNotImplemented, "watching requires GNU find in the image"}
		}
		return watchError(v.name, err)
	}
	v.places.start(func() {
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		defer end()
		for before := first; ; <-tick.C {
			// Rate-limit afterwards: the size is unknown before.
			if v.looks.WaitN(w.life, min(len(before)+1, maxWatched)) != nil {
				return // closed
			}
			after, err := look()
			if err != nil {
				w.add(nil, watchError(v.name, err))
				return
			}
			w.add(changes(before, after), nil)
			before = after
		}
	})
	return nil
}

// hold sets the memory of a watcher. It returns false, and changes nothing, if all watchers of the
// place would exceed the limit.
func (pl *place) hold(w *watcher, size int) bool {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if size > w.holds && pl.held-w.holds+size > watchedBytes {
		return false
	}
	pl.held += size - w.holds
	w.holds = size
	return true
}

func watchError(name string, err error) error {
	if errors.As(err, new(*apiError)) {
		return err
	}
	return unreachable(name, err)
}

// add queues events.
func (w *watcher) add(all []change, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(all) == 0 && err == nil || w.err != nil {
		return
	}
	for _, c := range all {
		w.bytes += len(c.name)
	}
	if len(w.seen)+len(all) > maxChanges || w.bytes > maxChangeBytes {
		all, err = nil, &apiError{http.StatusTooManyRequests,
			"too many events: fetch them more often"}
	}
	w.seen, w.err = append(w.seen, all...), err
	close(w.wake)
	w.wake = make(chan struct{})
}

// take returns the events since the last call, and a channel that is closed when there are more.
// The error comes after all events before it.
func (w *watcher) take() (all []change, wake <-chan struct{}, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = time.Now()
	w.bytes = 0
	if all, w.seen = w.seen, nil; len(all) == 0 {
		err = w.err
	}
	return all, w.wake, err
}

// forgotten reports whether its client has stopped polling.
func (w *watcher) forgotten() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.polled && time.Since(w.asked) > watcherKept
}

// dropWatcher ends a watcher, and reports whether there was one.
func (pl *place) dropWatcher(id string) bool {
	pl.mu.Lock()
	w := pl.watchers[id]
	delete(pl.watchers, id)
	pl.left = time.Now()
	pl.mu.Unlock()
	if w != nil {
		w.end(nil)
	}
	return w != nil
}

// events converts changes for a client.
func (v *visit) events(ctx context.Context, w *watcher, all []change) []fsEvent {
	events := make([]fsEvent, len(all))
	var lk *link
	var n names
	for i, c := range all {
		events[i] = fsEvent{Name: c.name, Type: c.kind}
		if !w.entries || c.kind == removed || c.kind == renamed {
			continue
		}
		if lk == nil {
			var err error
			if lk, err = v.prepared(ctx); err != nil {
				return events
			}
			n = lk.names()
		}
		if e, err := lk.entry(path.Join(w.dir, c.name), n); err == nil {
			events[i].Entry = &e
		}
	}
	return events
}

// watchDir streams the events of a directory until the client disconnects.
func watchDir(ctx context.Context, v *visit, req *watchRequest, say *sender[watchSaid]) error {
	w, id, err := v.watch(ctx, req, false)
	if err != nil {
		return err
	}
	defer v.dropWatcher(id)
	if err := say.out.Send(&watchSaid{Start: &empty{}}); err != nil {
		return err
	}
	ping := time.NewTicker(say.every)
	defer ping.Stop()
	for {
		all, wake, err := w.take()
		for _, e := range v.events(ctx, w, all) {
			if err := say.out.Send(&watchSaid{Filesystem: &e}); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
		select {
		case <-wake:
		case <-ping.C:
			if err := say.out.Send(&watchSaid{Keepalive: &empty{}}); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

type watcherID struct {
	ID string `json:"watcherId"`
}

func createWatcher(ctx context.Context, v *visit, req *watchRequest) (*watcherID, error) {
	_, id, err := v.watch(ctx, req, true)
	return &watcherID{id}, err
}

type fsEvents struct {
	Events []fsEvent `json:"events"`
}

func watcherEvents(ctx context.Context, v *visit, req *watcherID) (*fsEvents, error) {
	v.mu.Lock()
	w := v.watchers[req.ID]
	v.mu.Unlock()
	if w == nil {
		return nil, &wire.Error{Code: wire.CodeNotFound, Message: "watcher not found"}
	}
	all, _, err := w.take()
	return &fsEvents{v.events(ctx, w, all)}, err
}

func removeWatcher(_ context.Context, v *visit, req *watcherID) (*empty, error) {
	if !v.dropWatcher(req.ID) {
		return nil, &wire.Error{Code: wire.CodeNotFound, Message: "watcher not found"}
	}
	return &empty{}, nil
}
