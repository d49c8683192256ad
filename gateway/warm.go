package gateway

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// PoolOptions say which sandboxes are booted before anybody asks for them. The zero value is none.
type PoolOptions struct {
	Size   int      // how many of each image
	Images []string // none means Options.Image
}

// PoolInfo is how much of the pool there is of one image.
type PoolInfo struct {
	Image   string `json:"image"`
	Use     string `json:"use,omitempty"`     // what a door keeps them for; empty means whoever asks
	Owner   string `json:"owner,omitempty"`   // for whom, where they have a use
	Size    int    `json:"size"`              // how many there are to be
	Ready   int    `json:"ready"`             // how many a new sandbox can be had from now
	Trouble string `json:"trouble,omitempty"` // why there are no more, if the last attempt failed
}

// nobody owns what is in the pool. Like the names there it is no label, so that no principal and no sandbox is called so.
const nobody = "~"

const (
	firstRefill, lastRefill = time.Second, time.Minute // until a boot that failed is tried again
	settleTime              = 250 * time.Millisecond   // after a claim, until what was taken is replaced: a boot slows down what its new owner does first
	nameWithin              = 2 * time.Second          // for a guest to take its name
)

// warm is the pool: sandboxes that were booted ahead, with the daemon's defaults. Each is claimed once, by who asks for one that
// is made alike, and is theirs from then on like any other; none comes back.
//
// A member is a box in state Warm. It is in no list, has no name, and counts towards nobody's quota.
type warm struct {
	hub     *Hub
	wake    chan struct{} // something may be missing
	filling chan struct{} // semaphore of who boots one

	// mu is taken after Hub.mu and before box.mu.
	mu      sync.Mutex
	drained bool     // guarded by mu
	shelves []*shelf // guarded by mu, with what is in them
	making  int      // guarded by mu; creations that somebody waits for
}

// shelf is the part of the pool of one image, or of one use that a door has for them.
type shelf struct {
	made     facts // what its boxes are made from
	size     int
	use      string    // of one that KeepWarm made, for made.spec.Owner alone
	until    time.Time // likewise: when there are to be none any more
	boxes    []*box    // oldest first
	failures int       // of boots, in a row
	next     time.Time
	trouble  string
}

func (w *warm) init(h *Hub) error {
	o := h.options.Pool
	w.hub, w.wake, w.filling = h, make(chan struct{}, 1), make(chan struct{}, 1)
	if o.Size == 0 {
		return nil
	}
	images := slices.Clone(o.Images)
	if len(images) == 0 {
		images = []string{h.options.Image}
	}
	slices.Sort(images)
	for _, image := range slices.Compact(images) {
		f, err := h.plan(Principal{Name: nobody}, NewSpec{Image: image})
		if err != nil {
			return err
		}
		w.shelves = append(w.shelves, &shelf{made: f, size: o.Size})
	}
	return nil
}

// Pool returns how many sandboxes stand ready, by image.
func (h *Hub) Pool() []PoolInfo {
	w := &h.warm
	w.mu.Lock()
	defer w.mu.Unlock()
	all := []PoolInfo{}
	for _, s := range w.shelves {
		i := PoolInfo{Image: cmp.Or(s.made.spec.Image, sandbox.DefaultImage), Use: s.use, Size: s.size, Trouble: s.trouble}
		if s.use != "" {
			i.Owner = s.made.spec.Owner
		}
		for _, b := range s.boxes {
			if b.inTouch() {
				i.Ready++
			}
		}
		all = append(all, i)
	}
	return all
}

// Drain removes what stands ready, and nothing is booted ahead until the daemon is started again. It is for the daemon's own user.
func (h *Hub) Drain(ctx context.Context, p Principal) error {
	if p.Name != h.options.Owner || p.mayMake("removing") != nil {
		return &wire.Error{Code: wire.CodeDenied, Message: "the pool is drained by the daemon's own user"}
	}
	ctx, done := h.tasks.bound(ctx)
	defer done()
	w := &h.warm
	w.mu.Lock()
	w.drained = true
	for _, s := range w.shelves {
		s.size = 0
	}
	w.mu.Unlock()
	select {
	case w.filling <- struct{}{}: // whoever boots one finds no room for it
		defer func() { <-w.filling }()
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
			w.drop(b)
			_, errs[i] = b.removeIf(ctx, facts.isPooled)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (w *warm) members() []*box {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*box
	for _, s := range w.shelves {
		all = append(all, s.boxes...)
	}
	return all
}

// isPooled reports whether that is a member of the pool, or one in the making.
func (f facts) isPooled() bool { return f.owner == nobody }

// pooled is f as a member of the pool.
func (f facts) pooled(id string) facts {
	f.name, f.owner, f.reason = nobody+id, nobody, ""
	f.spec.ID, f.spec.Name = id, ""
	return f
}

// alike reports whether two sandboxes differ in nothing but whose they are and what they are called.
func alike(a, b facts) bool {
	same := func(s sandbox.Spec) sandbox.Spec {
		s.ID, s.Name, s.Owner, s.About, s.Progress = "", "", "", "", nil
		s.Env, s.Allow, s.Mounts = append([]string{}, s.Env...), append([]string{}, s.Allow...), append([]sandbox.Mount{}, s.Mounts...)
		s.Options = append([]string{}, s.Options...)
		return s
	}
	return a.life == b.life && a.inst.Backend == b.inst.Backend && reflect.DeepEqual(same(a.spec), same(b.spec))
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

// take returns a member of the pool that is alike f, with its act begun, or nil if none answers. Two callers never get the same.
func (w *warm) take(f facts) *box {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.shelves {
		if !alike(f, s.made) || s.use != "" && s.made.spec.Owner != f.owner {
			continue
		}
		for i, b := range s.boxes {
			if !b.inTouch() || !b.lockNow() {
				continue
			}
			if b.isGone() || b.get().state != Warm {
				b.unlock()
				continue
			}
			s.boxes = slices.Delete(s.boxes, i, i+1)
			if now := time.Now(); s.next.Before(now) {
				s.next = now.Add(settleTime)
			}
			w.kick()
			return b
		}
	}
	return nil
}

// put puts a member on its shelf, and reports whether there was room for it.
func (w *warm) put(b *box) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := b.get()
	for _, s := range w.shelves {
		if alike(f, s.made) && f.spec.Owner == s.made.spec.Owner && len(s.boxes) < s.size {
			if f.state == Warm { // else it was given up meanwhile
				s.boxes = append(s.boxes, b)
			}
			return true
		}
	}
	return false
}

// drop takes a member that is no good off its shelf.
func (w *warm) drop(b *box) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.shelves {
		s.boxes = slices.DeleteFunc(s.boxes, func(other *box) bool { return other == b })
	}
	w.kick()
}

// rest leaves the shelf of b, which is about to be given up for what it did, alone for a while: another would do the same.
func (w *warm) rest(b *box, why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.shelves {
		if slices.Contains(s.boxes, b) {
			s.next, s.trouble = time.Now().Add(lastRefill), oneLine(why, 300)
		}
	}
}

func (w *warm) kick() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// somebodyWaits counts a creation that somebody waits for, until the returned function is called.
func (w *warm) somebodyWaits() (done func()) {
	count := func(by int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.making += by
		w.kick()
	}
	count(1)
	return func() { count(-1) }
}

// run keeps the pool filled until ctx ends. It boots one at a time, and none while half of the slots are used by those for which
// somebody waits.
func (w *warm) run(ctx context.Context) {
	if w.hub.Ready(ctx) != nil { // what a former daemon left is found first
		return
	}
	stale := time.NewTicker(staleEvery)
	defer stale.Stop()
	for ctx.Err() == nil {
		room, key := w.hub.poolRoom()
		w.shrink(ctx, room)
		s, wait := w.due(time.Now(), room, key)
		if s != nil {
			w.fill(ctx, s)
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-w.wake:
		case <-timer.C:
		case <-stale.C:
			w.renew(ctx)
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// endWithin bounds how long the end of the daemon waits for an engine that removes what it kept for a use.
const endWithin = 10 * time.Second

// end removes what was kept for a use, of which the next daemon knows nothing until somebody's first call. What it cannot remove, the next
// one does.
func (w *warm) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	w.mu.Lock()
	var all []*box
	for _, s := range w.shelves {
		if s.use != "" {
			all = append(all, s.boxes...)
		}
	}
	w.mu.Unlock()
	var wg sync.WaitGroup
	for _, b := range all {
		wg.Go(func() {
			if _, err := b.removeIf(ctx, facts.isPooled); err != nil {
				w.hub.log.Warn("a sandbox of the pool is left for the next daemon", "id", b.id, "err", err)
			}
		})
	}
	wg.Wait()
}

// shrink gives up what is more than room: what people ask for comes first.
func (w *warm) shrink(ctx context.Context, room int) {
	all := w.members()
	for _, b := range append(all[min(room, len(all)):], w.surplus(time.Now())...) {
		if !b.lockNow() {
			continue // somebody has just taken it, or it is about to be given up
		}
		if b.get().state == Warm && !b.isGone() {
			b.giveUp(ctx, "its place is needed")
		}
		b.unlock()
	}
}

// surplus is what stands ready for a use that there is no longer, or for which fewer do.
func (w *warm) surplus(now time.Time) (all []*box) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.shelves {
		if s.use != "" && now.After(s.until) {
			s.size = 0
		}
		all = append(all, s.boxes[min(s.size, len(s.boxes)):]...)
	}
	w.shelves = slices.DeleteFunc(w.shelves, func(s *shelf) bool { return s.use != "" && s.size == 0 && len(s.boxes) == 0 })
	return all
}

// KeepWarm has size sandboxes made by spec stand ready for p's next calls of Create with that spec, for so long from now: a door says
// it anew with each call that may be followed by others. use is what for; what was kept for the same use and made by another spec goes.
func (h *Hub) KeepWarm(p Principal, use string, spec NewSpec, size int, long time.Duration) error {
	if err := p.mayMake("creating"); err != nil {
		return err
	}
	if spec.Host.URI != "" || spec.Build != nil || len(spec.Setup) > 0 || len(spec.Mounts) > 0 || spec.Dir != "" {
		return wire.Errorf(wire.CodeUsage, "nothing of a machine's own, and nothing that has to be made, stands ready")
	}
	f, err := h.plan(p, spec)
	if err != nil {
		return err
	}
	w := &h.warm
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.drained {
		return nil
	}
	found := false
	for _, s := range w.shelves {
		if s.use != use || s.made.spec.Owner != p.Name {
			continue
		}
		if !alike(f, s.made) {
			s.size = 0
			continue
		}
		if s.size < size {
			w.kick()
		}
		found, s.size, s.until = true, size, time.Now().Add(long)
	}
	if !found && size > 0 {
		w.shelves = append(w.shelves, &shelf{made: f, size: size, use: use, until: time.Now().Add(long)})
		w.kick()
	}
	return nil
}

// due returns a shelf on which something is missing, or after how long there may be one. room is how many there may be on all of them,
// by the limit of that key.
func (w *warm) due(now time.Time, room int, key string) (*shelf, time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wait := lastRefill
	all := 0
	for _, s := range w.shelves {
		all += len(s.boxes)
	}
	if all >= room {
		for _, s := range w.shelves {
			if len(s.boxes) < s.size {
				s.trouble = "there is no room for more beside the sandboxes that were asked for (" + key + ")"
			}
		}
		return nil, wait
	}
	if 2*w.making >= cap(w.hub.boots) {
		return nil, wait
	}
	for _, s := range w.shelves {
		switch {
		case len(s.boxes) >= s.size:
		case now.Before(s.next):
			wait = min(wait, s.next.Sub(now))
		default:
			return s, 0
		}
	}
	return nil, wait
}

// fill boots one more for s.
func (w *warm) fill(ctx context.Context, s *shelf) {
	select {
	case w.filling <- struct{}{}:
		defer func() { <-w.filling }()
	case <-ctx.Done():
		return
	}
	h := w.hub
	id := newID()
	f := s.made.pooled(id)
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
	if err == nil && !w.put(b) && b.lock(ctx) == nil { // it was drained meanwhile
		if b.get().state == Warm {
			b.giveUp(ctx, "there is no pool any more")
		}
		b.unlock()
	}
	image := s.made.spec.Image
	w.mu.Lock()
	failed := s.failures
	if err == nil {
		s.failures, s.next, s.trouble = 0, time.Time{}, ""
	} else {
		pause := min(firstRefill<<min(failed, 10), lastRefill)
		s.failures, s.next = failed+1, time.Now().Add(pause)
		s.trouble = oneLine(strings.TrimPrefix(h.Public(err).Message, "create "+b.Name()+": "), 300)
	}
	again := s.next
	w.mu.Unlock()
	switch {
	case err != nil:
		h.log.Warn("the pool is not filled", "image", image, "err", err, "again", time.Until(again).Round(time.Second))
	case failed > 0:
		h.log.Info("the pool is filled again", "image", image)
	}
}

// giveUp removes a member of the pool, which is locked, in the background.
func (b *box) giveUp(ctx context.Context, why string) {
	b.note(ctx, Deleting, why)
	b.hub.warm.drop(b)
	b.hub.laterNow(b)
}

// unfit is inspect for a member of the pool.
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

// errNotReady says that a member of the pool was not what it seemed: it is removed, and another may be had.
var errNotReady = errors.New("what stood ready does not answer")

// claim carries out what reserve began with a member of the pool, and ends the act. It asks no engine. Whatever it ends with, kill -9
// of the daemon included, the sandbox is the pool's until its row is put, and whose the row says from then on: what its guest is called
// it is told again on each new connection.
func (b *box) claim(ctx context.Context) error {
	defer b.unlock()
	h := b.hub
	f := b.get()
	h.at("reserved")
	err := context.Cause(ctx)
	if err == nil {
		err = stored(h.note(b.id, f)) // before the row: without the store it is whose it may be, and not removed as nobody's
	}
	h.at("noted")
	if err == nil {
		err = b.become(ctx, func(f *facts) { f.state = Running })
	}
	if err != nil {
		b.disown(ctx, err)
		return nameTaken(f, err)
	}
	h.at("stored")
	b.network.pays(h.connectionsOf(f.owner))
	b.Touch()
	h.board.Reshare()
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), nameWithin)
	defer cancel()
	c, err := h.pool.Control(within, f.inst)
	if err == nil {
		err = f.introduce(within, c)
	}
	h.at("named")
	if err == nil {
		h.counts.claims.Add(1)
		return nil
	}
	b.disown(ctx, err)
	return errNotReady
}

// disown removes a sandbox whose claim failed. It does not go back into the pool: whoever has found it by its name already, and waits,
// must not come into somebody else's.
func (b *box) disown(ctx context.Context, why error) {
	b.hub.counts.claimsFailed.Add(1)
	b.hub.log.Warn("a sandbox of the pool is removed: it was not claimed", "id", b.id, "err", why)
	b.note(ctx, Deleting, "its claim failed")
	b.hub.unname(b)
	b.hub.laterNow(b)
}

// introduce tells a guest that was booted without a name what it is called: it takes one, once.
func (f facts) introduce(ctx context.Context, c *connect.Control) error {
	if f.spec.Name != "" || f.isPooled() || f.inst.Host.URI != "" {
		return nil
	}
	_, err := c.Do(ctx, wire.Control{Do: "name", Name: f.name})
	return err
}

// opened is called with each new control connection.
func (h *Hub) opened(ctx context.Context, inst sandbox.Instance, c *connect.Control) {
	h.mu.Lock()
	b := h.boxes[inst.ID]
	h.mu.Unlock()
	if b == nil {
		return
	}
	within, cancel := context.WithTimeout(ctx, nameWithin)
	defer cancel()
	if err := b.get().introduce(within, c); err != nil {
		h.log.Debug("a guest does not take its name", "id", b.id, "err", err)
	}
}

// unnote removes what note wrote.
func (h *Hub) unnote(id string) {
	if err := os.Remove(filepath.Join(h.records(id), labelFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.log.Warn("note not removed", "id", id, "err", err)
	}
}

// poolRoom is how many pooled sandboxes there may be beside those that people have, and the key that bounds them.
func (h *Hub) poolRoom() (room int, key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.options.Total.Pool(h.allLocked(nil))
}
