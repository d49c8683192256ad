package gateway

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/sandboxd/sandboxd/gateway/attach"
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

// Share lets another principal find one of p's sandboxes by its name and watch its sessions or,
// with RightDrive, work in it: terminals, commands and files, but not its life. What a share allows
// never exceeds what the key does that is used. Sharing again changes the rights; fewer end what is
// attached at once. With a principal that cannot log in nothing new is shared.
func (h *Hub) Share(ctx context.Context, p Principal, name, principal string, rights wire.Rights) error {
	b, err := h.mine(p, name, "sharing")
	if err != nil {
		return err
	}
	switch {
	case rights != wire.RightWatch && rights != wire.RightDrive:
		return wire.Errorf(wire.CodeUsage, "rights %q are neither watch nor drive", oneLine(string(rights), 16))
	case !validPrincipal(principal):
		return wire.Errorf(wire.CodeUsage, "principal %q is not 1 to 64 letters, digits and _ . - @", oneLine(principal, 80))
	case principal == p.Name:
		return wire.Errorf(wire.CodeUsage, "sandbox %s is yours", name)
	}
	b.wmu.Lock()
	defer b.wmu.Unlock()
	if b.isGone() {
		return h.notFound(name)
	}
	b.mu.Lock()
	before, had := b.shares[principal]
	full := !had && len(b.shares) >= maxShares
	b.mu.Unlock()
	if full {
		return wire.Errorf(wire.CodeUnavailable, "sandbox %s is shared with %d principals, which is the most", name, maxShares)
	}
	if key, certificate := h.LogsIn(principal); !had && !key && !certificate {
		return &wire.Error{Code: wire.CodeUsage, Message: "nobody can log in as " + principal,
			Hint: `check the name, or add a line with principal="` + principal + `" and their key to the daemon's authorized_keys first`}
	}
	if err := h.options.Store.PutShare(context.WithoutCancel(ctx), store.Share{Sandbox: b.id, Principal: principal, Rights: string(rights)}); err != nil {
		return stored(err)
	}
	b.share(principal, rights)
	h.journal.add(b.id, "share", map[string]any{"by": p.Name, "with": principal, "rights": rights})
	if before == wire.RightDrive && rights == wire.RightWatch {
		b.expel(ctx, principal)
	}
	return nil
}

// LogsIn says how a principal can log in, as Options.LogsIn does.
func (h *Hub) LogsIn(principal string) (key, certificate bool) {
	if h.options.LogsIn == nil {
		return true, false
	}
	return h.options.LogsIn(principal)
}

// Unshare ends that, and at once what the principal has attached or runs there. It reports whether
// there was anything to end.
func (h *Hub) Unshare(ctx context.Context, p Principal, name, principal string) (was bool, err error) {
	b, err := h.mine(p, name, "sharing")
	if err != nil {
		return false, err
	}
	b.wmu.Lock()
	defer b.wmu.Unlock()
	b.mu.Lock()
	_, was = b.shares[principal]
	b.mu.Unlock()
	if !was {
		return false, nil
	}
	if err := h.options.Store.DeleteShare(context.WithoutCancel(ctx), b.id, principal); err != nil {
		return false, stored(err)
	}
	b.share(principal, "")
	h.journal.add(b.id, "unshare", map[string]any{"by": p.Name, "with": principal})
	b.expel(ctx, principal)
	return true, nil
}

// validPrincipal bounds the names of principals as the keys file does.
func validPrincipal(name string) bool {
	if name == "" || len(name) > 64 || strings.ContainsAny(name[:1], ".-@") {
		return false
	}
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-@") == ""
}

// share makes these the rights of principal; none without any.
func (b *box) share(principal string, rights wire.Rights) {
	b.mu.Lock()
	b.shares = maps.Clone(b.shares) // readers have the old one
	if b.shares == nil {
		b.shares = make(map[string]wire.Rights)
	}
	if rights == "" {
		delete(b.shares, principal)
	} else {
		b.shares[principal] = rights
	}
	b.mu.Unlock()
	b.hub.board.Reshare()
}

// principals are who may see the sandbox: its owner first.
func (b *box) principals() []string {
	owner := b.get().owner
	b.mu.Lock()
	shares := b.shares
	b.mu.Unlock()
	return append([]string{owner}, slices.Sorted(maps.Keys(shares))...)
}

// sharedWith lists the shares by principal.
func (b *box) sharedWith() []Share {
	b.mu.Lock()
	shares := b.shares
	b.mu.Unlock()
	list := make([]Share, 0, len(shares))
	for _, name := range slices.Sorted(maps.Keys(shares)) {
		list = append(list, Share{Principal: name, Rights: shares[name]})
	}
	return list
}

// rightsOf is the most that the principal may do on b: everything if owner is true, else its share;
// none without one.
func (b *box) rightsOf(principal string) (rights wire.Rights, owner bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.facts.owner == principal {
		return wire.RightDrive, true
	}
	return b.shares[principal], false
}

// reachable returns the sandbox called name that is p's or shared with it, and p with the rights
// that it has there. need is what it takes; what for is for the refusal. Whose it is not and with
// whom it is not shared, for them it is not there.
func (h *Hub) reachable(p Principal, name string, need wire.Rights, what string) (*box, Principal, error) {
	h.mu.Lock()
	b := h.names[name]
	h.mu.Unlock()
	if b == nil {
		return nil, p, h.notFound(name)
	}
	rights, owner := b.rightsOf(p.Name)
	switch {
	case rights == "":
		return nil, p, h.notFound(name)
	case owner:
		return b, p, nil
	case need == wire.RightDrive && rights == wire.RightWatch:
		return nil, p, forbidden(name, what, "its owner can let you: sandboxd share "+name+" "+p.Name+" --drive")
	case rights == wire.RightWatch:
		p.Rights = wire.RightWatch
	}
	return b, p, nil
}

func forbidden(name, what, hint string) error {
	e := wire.Errorf(wire.CodeDenied, "sandbox %s is shared with you without %s", name, what)
	e.Hint = hint
	return e
}

// expel ends everything that a principal has on b.
func (b *box) expel(ctx context.Context, principal string) {
	for _, l := range b.sessions.All() {
		b.hub.attachments.Disconnect(ctx, b, l, attach.ErrUnshared, func(m wire.Party) bool { return m.Name == principal })
	}
	for _, c := range b.relays.of(principal) {
		c.Close()
	}
	for _, l := range b.sessions.All() {
		l.Notify() // whoever reads without being attached looks again, and is denied
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

// loadShares gives every sandbox the shares that the store has.
func (h *Hub) loadShares(ctx context.Context) error {
	shares, err := h.options.Store.Shares(ctx)
	if err != nil {
		return err
	}
	for _, sh := range shares {
		if b := h.boxes[sh.Sandbox]; b != nil {
			b.share(sh.Principal, wire.Rights(sh.Rights))
		}
	}
	return nil
}
