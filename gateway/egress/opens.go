package egress

import (
	"errors"
	"net/netip"
	"slices"
)

// ErrForGood says that an entry is for addresses that none opens.
var ErrForGood = errors.New("loopback, link-local, cloud metadata, multicast and reserved addresses are never open: " +
	"have a service of this machine listen on one of its other addresses, and allow that")

// Opens reports whether entry, as of Rules, opens what is closed without it when it is trusted: addresses of a closed range, or of
// own, the addresses of the machine that dials and the networks that they are in. What is no entry opens nothing. ErrForGood says that no entry can open what this one is for.
func (p *Policy) Opens(text string, own []netip.Prefix) (bool, error) {
	e, err := parseEntry(text)
	switch {
	case err != nil:
		return false, nil //nolint:nilerr // NewPolicy says what is wrong with it
	case e.name != "" && isNameForGood(e.name):
		return false, ErrForGood
	case e.name != "":
		return false, nil
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
	for _, mine := range own {
		if e.prefix.IsSingleIP() && slices.ContainsFunc(forms(singleIP(mine.Addr())), within) {
			return true, nil
		}
		if !mine.IsSingleIP() && slices.ContainsFunc(forms(mine.Masked()), within) {
			return true, nil
		}
	}
	return false, nil
}
