package lifecycle

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Limits of a spec, besides those that the backend checks.
const (
	maxEnv      = 64
	maxEnvBytes = 4 << 10 // bytes of one variable
	maxAbout    = 4 << 10 // bytes
)

// cleanup bounds the undoing of an act after its caller has gone.
const cleanup = time.Minute

var errRemoved = errors.New("it was removed")

// Create creates a sandbox for owner and returns when its guest has called in. If it fails or ctx
// ends first, nothing is left behind. progress, if not nil, receives lines for a person. Of
// concurrent calls with one name, one wins. The others fail with code exists, or with Reuse wait
// for the same sandbox and start it if it is stopped.
func (reg *Registry) Create(ctx context.Context, owner string, spec NewSpec,
	progress func(line string)) (Info, error) {
	f, err := reg.options.plan(owner, spec)
	if err != nil {
		return Info{}, err
	}
	// After plan has authorised the directory.
	images, err := reg.options.planImageSource(owner, spec)
	if err != nil {
		return Info{}, err
	}
	ctx, done := reg.tasks.bound(ctx)
	defer done()
	ready := reg.pooled.take
	if images.build != nil || len(images.setup) > 0 {
		ready = nil
	}
	for {
		var sb *Sandbox
		var mine bool
		err := reg.accounts.withImageBytes(ctx, owner, "", func(kept int64) (err error) {
			sb, mine, err = reg.reserve(f, kept, spec.Reuse, ready)
			return err
		})
		if err != nil {
			return Info{}, err
		}
		if mine {
			c := &creation{Sandbox: sb, imageSource: images}
			if sb.get().Instance.ID == "" {
				err = c.create(ctx, progress)
			} else if err = c.claim(ctx); errors.Is(err, errNotReady) {
				continue
			}
			if err != nil {
				return Info{}, err
			}
			return sb.Info(), nil
		}
		switch _, err := sb.ensureRunning(ctx, owner, progress); {
		case (sb.isGone() || sb.get().State == Deleting) && ctx.Err() == nil:
			continue // the other call failed: try again
		case err != nil:
			return Info{}, err
		}
		return sb.Info(), nil
	}
}

// plan checks a spec and fills in the daemon's defaults.
func (o *Options) plan(owner string, spec NewSpec) (Record, error) {
	name := spec.Name
	if name == "" {
		name = "box-" + strings.ToLower(rand.Text()[:6])
	}
	if _, err := wire.ParseSandbox(name); err != nil {
		return Record{}, err
	}
	if err := o.planHost(owner, &spec); err != nil {
		return Record{}, err
	}
	if err := o.planDirs(owner, &spec); err != nil {
		return Record{}, err
	}
	if spec.Backend == "" {
		spec.Backend = o.Backend
	}
	be, err := o.backend(spec.Backend)
	if err != nil {
		return Record{}, err
	}
	life, err := o.planLife(spec, be)
	if err != nil {
		return Record{}, err
	}
	if err := o.planEnd(spec, be); err != nil {
		return Record{}, err
	}
	if spec.Network == "" && spec.Host.URI == "" {
		spec.Network, spec.Via = o.Network, o.Via
	}
	if err := o.planNetwork(owner, spec); err != nil {
		return Record{}, err
	}
	if err := o.planSecrets(owner, name, spec); err != nil {
		return Record{}, err
	}
	if spec.Image == "" && spec.Host.URI == "" && spec.Build == nil {
		spec.Image = o.Image
	}
	if spec.Host.URI == "" {
		spec.Limits = spec.Limits.Or(o.Limits)
		spec.Isolation = cmp.Or(spec.Isolation, o.Isolation)
	}
	if len(spec.Env) > maxEnv {
		return Record{}, wire.Errorf(wire.CodeUsage, "env: %d variables; the limit is %d",
			len(spec.Env), maxEnv)
	}
	for _, kv := range spec.Env {
		if key, _, ok := strings.Cut(kv, "="); !ok || key == "" || len(kv) > maxEnvBytes ||
			strings.ContainsAny(kv, "\x00\n") {
			return Record{}, wire.Errorf(wire.CodeUsage,
				"env %q: must be K=V in one line, at most %d bytes", oneLine(kv, 64), maxEnvBytes)
		}
	}
	if err := o.mayOptions(owner, spec.Options); err != nil {
		return Record{}, err
	}
	if len(spec.About) > maxAbout || !utf8.ValidString(spec.About) {
		return Record{}, wire.Errorf(wire.CodeUsage,
			"about: not valid UTF-8, or longer than %d bytes", maxAbout)
	}
	id := newID()
	now := time.Now()
	return Record{Name: name, Owner: owner, State: Creating, Since: now, Created: now,
		Asked: Asked{
			Spec: sandbox.Spec{ID: id, Name: name, Owner: owner, Image: spec.Image,
				Network: spec.Network, Via: spec.Via, Limits: spec.Limits,
				User: spec.User, Sudo: spec.Sudo, Env: spec.Env, Entrypoint: spec.Entrypoint,
				Trust: spec.Trust, Isolation: spec.Isolation,
				Mounts: spec.Mounts, Workdir: spec.Workdir, Volume: spec.Volume,
				Options: spec.Options, Host: spec.Host},
			Allow: spec.Allow, Dir: spec.Dir, Recipe: spec.Recipe,
			ImageSource: spec.imageSourceText(), About: spec.About,
			Labels: maps.Clone(spec.Labels), NoSecrets: spec.NoSecrets, Life: life, End: spec.End},
		Instance: sandbox.Instance{Backend: spec.Backend, Host: spec.Host}}, nil
}

// newID returns a new sandbox ID of 60 random bits. It is also the host name inside.
func newID() string { return strings.ToLower(rand.Text()[:12]) }

// reserve registers f under its name, or returns the sandbox that has the name. kept is the size of
// its owner's images. With mine set, the sandbox is new or came from ready, and its act has begun;
// one from ready has an instance already. ready may be nil.
func (reg *Registry) reserve(f Record, kept int64, reuse bool,
	ready func(Record) *Sandbox) (sb *Sandbox, mine bool, err error) {
	reg.roster.mu.Lock()
	defer reg.roster.mu.Unlock()
	if sb := reg.roster.names[f.Name]; sb != nil {
		switch {
		case sb.get().Owner != f.Owner:
			// The error does not say who owns the sandbox.
			return nil, false, &wire.Error{Code: wire.CodeExists, Message: "sandbox name " +
				f.Name + " is not available", Hint: "choose another name"}
		case !reuse:
			return nil, false, nameTaken(f, store.ErrNameTaken)
		}
		return sb, false, nil
	}
	if err := reg.accounts.mayCreateLocked(f, kept); err != nil {
		return nil, false, err
	}
	if ready != nil {
		sb = ready(f)
	}
	if sb == nil {
		sb = newSandbox(reg, f.Spec.ID, f)
		sb.op <- struct{}{}
		reg.roster.all[sb.id] = sb
	} else {
		sb.mu.Lock()
		f.Instance, f.Spec.ID, f.Spec.Name = sb.record.Instance, sb.id, "" // as it was booted
		sb.record = f
		sb.mu.Unlock()
	}
	reg.roster.names[f.Name] = sb
	return sb, true, nil
}

// creation creates one sandbox whose act has begun: its image, its instance, its setup.
type creation struct {
	*Sandbox
	imageSource imageSource // the zero value is an existing image
	source      *Sandbox    // whose files a fork copies; nil unless this is a fork
}

// create finishes a creation that reserve began, and ends the act.
func (c *creation) create(ctx context.Context, progress func(string)) (err error) {
	reg := c.reg
	defer c.unlock()
	f := c.get()
	if !f.isPooled() {
		defer reg.pooled.Waiting()()
	}
	undo := func() {
		c.setGone()
		reg.unregister(c.Sandbox)
	}
	be, err := reg.options.backend(f.Instance.Backend)
	if err == nil {
		err = reg.roomToRun(ctx, be)
	}
	var row store.Sandbox
	if err == nil {
		row, err = f.row(c.id)
	}
	if err == nil {
		err = stored(reg.options.Store.Add(context.WithoutCancel(ctx), row))
	}
	if err != nil {
		undo()
		return nameTaken(f, err)
	}
	ctx, done := c.acting(ctx)
	defer done()
	if err = c.boot(ctx, f, progress); err == nil {
		c.guest.connect()
		return nil
	}
	// Undo the creation even if the caller has gone. What the engine cannot undo now, a
	// background task retries.
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	var left error
	if errors.Is(err, sandbox.ErrEngine) {
		reg.removals.markUncertain(c.Sandbox)
	}
	if c.source == nil && nothingMade(err) { // a fork has an image
		left = reg.removals.erase(clean, c.Sandbox)
	} else {
		_, left = reg.removals.destroy(clean, c.Sandbox)
	}
	if left != nil {
		reg.log.Error("create: undo incomplete, will retry", "id", c.id, "err", left)
		// From here on the name is free in the store, too.
		if err := c.transition(clean, func(f *Record) {
			f.State, f.Reason = Deleting, "its creation failed"
		}); err != nil {
			reg.log.Error("create: undo incomplete", "id", c.id, "err", err)
		}
		reg.roster.unname(c.Sandbox)
		reg.removals.retryLater(c.Sandbox)
		return err
	}
	undo()
	return err
}

// nameTaken returns err, or for store.ErrNameTaken an error with code exists.
func nameTaken(f Record, err error) error {
	if errors.Is(err, store.ErrNameTaken) {
		return &wire.Error{Code: wire.CodeExists, Message: "sandbox " + f.Name + " already exists",
			Hint: "use it, rm it, or choose another name"}
	}
	return err
}

// nothingMade reports whether a boot failed before the backend created anything. Then there is
// nothing to remove, even if the engine is away.
func nothingMade(err error) bool {
	var boot *sandbox.BootError
	if !errors.As(err, &boot) {
		return false
	}
	switch boot.Stage {
	case sandbox.StageValidate, sandbox.StageConnect, sandbox.StageHostKey, sandbox.StageLogin,
		sandbox.StageEngine, sandbox.StageImage:
		return true
	}
	return false
}

// boot creates the image and the instance, and stores the result.
func (c *creation) boot(ctx context.Context, f Record, progress func(string)) error {
	reg := c.reg
	// Before taking a slot: starting the source takes one.
	if err := c.makeForkImage(ctx, progress); err != nil {
		return err
	}
	be, err := reg.options.backend(f.Instance.Backend)
	if err != nil {
		return err
	}
	if err := c.makeImage(ctx, be, progress); err != nil {
		return err
	}
	if err := c.findSetup(ctx, be, progress); err != nil {
		return err
	}
	inst, err := c.bootInstance(ctx, be, progress)
	if err != nil {
		return err
	}
	if err := c.runSetup(ctx, be, inst, progress); err != nil {
		return err
	}
	state := Running
	if f.isPooled() {
		state = Warm
	}
	return c.transition(ctx, func(f *Record) { f.Instance, f.State, f.Reason = inst, state, "" })
}

// bootInstance boots the instance.
func (c *creation) bootInstance(ctx context.Context, be sandbox.Backend,
	progress func(string)) (sandbox.Instance, error) {
	spec := c.get().Spec
	spec.Progress = progress
	var err error
	if spec.Authorities, err = c.network.bindFirst(); err != nil {
		return sandbox.Instance{}, c.bootError("create", err)
	}
	return c.bootSpec(ctx, be, spec)
}

// bootSpec boots an instance, which has the ID of the sandbox.
func (c *creation) bootSpec(ctx context.Context, be sandbox.Backend,
	spec sandbox.Spec) (sandbox.Instance, error) {
	reg, f := c.reg, c.get()
	taken := false
	spec.Begin = func(ctx context.Context) error {
		err := reg.slot(ctx)
		taken = err == nil
		return err
	}
	defer func() {
		if taken {
			<-reg.boots
		}
	}()
	if !f.isPooled() {
		if err := reg.manifests.write(c.id, f); err != nil {
			return sandbox.Instance{}, stored(err)
		}
	}
	inst, err := be.Boot(ctx, spec)
	reg.counts.boots.Add(1)
	if err != nil {
		reg.counts.bootsFailed.Add(1)
		if cause := context.Cause(ctx); errors.Is(cause, errRemoved) {
			return inst, &publicError{public: wire.Errorf(wire.CodeLost, "create %s: %v", f.Name,
				cause), err: err}
		}
		return inst, c.bootError("create", err)
	}
	inst.Backend = f.Instance.Backend
	return inst, nil
}

// slot waits for a free slot to start an instance.
func (reg *Registry) slot(ctx context.Context) error {
	select {
	case reg.boots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
