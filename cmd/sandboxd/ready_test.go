package main

import (
	"strings"
	"testing"
)

// The ready line does not say that nothing leaves this machine if the engine may be elsewhere.
func TestAccount(t *testing.T) {
	for host, stays := range map[string]bool{"": true, "unix:///run/podman/podman.sock": true,
		"ssh://ann@build.example.com": false, "tcp://192.0.2.1:2376": false} {
		if got := account(host); strings.Contains(got, "nothing leaves") != stays ||
			!stays && !strings.Contains(got, host) {
			t.Errorf("%q: got %q", host, got)
		}
	}
}
