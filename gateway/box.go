package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// facts are what the store keeps of a sandbox.
type facts struct {
	name    string
	owner   string
	spec    sandbox.Spec
	life    Life
	end     End
	labels  map[string]string // replaced, never changed
	inst    sandbox.Instance  // its ID is empty until there is one
	state   State
	since   time.Time
	created time.Time
	reason  string
}

// kept is what of a sandbox was asked for, as the store has it.
type kept struct {
	sandbox.Spec
	Life
	End    End               `json:"end,omitzero"`
	Labels map[string]string `json:"labels,omitempty"`
}

func factsOf(row store.Sandbox) (facts, error) {
	f := facts{name: row.Name, owner: row.Owner, state: State(row.State), since: row.Since, created: row.Created, reason: row.Error}
	var asked kept
	if err := json.Unmarshal(row.Spec, &asked); err != nil {
		return f, fmt.Errorf("spec: %w", err)
	}
	f.spec, f.life, f.end, f.labels = asked.Spec, asked.Life, asked.End, asked.Labels
	if len(row.Instance) > 0 {
		if err := json.Unmarshal(row.Instance, &f.inst); err != nil {
			return f, fmt.Errorf("instance: %w", err)
		}
	}
	return f, nil
}

func (f facts) row(id string) (store.Sandbox, error) {
	row := store.Sandbox{ID: id, Name: f.name, Owner: f.owner, State: string(f.state), Since: f.since, Created: f.created, Error: f.reason}
	var err error
	if row.Spec, err = json.Marshal(kept{f.spec, f.life, f.end, f.labels}); err != nil {
		return row, fmt.Errorf("spec: %w", err)
	}
	if f.inst.Backend != "" {
		if row.Instance, err = json.Marshal(f.inst); err != nil {
			return row, fmt.Errorf("instance: %w", err)
		}
	}
	return row, nil
}

// box is one sandbox in the hub.
type box struct {
	hub *Hub
	id  string
	op  chan struct{} // semaphore: one act at a time changes what the sandbox is

	wmu sync.Mutex // held while a change is written down; taken before mu

	source *box      // what a fork is made of; nil for others, and once it has its image
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
	facts      facts                   // guarded by mu
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

func newBox(h *Hub, id string, f facts) *box {
	b := &box{hub: h, id: id, op: make(chan struct{}, 1), facts: f, active: time.Now(), loaded: time.Now()}
	b.sessions = live.NewSessions(live.Options{ID: id, Name: b.Name, Records: h.records(id), Quota: h.options.RecordQuota, Strict: h.options.RecordStrict,
		Log: h.log, Board: h.board, Principals: b.principals, Settle: b.network.settle})
	return b
}

func (b *box) get() facts {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.facts
}

// Name is the sandbox's name in messages to its owner.
func (b *box) Name() string { return b.get().name }

// lock waits for the acts of others on this sandbox.
func (b *box) lock(ctx context.Context) error {
	select {
	case b.op <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if ctx.Err() != nil { // whoever held the lock has ended it
		b.unlock()
		return context.Cause(ctx)
	}
	return nil
}

func (b *box) unlock() { <-b.op }

func (b *box) isGone() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.gone
}

// become writes a change down and then makes it so. It does not end with ctx: half a transition is
// none.
func (b *box) become(ctx context.Context, change func(*facts)) error {
	b.wmu.Lock()
	defer b.wmu.Unlock()
	f := b.get()
	before := f.state
	change(&f)
	if f.state != before {
		f.since = time.Now()
	}
	row, err := f.row(b.id)
	if err != nil {
		return err
	}
	if err := b.hub.options.Store.Put(context.WithoutCancel(ctx), row); err != nil {
		return stored(err)
	}
	b.mu.Lock()
	b.facts = f
	if f.state == Running && before != Running {
		b.fate = ""
	}
	b.mu.Unlock()
	b.hub.board.Change()
	if f.state == Paused && before != Paused {
		b.pauses.Interrupt(b.pausedError())
	}
	if f.state != before {
		b.hub.log.Info("sandbox", "id", b.id, "name", f.name, "state", f.state, "reason", f.reason)
		b.hub.journal.add(b.id, "state", map[string]any{"state": f.state, "reason": f.reason})
	}
	return nil
}

// acting makes the act under way one that abortAct ends. The returned function ends that.
func (b *box) acting(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	b.mu.Lock()
	b.abort = cancel
	b.mu.Unlock()
	return ctx, func() {
		b.mu.Lock()
		b.abort = nil
		b.mu.Unlock()
		cancel(nil)
	}
}

func (b *box) abortAct(cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.abort != nil {
		b.abort(cause)
	}
}

// abortCreation ends the creation under way of which f was seen, unless it is over.
func (b *box) abortCreation(f facts, cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.abort != nil && b.facts.state == Creating && b.facts.since.Equal(f.since) {
		b.abort(cause)
	}
}

// info is the sandbox as lists show it.
func (b *box) info() Info {
	carried := b.network.notes() // before mu: who begins to carry packets holds the network's lock and asks for the facts
	b.mu.Lock()
	f, notes := b.facts, slices.Concat(b.facts.inst.Notes, b.notes, carried)
	b.mu.Unlock()
	i := Info{Name: f.name, ID: b.id, Owner: f.owner, State: f.state, Since: f.since, Reason: f.reason, Created: f.created,
		Backend: f.inst.Backend, Image: f.inst.Image, Digest: f.inst.Digest, User: f.inst.User, Network: f.inst.Network, Via: f.inst.Via,
		Isolation: f.inst.Runtime, Limits: f.inst.Limits, Allow: f.spec.Allow, Dir: f.spec.Dir, Recipe: f.spec.Recipe, ImageOf: f.spec.Made, About: f.spec.About, Mounts: f.spec.Mounts, Labels: f.labels, Notes: notes, SharedWith: b.sharedWith(), Sessions: []wire.SessionInfo{}}
	if f.inst.ID == "" {
		i.Image, i.Network, i.Limits, i.User = f.spec.Image, f.spec.Network, f.spec.Limits, f.spec.User
	}
	b.fillLife(&i, f)
	if b.hub.options.Command != nil {
		i.Command = b.hub.options.Command(f.name)
	}
	for _, l := range b.sessions.All() {
		if !l.Final() {
			i.Sessions = append(i.Sessions, l.Info())
		}
	}
	slices.SortFunc(i.Sessions, func(a, b wire.SessionInfo) int { return strings.Compare(a.Name, b.Name) })
	return i
}
