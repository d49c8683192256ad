package gateway

import (
	"slices"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Principal is who a door let in: identity comes from the login that succeeded, never from what a
// client says.
type Principal struct {
	Name    string         // of the person or program; owns sandboxes
	Kind    wire.PartyKind // what it is to the keyboard rules
	Rights  wire.Rights    // the most that it may do on a session of its own; empty means RightDrive
	Key     string         // fingerprint of the key or certificate, for logs
	Line    string         // of the line that let it in: fingerprint of its key, or authority
	Options KeyOptions     // what that key may not do
}

// KeyOptions are the restrictions of one key (sshd(8), AUTHORIZED_KEYS FILE FORMAT). The zero value
// restricts nothing.
type KeyOptions struct {
	NoPty      bool     // no terminals
	NoForward  bool     // no TCP and unix socket forwarding either way
	NoAgent    bool     // no agent forwarding
	NoX11      bool     // no X11 forwarding
	Command    string   // runs instead of what the client asked for
	From       []string // source addresses, patterns or CIDR; checked by the door
	PermitOpen []string // host:port that may be forwarded to; none means any

	Expires time.Time // when the key, or its certificate, is no longer good; zero is never
}

// Unheld names those restrictions of a key that nobody could hold a token to; a token has no
// source, runs no command of its key's, and has terminals. Forwards, agents and X11 are not to be
// had over HTTP.
func (o KeyOptions) Unheld() (names []string) {
	if o.NoPty {
		names = append(names, "no-pty")
	}
	if o.Command != "" {
		names = append(names, "command")
	}
	if len(o.From) > 0 {
		names = append(names, "from")
	}
	return names
}

// party is how p appears on a session. kind and id tell apart the parties of one principal.
func (p Principal) party(kind wire.PartyKind, id string) wire.Party {
	return wire.Party{Name: p.Name, Kind: kind, Rights: p.rights(), ID: id}
}

func (p Principal) rights() wire.Rights {
	if p.Rights == wire.RightWatch {
		return wire.RightWatch
	}
	return wire.RightDrive
}

// mayMake refuses a principal that may only watch.
func (p Principal) mayMake(what string) error {
	if p.rights() == wire.RightWatch {
		return &wire.Error{Code: wire.CodeDenied, Message: "your key may only watch: no " + what, Hint: "use a key without role=\"watch\""}
	}
	return nil
}

// AutoCreate reports whether a login of p at a missing sandbox may create it: nil if so, else the
// one refusal that unknown and forbidden sandboxes share. It is for doors that were asked for a
// shell with a terminal; nothing else creates by login.
func (h *Hub) AutoCreate(p Principal, name string) error {
	if _, err := wire.ParseSandbox(name); err != nil {
		return err
	}
	switch {
	case p.mayMake("creating") != nil,
		h.options.Principals != nil && h.options.Principals() != 1,
		// ssh without a user name sends the local login: that is no wish for a sandbox.
		slices.Contains(h.options.Logins, name):
		return h.registry.NotFound(name)
	}
	return nil
}
