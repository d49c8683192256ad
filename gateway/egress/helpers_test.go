package egress

import (
	"net/netip"
	"testing"
)

// Addresses of the tests' internet. Documentation addresses are open, too.
const (
	public    = "203.0.113.10"
	publicTwo = "198.51.100.7"
	publicV6  = "2001:db8:1::10"
)

func policy(t testing.TB, mode Mode, allow ...string) *Policy {
	t.Helper()
	p, err := NewPolicy(Rules{Mode: mode, Trusted: allow})
	must(t, err)
	return p
}

func addrs(list ...string) (out []netip.Addr) {
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
