package lifecycle

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Share is a principal that does not own a sandbox and may watch its sessions, or drive them, too.
type Share struct {
	Principal string      `json:"principal"`
	Rights    wire.Rights `json:"rights"`
}

// maxShares is how many principals a sandbox is shared with at most.
const maxShares = 256

// Share gives a principal rights on the sandbox, which it does not own: watch, or drive. Sharing
// again changes them; before is what they were, empty for none. The caller ends what fewer rights
// do not allow.
func (sb *Sandbox) Share(ctx context.Context, by, principal string, rights wire.Rights) (before wire.Rights, err error) {
	sb.wmu.Lock()
	defer sb.wmu.Unlock()
	if sb.isGone() {
		return "", sb.reg.NotFound(sb.Name())
	}
	sb.mu.Lock()
	before = sb.shares[principal]
	full := before == "" && len(sb.shares) >= maxShares
	sb.mu.Unlock()
	if full {
		return "", wire.Errorf(wire.CodeUnavailable, "sandbox %s is shared with %d principals, which is the most", sb.Name(), maxShares)
	}
	if err := sb.reg.options.Store.PutShare(context.WithoutCancel(ctx), store.Share{Sandbox: sb.id, Principal: principal, Rights: string(rights)}); err != nil {
		return "", stored(err)
	}
	sb.share(principal, rights)
	sb.reg.journal.add(sb.id, "share", map[string]any{"by": by, "with": principal, "rights": rights})
	return before, nil
}

// Unshare ends that, and reports whether there was anything to end. The caller ends what the
// principal has attached, and the connections of RelaysOf.
func (sb *Sandbox) Unshare(ctx context.Context, by, principal string) (was bool, err error) {
	sb.wmu.Lock()
	defer sb.wmu.Unlock()
	sb.mu.Lock()
	_, was = sb.shares[principal]
	sb.mu.Unlock()
	if !was {
		return false, nil
	}
	if err := sb.reg.options.Store.DeleteShare(context.WithoutCancel(ctx), sb.id, principal); err != nil {
		return false, stored(err)
	}
	sb.share(principal, "")
	sb.reg.journal.add(sb.id, "unshare", map[string]any{"by": by, "with": principal})
	return true, nil
}

// share makes these the rights of principal; none without any.
func (sb *Sandbox) share(principal string, rights wire.Rights) {
	sb.mu.Lock()
	sb.shares = maps.Clone(sb.shares) // readers have the old one
	if sb.shares == nil {
		sb.shares = make(map[string]wire.Rights)
	}
	if rights == "" {
		delete(sb.shares, principal)
	} else {
		sb.shares[principal] = rights
	}
	sb.mu.Unlock()
	sb.reg.board.Reshare()
}

// principals are who may see the sandbox: its owner first.
func (sb *Sandbox) principals() []string {
	owner := sb.get().Owner
	sb.mu.Lock()
	shares := sb.shares
	sb.mu.Unlock()
	return append([]string{owner}, slices.Sorted(maps.Keys(shares))...)
}

// sharedWith lists the shares by principal.
func (sb *Sandbox) sharedWith() []Share {
	sb.mu.Lock()
	shares := sb.shares
	sb.mu.Unlock()
	list := make([]Share, 0, len(shares))
	for _, name := range slices.Sorted(maps.Keys(shares)) {
		list = append(list, Share{Principal: name, Rights: shares[name]})
	}
	return list
}

// RightsOf is the most that the principal may do on sb: everything if owner is true, else its share;
// none without one.
func (sb *Sandbox) RightsOf(principal string) (rights wire.Rights, owner bool) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.record.Owner == principal {
		return wire.RightDrive, true
	}
	return sb.shares[principal], false
}

// MayStay implements attach.Sandbox.
func (sb *Sandbox) MayStay(party wire.Party) error {
	if rights, _ := sb.RightsOf(party.Name); rights != wire.RightDrive && rights != party.Rights {
		return sb.reg.NotFound(sb.Name())
	}
	return nil
}

// CloseRelays ends the connections of a principal that are relayed to the sandbox.
func (sb *Sandbox) CloseRelays(principal string) {
	for _, c := range sb.relays.of(principal) {
		c.Close()
	}
}

// relays are the connections of clients that are relayed to the sandbox. The zero value is ready.
type relays struct {
	mu  sync.Mutex
	all map[*connect.Conn]string // guarded by mu; whose each is
}

// add notes a connection of principal until it has ended; ended is then called.
func (r *relays) add(c *connect.Conn, principal string, ended func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = make(map[*connect.Conn]string)
	}
	r.all[c] = principal
	go func() { // ends with the connection, which its owner closes
		_ = c.Wait()
		ended()
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.all, c)
	}()
}

func (r *relays) of(principal string) (list []*connect.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c, whose := range r.all {
		if whose == principal {
			list = append(list, c)
		}
	}
	return list
}

// any is whose connections there are: one of them, or nobody's.
func (r *relays) any() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, whose := range r.all {
		return whose
	}
	return ""
}

// close ends them: their sandbox does not answer.
func (r *relays) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.all {
		c.Close()
	}
}

// hold tells them that their peer is frozen, or goes on.
func (r *relays) hold(frozen bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.all {
		c.Hold(frozen)
	}
}
