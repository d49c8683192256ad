package egress

import (
	"errors"
	"net/netip"
	"slices"
)

// ErrForGood means that an entry is for addresses that no entry can open.
var ErrForGood = errors.New(
	"loopback, link-local, cloud metadata, multicast and reserved addresses are never open: " +
		"let the service listen on another address of this machine, and allow that one")

// Opens reports whether the entry, as in Rules, opens addresses that are closed without it, if it
// is trusted: those of a closed range, or of own. own has the addresses of the machine that dials,
// with their networks. An invalid entry opens nothing. ErrForGood means that no entry can open
// these addresses.
func (p *Policy) Opens(text string, own []netip.Prefix) (bool, error) {
	e, err := parseEntry(text)
	switch {
	case err != nil:
		return false, nil //nolint:nilerr // NewPolicy reports the error
	case e.name != "" && isNameForGood(e.name):
		return false, ErrForGood
	case e.name != "" || e.every:
		return false, nil
	}
	within := func(c netip.Prefix) bool {
		return c.Bits() <= e.prefix.Bits() && c.Contains(e.prefix.Addr())
	}
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
