package main

import (
	"net/netip"
	"testing"
)

// A command for a client on another machine names no files of this one.
func TestGatewayOfOtherMachines(t *testing.T) {
	e := endpoint{SSH: "0.0.0.0:2222", KnownHosts: "/s/known_hosts", Identity: "/s/identity"}
	for reached, want := range map[string][2]string{
		"": {"ssh -o UserKnownHostsFile=/s/known_hosts -i /s/identity -p 2222 x@localhost",
			"ssh://x@localhost:2222"},
		"192.0.2.1:22":       {"ssh -p 22 x@192.0.2.1", "ssh://x@192.0.2.1:22"},
		"[2001:db8::1]:2222": {"ssh -p 2222 x@2001:db8::1", "ssh://x@[2001:db8::1]:2222"},
	} {
		var at netip.AddrPort
		if reached != "" {
			at = netip.MustParseAddrPort(reached)
		}
		g := e.gatewayAt(at)
		if got := [2]string{g.SSHCommand("x"), g.URI("x")}; got != want {
			t.Errorf("from %q: %q; want %q", reached, got, want)
		}
	}
}
