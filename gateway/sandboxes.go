package gateway

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/pool"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// reachable returns the sandbox called name that is p's or shared with it, and p with the rights
// that it has there. need is what the act takes; what names it in the refusal. For everybody else
// the sandbox does not exist.
func (h *Hub) reachable(p Principal, name string, need wire.Rights, what string) (*lifecycle.Sandbox, Principal, error) {
	sb := h.registry.Find(name)
	if sb == nil {
		return nil, p, h.registry.NotFound(name)
	}
	rights, owner := sb.RightsOf(p.Name)
	switch {
	case rights == "":
		return nil, p, h.registry.NotFound(name)
	case owner:
		return sb, p, nil
	case need == wire.RightDrive && rights == wire.RightWatch:
		return nil, p, forbidden(name, what, "its owner can let you: sandboxd share "+name+" "+p.Name+" --drive")
	case rights == wire.RightWatch:
		p.Rights = wire.RightWatch
	}
	return sb, p, nil
}

// find returns p's own sandbox called name. A principal that it is shared with gets an error with
// code denied, everybody else one with code not_found.
func (h *Hub) find(p Principal, name string) (*lifecycle.Sandbox, error) {
	sb, _, err := h.reachable(p, name, wire.RightWatch, "")
	if err != nil {
		return nil, err
	}
	if owner := sb.Owner(); owner != p.Name {
		return nil, forbidden(name, "what is its owner's to do", "ask "+owner)
	}
	return sb, nil
}

// mine is find for an act that a read-only key may not do.
func (h *Hub) mine(p Principal, name, act string) (*lifecycle.Sandbox, error) {
	sb, err := h.find(p, name)
	if err != nil {
		return nil, err
	}
	return sb, p.mayMake(act)
}

func forbidden(name, what, hint string) error {
	e := wire.Errorf(wire.CodeDenied, "sandbox %s is shared with you without %s", name, what)
	e.Hint = hint
	return e
}

// Create makes a sandbox for p, as lifecycle.Registry.Create does.
func (h *Hub) Create(ctx context.Context, p Principal, spec lifecycle.NewSpec, progress func(line string)) (lifecycle.Info, error) {
	if err := p.mayMake("creating"); err != nil {
		return lifecycle.Info{}, err
	}
	return h.registry.Create(ctx, p.Name, spec, progress)
}

// Prepare returns an image for p's sandboxes that has what spec.Setup makes of the image of spec.
func (h *Hub) Prepare(ctx context.Context, p Principal, spec lifecycle.NewSpec, progress func(line string)) (image string, err error) {
	if err := p.mayMake("creating"); err != nil {
		return "", err
	}
	return h.registry.Prepare(ctx, p.Name, spec, progress)
}

// Get returns one sandbox of p, or one that is shared with it.
func (h *Hub) Get(ctx context.Context, p Principal, name string) (lifecycle.Info, error) {
	sb, _, err := h.reachable(p, name, wire.RightWatch, "")
	if err != nil {
		return lifecycle.Info{}, err
	}
	return sb.Info(), nil
}

// List returns p's sandboxes and those that are shared with it, by name.
func (h *Hub) List(ctx context.Context, p Principal) ([]lifecycle.Info, error) {
	all := []lifecycle.Info{}
	for _, sb := range h.registry.All() {
		if rights, _ := sb.RightsOf(p.Name); rights != "" {
			all = append(all, sb.Info())
		}
	}
	slices.SortFunc(all, func(a, b lifecycle.Info) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
	})
	return all, nil
}

// Describe gathers what there is to say about a sandbox. It answers also when the sandbox does not.
func (h *Hub) Describe(ctx context.Context, p Principal, name string) (lifecycle.Description, error) {
	sb, _, err := h.reachable(p, name, wire.RightWatch, "")
	if err != nil {
		return lifecycle.Description{}, err
	}
	return sb.Describe(ctx)
}

// DescribePackages is Describe with the packages of a sandbox that runs, for a principal that may
// run commands there. It takes a second.
func (h *Hub) DescribePackages(ctx context.Context, p Principal, name string) (lifecycle.Description, error) {
	sb, p, err := h.reachable(p, name, wire.RightDrive, "listing its packages")
	if err == nil {
		err = p.mayMake("listing packages")
	}
	if err != nil {
		return lifecycle.Description{}, err
	}
	return sb.DescribePackages(ctx)
}

// Remove destroys a sandbox, its files and its records. A creation under way is given up. When ctx
// ends first, the removal goes on.
func (h *Hub) Remove(ctx context.Context, p Principal, name string) (lifecycle.Removal, error) {
	sb, err := h.mine(p, name, "removing")
	if err != nil {
		return lifecycle.Removal{}, err
	}
	return sb.Remove(ctx)
}

// Start starts a stopped, broken or lost sandbox again with its files, and resumes a paused one.
func (h *Hub) Start(ctx context.Context, p Principal, name string, progress func(line string)) (lifecycle.Info, error) {
	sb, err := h.mine(p, name, "starting")
	if err != nil {
		return lifecycle.Info{}, err
	}
	return sb.Start(ctx, progress)
}

// Stop ends all processes of a sandbox; its files stay. Stopping what is stopped is not an error.
func (h *Hub) Stop(ctx context.Context, p Principal, name string) error {
	sb, err := h.mine(p, name, "stopping")
	if err != nil {
		return err
	}
	return sb.Stop(ctx, p.Name)
}

// Pause freezes all processes of a sandbox where they are. Pausing what is paused is not an error.
func (h *Hub) Pause(ctx context.Context, p Principal, name string) error {
	sb, err := h.mine(p, name, "pausing")
	if err != nil {
		return err
	}
	return sb.Pause(ctx, p.Name)
}

// Resume lets a paused sandbox go on. Resuming what runs is not an error.
func (h *Hub) Resume(ctx context.Context, p Principal, name string) error {
	sb, err := h.mine(p, name, "resuming")
	if err != nil {
		return err
	}
	return sb.Resume(ctx)
}

// Rescue kills every process of a sandbox but its guest, and returns how many. Files stay.
func (h *Hub) Rescue(ctx context.Context, p Principal, name string) (killed int, err error) {
	sb, err := h.mine(p, name, "rescuing")
	if err != nil {
		return 0, err
	}
	return sb.Rescue(ctx, p.Name)
}

// SetEnd gives a sandbox another end; the zero End takes it away.
func (h *Hub) SetEnd(ctx context.Context, p Principal, name string, end lifecycle.End) (lifecycle.Info, error) {
	sb, err := h.mine(p, name, "saying when it ends")
	if err != nil {
		return lifecycle.Info{}, err
	}
	return sb.SetEnd(ctx, p.Name, end)
}

// SetDisk changes the limit of disk of a sandbox, in bytes, whether it runs or not.
func (h *Hub) SetDisk(ctx context.Context, p Principal, name string, limit int64) error {
	sb, err := h.mine(p, name, "changing limits")
	if err != nil {
		return err
	}
	return sb.SetDisk(ctx, limit)
}

// Snapshot keeps the files of a sandbox as an image of p's, and returns its name. tag is a DNS
// label; empty is the time.
func (h *Hub) Snapshot(ctx context.Context, p Principal, name, tag string) (image string, err error) {
	sb, err := h.mine(p, name, "snapshots")
	if err != nil {
		return "", err
	}
	return sb.Snapshot(ctx, p.Name, tag)
}

// Fork makes another sandbox of p's, called fork, as name was made and with the files that it has
// now.
func (h *Hub) Fork(ctx context.Context, p Principal, name, fork string, progress func(line string)) (lifecycle.Info, error) {
	sb, err := h.mine(p, name, "creating")
	if err != nil {
		return lifecycle.Info{}, err
	}
	return sb.Fork(ctx, p.Name, fork, progress)
}

// Allow opens entries, as of egress.Rules, to a sandbox that has a policy, from now on.
func (h *Hub) Allow(ctx context.Context, p Principal, name string, entries []string) (lifecycle.Info, error) {
	sb, err := h.mine(p, name, "allowing connections")
	if err != nil {
		return lifecycle.Info{}, err
	}
	return sb.Allow(ctx, p.Name, entries)
}

// Disallow takes entries back: all of them, or none when one is not there. Connections that nothing
// else allows end.
func (h *Hub) Disallow(ctx context.Context, p Principal, name string, entries []string) (lifecycle.Info, error) {
	sb, err := h.mine(p, name, "allowing connections")
	if err != nil {
		return lifecycle.Info{}, err
	}
	return sb.Disallow(ctx, p.Name, entries)
}

// MayAllow says why p may not open entry to a sandbox, or nothing.
func (h *Hub) MayAllow(p Principal, name, entry string) error {
	sb, err := h.mine(p, name, "allowing connections")
	if err != nil {
		return err
	}
	return sb.MayAllow(entry)
}

// MayNarrow says why a file for whose contents nobody here answers may not ask for the network and
// the limits of spec: it may ask for less than the daemon's defaults, and never for more.
func (h *Hub) MayNarrow(file string, spec lifecycle.NewSpec) error {
	return h.registry.Options().MayNarrow(file, spec)
}

// OpenDir opens a directory of this machine that p may mount, to read in it, and returns its path
// without links. The caller closes it.
func (h *Hub) OpenDir(p Principal, path string) (*os.Root, string, error) {
	return h.registry.Options().OpenDir(p.Name, path)
}

// Events returns the newest limit events of a sandbox, oldest first.
func (h *Hub) Events(ctx context.Context, p Principal, name string, limit int) ([]store.Event, error) {
	sb, err := h.find(p, name)
	if err != nil {
		return nil, err
	}
	return sb.Events(ctx, limit)
}

// Allowances returns what p's sandboxes have of what they may, and for the admin what all owners'
// have.
func (h *Hub) Allowances(ctx context.Context, p Principal) ([]lifecycle.Allowance, error) {
	return h.registry.Allowances(ctx, p.Name)
}

// Counts are for the admin alone: who counts what others do learns something of it.
func (h *Hub) Counts(p Principal) (lifecycle.Counts, error) {
	if p.Name != h.options.Owner {
		return lifecycle.Counts{}, &wire.Error{Code: wire.CodeDenied, Message: "counts of all sandboxes are for the admin"}
	}
	n := h.registry.Counts()
	n.Hook = h.hook.Counts()
	return n, nil
}

// Pool returns how many pooled sandboxes there are, by image.
func (h *Hub) Pool() []pool.Info { return h.registry.Pool() }

// Drain removes the pooled sandboxes, and none is booted ahead until the daemon is started again.
// It is for the admin.
func (h *Hub) Drain(ctx context.Context, p Principal) error {
	if p.Name != h.options.Owner || p.mayMake("removing") != nil {
		return &wire.Error{Code: wire.CodeDenied, Message: "draining the pool is for the admin"}
	}
	return h.registry.Drain(ctx)
}

// KeepPooled keeps size sandboxes made by spec for p's next calls of Create with that spec, for so
// long from now. use is what for; what was kept for the same use and made by another spec goes.
func (h *Hub) KeepPooled(p Principal, use string, spec lifecycle.NewSpec, size int, long time.Duration) error {
	if err := p.mayMake("creating"); err != nil {
		return err
	}
	return h.registry.KeepPooled(p.Name, use, spec, size, long)
}
