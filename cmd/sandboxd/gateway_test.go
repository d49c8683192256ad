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

// Nor does one for a client of kubectl port-forward, which seems to be in the daemon's pod.
func TestGatewayOfForwardedPorts(t *testing.T) {
	d := &daemon{own: "its", address: endpoint{SSH: "0.0.0.0:2222", Identity: "/s/identity"}}
	for _, tt := range []struct{ pod, key, want string }{
		{"", "its", "ssh -i /s/identity -p 2222 x@localhost"},
		{"", "other", "ssh -i /s/identity -p 2222 x@localhost"},
		{"10.96.0.1", "its", "ssh -i /s/identity -p 2222 x@localhost"},
		{"10.96.0.1", "other", "ssh -p 2222 x@localhost"},
	} {
		t.Setenv("KUBERNETES_SERVICE_HOST", tt.pod)
		if got := d.gatewayOf(tt.key, netip.AddrPort{}).SSHCommand("x"); got != tt.want {
			t.Errorf("%+v: %q", tt, got)
		}
	}
}
