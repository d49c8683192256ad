package egress

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const notListed = "not on the list"

// refusesName returns why connections to name are blocked, or the zero value. Port 0 means any
// port.
func (p *Policy) refusesName(name string, port uint16) refusal {
	if p.mode == ModeFiltered || p.listsName(name, port) {
		return refusal{}
	}
	if isNameForGood(name) {
		return refusal{why: notListed}
	}
	return refusal{why: notListed, opens: entryText(name, port)}
}

// isNameForGood reports whether name only leads to addresses that cannot be opened.
func isNameForGood(name string) bool {
	return slices.Contains(namesForGood, name) || strings.HasSuffix(name, ".localhost")
}

// entryText returns the entry for a name or an address.
func entryText(host string, port uint16) string {
	if port == 0 {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// boundPort is the port of bound names.
const boundPort = 443

// isBound reports whether connections to name are for the broker.
func (p *Policy) isBound(name string, port uint16) bool {
	return port == boundPort && p.bound[name]
}

// listsName reports whether an entry names name, or it is bound.
func (p *Policy) listsName(name string, port uint16) bool {
	if p.bound[name] && (port == 0 || port == boundPort) {
		return true
	}
	return slices.ContainsFunc(p.entries, func(e entry) bool {
		switch {
		case port != 0 && e.port != 0 && e.port != port:
			return false
		case e.every:
			return true
		case e.name == "":
			return false
		case e.below:
			return strings.HasSuffix(name, "."+e.name)
		default:
			return name == e.name
		}
	})
}

// refuses returns why dst may not be dialled, or the zero value. name is what the program asked
// for, or empty. own are the addresses of this machine, each with the length of its network.
func (p *Policy) refuses(name string, dst netip.AddrPort, own []netip.Prefix) refusal {
	addr, port := dst.Addr().Unmap(), dst.Port()
	switch {
	case !addr.IsValid():
		return refusal{why: "not an address"}
	case addr.Zone() != "":
		return refusal{why: "addresses with a zone belong to a network of this machine"}
	case port == 0:
		return refusal{why: "port 0 is invalid"}
	}
	opens := entryText(addr.String(), port)
	if isForGood(addr) {
		opens = ""
	}
	for _, mine := range own {
		for _, form := range forms(singleIP(mine.Addr())) {
			if form.Contains(addr) && !p.opensClosed(addr, port, addr.BitLen()) {
				return refusal{why: addr.String() +
					" is an address of the machine that runs sandboxd", opens: opens}
			}
		}
	}
	for _, closed := range p.closed {
		if closed.Contains(addr) && !p.opensClosed(addr, port, closed.Bits()) {
			return refusal{why: fmt.Sprintf("%s is in %s, which is closed", addr, closed),
				opens: opens}
		}
	}
	// An entry such as 10.0.0.0/8 includes local networks.
	opened := slices.ContainsFunc(p.closed, func(c netip.Prefix) bool { return c.Contains(addr) })
	for _, mine := range own {
		for _, form := range forms(mine.Masked()) {
			if !opened && form.Contains(addr) && !p.opensClosed(addr, port, form.Bits()) {
				return refusal{why: fmt.Sprintf(
					"%s is in %s, a network of the machine that runs sandboxd", addr, form),
					opens: opens}
			}
		}
	}
	if p.mode == ModeFiltered || p.lists(addr, port) || (name != "" && p.listsName(name, port)) {
		return refusal{}
	}
	if name != "" {
		opens = entryText(name, port)
	}
	return refusal{why: notListed, opens: opens}
}

// lists reports whether a listed range contains addr.
func (p *Policy) lists(addr netip.Addr, port uint16) bool {
	return slices.ContainsFunc(p.entries, func(e entry) bool { return e.contains(addr, port) })
}

// opensClosed reports whether a trusted range of at least bits contains addr. So 0.0.0.0/0 and *
// list every public address and open no closed one.
func (p *Policy) opensClosed(addr netip.Addr, port uint16, bits int) bool {
	return !isForGood(addr) && slices.ContainsFunc(p.entries, func(e entry) bool {
		return e.trusted && e.prefix.Bits() >= bits && e.contains(addr, port)
	})
}

// contains reports whether e is a range that contains addr, or every address.
func (e entry) contains(addr netip.Addr, port uint16) bool {
	return (e.port == 0 || e.port == port) && (e.every || e.prefix.Contains(addr))
}

// isForGood reports whether no entry can open addr.
func isForGood(addr netip.Addr) bool {
	return slices.ContainsFunc(forGood, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// mayMean reports whether data of a connection to another listed name may be for name. It may not
// be for a bound one: it would reach that server without the broker, if the two share an address.
func (p *Policy) mayMean(name string, port uint16) bool {
	return p.listsName(name, port) && !p.isBound(name, port)
}

// comparesNames reports whether a connection to dst is allowed only because of the requested name.
// Then the server name in its data must match.
func (p *Policy) comparesNames(name string, dst netip.AddrPort) bool {
	return p.mode == ModeAllowlist && name != "" && !p.lists(dst.Addr().Unmap(), dst.Port())
}

func singleIP(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	return netip.PrefixFrom(a, a.BitLen())
}

// ownAge is how long this machine's addresses are cached: those of a new interface are closed that
// much later.
const ownAge = 2 * time.Second

// ownAddresses caches the addresses of this machine.
type ownAddresses struct {
	ask func() []netip.Prefix

	mu    sync.Mutex
	known []netip.Prefix // guarded by mu
	at    time.Time      // guarded by mu
}

func (o *ownAddresses) list() []netip.Prefix {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.at.IsZero() || time.Since(o.at) > ownAge {
		o.known, o.at = o.ask(), time.Now()
	}
	return o.known
}

// OwnAddresses returns the addresses of all interfaces of this machine, each with the length of its
// network. On an error it returns none; loopback and private ranges are closed anyway.
func OwnAddresses() []netip.Prefix {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var own []netip.Prefix
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, unmap(p))
		}
	}
	return own
}

// unmap returns p as a range of IPv4, if it is an IPv4-mapped one.
func unmap(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}
