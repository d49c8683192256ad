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

// reachable returns the sandbox called name that p owns or that is shared with p, and p with its
// rights there. need is the right that the act takes; what names the act in errors. A principal
// without any right gets an error with code not_found.
func (h *Hub) reachable(p Principal, name string, need wire.Rights,
	what string) (*lifecycle.Sandbox, Principal, error) {
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
		return nil, p, forbidden(name, what, "its owner can let you: sandboxd share "+name+" "+
			p.Name+" --drive")
	case rights == wire.RightWatch:
		p.Rights = wire.RightWatch
	}
	return sb, p, nil
}

// find returns p's own sandbox called name. Principals that it is shared with get an error with
// code denied, all others one with code not_found.
func (h *Hub) find(p Principal, name string) (*lifecycle.Sandbox, error) {
	sb, _, err := h.reachable(p, name, wire.RightWatch, "")
	if err != nil {
		return nil, err
	}
	if owner := sb.Owner(); owner != p.Name {
		return nil, forbidden(name, "the rights of its owner", "ask "+owner)
	}
	return sb, nil
}

// mine is find for an act that read-only keys may not do.
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

// Create creates a sandbox for p, as lifecycle.Registry.Create does.
func (h *Hub) Create(ctx context.Context, p Principal, spec lifecycle.NewSpec,
	progress func(line string)) (lifecycle.Info, error) {
	if err := p.mayMake("creating"); err != nil {
		return lifecycle.Info{}, err
	}
	return h.registry.Create(ctx, p.Name, spec, progress)
}

// Prepare returns an image for p's sandboxes: the image of spec after the commands of spec.Setup.
func (h *Hub) Prepare(ctx context.Context, p Principal, spec lifecycle.NewSpec,
	progress func(line string)) (image string, err error) {
	if err := p.mayMake("creating"); err != nil {
		return "", err
	}
	return h.registry.Prepare(ctx, p.Name, spec, progress)
}

// Get returns a sandbox that p owns or that is shared with p.
func (h *Hub) Get(ctx context.Context, p Principal, name string) (lifecycle.Info, error) {
	sb, _, err := h.reachable(p, name, wire.RightWatch, "")
	if err != nil {
		return lifecycle.Info{}, err
	}
	return sb.Info(), nil
}

// List returns the sandboxes that p owns or that are shared with p, by name.
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

// Describe returns everything known about a sandbox, even if the sandbox itself does not answer.
func (h *Hub) Describe(ctx context.Context, p Principal,
	name string) (lifecycle.Description, error) {
	sb, _, err := h.reachable(p, name, wire.RightWatch, "")
	if err != nil {
		return lifecycle.Description{}, err
	}
	return sb.Describe(ctx)
}

// DescribePackages is Describe with the installed packages of a running sandbox. It runs programs
// there, which takes about a second, so p must be allowed to run commands.
func (h *Hub) DescribePackages(ctx context.Context, p Principal,
	name string) (lifecycle.Description, error) {
	sb, p, err := h.reachable(p, name, wire.RightDrive, "listing its packages")
	if err == nil {
		err = p.mayMake("listing packages")
	}
	if err != nil {
		return lifecycle.Description{}, err
	}
	return sb.DescribePackages(ctx)
}

// Remove destroys a sandbox, its files and its records, and aborts a creation under way. The
// removal continues when ctx ends first.
func (h *Hub) Remove(ctx context.Context, p Principal, name string) (lifecycle.Removal, error) {
	sb, err := h.mine(p, name, "removing")
	if err != nil {
		return lifecycle.Removal{}, err
	}
	return sb.Remove(ctx)
}

// Start starts a stopped, broken or lost sandbox with its files, and resumes a paused one.
func (h *Hub) Start(ctx context.Context, p Principal, name string,
	progress func(line string)) (lifecycle.Info, error) {
	sb, err := h.mine(p, name, "starting")
	if err != nil {
		return lifecycle.Info{}, err
	}
	return sb.Start(ctx, p.Name, progress)
}

// Stop ends all processes of a sandbox and keeps its files. Stopping a stopped sandbox is not an
// error.
func (h *Hub) Stop(ctx context.Context, p Principal, name string) error {
	sb, err := h.mine(p, name, "stopping")
	if err != nil {
		return err
	}
	return sb.Stop(ctx, p.Name)
}

// Pause freezes all processes of a sandbox. With hold, only Resume and Start continue it. Pausing a
// paused sandbox is not an error.
func (h *Hub) Pause(ctx context.Context, p Principal, name string, hold bool) error {
	sb, err := h.mine(p, name, "pausing")
	if err != nil {
		return err
	}
	return sb.Pause(ctx, p.Name, hold)
}

// Resume unfreezes a paused sandbox. Resuming a running one is not an error.
func (h *Hub) Resume(ctx context.Context, p Principal, name string) error {
	sb, err := h.mine(p, name, "resuming")
	if err != nil {
		return err
	}
	return sb.Resume(ctx, p.Name)
}

// Rescue kills every process of a sandbox except its guest, and returns how many. Files stay.
func (h *Hub) Rescue(ctx context.Context, p Principal, name string) (killed int, err error) {
	sb, err := h.mine(p, name, "rescuing")
	if err != nil {
		return 0, err
	}
	return sb.Rescue(ctx, p.Name)
}

// SetEnd replaces the scheduled end of a sandbox; the zero End removes it.
func (h *Hub) SetEnd(ctx context.Context, p Principal, name string,
	end lifecycle.End) (lifecycle.Info, error) {
	sb, err := h.mine(p, name, "changing its end")
	if err != nil {
		return lifecycle.Info{}, err
	}
	return sb.SetEnd(ctx, p.Name, end)
}

// SetDisk changes a sandbox's disk limit, in bytes, in every state.
func (h *Hub) SetDisk(ctx context.Context, p Principal, name string, limit int64) error {
	sb, err := h.mine(p, name, "changing limits")
	if err != nil {
		return err
	}
	return sb.SetDisk(ctx, limit)
}

// Snapshot saves the files of a sandbox as an image of p's, and returns the image's name. tag is a
// DNS label; empty means the current time.
func (h *Hub) Snapshot(ctx context.Context, p Principal,
	name, tag string) (image string, err error) {
	sb, err := h.mine(p, name, "snapshots")
	if err != nil {
		return "", err
	}
	return sb.Snapshot(ctx, p.Name, tag)
}

// Fork creates another sandbox of p's, called fork, with the spec of name and a copy of its files.
func (h *Hub) Fork(ctx context.Context, p Principal, name, fork string,
	progress func(line string)) (lifecycle.Info, error) {
	sb, err := h.mine(p, name, "creating")
	if err != nil {
		return lifecycle.Info{}, err
	}
	return sb.Fork(ctx, p.Name, fork, progress)
}

// Allow adds entries to a sandbox's network policy. An entry is as in egress.Rules.
func (h *Hub) Allow(ctx context.Context, p Principal, name string,
	entries []string) (lifecycle.Info, error) {
	sb, err := h.mine(p, name, "allowing connections")
	if err != nil {
		return lifecycle.Info{}, err
	}
	return sb.Allow(ctx, p.Name, entries)
}

// Disallow removes entries from a sandbox's network policy: all of them, or none if one is missing.
// Connections that no other entry allows end.
func (h *Hub) Disallow(ctx context.Context, p Principal, name string,
	entries []string) (lifecycle.Info, error) {
	sb, err := h.mine(p, name, "allowing connections")
	if err != nil {
		return lifecycle.Info{}, err
	}
	return sb.Disallow(ctx, p.Name, entries)
}

// MayAllow returns nil if p may add entry to a sandbox's network policy, otherwise why not.
func (h *Hub) MayAllow(p Principal, name, entry string) error {
	sb, err := h.mine(p, name, "allowing connections")
	if err != nil {
		return err
	}
	return sb.MayAllow(entry)
}

// MayNarrow returns nil if an untrusted file may ask for the network and the limits of spec: less
// than the daemon's defaults, never more.
func (h *Hub) MayNarrow(file string, spec lifecycle.NewSpec) error {
	return h.registry.Options().MayNarrow(file, spec)
}

// OpenDir opens a directory of this machine that p may mount, for reading, and returns its path
// without symbolic links. The caller closes it.
func (h *Hub) OpenDir(p Principal, path string) (*os.Root, string, error) {
	return h.registry.Options().OpenDir(p.Name, path)
}

// Events returns the newest limit events of a sandbox, oldest first.
func (h *Hub) Events(ctx context.Context, p Principal, name string,
	limit int) ([]store.Event, error) {
	sb, err := h.find(p, name)
	if err != nil {
		return nil, err
	}
	return sb.Events(ctx, limit)
}

// Allowances returns the usage and limits of p's sandboxes, and for the admin those of all owners
// together.
func (h *Hub) Allowances(ctx context.Context, p Principal) ([]lifecycle.Allowance, error) {
	return h.registry.Allowances(ctx, p.Name)
}

// Counts returns totals over all sandboxes. Only the admin may read them, because they reveal what
// others do.
func (h *Hub) Counts(p Principal) (lifecycle.Counts, error) {
	if p.Name != h.options.Owner {
		return lifecycle.Counts{}, &wire.Error{Code: wire.CodeDenied,
			Message: "counts of all sandboxes: only the admin may read them"}
	}
	n := h.registry.Counts()
	n.Hook = h.hook.Counts()
	return n, nil
}

// Pool returns the number of pooled sandboxes, by image.
func (h *Hub) Pool() []pool.Info { return h.registry.Pool() }

// Drain removes the pooled sandboxes and boots none until the daemon restarts. Only the admin may
// call it.
func (h *Hub) Drain(ctx context.Context, p Principal) error {
	if p.Name != h.options.Owner || p.mayMake("removing") != nil {
		return &wire.Error{Code: wire.CodeDenied, Message: "pool: only the admin may drain it"}
	}
	return h.registry.Drain(ctx)
}

// KeepPooled keeps size sandboxes of spec ready for p's next calls of Create with the same spec,
// for the duration long. use names the purpose: a call replaces what an earlier one with the same
// use and another spec asked for.
func (h *Hub) KeepPooled(p Principal, use string, spec lifecycle.NewSpec, size int,
	long time.Duration) error {
	if err := p.mayMake("creating"); err != nil {
		return err
	}
	return h.registry.KeepPooled(p.Name, use, spec, size, long)
}
