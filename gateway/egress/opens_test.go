package egress

import (
	"errors"
	"testing"
)

func TestOpens(t *testing.T) {
	p, err := NewPolicy(Rules{Mode: ModeFiltered})
	if err != nil {
		t.Fatal(err)
	}
	own := ranges([]string{"203.0.113.9/32", "fe80::1/64", "2001:db8::9/128", "151.101.7.40/22"})
	for entry, want := range map[string]bool{
		"10.1.2.3": true, "10.1.2.3:80": true, "10.0.0.0/8": true, "fd00::/8": true, "100.64.0.0/10": true,
		"::ffff:10.0.0.1": true, "203.0.113.9:443": true, "2001:db8::9": true,
		"151.101.4.1": true, "151.101.4.0/22": true, "151.101.5.0/24:80": true, "151.101.0.0/16": false, "64:ff9b::151.101.4.1": true,
		"64:ff9b::203.0.113.9": true, "[2002:cb00:7109::1]:22": true, "64:ff9b::203.0.113.8": false, "2002:cb00:7109::/48": false,
		"0.0.0.0/0": false, "::/0": false, "8.8.8.8": false, "203.0.113.0/24": false, "example.com": false, "*.example.com:443": false, "%": false, "": false,
	} {
		if got, err := p.Opens(entry, own); got != want || err != nil {
			t.Errorf("%q opens something closed: %v, %v, want %v", entry, got, err, want)
		}
	}
	for _, entry := range []string{"169.254.169.254", "169.254.169.254:80", "169.254.0.0/16",
		"fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192",
		"fe80::1", "224.0.0.1", "metadata.google.internal:80", "localhost", "127.0.0.1:22",
		"[::1]:80", "127.1.0.0/16", "0.0.0.0", "::", "64:ff9b::7f00:1", "::ffff:127.0.0.1"} {
		if _, err := p.Opens(entry, own); !errors.Is(err, ErrForGood) {
			t.Errorf("%q: %v", entry, err)
		}
	}
}
