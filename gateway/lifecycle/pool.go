package lifecycle

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/pool"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// PoolOptions are the pooled sandboxes, which are booted in advance. The zero value means none.
type PoolOptions struct {
	Size   int      // of each image
	Images []string // empty means Options.Image
}

// nobody owns pooled sandboxes. It is not a valid label, so no principal and no sandbox has this
// name.
const nobody = "~"

// nameWithin bounds how long a guest may take to accept its name.
const nameWithin = 2 * time.Second

// pooling boots and removes pooled sandboxes. Each is claimed once, by a call of Create with an
// equal spec, and belongs to that owner from then on. None returns to the pool. A pooled sandbox is
// in state Warm, is in no list, has no name, and counts towards no quota.
type pooling struct {
	*pool.Pool[*Sandbox, Record]
	reg     *Registry
	filling chan struct{} // semaphore: one is booted at a time
}

func newPooling(reg *Registry) (*pooling, error) {
	p := &pooling{Pool: pool.New[*Sandbox, Record](), reg: reg, filling: make(chan struct{}, 1)}
	o := reg.options.Pool
	if o.Size == 0 {
		return p, nil
	}
	images := slices.Clone(o.Images)
	if len(images) == 0 {
		images = []string{reg.options.Image}
	}
	slices.Sort(images)
	for _, image := range slices.Compact(images) {
		f, err := reg.options.plan(nobody, NewSpec{Image: image})
		if err != nil {
			return nil, err
		}
		p.Add(f.kind(""), o.Size)
	}
	return p, nil
}

// Pool returns the number of pooled sandboxes, by image.
func (reg *Registry) Pool() []pool.Info {
	return reg.pooled.Info(func(sb *Sandbox) bool { return sb.guest.inTouch() })
}

// Drain removes the pooled sandboxes and boots none until the daemon restarts. It is for the admin.
func (reg *Registry) Drain(ctx context.Context) error {
	ctx, done := reg.tasks.bound(ctx)
	defer done()
	reg.pooled.Pool.Drain()
	select {
	case reg.pooled.filling <- struct{}{}: // a boot under way finds no room
		defer func() { <-reg.pooled.filling }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	var wg sync.WaitGroup
	all := reg.All()
	errs := make([]error, len(all))
	for i, sb := range all {
		if !sb.get().isPooled() {
			continue
		}
		wg.Go(func() {
			reg.pooled.Drop(sb)
			_, errs[i] = reg.removals.removeIf(ctx, sb, Record.isPooled)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// asPooled returns f as a pooled sandbox.
func (f Record) asPooled(id string) Record {
	f.Name, f.Owner, f.Reason = nobody+id, nobody, ""
	f.Spec.ID, f.Spec.Name = id, ""
	return f
}

// kind returns the kind of pooled sandboxes with the spec of f.
func (f Record) kind(use string) pool.Kind[Record] {
	return pool.Kind[Record]{Key: f.likeness(), Image: cmp.Or(f.Spec.Image, sandbox.DefaultImage),
		Use: use, Owner: f.Spec.Owner, Spec: f}
}

// likeness returns a key that is equal for specs that differ only in owner and name.
func (f Record) likeness() string {
	s := f.Asked
	s.ID, s.Name, s.Owner, s.Progress = "", "", "", nil
	s.About, s.Labels, s.End = "", nil, End{}
	for _, list := range []*[]string{&s.Env, &s.Allow, &s.Options} {
		*list = append([]string{}, *list...) // nil equals empty
	}
	s.Mounts = append([]sandbox.Mount{}, s.Mounts...)
	key, err := json.Marshal([]any{s, f.Instance.Backend})
	if err != nil {
		panic(err) // a spec is plain data
	}
	return string(key)
}

// inTouch reports whether the guest of sb is connected.
func (g *Guest) inTouch() bool {
	g.mu.Lock()
	lk := g.link
	g.mu.Unlock()
	if lk == nil {
		return false
	}
	lk.mu.Lock()
	c := lk.control
	lk.mu.Unlock()
	return c != nil && c.Err() == nil
}

// take returns a pooled sandbox with the spec of f, with its act begun; nil if none answers.
func (p *pooling) take(f Record) *Sandbox {
	sb, _ := p.Take(f.likeness(), f.Owner, time.Now(), func(sb *Sandbox) bool {
		if !sb.guest.inTouch() || !sb.lockNow() {
			return false
		}
		if sb.isGone() || sb.get().State != Warm {
			sb.unlock()
			return false
		}
		return true
	})
	return sb
}

// put adds sb to the pool and reports whether there was room.
func (p *pooling) put(sb *Sandbox) bool {
	f := sb.get()
	return p.Put(sb, f.likeness(), f.Spec.Owner, f.State == Warm)
}

// run keeps the pool filled until ctx ends. It boots one at a time.
func (p *pooling) run(ctx context.Context) {
	if p.reg.Ready(ctx) != nil { // first find the pool of an earlier daemon
		return
	}
	stale := time.NewTicker(staleEvery)
	defer stale.Stop()
	for ctx.Err() == nil {
		room, key := p.reg.accounts.poolRoom()
		p.shrink(ctx, room)
		k, due, wait := p.Due(time.Now(), room, key, cap(p.reg.boots))
		if due {
			p.fill(ctx, k)
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-p.Wake():
		case <-timer.C:
		case <-stale.C:
			p.renew(ctx)
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// endWithin bounds how long the daemon's end waits for the engine to remove pooled sandboxes.
const endWithin = 10 * time.Second

// end removes the sandboxes pooled by KeepPooled, because the next daemon learns of their use only
// by a new call. The next daemon removes what end cannot.
func (p *pooling) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	var wg sync.WaitGroup
	for _, sb := range p.Members(func(k pool.Kind[Record]) bool { return k.Use != "" }) {
		wg.Go(func() {
			if _, err := p.reg.removals.removeIf(ctx, sb, Record.isPooled); err != nil {
				p.reg.log.Warn("pooled sandbox not removed; the next daemon removes it",
					"id", sb.id, "err", err)
			}
		})
	}
	wg.Wait()
}

// shrink removes the surplus.
func (p *pooling) shrink(ctx context.Context, room int) {
	for _, sb := range p.Surplus(time.Now(), room) {
		p.giveUpIfPooled(ctx, sb, "its place is needed")
	}
}

// giveUpIfPooled removes sb unless it was claimed or is being removed.
func (p *pooling) giveUpIfPooled(ctx context.Context, sb *Sandbox, why string) {
	if !sb.lockNow() {
		return
	}
	defer sb.unlock()
	if sb.get().State == Warm && !sb.isGone() {
		p.giveUp(ctx, sb, why)
	}
}

// KeepPooled keeps size sandboxes of spec ready for owner's next calls of Create with the same
// spec, for the duration long. An API renews it with each call that others may follow. use names
// the purpose: a call replaces what an earlier one with the same use and another spec asked for.
func (reg *Registry) KeepPooled(owner, use string, spec NewSpec, size int,
	long time.Duration) error {
	if spec.Host.URI != "" || spec.Build != nil || len(spec.Setup) > 0 || len(spec.Mounts) > 0 ||
		spec.Dir != "" || spec.NoSecrets {
		return wire.Errorf(wire.CodeUsage,
			"host, mount, build and setup specs, and those without secrets, cannot be pooled")
	}
	f, err := reg.options.plan(owner, spec)
	if err != nil {
		return err
	}
	reg.pooled.Keep(f.kind(use), size, time.Now().Add(long))
	return nil
}

// fill boots one more of a kind.
func (p *pooling) fill(ctx context.Context, k pool.Kind[Record]) {
	select {
	case p.filling <- struct{}{}:
		defer func() { <-p.filling }()
	case <-ctx.Done():
		return
	}
	reg := p.reg
	id := newID()
	f := k.Spec.asPooled(id)
	f.Since, f.Created = time.Now(), time.Now()
	sb := newSandbox(reg, id, f)
	sb.op <- struct{}{}
	reg.roster.add(sb)
	err := (&creation{Sandbox: sb}).create(ctx, nil)
	if ctx.Err() != nil {
		return
	}
	trouble := ""
	if err != nil {
		trouble = oneLine(strings.TrimPrefix(reg.Public(err).Message, "create "+sb.Name()+": "),
			300)
	} else if !p.put(sb) && sb.lock(ctx) == nil { // drained meanwhile
		if sb.get().State == Warm {
			p.giveUp(ctx, sb, "the pool was drained")
		}
		sb.unlock()
	}
	failed, again := p.Booted(k, trouble, time.Now())
	switch {
	case err != nil:
		reg.log.Warn("pool: boot failed", "image", k.Image, "err", err,
			"again", time.Until(again).Round(time.Second))
	case failed > 0:
		reg.log.Info("pool: boot works again", "image", k.Image)
	}
}

// giveUp removes a pooled sandbox, which is locked, in the background.
func (p *pooling) giveUp(ctx context.Context, sb *Sandbox, why string) {
	sb.observed(ctx, Deleting, why)
	p.Drop(sb)
	p.reg.removals.retryNow(sb)
}

// unfit is inspect for a pooled sandbox.
func (p *pooling) unfit(ctx context.Context, sb *Sandbox, status sandbox.Status,
	err, cause error) (over bool) {
	switch {
	case errors.Is(err, sandbox.ErrGone):
		p.giveUp(ctx, sb, "removed outside the daemon")
	case err != nil:
		return false
	case !status.Running:
		p.giveUp(ctx, sb, why(status))
	case cause != nil:
		p.giveUp(ctx, sb, brokenWhy(cause))
	default:
		return false // it may be paused by the engine
	}
	return true
}

// poolRoom returns how many pooled sandboxes fit beside those with owners, and the configuration
// key of the limit.
func (a *accounts) poolRoom() (room int, key string) {
	a.roster.mu.Lock()
	defer a.roster.mu.Unlock()
	return a.options.total.Pool(a.allLocked(nil))
}
