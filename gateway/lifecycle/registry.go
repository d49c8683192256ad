// Package lifecycle keeps the sandboxes of a daemon: what each was made from, in which state it is,
// the connection to its guest, and every act that changes one – create, start, pause, stop, copy,
// remove. It writes each state to the store before and after the act, so that a daemon that was
// killed goes on where it was. Callers are authorised already: it knows owners by their names, and
// no login, no server and no client.
package lifecycle

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
	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/hostdir"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Options are what a Registry works with. Store, Backends and Records are required.
type Options struct {
	Store     *store.Store               // closed by its owner, after Run returned
	Backends  map[string]sandbox.Backend // by the name that Instance.Backend carries
	Backend   string                     // of sandboxes that name none; empty if there is one
	Records   string                     // directory of the session records, 0700, made by the caller
	Owner     string                     // the admin; owns what is found and belongs to nobody
	Image     string                     // of sandboxes that name none; empty leaves it to the backend
	Isolation string                     // likewise
	Dirs      hostdir.Rules              // directories of this machine that Owner may mount
	Log       *slog.Logger               // nil discards

	Network sandbox.Network // of sandboxes that ask for none; empty is NetworkNone
	Via     sandbox.Via     // how that has to be carried; empty is the best that there is
	Allow   []string        // opened to every sandbox with a policy, as of egress.Rules
	Closed  []netip.Prefix  // closed to them unless listed; nil is egress.DefaultClosed
	Bridge  []string        // principals besides Owner who may ask for NetworkBridge
	Engine  []string        // engine options that others may ask for: NAME, or NAME=VALUE alone

	// Command returns the command that joins target, such as "ssh -p 2222 demo@localhost". nil
	// leaves it out.
	Command func(target string) string
	// Lobby returns the command that runs line on the control host, such as "ssh -p 2222
	// sandboxd@localhost new demo". nil names a placeholder.
	Lobby func(line string) string

	Pool    PoolOptions     // sandboxes that are booted before anybody asks for them
	Limits  sandbox.Limits  // of sandboxes that ask for none; zero fields are left to the backend
	Quota   admission.Quota // of one principal
	Total   admission.Total // of all of them
	MinFree int64           // bytes of a backend's disk that stay free; 0 is no such floor

	RecordQuota  int64         // bytes of one session's record; 0 is 256 MiB
	RecordTotal  int64         // bytes of all records of a sandbox; 0 is 2 GiB
	RecordKeep   time.Duration // of records of sessions that have ended; 0 is while there is room
	RecordStrict bool          // a session that cannot be recorded ends; otherwise it goes on
	TTL          time.Duration // idle for so long, sandboxes are stopped; 0 is never
	DeleteAfter  time.Duration // stopped for so long, they are removed; 0 is never
	Connections  int           // of all sandboxes together; 0 is half of the open files, at most 16384
	StopGrace    time.Duration // for the orderly part of a stop; 0 is 10 s

	// What tests shorten; zero is the real value.
	proxyAddress   string
	diskEvery      time.Duration
	diskWithin     time.Duration
	lateBoot       time.Duration
	packagesWithin time.Duration
	at             func(step string) // called between the steps of a claim
	made           func(*Registry)   // called with what New made
}

const (
	defaultGrace = 10 * time.Second
	tidyEvery    = 5 * time.Second  // how often records are made durable
	idleFiles    = 30 * time.Second // after which an idle record's files are closed
)

// Registry knows every sandbox of the daemon. Its methods may be called at once, from when Run
// began until it returned.
//
// Locks: Registry.mu before Sandbox.mu before live.Session's. A sandbox's semaphore op is taken
// before any of them. No I/O is done under any.
type Registry struct {
	options  Options
	log      *slog.Logger
	pool     *connect.Pool
	boots    chan struct{} // slots for starts under way: more at once only slow each other down
	keeping  chan struct{} // semaphore: an image of a sandbox's files is made
	tasks    tasks
	journal  journal
	accounts *accounts
	notes    notes
	removals removals
	ready    chan struct{} // closed when Run has looked at everything once

	mu    sync.Mutex
	found []*Sandbox // what the store had when New was called; for recovery alone

	all   map[string]*Sandbox // guarded by mu; by ID
	names map[string]*Sandbox // guarded by mu; without those that are being deleted

	board  *attention.Board
	pooled *pooling
	counts counters
}

// New returns a registry of what the store knows. It starts nothing: Run does.
func New(o Options) (*Registry, error) {
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
	o.lateBoot = cmp.Or(o.lateBoot, lateBoot)
	o.diskEvery, o.diskWithin = cmp.Or(o.diskEvery, diskEvery), cmp.Or(o.diskWithin, diskWithin)
	o.Quota, o.Total = o.Quota.WithDefaults(), o.Total.WithDefaults()
	o.StopGrace = cmp.Or(o.StopGrace, defaultGrace)
	o.Network = cmp.Or(o.Network, sandbox.NetworkNone)
	o.proxyAddress = cmp.Or(o.proxyAddress, wire.ProxyAddress)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	reg := &Registry{options: o, log: o.Log, boots: make(chan struct{}, max(2, 2*runtime.GOMAXPROCS(0))),
		keeping: make(chan struct{}, 1), ready: make(chan struct{}),
		all: make(map[string]*Sandbox), names: make(map[string]*Sandbox)}
	reg.removals = removals{reg}
	reg.notes = notes{reg.records, o.Log}
	reg.pool = connect.NewPool(connect.PoolOptions{Log: o.Log, Open: reg.openControl, Opened: reg.opened, Dial: reg.dial})
	var err error
	if reg.accounts, err = newAccounts(reg); err != nil {
		return nil, err
	}
	if err := reg.options.mayAllow(o.Owner, sandbox.NetworkFiltered, o.Allow); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	if reg.pooled, err = newPooling(reg); err != nil {
		return nil, fmt.Errorf("gateway: pool: %w", err)
	}
	reg.journal.init(reg)
	reg.board = attention.NewBoard(reg.attended)
	if err := reg.load(context.Background()); err != nil {
		return nil, err
	}
	if o.made != nil {
		o.made(reg)
	}
	return reg, nil
}

// load registers what the store has.
func (reg *Registry) load(ctx context.Context) error {
	rows, err := reg.options.Store.Sandboxes(ctx)
	if err != nil {
		return err
	}
	for _, row := range rows {
		f, err := recordOf(row)
		if err != nil {
			return fmt.Errorf("store: sandbox %s: %w", row.ID, err)
		}
		sb := newSandbox(reg, row.ID, f)
		reg.register(sb)
		reg.found = append(reg.found, sb)
	}
	shares, err := reg.options.Store.Shares(ctx)
	if err != nil {
		return err
	}
	for _, share := range shares {
		if sb := reg.all[share.Sandbox]; sb != nil {
			sb.shares.set(share.Principal, wire.Rights(share.Rights))
		}
	}
	return nil
}

// dial reaches the SSH server of an instance.
func (reg *Registry) dial(ctx context.Context, inst sandbox.Instance) (sandbox.Peer, error) {
	be, err := reg.options.backend(inst.Backend)
	if err != nil {
		return sandbox.Peer{}, err
	}
	return be.Dial(ctx, inst)
}

// Run finds again what ran before, finishes what was cut short, keeps a control connection to every
// running sandbox, and records its sessions, until ctx ends. The sandboxes and their sessions
// outlive it. beside run along with it until their context ends. closing is called when ctx has
// ended and before the connections do: it ends what callers have on sessions. Run returns when all
// that it started has ended; calls under way then fail.
func (reg *Registry) Run(ctx context.Context, beside []func(context.Context), closing func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	reg.tasks.open(ctx)
	reg.tasks.start(reg.journal.run)
	reg.tasks.start(recovery{reg}.recover)
	reg.tasks.start(reg.pooled.run)
	for _, f := range beside {
		reg.tasks.start(f)
	}
	for name, be := range reg.options.Backends {
		if s, ok := be.(sandbox.Finder); ok {
			reg.tasks.start(func(ctx context.Context) { recovery{reg}.sweep(ctx, name, s) })
		}
		if m, ok := be.(sandbox.Meter); ok {
			reg.tasks.start(func(ctx context.Context) { reg.watchDisks(ctx, name, m) })
		}
	}
	reg.keepUp(ctx)
	reg.board.Close(ErrClosed)
	// What sessions printed last is in the records before those close.
	closing()
	cancel(ErrClosed)
	reg.pool.Close()
	reg.tasks.close()
	reg.pooled.end(context.WithoutCancel(ctx))
	for _, l := range reg.Lives() {
		l.Close(ErrClosed)
	}
	reg.journal.flush(context.WithoutCancel(ctx))
}

// keepUp does what is due again and again, until ctx ends.
func (reg *Registry) keepUp(ctx context.Context) {
	tidy, prune, idle := time.NewTicker(tidyEvery), time.NewTicker(pruneEvery), time.NewTicker(idleEvery)
	defer tidy.Stop()
	defer prune.Stop()
	defer idle.Stop()
	reg.prune()
	for ctx.Err() == nil {
		select {
		case <-tidy.C:
			for _, l := range reg.Lives() {
				l.Tidy(idleFiles)
			}
		case <-prune.C:
			reg.prune()
		case <-idle.C:
			reg.idleness()
		case <-ctx.Done():
		}
	}
}

// Bound returns a context that ends with ctx or with Run, whichever is first; the latter with
// ErrClosed.
func (reg *Registry) Bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return reg.tasks.bound(ctx)
}

// Ready waits until Run has compared the store with the backends once. Backends that do not answer
// do not hold it up.
func (reg *Registry) Ready(ctx context.Context) error {
	select {
	case <-reg.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// at says how far a claim is.
func (reg *Registry) at(step string) {
	if reg.options.at != nil {
		reg.options.at(step)
	}
}

func (o *Options) backend(name string) (sandbox.Backend, error) {
	if be := o.Backends[name]; be != nil {
		return be, nil
	}
	e := wire.Errorf(wire.CodeUnavailable, "this daemon has no backend %s", oneLine(name, 64))
	return nil, &shown{public: e, kind: ErrEngine}
}

// register puts sb where it can be found.
func (reg *Registry) register(sb *Sandbox) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	reg.all[sb.id] = sb
	reg.board.Change()
	if f := sb.get(); f.State != Deleting && !f.isPooled() {
		reg.names[f.Name] = sb
	}
}

// unname frees the name of sb.
func (reg *Registry) unname(sb *Sandbox) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	if name := sb.Name(); reg.names[name] == sb {
		delete(reg.names, name)
	}
}

// unregister forgets sb.
func (reg *Registry) unregister(sb *Sandbox) {
	reg.unname(sb)
	reg.mu.Lock()
	defer reg.mu.Unlock()
	delete(reg.all, sb.id)
	reg.board.Change()
	reg.pooled.Kick() // there may be room for another
}

// Find returns the sandbox called name, whoever owns it; nil if there is none. Pooled sandboxes and
// those that are being removed have no name.
func (reg *Registry) Find(name string) *Sandbox {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	return reg.names[name]
}

// byID returns the sandbox with that ID; nil if there is none.
func (reg *Registry) byID(id string) *Sandbox {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	return reg.all[id]
}

// All returns every sandbox in no order, also pooled ones and those that are being removed.
func (reg *Registry) All() []*Sandbox {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	return slices.Collect(maps.Values(reg.all))
}

// Lives returns the sessions of all sandboxes.
func (reg *Registry) Lives() []*live.Session {
	var all []*live.Session
	for _, sb := range reg.All() {
		all = append(all, sb.sessions.All()...)
	}
	return all
}

// Options are what it works with, with defaults.
func (reg *Registry) Options() *Options { return &reg.options }

// Allowances returns what an owner's sandboxes have of what they may, and for the admin what all
// owners' have.
func (reg *Registry) Allowances(ctx context.Context, owner string) ([]Allowance, error) {
	return reg.accounts.allowances(ctx, owner)
}

// Connections are those to the SSH servers of sandboxes.
func (reg *Registry) Connections() *connect.Pool { return reg.pool }

// Log is where it logs.
func (reg *Registry) Log() *slog.Logger { return reg.log }

// Board is where attention to sessions is announced.
func (reg *Registry) Board() *attention.Board { return reg.board }

// attended lists the sessions that principal may see; of all principals if it is empty.
func (reg *Registry) attended(principal string) (all []attention.Session) {
	for _, sb := range reg.All() {
		f := sb.get()
		if rights, _ := sb.RightsOf(principal); f.isPooled() || principal != "" && rights == "" {
			continue
		}
		for _, l := range sb.sessions.All() {
			if !l.Final() {
				all = append(all, attention.Session{Sandbox: f.Name, Owner: f.Owner, ID: sb.id, Name: l.Name(), Brief: l.Brief(), Need: l.Need})
			}
		}
	}
	return all
}

// records is the directory of a sandbox's records. The id is the daemon's own, never a client's.
func (reg *Registry) records(id string) string { return filepath.Join(reg.options.Records, id) }
