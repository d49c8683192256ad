package main

import "testing"

// A daemon on all addresses is reached at the loopback address, whose key known_hosts has.
func TestEndpointAddress(t *testing.T) {
	for ssh, want := range map[string]string{
		"[::]:2222":        "127.0.0.1:2222",
		"0.0.0.0:2222":     "127.0.0.1:2222",
		"127.0.0.1:2222":   "127.0.0.1:2222",
		"[::1]:2222":       "[::1]:2222",
		"192.0.2.7:2222":   "192.0.2.7:2222",
		"example.com:2222": "example.com:2222",
	} {
		if got := (endpoint{SSH: ssh}).address(); got != want {
			t.Errorf("%s: got %s, want %s", ssh, got, want)
		}
	}
}
