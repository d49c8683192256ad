package egress

import "net/netip"

// Opens reports whether entry, as of NewPolicy, opens what is closed without it: addresses of a closed range, or one of own, the
// addresses of the machine that dials. What is no entry opens nothing.
func (p *Policy) Opens(text string, own []netip.Addr) bool {
	e, err := parseEntry(text)
	if err != nil || e.name != "" {
		return false
	}
	for _, c := range p.closed {
		if c.Bits() <= e.prefix.Bits() && c.Contains(e.prefix.Addr()) {
			return true
		}
	}
	for _, addr := range own {
		for _, form := range forms(singleIP(addr)) {
			if e.prefix.IsSingleIP() && form.Contains(e.prefix.Addr()) {
				return true
			}
		}
	}
	return false
}
