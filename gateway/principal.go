package gateway

import (
	"slices"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Principal is an authenticated client. A server takes its fields from the login, never from what
// the client says about itself.
type Principal struct {
	Name    string         // of the person or program; owners of sandboxes are named so
	Kind    wire.PartyKind // person or agent, for the rules of the keyboard
	Rights  wire.Rights    // upper bound on its own sessions; empty means RightDrive
	Key     string         // fingerprint of the key or certificate, for logs
	Line    string         // of the keys file: fingerprint of the key or authority listed there
	Options KeyOptions     // restrictions of that key
}

// KeyOptions are the restrictions of one key (sshd(8), AUTHORIZED_KEYS FILE FORMAT). The zero value
// restricts nothing.
type KeyOptions struct {
	NoPty      bool     // no terminals
	NoForward  bool     // no TCP and unix socket forwarding either way
	NoAgent    bool     // no agent forwarding
	NoX11      bool     // no X11 forwarding
	Command    string   // runs instead of the client's command
	From       []string // source addresses, patterns or CIDR; the server checks them
	PermitOpen []string // host:port that may be forwarded to; empty means any

	Expires time.Time // when the key or its certificate expires; zero means never
}

// Unheld returns the restrictions of a key that a token cannot enforce: a token has no source
// address and no forced command, and it allows terminals. Restrictions of forwards, agents and X11
// are not listed, because HTTP offers none of these.
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

// party returns the party that p is on a session. kind and id tell apart the parties of one
// principal.
func (p Principal) party(kind wire.PartyKind, id string) wire.Party {
	return wire.Party{Name: p.Name, Kind: kind, Rights: p.rights(), ID: id}
}

// rights returns p's rights, with the default filled in.
func (p Principal) rights() wire.Rights {
	if p.Rights == wire.RightWatch {
		return wire.RightWatch
	}
	return wire.RightDrive
}

// mayMake returns an error with code denied if p is read-only. what names the act.
func (p Principal) mayMake(what string) error {
	if p.rights() == wire.RightWatch {
		return &wire.Error{Code: wire.CodeDenied, Message: "your key may only watch: no " + what,
			Hint: "use a key without role=\"watch\""}
	}
	return nil
}

// AutoCreate returns nil if a login of p may create the missing sandbox called name. Otherwise it
// returns the error that unknown and forbidden sandboxes share. It is for clients that asked for a
// shell with a terminal; no other login creates a sandbox.
func (h *Hub) AutoCreate(p Principal, name string) error {
	if _, err := wire.ParseSandbox(name); err != nil {
		return err
	}
	switch {
	case p.mayMake("creating") != nil,
		h.options.Principals != nil && h.options.Principals() != 1,
		// Ssh without a user name sends the local login name, which asks for no sandbox.
		slices.Contains(h.options.Logins, name):
		return h.registry.NotFound(name)
	}
	return nil
}
