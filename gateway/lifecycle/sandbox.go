package lifecycle

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Sandbox is one sandbox of a registry. Its methods may be called at once.
type Sandbox struct {
	reg *Registry
	id  string
	op  chan struct{} // semaphore: one act at a time changes what the sandbox is

	wmu sync.Mutex // held while a change is written down; taken before mu

	source *Sandbox  // what a fork is made of; nil for others, and once it has its image
	unsure time.Time // until when its making may be under way in the backend, whatever that says; used with op held
	loaded time.Time // since when this daemon knows it, by a clock that nobody sets
	making making    // what its image is made by, while it is being created

	sessions  *live.Sessions
	relays    relays
	network   network
	expiring  atomic.Bool        // its end by age is under way
	pauses    attach.Interrupter // ends the calls under way, also those that wait for a silent guest
	listening listening          // to the guest, while calls wait for it
	stops     attach.Interrupter // ends the calls that were not sent yet; used with op held

	mu         sync.Mutex
	record     Record                  // guarded by mu
	gone       bool                    // guarded by mu; removed, or never made
	abort      context.CancelCauseFunc // guarded by mu; ends the act under way; nil if there is none that can be ended
	link       *link                   // guarded by mu; nil unless it is being kept in touch with
	notes      []string                // guarded by mu; of the instance's last inspection
	halted     bool                    // guarded by mu; its guest was stopped by a signal at the last inspection
	disk       sandbox.DiskUsage       // guarded by mu; as measured last
	unmeasured unmeasured              // guarded by mu; what keeps its disk from being known
	excess     sandbox.DiskUsage       // guarded by mu; what there was when it was started above its limit of disk; zero: it was not
	described  *inside                 // guarded by mu; what describe found last
	shares     map[string]wire.Rights  // guarded by mu; of principals that do not own it; replaced, never changed
	active     time.Time               // guarded by mu; when it was seen to be used last
	fate       string                  // guarded by mu; why it has ended or is about to: wire.LostStopped and the others; empty while it runs
}

func newSandbox(reg *Registry, id string, f Record) *Sandbox {
	sb := &Sandbox{reg: reg, id: id, op: make(chan struct{}, 1), record: f, active: time.Now(), loaded: time.Now()}
	sb.sessions = live.NewSessions(live.Options{ID: id, Name: sb.Name, Records: reg.records(id), Quota: reg.options.RecordQuota, Strict: reg.options.RecordStrict,
		Log: reg.log, Board: reg.board, Principals: sb.principals, Settle: sb.network.settle})
	return sb
}

func (sb *Sandbox) get() Record {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.record
}

// ID is what the daemon calls it: it never changes, and names the directory of its records.
func (sb *Sandbox) ID() string { return sb.id }

// State is its state now.
func (sb *Sandbox) State() State { return sb.get().State }

// Owner is who owns it.
func (sb *Sandbox) Owner() string { return sb.get().Owner }

// Name is the sandbox's name in messages to its owner.
func (sb *Sandbox) Name() string { return sb.get().Name }

// lock waits for the acts of others on this sandbox.
func (sb *Sandbox) lock(ctx context.Context) error {
	select {
	case sb.op <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if ctx.Err() != nil { // whoever held the lock has ended it
		sb.unlock()
		return context.Cause(ctx)
	}
	return nil
}

func (sb *Sandbox) unlock() { <-sb.op }

func (sb *Sandbox) isGone() bool {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.gone
}

// become writes a change down and then makes it so. It does not end with ctx: half a transition is
// none.
func (sb *Sandbox) become(ctx context.Context, change func(*Record)) error {
	sb.wmu.Lock()
	defer sb.wmu.Unlock()
	f := sb.get()
	before := f.State
	change(&f)
	if f.State != before {
		f.Since = time.Now()
	}
	row, err := f.row(sb.id)
	if err != nil {
		return err
	}
	if err := sb.reg.options.Store.Put(context.WithoutCancel(ctx), row); err != nil {
		return stored(err)
	}
	sb.mu.Lock()
	sb.record = f
	if f.State == Running && before != Running {
		sb.fate = ""
	}
	sb.mu.Unlock()
	sb.reg.board.Change()
	if f.State == Paused && before != Paused {
		sb.pauses.Interrupt(sb.pausedError())
	}
	if f.State != before {
		sb.reg.log.Info("sandbox", "id", sb.id, "name", f.Name, "state", f.State, "reason", f.Reason)
		sb.reg.journal.add(sb.id, "state", map[string]any{"state": f.State, "reason": f.Reason})
	}
	return nil
}

// acting makes the act under way one that abortAct ends. The returned function ends that.
func (sb *Sandbox) acting(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	sb.mu.Lock()
	sb.abort = cancel
	sb.mu.Unlock()
	return ctx, func() {
		sb.mu.Lock()
		sb.abort = nil
		sb.mu.Unlock()
		cancel(nil)
	}
}

func (sb *Sandbox) abortAct(cause error) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.abort != nil {
		sb.abort(cause)
	}
}

// abortCreation ends the creation under way of which f was seen, unless it is over.
func (sb *Sandbox) abortCreation(f Record, cause error) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.abort != nil && sb.record.State == Creating && sb.record.Since.Equal(f.Since) {
		sb.abort(cause)
	}
}

// Info is the sandbox as lists show it.
func (sb *Sandbox) Info() Info {
	carried := sb.network.notes() // before mu: who begins to carry packets holds the network's lock and asks for the Record
	sb.mu.Lock()
	f, notes := sb.record, slices.Concat(sb.record.Instance.Notes, sb.notes, carried)
	sb.mu.Unlock()
	i := Info{Name: f.Name, ID: sb.id, Owner: f.Owner, State: f.State, Since: f.Since, Reason: f.Reason, Created: f.Created,
		Backend: f.Instance.Backend, Image: f.Instance.Image, Digest: f.Instance.Digest, User: f.Instance.User, Network: f.Instance.Network, Via: f.Instance.Via,
		Isolation: f.Instance.Runtime, Limits: f.Instance.Limits, Allow: f.Allow, Dir: f.Dir, Recipe: f.Recipe, ImageOf: f.Made, About: f.About, Mounts: f.Spec.Mounts, Labels: f.Labels, Notes: notes, SharedWith: sb.sharedWith(), Sessions: []wire.SessionInfo{}}
	if f.Instance.ID == "" {
		i.Image, i.Network, i.Limits, i.User = f.Spec.Image, f.Spec.Network, f.Spec.Limits, f.Spec.User
	}
	sb.fillLife(&i, f)
	if sb.reg.options.Command != nil {
		i.Command = sb.reg.options.Command(f.Name)
	}
	for _, l := range sb.sessions.All() {
		if !l.Final() {
			i.Sessions = append(i.Sessions, l.Info())
		}
	}
	slices.SortFunc(i.Sessions, func(a, b wire.SessionInfo) int { return strings.Compare(a.Name, b.Name) })
	return i
}
