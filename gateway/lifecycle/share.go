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

// Share gives a principal that does not own a sandbox the right to watch its sessions, or to drive
// them.
type Share struct {
	Principal string      `json:"principal"`
	Rights    wire.Rights `json:"rights"`
}

// maxShares bounds the shares of one sandbox.
const maxShares = 256

// Share gives a principal rights on the sandbox: watch or drive. before are its earlier rights,
// empty for none. The caller ends attachments that reduced rights forbid.
func (sb *Sandbox) Share(ctx context.Context, by, principal string,
	rights wire.Rights) (before wire.Rights, err error) {
	sb.wmu.Lock()
	defer sb.wmu.Unlock()
	if sb.isGone() {
		return "", sb.reg.NotFound(sb.Name())
	}
	if before = sb.shares.of(principal); before == "" && len(sb.shares.list()) >= maxShares {
		return "", wire.Errorf(wire.CodeUnavailable,
			"sandbox %s is shared with %d principals, the maximum", sb.Name(), maxShares)
	}
	if err := sb.reg.options.Store.PutShare(context.WithoutCancel(ctx), store.Share{Sandbox: sb.id,
		Principal: principal, Rights: string(rights)}); err != nil {
		return "", stored(err)
	}
	sb.shares.set(principal, rights)
	sb.reg.board.Reshare()
	sb.reg.journal.add(sb.id, "share", map[string]any{"by": by, "with": principal,
		"rights": rights})
	return before, nil
}

// Unshare removes a share and reports whether there was one. The caller ends the principal's
// attachments, and calls CloseRelays.
func (sb *Sandbox) Unshare(ctx context.Context, by, principal string) (was bool, err error) {
	sb.wmu.Lock()
	defer sb.wmu.Unlock()
	if sb.shares.of(principal) == "" {
		return false, nil
	}
	if err := sb.reg.options.Store.DeleteShare(context.WithoutCancel(ctx), sb.id,
		principal); err != nil {
		return false, stored(err)
	}
	sb.shares.set(principal, "")
	sb.reg.board.Reshare()
	sb.reg.journal.add(sb.id, "unshare", map[string]any{"by": by, "with": principal})
	return true, nil
}

// shares are the rights of principals on a sandbox of another owner. The zero value has none.
type shares struct {
	mu     sync.Mutex
	rights map[string]wire.Rights // guarded by mu
}

// set replaces the rights of principal; empty removes them.
func (s *shares) set(principal string, rights wire.Rights) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rights == nil {
		s.rights = make(map[string]wire.Rights)
	}
	if rights == "" {
		delete(s.rights, principal)
	} else {
		s.rights[principal] = rights
	}
}

// of returns the rights of principal; empty for none.
func (s *shares) of(principal string) wire.Rights {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rights[principal]
}

// list returns the shares by principal.
func (s *shares) list() []Share {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Share, 0, len(s.rights))
	for _, name := range slices.Sorted(maps.Keys(s.rights)) {
		list = append(list, Share{Principal: name, Rights: s.rights[name]})
	}
	return list
}

// principals returns who may see the sandbox, its owner first.
func (sb *Sandbox) principals() []string {
	all := []string{sb.Owner()}
	for _, share := range sb.shares.list() {
		all = append(all, share.Principal)
	}
	return all
}

// RightsOf returns the rights of principal on the sandbox, empty for none, and whether it is the
// owner.
func (sb *Sandbox) RightsOf(principal string) (rights wire.Rights, owner bool) {
	if sb.Owner() == principal {
		return wire.RightDrive, true
	}
	return sb.shares.of(principal), false
}

// CloseRelays closes the relayed connections of a principal to the sandbox.
func (sb *Sandbox) CloseRelays(principal string) {
	for _, c := range sb.guest.relays.of(principal) {
		c.Close()
	}
}

// relays are the relayed connections of clients to the sandbox. The zero value is ready.
type relays struct {
	mu  sync.Mutex
	all map[*connect.Conn]string // guarded by mu; the principal of each
}

// add tracks a connection of principal until it ends, and then calls ended.
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

// any returns the principal of one of the connections; empty without any.
func (r *relays) any() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, whose := range r.all {
		return whose
	}
	return ""
}

// close closes the connections, because the sandbox does not answer.
func (r *relays) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.all {
		c.Close()
	}
}

// hold marks the connections as frozen or not. A frozen one does not time out.
func (r *relays) hold(frozen bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.all {
		c.Hold(frozen)
	}
}
