package gateway

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
// A pooled sandbox is a box in state Warm. It is in no list, has no name, and counts towards
// nobody's quota.
type pooling struct {
	*pool.Pool[*box, facts]
	hub     *Hub
	filling chan struct{} // semaphore of who boots one
}

func newPooling(h *Hub) (*pooling, error) {
	p := &pooling{Pool: pool.New[*box, facts](), hub: h, filling: make(chan struct{}, 1)}
	o := h.options.Pool
	if o.Size == 0 {
		return p, nil
	}
	images := slices.Clone(o.Images)
	if len(images) == 0 {
		images = []string{h.options.Image}
	}
	slices.Sort(images)
	for _, image := range slices.Compact(images) {
		f, err := h.plan(Principal{Name: nobody}, NewSpec{Image: image})
		if err != nil {
			return nil, err
		}
		p.Add(f.kind(""), o.Size)
	}
	return p, nil
}

// Pool returns how many pooled sandboxes there are, by image.
func (h *Hub) Pool() []pool.Info { return h.pooled.Info((*box).inTouch) }

// Drain removes the pooled sandboxes, and none is booted ahead until the daemon is started again.
// It is for the admin.
func (h *Hub) Drain(ctx context.Context, p Principal) error {
	if p.Name != h.options.Owner || p.mayMake("removing") != nil {
		return &wire.Error{Code: wire.CodeDenied, Message: "the pool is drained by the daemon's own user"}
	}
	ctx, done := h.tasks.bound(ctx)
	defer done()
	h.pooled.Pool.Drain()
	select {
	case h.pooled.filling <- struct{}{}: // whoever boots one finds no room for it
		defer func() { <-h.pooled.filling }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	var wg sync.WaitGroup
	all := h.all()
	errs := make([]error, len(all))
	for i, b := range all {
		if !b.get().isPooled() {
			continue
		}
		wg.Go(func() {
			h.pooled.Drop(b)
			_, errs[i] = b.removeIf(ctx, facts.isPooled)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// isPooled reports whether that is a pooled sandbox, or one in the making.
func (f facts) isPooled() bool { return f.owner == nobody }

// asPooled is f as a pooled sandbox.
func (f facts) asPooled(id string) facts {
	f.name, f.owner, f.reason = nobody+id, nobody, ""
	f.spec.ID, f.spec.Name = id, ""
	return f
}

// kind is the kind of pooled sandboxes that are made as f.
func (f facts) kind(use string) pool.Kind[facts] {
	return pool.Kind[facts]{Key: f.likeness(), Image: cmp.Or(f.spec.Image, sandbox.DefaultImage), Use: use, Owner: f.spec.Owner, Spec: f}
}

// likeness is the same for two sandboxes that differ in nothing but whose they are and what they
// are called.
func (f facts) likeness() string {
	s := f.spec
	s.ID, s.Name, s.Owner, s.About, s.Progress = "", "", "", "", nil
	for _, list := range []*[]string{&s.Env, &s.Allow, &s.Options} {
		*list = append([]string{}, *list...) // none and empty are one
	}
	s.Mounts = append([]sandbox.Mount{}, s.Mounts...)
	key, err := json.Marshal([]any{s, f.life, f.inst.Backend})
	if err != nil {
		panic(err) // a spec is plain data
	}
	return string(key)
}

// inTouch reports whether the guest of b is connected.
func (b *box) inTouch() bool {
	b.mu.Lock()
	lk := b.link
	b.mu.Unlock()
	if lk == nil {
		return false
	}
	lk.mu.Lock()
	c := lk.control
	lk.mu.Unlock()
	return c != nil && c.Err() == nil
}

// take returns a pooled sandbox that is made as f, with its act begun, or nil if none answers.
func (p *pooling) take(f facts) *box {
	b, _ := p.Take(f.likeness(), f.owner, time.Now(), func(b *box) bool {
		if !b.inTouch() || !b.lockNow() {
			return false
		}
		if b.isGone() || b.get().state != Warm {
			b.unlock()
			return false
		}
		return true
	})
	return b
}

// put adds b to the pool and reports whether there is room for it.
func (p *pooling) put(b *box) bool {
	f := b.get()
	return p.Put(b, f.likeness(), f.spec.Owner, f.state == Warm)
}

// run keeps the pool filled until ctx ends. It boots one at a time.
func (p *pooling) run(ctx context.Context) {
	if p.hub.Ready(ctx) != nil { // what a former daemon left is found first
		return
	}
	stale := time.NewTicker(staleEvery)
	defer stale.Stop()
	for ctx.Err() == nil {
		room, key := p.hub.poolRoom()
		p.shrink(ctx, room)
		k, due, wait := p.Due(time.Now(), room, key, cap(p.hub.boots))
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
	for _, b := range p.Members(func(k pool.Kind[facts]) bool { return k.Use != "" }) {
		wg.Go(func() {
			if _, err := b.removeIf(ctx, facts.isPooled); err != nil {
				p.hub.log.Warn("a pooled sandbox is left for the next daemon", "id", b.id, "err", err)
			}
		})
	}
	wg.Wait()
}

// shrink gives up the surplus.
func (p *pooling) shrink(ctx context.Context, room int) {
	for _, b := range p.Surplus(time.Now(), room) {
		b.giveUpIfPooled(ctx, "its place is needed")
	}
}

// giveUpIfPooled gives b up unless somebody has just taken it, or it is about to be given up.
func (b *box) giveUpIfPooled(ctx context.Context, why string) {
	if !b.lockNow() {
		return
	}
	defer b.unlock()
	if b.get().state == Warm && !b.isGone() {
		b.giveUp(ctx, why)
	}
}

// KeepPooled keeps size sandboxes made by spec for p's next calls of Create with that spec, for so
// long from now: an API says it anew with each call that may be followed by others. use is what
// for; what was kept for the same use and made by another spec goes.
func (h *Hub) KeepPooled(p Principal, use string, spec NewSpec, size int, long time.Duration) error {
	if err := p.mayMake("creating"); err != nil {
		return err
	}
	if spec.Host.URI != "" || spec.Build != nil || len(spec.Setup) > 0 || len(spec.Mounts) > 0 || spec.Dir != "" {
		return wire.Errorf(wire.CodeUsage, "host, mount, build and setup specs cannot be pooled")
	}
	f, err := h.plan(p, spec)
	if err != nil {
		return err
	}
	h.pooled.Keep(f.kind(use), size, time.Now().Add(long))
	return nil
}

// fill boots one more of a kind.
func (p *pooling) fill(ctx context.Context, k pool.Kind[facts]) {
	select {
	case p.filling <- struct{}{}:
		defer func() { <-p.filling }()
	case <-ctx.Done():
		return
	}
	h := p.hub
	id := newID()
	f := k.Spec.asPooled(id)
	f.since, f.created = time.Now(), time.Now()
	b := newBox(h, id, f)
	b.op <- struct{}{}
	h.mu.Lock()
	h.boxes[id] = b
	h.mu.Unlock()
	err := b.create(ctx, nil)
	if ctx.Err() != nil {
		return
	}
	trouble := ""
	if err != nil {
		trouble = oneLine(strings.TrimPrefix(h.Public(err).Message, "create "+b.Name()+": "), 300)
	} else if !p.put(b) && b.lock(ctx) == nil { // it was drained meanwhile
		if b.get().state == Warm {
			b.giveUp(ctx, "there is no pool any more")
		}
		b.unlock()
	}
	failed, again := p.Booted(k, trouble, time.Now())
	switch {
	case err != nil:
		h.log.Warn("the pool is not filled", "image", k.Image, "err", err, "again", time.Until(again).Round(time.Second))
	case failed > 0:
		h.log.Info("the pool is filled again", "image", k.Image)
	}
}

// giveUp removes a pooled sandbox, which is locked, in the background.
func (b *box) giveUp(ctx context.Context, why string) {
	b.note(ctx, Deleting, why)
	b.hub.pooled.Drop(b)
	b.hub.laterNow(b)
}

// unfit is inspect for a pooled sandbox.
func (b *box) unfit(ctx context.Context, status sandbox.Status, err, cause error) (over bool) {
	switch {
	case errors.Is(err, sandbox.ErrGone):
		b.giveUp(ctx, "it was removed behind the daemon's back")
	case err != nil:
		return false
	case !status.Running:
		b.giveUp(ctx, why(status))
	case cause != nil:
		b.giveUp(ctx, brokenWhy(cause))
	default:
		return false // who pauses one finds it so, or resumes it
	}
	return true
}

// poolRoom is how many pooled sandboxes there may be beside those that people have, and the key
// that bounds them.
func (h *Hub) poolRoom() (room int, key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.options.Total.Pool(h.allLocked(nil))
}
