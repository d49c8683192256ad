// Package egress is the network of a sandbox that has none of its own. It takes the descriptor of a TUN device that was opened
// inside the sandbox, ends TCP, UDP and DNS there in user space, holds every connection against a policy on the address that
// is really dialled, and dials it from here. Any program works unchanged: no proxy variables, no iptables, no root outside.
//
// It knows no sandbox, no guest and no configuration: who opens the device and whose policy it is are its caller's matter.
package egress

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// What the side that opens the device configures there, as package wire says. DNSAddr is its name server: queries to port 53 of any address are
// answered here, this one is for resolv.conf.
var (
	GuestAddr = netip.AddrFrom4(wire.TunGuest)         // the sandbox's own address: packets from any other are dropped
	DNSAddr   = netip.AddrFrom4(wire.TunDNS)           // answers DNS and nothing else
	Names     = netip.MustParsePrefix("198.18.0.0/15") // stand for names inside the sandbox; mean nothing outside (RFC 2544)
)

// Options are what a Stack works with. Policy is required.
type Options struct {
	Policy *Policy

	// Resolve returns the addresses of name, which is in lower case and without the dot at its end. An error that is a
	// *net.DNSError with IsNotFound set, or no addresses at all, is a name that does not exist. nil is net.DefaultResolver, without search domains.
	Resolve func(ctx context.Context, name string) ([]netip.Addr, error)
	// Dial connects to address, an address with a port and never a name, on network "tcp" or "udp". nil is a net.Dialer.
	// ctx ends 15 s after the program asked.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Own returns the addresses of the machine that dials, which are closed unless listed one by one, each with the length of
	// the network that it is in, which is closed unless a range of it is listed. nil is OwnAddresses. The answer is kept for a few seconds.
	Own func() []netip.Prefix
	// Budget is what all networks share; nil bounds nothing. Connections is how many this one may have at once, TCP and UDP
	// together, 0 is DefaultConnections; it is never more than a quarter of the budget.
	Budget      *Budget
	Connections int
	// Event is told of every connection. It is called from many goroutines and must not block. nil discards.
	Event func(Event)
	Log   *slog.Logger // nil discards
}

// Kind is what became of a connection.
type Kind string

// Every connection that was opened is closed later. One that was refused or failed was never open, with one exception: a
// connection to a listed name that turned out to be meant for another is opened, refused and closed.
const (
	KindOpened  Kind = "opened"
	KindClosed  Kind = "closed"  // Sent and Received are final; Why is empty when both sides ended it
	KindRefused Kind = "refused" // by the policy or a limit; Why says which
	KindFailed  Kind = "failed"  // allowed, and yet there is no connection: the name or the address does not answer; Why says how
)

// Limit is whose connections were too many.
type Limit string

// The limits of connections: Options.Connections, a share of a Budget, and all of it.
const (
	LimitSandbox Limit = "sandbox"
	LimitOwner   Limit = "owner"
	LimitDaemon  Limit = "daemon"
)

// Event is one thing that happened to one connection.
type Event struct {
	Time           time.Time
	Kind           Kind
	Proto          string         // "tcp", "udp", or "dns" for a name that was asked for
	Host           string         // the name that the program asked for, else the address
	Addr           netip.AddrPort // what was dialled, or would have been; the address is invalid where it did not come to that
	Why            string         // in words
	Opens          string         // of a refused one: the entry of Rules that would open it, if whoever lists it may; empty where none does
	Limit          Limit          // of a refused one: the limit that it was beyond; empty where the policy refused it
	Sent, Received int64          // bytes of the program, and for the program
}
