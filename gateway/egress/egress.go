// Package egress is the user-space network of a sandbox that has no other. It takes the descriptor
// of a TUN device that was opened in the sandbox, and terminates TCP, UDP and DNS. It checks each
// connection against a policy on the address that is really dialled, and dials it from the daemon.
// Programs work unchanged: no proxy variables, no iptables, no root on the machine.
//
// The package knows no sandboxes, no guest and no configuration. Its caller opens the device and
// provides the policy.
package egress

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Addresses that the opener of the device configures, as in package wire. Queries to port 53 of any
// address are answered here; DNSAddr is the name server for resolv.conf.
var (
	// The sandbox's own address; packets from others are dropped.
	GuestAddr = netip.AddrFrom4(wire.TunGuest)
	DNSAddr   = netip.AddrFrom4(wire.TunDNS) // answers DNS only
	// Represent names inside the sandbox; have no meaning outside (RFC 2544).
	Names = netip.MustParsePrefix("198.18.0.0/15")
)

// Options configure a Stack or a Proxy. Policy is required.
type Options struct {
	Policy *Policy

	// Resolve returns the addresses of name, which is in lower case and without a final dot. A
	// *net.DNSError with IsNotFound set, or no addresses, means that the name does not exist. nil
	// means net.DefaultResolver without search domains.
	Resolve func(ctx context.Context, name string) ([]netip.Addr, error)
	// Dial connects to address, which has a port and is never a name, on network "tcp" or "udp".
	// nil means a net.Dialer. ctx ends 15 s after the program's request.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Own returns the addresses of the machine that dials, each with the length of its network. The
	// addresses are closed unless listed individually, the networks unless a range of them is
	// listed. nil means OwnAddresses. The result is cached for a few seconds.
	Own func() []netip.Prefix
	// Budget is shared by all networks; nil means unlimited. Connections limits the concurrent
	// connections of this network, TCP and UDP together. 0 means DefaultConnections. It is never
	// more than a quarter of the budget.
	Budget      *Budget
	Connections int
	// Broker serves a program's connection to a bound name (Rules.Bound) until it ends, and closes
	// it. dial connects to the name's port 443, by the policy; its connections end with ctx at the
	// latest. nil blocks these connections.
	Broker func(ctx context.Context, name string, conn net.Conn,
		dial func(context.Context) (net.Conn, error))
	// Event is called for every event of a connection, from many goroutines. It must not block. nil
	// discards.
	Event func(Event)
	Log   *slog.Logger // nil discards
}

// Kind is the outcome of a connection.
type Kind string

// Each opened connection is closed later. A refused or failed one was never open, with one
// exception: a connection to a listed name whose data names another server is opened, refused and
// closed.
const (
	KindOpened  Kind = "opened"
	KindClosed  Kind = "closed"  // Sent and Received are final; Why is empty if both sides ended it
	KindRefused Kind = "refused" // blocked by the policy or a limit; Why says which
	KindFailed  Kind = "failed"  // allowed, but the name or address does not answer; Why says how
)

// Limit is a limit of connections.
type Limit string

// The limits: Options.Connections, a share of a Budget, and a whole Budget.
const (
	LimitSandbox Limit = "sandbox"
	LimitOwner   Limit = "owner"
	LimitDaemon  Limit = "daemon"
)

// Event is an event of one connection.
type Event struct {
	Time  time.Time
	Kind  Kind
	Proto string // "tcp", "udp", or "dns" for a name lookup
	Host  string // the name that the program asked for, otherwise the address
	// The address dialled, or that would have been; invalid if there was none.
	Addr netip.AddrPort
	Why  string // the reason, as text
	// If refused: the entry of Rules that allows it, if its author may list it; empty if none does.
	Opens string
	// If refused: the limit that was exceeded; empty if the policy refused it.
	Limit          Limit
	Sent, Received int64 // bytes from and to the program
}
