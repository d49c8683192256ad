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

// PoolOptions say which sandboxes are booted before anybody asks for them. The zero value is none.
type PoolOptions struct {
	Size   int      // how many of each image
	Images []string // none means Options.Image
}

// nobody owns pooled sandboxes. Like their names it is no label, so that no principal and no
// sandbox is called so.
const nobody = "~"

// nameWithin is how long a guest may take to take its name.
const nameWithin = 2 * time.Second

// pooling boots and removes the pooled sandboxes of a hub: they are made ahead, with the daemon's
// defaults. Each is claimed once, by who asks for one that is made alike, and is theirs from then
// on like any other; none comes back.
//
// A pooled sandbox is in state Warm. It is in no list, has no name, and counts towards
// nobody's quota.
type pooling struct {
	*pool.Pool[*Sandbox, Record]
	reg     *Registry
	filling chan struct{} // semaphore of who boots one
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

// Pool returns how many pooled sandboxes there are, by image.
func (reg *Registry) Pool() []pool.Info {
	return reg.pooled.Info(func(sb *Sandbox) bool { return sb.guest.inTouch() })
}

// Drain removes the pooled sandboxes, and none is booted ahead until the daemon is started again.
// It is for the admin.
func (reg *Registry) Drain(ctx context.Context) error {
	ctx, done := reg.tasks.bound(ctx)
	defer done()
	reg.pooled.Pool.Drain()
	select {
	case reg.pooled.filling <- struct{}{}: // whoever boots one finds no room for it
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

// asPooled is f as a pooled sandbox.
func (f Record) asPooled(id string) Record {
	f.Name, f.Owner, f.Reason = nobody+id, nobody, ""
	f.Spec.ID, f.Spec.Name = id, ""
	return f
}

// kind is the kind of pooled sandboxes that are made as f.
func (f Record) kind(use string) pool.Kind[Record] {
	return pool.Kind[Record]{Key: f.likeness(), Image: cmp.Or(f.Spec.Image, sandbox.DefaultImage), Use: use, Owner: f.Spec.Owner, Spec: f}
}

// likeness is the same for two sandboxes that differ in nothing but whose they are and what they
// are called.
func (f Record) likeness() string {
	s := f.Asked
	s.ID, s.Name, s.Owner, s.Progress = "", "", "", nil
	s.About, s.Labels, s.End = "", nil, End{}
	for _, list := range []*[]string{&s.Env, &s.Allow, &s.Options} {
		*list = append([]string{}, *list...) // none and empty are one
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

// take returns a pooled sandbox that is made as f, with its act begun, or nil if none answers.
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

// put adds sb to the pool and reports whether there is room for it.
func (p *pooling) put(sb *Sandbox) bool {
	f := sb.get()
	return p.Put(sb, f.likeness(), f.Spec.Owner, f.State == Warm)
}

// run keeps the pool filled until ctx ends. It boots one at a time.
func (p *pooling) run(ctx context.Context) {
	if p.reg.Ready(ctx) != nil { // what a former daemon left is found first
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

// endWithin bounds how long the end of the daemon waits for an engine that removes what was kept
// for a use.
const endWithin = 10 * time.Second

// end removes what was kept for a use, which the next daemon does not know until somebody's first
// call. What it cannot remove, the next daemon does.
func (p *pooling) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	var wg sync.WaitGroup
	for _, sb := range p.Members(func(k pool.Kind[Record]) bool { return k.Use != "" }) {
		wg.Go(func() {
			if _, err := p.reg.removals.removeIf(ctx, sb, Record.isPooled); err != nil {
				p.reg.log.Warn("a pooled sandbox is left for the next daemon", "id", sb.id, "err", err)
			}
		})
	}
	wg.Wait()
}

// shrink gives up the surplus.
func (p *pooling) shrink(ctx context.Context, room int) {
	for _, sb := range p.Surplus(time.Now(), room) {
		p.giveUpIfPooled(ctx, sb, "its place is needed")
	}
}

// giveUpIfPooled gives sb up unless somebody has just taken it, or it is about to be given up.
func (p *pooling) giveUpIfPooled(ctx context.Context, sb *Sandbox, why string) {
	if !sb.lockNow() {
		return
	}
	defer sb.unlock()
	if sb.get().State == Warm && !sb.isGone() {
		p.giveUp(ctx, sb, why)
	}
}

// KeepPooled keeps size sandboxes made by spec for owner's next calls of Create with that spec, for so
// long from now: an API says it anew with each call that may be followed by others. use is what
// for; what was kept for the same use and made by another spec goes.
func (reg *Registry) KeepPooled(owner, use string, spec NewSpec, size int, long time.Duration) error {
	if spec.Host.URI != "" || spec.Build != nil || len(spec.Setup) > 0 || len(spec.Mounts) > 0 || spec.Dir != "" {
		return wire.Errorf(wire.CodeUsage, "host, mount, build and setup specs cannot be pooled")
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
	reg.mu.Lock()
	reg.all[id] = sb
	reg.mu.Unlock()
	err := (&creation{Sandbox: sb}).create(ctx, nil)
	if ctx.Err() != nil {
		return
	}
	trouble := ""
	if err != nil {
		trouble = oneLine(strings.TrimPrefix(reg.Public(err).Message, "create "+sb.Name()+": "), 300)
	} else if !p.put(sb) && sb.lock(ctx) == nil { // it was drained meanwhile
		if sb.get().State == Warm {
			p.giveUp(ctx, sb, "there is no pool any more")
		}
		sb.unlock()
	}
	failed, again := p.Booted(k, trouble, time.Now())
	switch {
	case err != nil:
		reg.log.Warn("the pool is not filled", "image", k.Image, "err", err, "again", time.Until(again).Round(time.Second))
	case failed > 0:
		reg.log.Info("the pool is filled again", "image", k.Image)
	}
}

// giveUp removes a pooled sandbox, which is locked, in the background.
func (p *pooling) giveUp(ctx context.Context, sb *Sandbox, why string) {
	sb.note(ctx, Deleting, why)
	p.Drop(sb)
	p.reg.removals.laterNow(sb)
}

// unfit is inspect for a pooled sandbox.
func (p *pooling) unfit(ctx context.Context, sb *Sandbox, status sandbox.Status, err, cause error) (over bool) {
	switch {
	case errors.Is(err, sandbox.ErrGone):
		p.giveUp(ctx, sb, "it was removed behind the daemon's back")
	case err != nil:
		return false
	case !status.Running:
		p.giveUp(ctx, sb, why(status))
	case cause != nil:
		p.giveUp(ctx, sb, brokenWhy(cause))
	default:
		return false // who pauses one finds it so, or resumes it
	}
	return true
}

// poolRoom is how many pooled sandboxes there may be beside those that people have, and the key
// that bounds them.
func (a *accounts) poolRoom() (room int, key string) {
	a.reg.mu.Lock()
	defer a.reg.mu.Unlock()
	return a.reg.options.Total.Pool(a.allLocked(nil))
}
