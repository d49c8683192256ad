// Package gateway is the hub between the doors and the sandboxes: who owns which, in which state each is, and the live
// copy of every session that all readers share. Reach for it from a door – SSH, HTTP, the command table – that has
// found out who somebody is. It knows no front door, no Docker and no terminal of a person.
package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Options are what a Hub works with. Store, Backends and Records are required.
type Options struct {
	Store    *store.Store               // closed by its owner, after Run returned
	Backends map[string]sandbox.Backend // by the name that Instance.Backend carries
	Backend  string                     // makes sandboxes that ask for none; may be empty when there is one Backend
	Records  string                     // directory of the session records, made by the caller, 0700
	Owner    string                     // principal that owns what is found and belongs to nobody
	Logins   []string                   // login names of the daemon's own user: never made by a login
	Network  sandbox.Network            // of sandboxes that ask for none; empty is NetworkNone
	Image    string                     // of sandboxes that ask for none; empty leaves it to the backend
	Log      *slog.Logger               // nil discards

	// Principals says how many principals can log in now; nil means one.
	Principals func() int
	// Command returns the command that joins target, such as "ssh -p 2222 demo@localhost". nil leaves it out.
	Command func(target string) string
	// Lobby returns the command that runs line in the lobby, such as "ssh -p 2222 sandboxd@localhost new demo". nil names
	// a placeholder.
	Lobby func(line string) string

	SandboxesPerOwner int           // most sandboxes of one principal; 0 is 64
	RecordQuota       int64         // bytes of one session's record; 0 is 256 MiB
	StopGrace         time.Duration // for the orderly part of a stop; 0 is 10 s
}

const (
	defaultSandboxes = 64
	defaultGrace     = 10 * time.Second
	tidyEvery        = 5 * time.Second  // how often records are made durable
	idleFiles        = 30 * time.Second // after which an idle record's files are closed
)

// Hub knows every sandbox of the daemon. Its methods may be called at once, from when Run began until it returned.
//
// Locks: Hub.mu before box.mu before Live.mu. A box's semaphore op is taken before any of them. No I/O is done under any.
type Hub struct {
	options Options
	log     *slog.Logger
	pool    *connect.Pool
	boots   chan struct{} // slots for starts under way: more at once only make all of them slower
	tasks   tasks
	journal journal
	ready   chan struct{} // closed when Run has looked at everything once

	mu    sync.Mutex
	boxes map[string]*box // guarded by mu; by ID
	names map[string]*box // guarded by mu; without those that are being deleted

	standing standings
}

// New returns a hub on what the store knows. It starts nothing: Run does.
func New(o Options) (*Hub, error) {
	if o.Store == nil || len(o.Backends) == 0 || o.Records == "" {
		return nil, errors.New("gateway: store, backends and records are required")
	}
	if o.Backend == "" && len(o.Backends) == 1 {
		for name := range o.Backends {
			o.Backend = name
		}
	}
	if o.Backends[o.Backend] == nil {
		return nil, fmt.Errorf("gateway: there is no backend %q", o.Backend)
	}
	o.Backends = maps.Clone(o.Backends)
	o.Logins = slices.Clone(o.Logins)
	o.SandboxesPerOwner = cmp.Or(o.SandboxesPerOwner, defaultSandboxes)
	o.StopGrace = cmp.Or(o.StopGrace, defaultGrace)
	o.Network = cmp.Or(o.Network, sandbox.NetworkNone)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	h := &Hub{options: o, log: o.Log, boots: make(chan struct{}, max(2, 2*runtime.GOMAXPROCS(0))),
		ready: make(chan struct{}), boxes: make(map[string]*box), names: make(map[string]*box)}
	h.pool = connect.NewPool(connect.PoolOptions{Log: o.Log, Dial: func(ctx context.Context, inst sandbox.Instance) (sandbox.Peer, error) {
		be, err := h.backend(inst.Backend)
		if err != nil {
			return sandbox.Peer{}, err
		}
		return be.Dial(ctx, inst)
	}})
	h.journal.init(h)
	h.standing.init()
	if err := h.load(context.Background()); err != nil {
		return nil, err
	}
	return h, nil
}

// load makes the boxes of what the store has.
func (h *Hub) load(ctx context.Context) error {
	rows, err := h.options.Store.Sandboxes(ctx)
	if err != nil {
		return err
	}
	for _, row := range rows {
		f, err := factsOf(row)
		if err != nil {
			return fmt.Errorf("store: sandbox %s: %w", row.ID, err)
		}
		h.register(newBox(h, row.ID, f))
	}
	return nil
}

// Run finds again what ran before, finishes what was cut short, keeps a control connection to every running sandbox, and
// records its sessions, until ctx ends. The sandboxes and their sessions outlive it. It returns when everything it
// started has ended; calls under way then fail.
func (h *Hub) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	h.tasks.open(ctx)
	h.tasks.start(h.journal.run)
	h.tasks.start(h.recover)
	tick := time.NewTicker(tidyEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
			for _, l := range h.lives() {
				l.tidy(idleFiles)
			}
			h.standing.expire()
		case <-ctx.Done():
		}
	}
	// Attachments end first, then the links below them; what they printed last is in the records before those close.
	h.release()
	cancel(ErrClosed)
	h.pool.Close()
	h.tasks.close()
	for _, l := range h.lives() {
		l.shut(ErrClosed)
	}
	h.journal.flush(context.WithoutCancel(ctx))
	return nil
}

// release ends the attachments of people, who give the keyboard back: their connections end with the daemon, and on the
// next one they are somebody new. Agents come back as who they are, and keep it.
func (h *Hub) release() {
	var wg sync.WaitGroup
	for _, l := range h.lives() {
		for _, m := range l.attached() {
			if m.attachment != nil && m.party.Kind == wire.Person {
				wg.Go(func() { m.kick(ErrClosed) })
			}
		}
	}
	wg.Wait()
}

// Ready waits until Run has compared the store with the backends once. Backends that do not answer do not hold it up.
func (h *Hub) Ready(ctx context.Context) error {
	select {
	case <-h.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (h *Hub) backend(name string) (sandbox.Backend, error) {
	if be := h.options.Backends[name]; be != nil {
		return be, nil
	}
	e := wire.Errorf(wire.CodeUnavailable, "this daemon has no backend %s", oneLine(name, 64))
	return nil, &shown{public: e, kind: ErrEngine}
}

// register puts b where it can be found.
func (h *Hub) register(b *box) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.boxes[b.id] = b
	if f := b.get(); f.state != Deleting {
		h.names[f.name] = b
	}
}

// unname frees b's name.
func (h *Hub) unname(b *box) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if name := b.get().name; h.names[name] == b {
		delete(h.names, name)
	}
}

// unregister forgets b.
func (h *Hub) unregister(b *box) {
	h.unname(b)
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.boxes, b.id)
}

// find returns p's sandbox called name. Whose it is not, for them it is not there.
func (h *Hub) find(p Principal, name string) (*box, error) {
	h.mu.Lock()
	b := h.names[name]
	h.mu.Unlock()
	if b == nil || b.get().owner != p.Name {
		return nil, h.notFound(name)
	}
	return b, nil
}

func (h *Hub) all() []*box {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Values(h.boxes))
}

func (h *Hub) lives() []*Live {
	var all []*Live
	for _, b := range h.all() {
		all = append(all, b.allLives()...)
	}
	return all
}

// records is the directory of a sandbox's records. The id is the daemon's own, never a client's.
func (h *Hub) records(id string) string { return filepath.Join(h.options.Records, id) }
