package gateway

import (
	"context"
	"strings"

	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Share gives another principal rights on one of p's sandboxes. With RightWatch it may watch
// sessions; with RightDrive it may also use terminals, commands and files, but not start, stop or
// remove the sandbox. A share never exceeds the rights of the key in use. Sharing again changes the
// rights; reduced rights end attachments at once. A principal that cannot log in gets no new share.
func (h *Hub) Share(ctx context.Context, p Principal, name, principal string,
	rights wire.Rights) error {
	sb, err := h.mine(p, name, "sharing")
	if err != nil {
		return err
	}
	switch {
	case rights != wire.RightWatch && rights != wire.RightDrive:
		return wire.Errorf(wire.CodeUsage, "rights %q: must be watch or drive",
			oneLine(string(rights), 16))
	case !validPrincipal(principal):
		return wire.Errorf(wire.CodeUsage,
			"principal %q: must be 1 to 64 letters, digits and _ . - @", oneLine(principal, 80))
	case principal == p.Name:
		return wire.Errorf(wire.CodeUsage, "sandbox %s is yours", name)
	}
	had, _ := sb.RightsOf(principal)
	if key, certificate := h.LogsIn(principal); had == "" && !key && !certificate {
		return &wire.Error{Code: wire.CodeUsage, Message: "nobody can log in as " + principal,
			Hint: `check the name, or add a line with principal="` + principal +
				`" and their key to the daemon's authorized_keys first`}
	}
	before, err := sb.Share(ctx, p.Name, principal, rights)
	if err == nil && before == wire.RightDrive && rights == wire.RightWatch {
		h.expel(ctx, sb, principal)
	}
	return err
}

// Unshare removes a share, and ends what the principal has attached or runs there. It reports
// whether there was a share.
func (h *Hub) Unshare(ctx context.Context, p Principal,
	name, principal string) (was bool, err error) {
	sb, err := h.mine(p, name, "sharing")
	if err != nil {
		return false, err
	}
	if was, err = sb.Unshare(ctx, p.Name, principal); was {
		h.expel(ctx, sb, principal)
	}
	return was, err
}

// expel ends everything that a principal has on sb.
func (h *Hub) expel(ctx context.Context, sb *lifecycle.Sandbox, principal string) {
	theirs := func(m wire.Party) bool { return m.Name == principal }
	for _, l := range sb.Sessions().All() {
		h.attachments.Disconnect(ctx, sb.Guest(), l, interrupt.ErrUnshared, theirs)
	}
	sb.CloseRelays(principal)
	for _, l := range sb.Sessions().All() {
		l.Notify() // readers without an attachment check their rights again, and are denied
	}
}

// LogsIn reports how a principal can log in, as Options.LogsIn does.
func (h *Hub) LogsIn(principal string) (key, certificate bool) {
	if h.options.LogsIn == nil {
		return true, false
	}
	return h.options.LogsIn(principal)
}

// validPrincipal applies the rule of the keys file for names of principals.
func validPrincipal(name string) bool {
	if name == "" || len(name) > 64 || strings.ContainsAny(name[:1], ".-@") {
		return false
	}
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyz"+
		"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-@") == ""
}
