package lifecycle

import (
	"context"
	"fmt"
	"slices"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// MayAllow says why the owner may not open entry to the sandbox, or nothing.
func (sb *Sandbox) MayAllow(entry string) error {
	f := sb.get()
	return sb.reg.options.mayAllow(f.Owner, f.Instance.Network, []string{entry})
}

// Allow opens entries, as of egress.Rules, to a sandbox that has a policy, from now on.
func (sb *Sandbox) Allow(ctx context.Context, by string, entries []string) (Info, error) {
	return sb.changeAllow(ctx, by, "allow", entries, func(f Record, entries []string) ([]string, error) {
		if err := sb.reg.options.mayAllow(f.Owner, f.Instance.Network, entries); err != nil {
			return nil, err
		}
		all := slices.Clone(f.Allow)
		for _, entry := range entries {
			if !slices.Contains(all, entry) {
				all = append(all, entry)
			}
		}
		if len(all) > maxAllow {
			return nil, wire.Errorf(wire.CodeUsage, "%d entries to allow are more than %d", len(all), maxAllow)
		}
		return all, nil
	})
}

// Disallow takes entries back that Allow, or the making of the sandbox, opened to it: all of them,
// or none when one is not there. Connections that nothing else allows end.
func (sb *Sandbox) Disallow(ctx context.Context, by string, entries []string) (Info, error) {
	return sb.changeAllow(ctx, by, "disallow", entries, func(f Record, entries []string) ([]string, error) {
		left := slices.Clone(f.Allow)
		for _, entry := range entries {
			at := slices.Index(left, entry)
			if at < 0 {
				return nil, &wire.Error{Code: wire.CodeNotFound, Message: fmt.Sprintf("%s is not among what sandbox %s is allowed", oneLine(entry, 200), f.Name),
					Hint: "see: sandboxd describe " + f.Name + "; what the daemon's configuration allows to all is taken back there"}
			}
			left = slices.Delete(left, at, at+1)
		}
		return left, nil
	})
}

// changeAllow makes what change returns the list of a sandbox. Entries and the list that
// change gets are canonical.
func (sb *Sandbox) changeAllow(ctx context.Context, by, act string, entries []string, change func(Record, []string) ([]string, error)) (Info, error) {
	reg := sb.reg
	entries, err := canonical(entries)
	if err != nil {
		return Info{}, err
	}
	err = sb.act(ctx, func(ctx context.Context, f Record) error {
		if !f.Instance.Network.Carried() {
			return &wire.Error{Code: wire.CodeUsage, Message: fmt.Sprintf("sandbox %s has network %s: there is nothing to allow", f.Name, f.Instance.Network),
				Hint: "make one with --network filtered or allowlist"}
		}
		if f.Allow, err = canonical(f.Allow); err != nil {
			return err
		}
		all, err := change(f, entries)
		if err != nil {
			return err
		}
		policy, err := reg.options.newPolicy(f.Owner, f.Instance.Network, all)
		if err != nil {
			return err
		}
		if err := sb.become(ctx, func(f *Record) { f.Allow = all }); err != nil {
			return err
		}
		reg.journal.add(sb.id, act, map[string]any{"by": by, "entries": entries})
		sb.network.SetPolicy(policy)
		sb.sessions.Unblocked()
		return nil
	})
	if err != nil {
		return Info{}, err
	}
	return sb.Info(), nil
}
