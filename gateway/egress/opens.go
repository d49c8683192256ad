package egress

import (
	"errors"
	"net/netip"
)

// ErrForGood says that an entry is for loopback, which none opens.
var ErrForGood = errors.New("loopback and unspecified addresses are never open: have the service listen on an address of the machine, and allow that")

// Opens reports whether entry, as of Rules, opens what is closed without it when it is trusted: addresses of a closed range, or one of own,
// the addresses of the machine that dials. What is no entry opens nothing. ErrForGood says that no entry can open what this one is for.
func (p *Policy) Opens(text string, own []netip.Addr) (bool, error) {
	e, err := parseEntry(text)
	if err != nil || e.name != "" {
		return false, nil //nolint:nilerr // NewPolicy says what is wrong with it
	}
	within := func(c netip.Prefix) bool { return c.Bits() <= e.prefix.Bits() && c.Contains(e.prefix.Addr()) }
	for _, c := range forGood {
		if within(c) {
			return false, ErrForGood
		}
	}
	for _, c := range p.closed {
		if within(c) {
			return true, nil
		}
	}
	for _, addr := range own {
		for _, form := range forms(singleIP(addr)) {
			if e.prefix.IsSingleIP() && form.Contains(e.prefix.Addr()) {
				return true, nil
			}
		}
	}
	return false, nil
}
