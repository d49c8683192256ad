// Package lifecycle holds the sandboxes of a daemon: the spec and state of each, the connection to
// its guest, and every act that changes one (create, start, pause, stop, copy, remove). It stores
// each state before and after the act, so that a daemon continues after it was killed. Callers are
// already authorised: it knows owners by name, and no login, server or client.
package lifecycle

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"runtime"
	"time"

	"github.com/sandboxd/sandboxd/gateway/admission"
	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/gateway/secret"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/hostdir"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Options configure a Registry. Store, Backends and Records are required.
type Options struct {
	Store    *store.Store               // the caller closes it after Run has returned
	Backends map[string]sandbox.Backend // by Instance.Backend
	Backend  string                     // default; empty if there is one backend
	// Directory of the session records, 0700, created by the caller.
	Records   string
	Owner     string        // the admin; also owns sandboxes found without an owner
	Image     string        // default; empty leaves it to the backend
	Isolation string        // default; empty leaves it to the backend
	Dirs      hostdir.Rules // directories of this machine that Owner may mount
	Log       *slog.Logger  // nil discards

	Network sandbox.Network // default; empty is NetworkNone
	Via     sandbox.Via     // default way to carry it; empty is the best available
	Allow   []string        // added to the network policy of every sandbox, as of egress.Rules
	Closed  []netip.Prefix  // closed unless listed; nil is egress.DefaultClosed
	Bridge  []string        // principals besides Owner that may use NetworkBridge
	Secrets *secret.Store   // nil is an empty one, in memory
	// Roots verify the servers that requests with secrets go to; nil is those of this machine.
	Roots  *x509.CertPool
	Engine []string // engine options that others may use: NAME for any value, or NAME=VALUE

	// Command returns the command that joins target, such as "ssh -p 2222 demo@localhost". nil
	// omits it.
	Command func(target string) string
	// ControlCommand returns the command that runs line on the control host, such as "ssh -p 2222
	// sandboxd@localhost new demo". With nil, hints show a placeholder.
	ControlCommand func(line string) string

	Pool    PoolOptions     // sandboxes booted in advance
	Limits  sandbox.Limits  // defaults; zero fields are left to the backend
	Quota   admission.Quota // of one principal
	Total   admission.Total // of all principals
	MinFree int64           // bytes of a backend's disk that stay free; 0 is no limit

	RecordQuota  int64         // bytes of one session's record; 0 is 256 MiB
	RecordTotal  int64         // bytes of all records of a sandbox; 0 is 2 GiB
	RecordKeep   time.Duration // of records of ended sessions; 0 is while there is room
	RecordStrict bool          // end sessions that cannot be recorded
	TTL          time.Duration // default; unused for this long, sandboxes are stopped; 0 is never
	DeleteAfter  time.Duration // default; stopped for this long, they are removed; 0 is never
	Connections  int           // of all sandboxes; 0 is half of the open files, at most 16384
	StopGrace    time.Duration // for an orderly stop; 0 is 10 s
	Boots        int           // sandboxes that start at a time; 0 is twice the processors here

	// For tests; zero is the real value.
	proxyAddress   string
	diskEvery      time.Duration
	diskWithin     time.Duration
	lateBoot       time.Duration
	packagesWithin time.Duration
	at             func(step string) // called between the steps of a claim
	made           func(*Registry)   // called with the result of New
}

const (
	defaultGrace = 10 * time.Second
	tidyEvery    = 5 * time.Second  // between flushes of records to disk
	idleFiles    = 30 * time.Second // after which the files of an idle record are closed
)

// Registry holds every sandbox of the daemon. Its methods are safe for concurrent use from the
// start of Run until it returns.
//
// Locks nest in this order: a sandbox's semaphore op, which is an act and held over I/O; state.wmu,
// held while a change is stored; network.binding, held while secrets are applied; roster.mu; the
// pool's; egress.Carrier's, held while a carrier is started; then those of a sandbox's parts and of
// its live sessions, of which only Guest.mu and link.mu nest; the board's. No I/O is done under
// roster.mu and those behind the carrier's.
type Registry struct {
	options   Options
	log       *slog.Logger
	pool      *connect.Pool
	boots     chan struct{} // slots for starts under way
	copying   chan struct{} // semaphore: one image of a sandbox's files is made at a time
	tasks     tasks
	journal   journal
	accounts  *accounts
	manifests manifests
	removals  removals
	ready     chan struct{} // closed when Run has compared store and backends once
	found     []*Sandbox    // what the store had when New was called; for recovery alone
	roster    *roster
	board     *attention.Board
	pooled    *pooling
	preparing turns // by owner, image and setup
	counts    counters
}

// New returns a registry of the sandboxes in the store. It starts nothing; Run does.
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
		return nil, fmt.Errorf("gateway: unknown backend %q", o.Backend)
	}
	o.Backends = maps.Clone(o.Backends)
	o.lateBoot = cmp.Or(o.lateBoot, lateBoot)
	o.diskEvery, o.diskWithin = cmp.Or(o.diskEvery, diskEvery), cmp.Or(o.diskWithin, diskWithin)
	o.Quota, o.Total = o.Quota.WithDefaults(), o.Total.WithDefaults()
	o.StopGrace = cmp.Or(o.StopGrace, defaultGrace)
	// On one machine, more at a time only slow each other down.
	o.Boots = cmp.Or(o.Boots, max(2, 2*runtime.GOMAXPROCS(0)))
	o.Network = cmp.Or(o.Network, sandbox.NetworkNone)
	o.proxyAddress = cmp.Or(o.proxyAddress, wire.ProxyAddress)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Secrets == nil {
		var err error
		if o.Secrets, err = secret.Open(""); err != nil {
			return nil, err
		}
	}
	reg := &Registry{options: o, log: o.Log, boots: make(chan struct{}, o.Boots),
		copying: make(chan struct{}, 1), ready: make(chan struct{}),
		roster: newRoster()}
	reg.removals = removals{reg}
	reg.manifests = manifests{reg.records, o.Log}
	reg.pool = connect.NewPool(connect.PoolOptions{Log: o.Log, Open: reg.openControl,
		Opened: reg.controlOpened, Dial: reg.dial})
	var err error
	if reg.accounts, err = newAccounts(accountOptions{quota: o.Quota, total: o.Total,
		minFree: o.MinFree, admin: o.Owner, backends: o.Backends, log: o.Log,
		starts: func() { reg.pooled.Check() }}, reg.roster, o.Connections); err != nil {
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

// load registers the sandboxes in the store.
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
		if sb := reg.roster.byID(share.Sandbox); sb != nil {
			sb.shares.set(share.Principal, wire.Rights(share.Rights))
		}
	}
	return nil
}

// dial connects to the SSH server of an instance.
func (reg *Registry) dial(ctx context.Context, inst sandbox.Instance) (sandbox.Peer, error) {
	be, err := reg.options.backend(inst.Backend)
	if err != nil {
		return sandbox.Peer{}, err
	}
	return be.Dial(ctx, inst)
}

// Run recovers the sandboxes of an earlier daemon, keeps a control connection to each running
// sandbox, and records its sessions, until ctx ends. Sandboxes and sessions outlive it. The
// functions beside run until their context ends. Run calls closing after ctx has ended and before
// it closes connections; closing ends what callers have on sessions. Run returns when everything it
// started has ended. Calls under way then fail with ErrClosed.
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
	// Attachments end first, so that the records contain the last output.
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

// keepUp runs the periodic tasks until ctx ends.
func (reg *Registry) keepUp(ctx context.Context) {
	tidy, prune, idle := time.NewTicker(tidyEvery), time.NewTicker(pruneEvery),
		time.NewTicker(idleEvery)
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
			reg.checkExpiry()
		case <-ctx.Done():
		}
	}
}

// Bound returns a context that ends with ctx or with Run, whichever is first; the latter with
// ErrClosed.
func (reg *Registry) Bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return reg.tasks.bound(ctx)
}

// Ready waits until Run has compared the store with the backends once. It does not wait for
// backends that do not answer.
func (reg *Registry) Ready(ctx context.Context) error {
	select {
	case <-reg.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// at announces a step of a claim to tests.
func (reg *Registry) at(step string) {
	if reg.options.at != nil {
		reg.options.at(step)
	}
}

func (o *Options) backend(name string) (sandbox.Backend, error) {
	if be := o.Backends[name]; be != nil {
		return be, nil
	}
	name = oneLine(name, 64)
	e := wire.Errorf(wire.CodeUnavailable, "this daemon does not use backend %s", name)
	e.Hint = "start it with backend: " + name
	return nil, &publicError{public: e, kind: ErrEngine}
}

// register makes sb findable.
func (reg *Registry) register(sb *Sandbox) {
	reg.roster.add(sb)
	reg.board.Change()
}

// unregister removes sb.
func (reg *Registry) unregister(sb *Sandbox) {
	reg.roster.remove(sb)
	reg.board.Change()
	reg.pooled.Check() // there may be room for another pooled sandbox
}

// Find returns the sandbox called name, of any owner; nil if there is none. Pooled sandboxes and
// those being removed have no name.
func (reg *Registry) Find(name string) *Sandbox { return reg.roster.named(name) }

// All returns every sandbox in no order, including pooled ones and those being removed.
func (reg *Registry) All() []*Sandbox { return reg.roster.list() }

// Lives returns the sessions of all sandboxes.
func (reg *Registry) Lives() []*live.Session {
	var all []*live.Session
	for _, sb := range reg.All() {
		all = append(all, sb.sessions.All()...)
	}
	return all
}

// Options returns the options, with defaults.
func (reg *Registry) Options() *Options { return &reg.options }

// Allowances returns the usage and limits of an owner's sandboxes, and for the admin those of all
// owners together.
func (reg *Registry) Allowances(ctx context.Context, owner string) ([]Allowance, error) {
	return reg.accounts.allowances(ctx, owner)
}

// Log returns the registry's logger.
func (reg *Registry) Log() *slog.Logger { return reg.log }

// Board returns the board that announces which sessions need attention.
func (reg *Registry) Board() *attention.Board { return reg.board }

// attended lists the sessions that principal may see; those of all if it is empty.
func (reg *Registry) attended(principal string) (all []attention.Session) {
	for _, sb := range reg.All() {
		f := sb.get()
		rights, _ := sb.RightsOf(principal)
		if f.isPooled() || principal != "" && rights == "" {
			continue
		}
		for _, l := range sb.sessions.All() {
			if !l.Final() {
				all = append(all, attention.Session{Sandbox: f.Name, Owner: f.Owner, ID: sb.id,
					Drives: rights == wire.RightDrive, Name: l.Name(), Brief: l.Brief(),
					Need: l.Need})
			}
		}
	}
	return all
}

// records returns the directory of a sandbox's records. The daemon chooses the id, never a client.
func (reg *Registry) records(id string) string { return filepath.Join(reg.options.Records, id) }
