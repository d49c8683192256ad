package lifecycle

import (
	"context"
	"fmt"
	"slices"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// MayAllow returns nil if the owner may add entry to the sandbox's network policy, otherwise why
// not.
func (sb *Sandbox) MayAllow(entry string) error {
	f := sb.get()
	return sb.reg.options.mayAllow(f.Owner, f.Instance.Network, []string{entry})
}

// Allow adds entries to the sandbox's network policy. An entry is as in egress.Rules.
func (sb *Sandbox) Allow(ctx context.Context, by string, entries []string) (Info, error) {
	return sb.changeAllow(ctx, by, "allow", entries,
		func(f Record, entries []string) ([]string, error) {
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
				return nil, wire.Errorf(wire.CodeUsage, "allow: %d entries; the limit is %d",
					len(all),
					maxAllow)
			}
			return all, nil
		})
}

// Disallow removes entries from the sandbox's network policy: all of them, or none if one is
// missing. Connections that no other entry allows end.
func (sb *Sandbox) Disallow(ctx context.Context, by string, entries []string) (Info, error) {
	return sb.changeAllow(ctx, by, "disallow", entries,
		func(f Record, entries []string) ([]string, error) {
			left := slices.Clone(f.Allow)
			for _, entry := range entries {
				at := slices.Index(left, entry)
				if at < 0 {
					return nil, &wire.Error{Code: wire.CodeNotFound,
						Message: fmt.Sprintf("allow: no entry %s in sandbox %s",
							oneLine(entry, 200), f.Name),
						Hint: "list the entries: sandboxd describe " + f.Name +
							"; entries of the daemon's configuration are removed there"}
				}
				left = slices.Delete(left, at, at+1)
			}
			return left, nil
		})
}

// changeAllow stores the list that change returns and applies it. The entries and the list that
// change receives are canonical.
func (sb *Sandbox) changeAllow(ctx context.Context, by, act string, entries []string,
	change func(Record, []string) ([]string, error)) (Info, error) {
	reg := sb.reg
	entries, err := canonical(entries)
	if err != nil {
		return Info{}, err
	}
	err = sb.act(ctx, func(ctx context.Context, f Record) error {
		if !f.Instance.Network.Carried() {
			return &wire.Error{Code: wire.CodeUsage,
				Message: fmt.Sprintf("sandbox %s: network %s has no allow list", f.Name,
					f.Instance.Network),
				Hint: "create one with --network filtered or allowlist"}
		}
		if f.Allow, err = canonical(f.Allow); err != nil {
			return err
		}
		all, err := change(f, entries)
		if err != nil {
			return err
		}
		if _, err := reg.options.newPolicy(f.Owner, f.Instance.Network, all, nil); err != nil {
			return err
		}
		if err := sb.transition(ctx, func(f *Record) { f.Allow = all }); err != nil {
			return err
		}
		reg.journal.add(sb.id, act, map[string]any{"by": by, "entries": entries})
		err = sb.network.refresh()
		sb.sessions.Unblocked()
		return err
	})
	if err != nil {
		return Info{}, err
	}
	return sb.Info(), nil
}
