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

// refusesName says why no connection to name may begin, or nothing. Port 0 asks for any port.
func (p *Policy) refusesName(name string, port uint16) refusal {
	if p.mode == ModeFiltered || p.listsName(name, port) {
		return refusal{}
	}
	if isNameForGood(name) {
		return refusal{why: notListed}
	}
	return refusal{why: notListed, opens: entryText(name, port)}
}

// isNameForGood says whether name leads to nothing that can be opened.
func isNameForGood(name string) bool {
	return slices.Contains(namesForGood, name) || strings.HasSuffix(name, ".localhost")
}

// entryText is the entry of a name or an address.
func entryText(host string, port uint16) string {
	if port == 0 {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// listsName says whether an entry names name.
func (p *Policy) listsName(name string, port uint16) bool {
	return slices.ContainsFunc(p.entries, func(e entry) bool {
		switch {
		case e.name == "" || (port != 0 && e.port != 0 && e.port != port):
			return false
		case e.below:
			return strings.HasSuffix(name, "."+e.name)
		default:
			return name == e.name
		}
	})
}

// refuses says why dst may not be dialled, or nothing. name is what the program asked for, or empty. own are the addresses of this
// machine, each with the length of its network.
func (p *Policy) refuses(name string, dst netip.AddrPort, own []netip.Prefix) refusal {
	addr, port := dst.Addr().Unmap(), dst.Port()
	switch {
	case !addr.IsValid():
		return refusal{why: "not an address"}
	case addr.Zone() != "":
		return refusal{why: "an address with a zone is of a network of this machine"}
	case port == 0:
		return refusal{why: "there is no port 0"}
	}
	opens := entryText(addr.String(), port)
	if isForGood(addr) {
		opens = ""
	}
	for _, mine := range own {
		for _, form := range forms(singleIP(mine.Addr())) {
			if form.Contains(addr) && !p.opensClosed(addr, port, addr.BitLen()) {
				return refusal{why: addr.String() + " is an address of the machine that runs sandboxd", opens: opens}
			}
		}
	}
	for _, closed := range p.closed {
		if closed.Contains(addr) && !p.opensClosed(addr, port, closed.Bits()) {
			return refusal{why: fmt.Sprintf("%s is in %s, which is closed", addr, closed), opens: opens}
		}
	}
	opened := slices.ContainsFunc(p.closed, func(c netip.Prefix) bool { return c.Contains(addr) }) // who lists 10.0.0.0/8 means local networks
	for _, mine := range own {
		for _, form := range forms(mine.Masked()) {
			if !opened && form.Contains(addr) && !p.opensClosed(addr, port, form.Bits()) {
				return refusal{why: fmt.Sprintf("%s is in %s, a network that the machine which runs sandboxd is in", addr, form), opens: opens}
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

// lists says whether a listed range contains addr.
func (p *Policy) lists(addr netip.Addr, port uint16) bool {
	return slices.ContainsFunc(p.entries, func(e entry) bool { return e.contains(addr, port) })
}

// opensClosed says whether a trusted range of at least bits contains addr: 0.0.0.0/0 lists every public address and opens no closed one.
func (p *Policy) opensClosed(addr netip.Addr, port uint16, bits int) bool {
	return !isForGood(addr) && slices.ContainsFunc(p.entries, func(e entry) bool {
		return e.trusted && e.prefix.Bits() >= bits && e.contains(addr, port)
	})
}

// contains says whether e is a range with addr in it.
func (e entry) contains(addr netip.Addr, port uint16) bool {
	return e.name == "" && (e.port == 0 || e.port == port) && e.prefix.Contains(addr)
}

// isForGood says whether no entry opens addr.
func isForGood(addr netip.Addr) bool {
	return slices.ContainsFunc(forGood, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// comparesNames says whether a connection to dst that was asked for as name is open because of that name, so that what is said on
// it has to be meant for the name.
func (p *Policy) comparesNames(name string, dst netip.AddrPort) bool {
	return p.mode == ModeAllowlist && name != "" && !p.lists(dst.Addr().Unmap(), dst.Port())
}

func singleIP(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	return netip.PrefixFrom(a, a.BitLen())
}

// ownAge is how long the addresses of this machine are taken as known: an interface that came up is closed that much later.
const ownAge = 2 * time.Second

// ownAddresses remembers the addresses of this machine for a while.
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

// OwnAddresses returns the addresses of all interfaces of this machine, each with the length of the network that it is in. Without an answer
// there are none: loopback and the private ranges are closed all the same.
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

// unmap is p as a range of IPv4, if it is one that is written as IPv6.
func unmap(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}
