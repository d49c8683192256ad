package gateway

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// What a spec may carry besides what the backend checks.
const (
	maxEnv      = 64
	maxEnvBytes = 4 << 10 // of one variable
	maxAbout    = 4 << 10 // bytes
)

// cleanup bounds what undoes an act whose caller has gone.
const cleanup = time.Minute

var errRemoved = errors.New("it was removed")

// Create makes a sandbox for p and returns when its guest has called in. It is all or nothing: when
// it fails, or ctx ends first, nothing is left. progress, if not nil, receives lines that a person
// may want to see while it takes long. Of several calls with one name one wins; the others fail
// with code exists, or with Reuse wait and get the same sandbox, started if it was stopped.
func (h *Hub) Create(ctx context.Context, p Principal, spec NewSpec, progress func(line string)) (Info, error) {
	if err := p.mayMake("creating"); err != nil {
		return Info{}, err
	}
	f, err := h.plan(p, spec)
	if err != nil {
		return Info{}, err
	}
	made, err := h.planMaking(p, spec) // who may not have the directory was told so
	if err != nil {
		return Info{}, err
	}
	ctx, done := h.tasks.bound(ctx)
	defer done()
	ready := h.pooled.take
	if made.build != nil || len(made.setup) > 0 {
		ready = nil
	}
	for {
		var b *box
		var mine bool
		err := h.withKept(ctx, p.Name, "", func(kept int64) (err error) {
			b, mine, err = h.reserve(p, f, kept, spec.Reuse, ready)
			return err
		})
		if err != nil {
			return Info{}, err
		}
		if mine {
			b.making = made
			if b.get().inst.ID == "" {
				err = b.create(ctx, progress)
			} else if err = b.claim(ctx); errors.Is(err, errNotReady) {
				continue
			}
			if err != nil {
				return Info{}, err
			}
			return b.info(), nil
		}
		switch _, err := b.awake(ctx, progress); {
		case (b.isGone() || b.get().state == Deleting) && ctx.Err() == nil:
			continue // its maker gave up: now it is our turn
		case err != nil:
			return Info{}, err
		}
		return b.info(), nil
	}
}

// plan checks a spec and fills in the daemon's defaults.
func (h *Hub) plan(p Principal, spec NewSpec) (facts, error) {
	name := spec.Name
	if name == "" {
		name = "box-" + strings.ToLower(rand.Text()[:6])
	}
	if _, err := wire.ParseSandbox(name); err != nil {
		return facts{}, err
	}
	if err := h.planHost(p, &spec); err != nil {
		return facts{}, err
	}
	if err := h.planDirs(p, &spec); err != nil {
		return facts{}, err
	}
	if spec.Backend == "" {
		spec.Backend = h.options.Backend
	}
	be, err := h.backend(spec.Backend)
	if err != nil {
		return facts{}, err
	}
	life, err := h.planLife(spec, be)
	if err != nil {
		return facts{}, err
	}
	if err := h.planEnd(spec, be); err != nil {
		return facts{}, err
	}
	if spec.Network == "" && spec.Host.URI == "" {
		spec.Network, spec.Via = h.options.Network, h.options.Via
	}
	if err := h.planNetwork(p, spec); err != nil {
		return facts{}, err
	}
	if spec.Image == "" && spec.Host.URI == "" && spec.Build == nil {
		spec.Image = h.options.Image
	}
	if spec.Host.URI == "" {
		spec.Limits = spec.Limits.Or(h.options.Limits)
		spec.Isolation = cmp.Or(spec.Isolation, h.options.Isolation)
	}
	if len(spec.Env) > maxEnv {
		return facts{}, wire.Errorf(wire.CodeUsage, "%d environment variables are more than %d", len(spec.Env), maxEnv)
	}
	for _, kv := range spec.Env {
		if key, _, ok := strings.Cut(kv, "="); !ok || key == "" || len(kv) > maxEnvBytes || strings.ContainsAny(kv, "\x00\n") {
			return facts{}, wire.Errorf(wire.CodeUsage, "environment variable %q is not K=V of at most %d bytes in one line", oneLine(kv, 64), maxEnvBytes)
		}
	}
	if err := h.mayOptions(p, spec.Options); err != nil {
		return facts{}, err
	}
	if len(spec.About) > maxAbout || !utf8.ValidString(spec.About) {
		return facts{}, wire.Errorf(wire.CodeUsage, "what is said about a sandbox is UTF-8 of at most %d bytes", maxAbout)
	}
	id := newID()
	now := time.Now()
	return facts{name: name, owner: p.Name, state: Creating, since: now, created: now, life: life, end: spec.End, labels: maps.Clone(spec.Labels), spec: sandbox.Spec{
		ID: id, Name: name, Owner: p.Name, Image: spec.Image, Network: spec.Network, Via: spec.Via, Limits: spec.Limits, User: spec.User, Sudo: spec.Sudo,
		Env: spec.Env, Entrypoint: spec.Entrypoint, Trust: spec.Trust, Isolation: spec.Isolation,
		Allow: spec.Allow, Mounts: spec.Mounts, Workdir: spec.Workdir, Dir: spec.Dir, Recipe: spec.Recipe, Made: spec.sayMade(), Options: spec.Options, About: spec.About, Host: spec.Host},
		inst: sandbox.Instance{Backend: spec.Backend, Host: spec.Host}}, nil
}

// newID is one for a sandbox: 60 bits; the host name inside.
func newID() string { return strings.ToLower(rand.Text()[:12]) }

// reserve takes the name, or finds who has it. kept is what p has in images. A box that comes with
// its act begun is a new one, or one that ready has given, which has an instance already; ready may
// be nil.
func (h *Hub) reserve(p Principal, f facts, kept int64, reuse bool, ready func(facts) *box) (b *box, mine bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if b := h.names[f.name]; b != nil {
		switch {
		case b.get().owner != p.Name:
			// Saying that it exists would tell a stranger that it does. A name that cannot be had
			// has to be refused somehow.
			return nil, false, &wire.Error{Code: wire.CodeExists, Message: "the name " + f.name + " cannot be had", Hint: "choose another"}
		case !reuse:
			return nil, false, &wire.Error{Code: wire.CodeExists, Message: "there is a sandbox " + f.name + " already", Hint: "use it, rm it, or choose another name"}
		}
		return b, false, nil
	}
	if err := h.mayCreateLocked(f, kept); err != nil {
		return nil, false, err
	}
	if ready != nil {
		b = ready(f)
	}
	if b == nil {
		b = newBox(h, f.spec.ID, f)
		b.op <- struct{}{}
		h.boxes[b.id] = b
	} else {
		b.mu.Lock()
		f.inst, f.spec.ID, f.spec.Name = b.facts.inst, b.id, "" // as it was booted
		b.facts = f
		b.mu.Unlock()
	}
	h.names[f.name] = b
	return b, true, nil
}

// create carries out what reserve began, and ends the act.
func (b *box) create(ctx context.Context, progress func(string)) (err error) {
	h := b.hub
	defer b.unlock()
	f := b.get()
	if !f.isPooled() {
		defer h.pooled.SomebodyWaits()()
	}
	undo := func() {
		b.mu.Lock()
		b.gone = true
		b.mu.Unlock()
		h.unregister(b)
	}
	be, err := h.backend(f.inst.Backend)
	if err == nil {
		err = h.roomToRun(ctx, be)
	}
	var row store.Sandbox
	if err == nil {
		row, err = f.row(b.id)
	}
	if err == nil {
		err = stored(h.options.Store.Add(context.WithoutCancel(ctx), row))
	}
	if err != nil {
		undo()
		return nameTaken(f, err)
	}
	ctx, done := b.acting(ctx)
	defer done()
	if err = b.boot(ctx, f, progress); err == nil {
		b.keep()
		return nil
	}
	// Nothing is left behind, also when the caller has gone; what the engine does not let us undo
	// now is undone later.
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	var left error
	if errors.Is(err, sandbox.ErrEngine) {
		b.doubt()
	}
	if nothingMade(err) {
		left = b.erase(clean)
	} else {
		_, left = b.destroy(clean)
	}
	if left != nil {
		h.log.Error("create undone in part; the rest follows", "id", b.id, "err", left)
		// In the store, too, the name is free from here on.
		if err := b.become(clean, func(f *facts) { f.state, f.reason = Deleting, "its creation failed" }); err != nil {
			h.log.Error("create undone in part", "id", b.id, "err", err)
		}
		h.unname(b)
		h.later(b)
		return err
	}
	undo()
	return err
}

// nameTaken is err, or that the store has another sandbox of that name.
func nameTaken(f facts, err error) error {
	if errors.Is(err, store.ErrNameTaken) {
		return &wire.Error{Code: wire.CodeExists, Message: "there is a sandbox " + f.name + " already", Hint: "use it, rm it, or choose another name"}
	}
	return err
}

// nothingMade reports whether a boot failed before the backend made anything, so that there is
// nothing to ask of an engine that may be away.
func nothingMade(err error) bool {
	var boot *sandbox.BootError
	if !errors.As(err, &boot) {
		return false
	}
	switch boot.Stage {
	case "validate", "engine", "image", "connect", "host key", "login":
		return true
	}
	return false
}

// boot makes the instance and writes it down.
func (b *box) boot(ctx context.Context, f facts, progress func(string)) error {
	h := b.hub
	if err := b.takeFiles(ctx, progress); err != nil { // before there is a slot: who starts its source may wait for one
		return err
	}
	be, err := h.backend(f.inst.Backend)
	if err != nil {
		return err
	}
	if err := b.makeImage(ctx, be, progress); err != nil {
		return err
	}
	if err := b.findSetUp(ctx, be, progress); err != nil {
		return err
	}
	inst, err := b.bootInstance(ctx, be, progress)
	if err != nil {
		return err
	}
	if err := b.setUp(ctx, be, inst, progress); err != nil {
		return err
	}
	state := Running
	if f.isPooled() {
		state = Warm
	}
	return b.become(ctx, func(f *facts) { f.inst, f.state, f.reason = inst, state, "" })
}

// bootInstance has the backend make it.
func (b *box) bootInstance(ctx context.Context, be sandbox.Backend, progress func(string)) (sandbox.Instance, error) {
	h, f := b.hub, b.get()
	if err := h.slot(ctx); err != nil {
		return sandbox.Instance{}, b.bootError("create", err)
	}
	defer func() { <-h.boots }()
	if !f.isPooled() {
		if err := h.note(b.id, f); err != nil {
			return sandbox.Instance{}, stored(err)
		}
	}
	spec := f.spec
	spec.Progress = progress
	inst, err := be.Boot(ctx, spec)
	h.counts.boots.Add(1)
	if err != nil {
		h.counts.bootsFailed.Add(1)
		if cause := context.Cause(ctx); errors.Is(cause, errRemoved) {
			return inst, &shown{public: wire.Errorf(wire.CodeLost, "create %s: %v", f.name, cause), err: err}
		}
		return inst, b.bootError("create", err)
	}
	inst.Backend = f.inst.Backend
	return inst, nil
}

// slot waits for its turn to start something.
func (h *Hub) slot(ctx context.Context) error {
	select {
	case h.boots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// label is what is noted beside a sandbox's records, so that a lost store can be rebuilt.
type label struct {
	Name    string            `json:"name"`
	Owner   string            `json:"owner"`
	Created time.Time         `json:"created"`
	Spec    sandbox.Spec      `json:"spec"`
	Life    Life              `json:"life,omitzero"`
	End     End               `json:"end,omitzero"`
	Labels  map[string]string `json:"labels,omitempty"`
}

const labelFile = "sandbox.json"

func (h *Hub) note(id string, f facts) error {
	b, err := json.Marshal(label{Name: f.name, Owner: f.owner, Created: f.created, Spec: f.spec, Life: f.life, End: f.end, Labels: f.labels})
	if err != nil {
		return err
	}
	dir := h.records(id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	fresh := filepath.Join(dir, labelFile+".new")
	file, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(b)
	if err == nil {
		err = file.Sync() // it is for when all else is lost
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return os.Rename(fresh, filepath.Join(dir, labelFile))
}

// noted reads what note wrote. What is not there or not whole is not there.
func (h *Hub) noted(id string) (label, bool) {
	var l label
	b, err := os.ReadFile(filepath.Join(h.records(id), labelFile))
	if err != nil || json.Unmarshal(b, &l) != nil {
		return label{}, false
	}
	if _, err := wire.ParseSandbox(l.Name); err != nil || l.Owner == "" {
		return label{}, false
	}
	return l, true
}
