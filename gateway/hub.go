// Package gateway is the hub between the doors and the sandboxes: who owns which, in which state
// each is, and the live copy of every session that all readers share. Reach for it from a door –
// SSH, HTTP, the command table – that has found out who somebody is. It knows no front door, no
// Docker and no terminal of a person.
package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/admission"
	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/egress"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/hostdir"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Options are what a Hub works with. Store, Backends and Records are required.
type Options struct {
	Store     *store.Store               // closed by its owner, after Run returned
	Backends  map[string]sandbox.Backend // by the name that Instance.Backend carries
	Backend   string                     // makes sandboxes that ask for none; may be empty when there is one Backend
	Records   string                     // directory of the session records, made by the caller, 0700
	Owner     string                     // principal that owns what is found and belongs to nobody
	Logins    []string                   // login names of the daemon's own user: never made by a login
	Network   sandbox.Network            // of sandboxes that ask for none; empty is NetworkNone
	Allow     []string                   // what every sandbox with NetworkFiltered or NetworkAllowlist may connect to besides, as of egress.Rules
	Closed    []netip.Prefix             // ranges that are closed to them unless listed; nil is egress.DefaultClosed
	Via       sandbox.Via                // how that has to be carried; empty means the best that there is
	Bridge    []string                   // principals besides Owner who may ask for NetworkBridge; everybody may where it is Network
	Engine    []string                   // options of engines that others than Owner may ask for: NAME with any value, or NAME=VALUE alone
	Image     string                     // of sandboxes that ask for none; empty leaves it to the backend
	Isolation string                     // likewise
	Dirs      hostdir.Rules              // directories of this machine that Owner may give to sandboxes
	Log       *slog.Logger               // nil discards

	// Principals says how many principals can log in now; nil means one.
	Principals func() int
	// LogsIn says how a principal can log in: by a key that is listed as its own, and by a
	// certificate of an authority that may name it. nil means that everybody has a key.
	LogsIn func(principal string) (key, certificate bool)
	// Command returns the command that joins target, such as "ssh -p 2222 demo@localhost". nil
	// leaves it out.
	Command func(target string) string
	// Lobby returns the command that runs line in the lobby, such as "ssh -p 2222
	// sandboxd@localhost new demo". nil names a placeholder.
	Lobby func(line string) string

	Pool    PoolOptions     // sandboxes that are booted before anybody asks for them
	Limits  sandbox.Limits  // of sandboxes that ask for none; zero fields are left to the backend
	Quota   admission.Quota // of one principal
	Total   admission.Total // of all of them
	MinFree int64           // bytes of a backend's disk that stay free, see watchDisks; 0 is no such floor

	RecordQuota  int64         // bytes of one session's record; 0 is 256 MiB
	RecordTotal  int64         // bytes of all records of a sandbox; 0 is 2 GiB
	RecordKeep   time.Duration // how long the record of a session that has ended is kept; 0 is as long as there is room
	RecordStrict bool          // a session ends when it cannot be recorded; otherwise it goes on
	TTL          time.Duration // of sandboxes that ask for none: idle for so long they are stopped; 0 is never
	DeleteAfter  time.Duration // likewise: stopped for so long they are removed; 0 is never
	Connections  int           // of all sandboxes together; 0 is half of the files that the process may have open, and at most 16384
	StopGrace    time.Duration // for the orderly part of a stop; 0 is 10 s

	proxyAddress string // inside; empty is wire.ProxyAddress

	diskEvery  time.Duration     // 0 is a second
	diskWithin time.Duration     // 0 is a minute
	at         func(step string) // called between the steps of a claim; nil does nothing
	lateBoot   time.Duration     // 0 is lateBoot

	packagesWithin time.Duration // 0 is packagesWithin

	Hook attention.HookOptions // called when the attention state of a session changes
}

const (
	defaultGrace = 10 * time.Second
	tidyEvery    = 5 * time.Second  // how often records are made durable
	idleFiles    = 30 * time.Second // after which an idle record's files are closed
)

// Hub knows every sandbox of the daemon. Its methods may be called at once, from when Run began
// until it returned.
//
// Locks: Hub.mu before box.mu before Live.mu. A box's semaphore op is taken before any of them. No
// I/O is done under any.
type Hub struct {
	options     Options
	log         *slog.Logger
	pool        *connect.Pool
	boots       chan struct{} // slots for starts under way: more at once only make all of them slower
	keeping     chan struct{} // semaphore: an image of a sandbox's files is made
	tasks       tasks
	journal     journal
	connections *egress.Budget // of all sandboxes
	ready       chan struct{}  // closed when Run has looked at everything once

	mu    sync.Mutex
	boxes map[string]*box // guarded by mu; by ID
	names map[string]*box // guarded by mu; without those that are being deleted

	beginning map[string]int // guarded by mu; sessions that are about to be, by the owner of their sandbox
	starting  map[*box]bool  // guarded by mu; stopped, and about to run

	sharesMu sync.Mutex                // alone
	shares   map[string]*egress.Budget // guarded by sharesMu; parts of connections, by owner

	attachments *attach.Attachments
	board       *attention.Board
	hook        *attention.Hook
	pooled      *pooling
	counts      counters
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
	o.lateBoot = cmp.Or(o.lateBoot, lateBoot)
	o.diskEvery, o.diskWithin = cmp.Or(o.diskEvery, diskEvery), cmp.Or(o.diskWithin, diskWithin)
	o.Quota, o.Total = o.Quota.WithDefaults(), o.Total.WithDefaults()
	o.StopGrace = cmp.Or(o.StopGrace, defaultGrace)
	o.Network = cmp.Or(o.Network, sandbox.NetworkNone)
	o.proxyAddress = cmp.Or(o.proxyAddress, wire.ProxyAddress)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	h := &Hub{options: o, log: o.Log, boots: make(chan struct{}, max(2, 2*runtime.GOMAXPROCS(0))),
		keeping: make(chan struct{}, 1), ready: make(chan struct{}), boxes: make(map[string]*box), names: make(map[string]*box),
		beginning: make(map[string]int), starting: make(map[*box]bool), shares: make(map[string]*egress.Budget)}
	h.pool = connect.NewPool(connect.PoolOptions{Log: o.Log, Open: h.openControl, Opened: h.opened, Dial: func(ctx context.Context, inst sandbox.Instance) (sandbox.Peer, error) {
		be, err := h.backend(inst.Backend)
		if err != nil {
			return sandbox.Peer{}, err
		}
		return be.Dial(ctx, inst)
	}})
	var err error
	if h.connections, err = connectionBudget(o.Connections); err != nil {
		return nil, err
	}
	if err := h.mayAllow(Principal{Name: o.Owner}, sandbox.NetworkFiltered, o.Allow); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	if h.pooled, err = newPooling(h); err != nil {
		return nil, fmt.Errorf("gateway: pool: %w", err)
	}
	h.journal.init(h)
	h.attachments = attach.New(attach.Options{Log: o.Log, Bound: h.tasks.bound, Public: h.Public})
	h.board = attention.NewBoard(h.attended)
	h.hook = attention.NewHook(o.Hook, h.board, h.log)
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
	return h.loadShares(ctx)
}

// Run finds again what ran before, finishes what was cut short, keeps a control connection to every
// running sandbox, and records its sessions, until ctx ends. The sandboxes and their sessions
// outlive it. It returns when everything it started has ended; calls under way then fail.
func (h *Hub) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	h.tasks.open(ctx)
	h.tasks.start(h.journal.run)
	h.tasks.start(h.recover)
	h.tasks.start(h.hook.Run)
	h.tasks.start(h.pooled.run)
	for name, be := range h.options.Backends {
		if s, ok := be.(sandbox.Finder); ok {
			h.tasks.start(func(ctx context.Context) { h.sweep(ctx, name, s) })
		}
		if m, ok := be.(sandbox.Meter); ok {
			h.tasks.start(func(ctx context.Context) { h.watchDisks(ctx, name, m) })
		}
	}
	tick := time.NewTicker(tidyEvery)
	defer tick.Stop()
	prune := time.NewTicker(pruneEvery)
	defer prune.Stop()
	idle := time.NewTicker(idleEvery)
	defer idle.Stop()
	h.prune()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
			for _, l := range h.lives() {
				l.Tidy(idleFiles)
			}
			h.attachments.Expire()
		case <-prune.C:
			h.prune()
		case <-idle.C:
			h.idleness()
		case <-ctx.Done():
		}
	}
	h.board.Close(ErrClosed)
	// Attachments end first, then the links below them; what they printed last is in the records
	// before those close.
	h.release()
	cancel(ErrClosed)
	h.pool.Close()
	h.tasks.close()
	h.pooled.end(context.WithoutCancel(ctx))
	for _, l := range h.lives() {
		l.Close(ErrClosed)
	}
	h.journal.flush(context.WithoutCancel(ctx))
	return nil
}

// release ends the attachments of people, who give the keyboard back: their connections end with
// the daemon, and on the next one they are somebody new. Agents come back as who they are, and keep
// it.
func (h *Hub) release() {
	var wg sync.WaitGroup
	for _, l := range h.lives() {
		for _, m := range l.Members() {
			if m.Party().Kind == wire.Person {
				wg.Go(func() { m.Disconnect(ErrClosed) })
			}
		}
	}
	wg.Wait()
}

// Ready waits until Run has compared the store with the backends once. Backends that do not answer
// do not hold it up.
func (h *Hub) Ready(ctx context.Context) error {
	select {
	case <-h.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// at says how far a claim is.
func (h *Hub) at(step string) {
	if h.options.at != nil {
		h.options.at(step)
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
	h.board.Change()
	if f := b.get(); f.state != Deleting && !f.isPooled() {
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
	h.board.Change()
	h.pooled.Kick() // there may be room for another
}

// find returns p's sandbox called name. Whose it is not, for them it is not there; with whom it is
// shared, they are told that this is for its owner. What a share allows asks reachable.
func (h *Hub) find(p Principal, name string) (*box, error) {
	b, _, err := h.reachable(p, name, wire.RightWatch, "")
	if err != nil {
		return nil, err
	}
	if b.get().owner != p.Name {
		return nil, forbidden(name, "what is its owner's to do", "ask "+b.get().owner)
	}
	return b, nil
}

// mine returns p's sandbox called name for an act of its owner's that a key which only watches may
// not do.
func (h *Hub) mine(p Principal, name, act string) (*box, error) {
	b, err := h.find(p, name)
	if err != nil {
		return nil, err
	}
	return b, p.mayMake(act)
}

func (h *Hub) all() []*box {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Values(h.boxes))
}

func (h *Hub) lives() []*live.Session {
	var all []*live.Session
	for _, b := range h.all() {
		all = append(all, b.sessions.All()...)
	}
	return all
}

// records is the directory of a sandbox's records. The id is the daemon's own, never a client's.
func (h *Hub) records(id string) string { return filepath.Join(h.options.Records, id) }
