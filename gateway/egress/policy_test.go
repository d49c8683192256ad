package egress

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPolicyEntries(t *testing.T) {
	for entry, want := range map[string]string{
		"example.com":           "example.com",
		"Example.COM.":          "example.com",
		"example.com:443":       "example.com:443",
		"*.example.com":         "*.example.com",
		"*.example.com:8443":    "*.example.com:8443",
		"my_host":               "my_host",
		"*":                     "*",
		"*:443":                 "*:443",
		"10.1.2.3":              "10.1.2.3",
		"10.1.2.3/32":           "10.1.2.3",
		"10.1.2.3:5432":         "10.1.2.3:5432",
		"10.0.0.0/8":            "10.0.0.0/8",
		"10.0.0.0/8:53":         "10.0.0.0/8:53",
		"2001:db8::1":           "2001:db8::1",
		"[2001:db8::1]":         "2001:db8::1",
		"[2001:db8::1]:80":      "[2001:db8::1]:80",
		"[2001:db8::/32]:80":    "[2001:db8::/32]:80",
		"2001:DB8::/32":         "2001:db8::/32",
		"::ffff:10.1.2.3":       "10.1.2.3",
		"::ffff:10.0.0.0/104":   "10.0.0.0/8",
		"[::ffff:10.1.2.3]:443": "10.1.2.3:443",
	} {
		p, err := NewPolicy(Rules{Mode: ModeAllowlist, Allow: []string{entry, entry}})
		if err != nil {
			t.Errorf("%s: %v", entry, err)
		} else if diff := cmp.Diff([]string{want}, p.Entries()); diff != "" {
			t.Errorf("%s: %s", entry, diff)
		}
	}
	for entry, want := range map[string]string{
		"":                        "want a name",
		"**":                      "want a name",
		"*/0":                     "want a name",
		"*:0":                     "from 1 to 65535",
		"*.":                      "want a name",
		"a.*.com":                 "want a name",
		"https://example.com":     "want a name",
		"example.com/path":        "want a name",
		"exa mple.com":            "want a name",
		"-a.com":                  "want a name",
		"a..com":                  "want a name",
		"10.0.0":                  "want a name",
		"0x7f.1":                  "want a name",
		"2130706433":              "want a name",
		"*.10.0.0.1":              "want a name",
		"[10.0.0.1]":              "want a name",
		"[2001:db8::1":            "want a name",
		"[2001:db8::1]x":          "want a name",
		"[2001:db8::1]:":          "want a name",
		"example.com:":            "want a name",
		"10.0.0.0/33":             "want a name",
		"::ffff:0:0/90":           "want a name",
		"example.com:0":           "from 1 to 65535",
		"example.com:65536":       "from 1 to 65535",
		"example.com:http":        "from 1 to 65535",
		"10.1.2.3/8":              "use 10.0.0.0/8",
		"fe80::1%eth0":            "zone",
		strings.Repeat("a", 64):   "want a name",
		strings.Repeat("a.", 130): "want a name",
	} {
		_, err := NewPolicy(Rules{Mode: ModeFiltered, Allow: []string{entry}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", entry, err, want)
		}
	}
	if _, err := NewPolicy(Rules{Mode: "open"}); err == nil {
		t.Error("a mode that there is not was taken")
	}
	if _, err := NewPolicy(Rules{Mode: ModeFiltered, Closed: []netip.Prefix{{}}}); err == nil {
		t.Error("an invalid closed range was accepted")
	}
}

func TestPolicyNames(t *testing.T) {
	p := policy(t, ModeAllowlist, "a.test", "*.b.test", "c.test:443")
	for _, c := range []struct {
		name string
		port uint16
		open bool
	}{
		{"a.test", 0, true}, {"a.test", 80, true}, {"x.a.test", 80, false}, {"xa.test", 80, false},
		{"b.test", 80, false}, {"x.b.test", 80, true}, {"y.x.b.test", 80, true}, {"xb.test", 80, false},
		{"c.test", 0, true}, {"c.test", 443, true}, {"c.test", 80, false}, {"d.test", 0, false},
	} {
		if got := p.refusesName(c.name, c.port) == (refusal{}); got != c.open {
			t.Errorf("%s:%d: got %v", c.name, c.port, got)
		}
	}
	for _, open := range []*Policy{policy(t, ModeFiltered), policy(t, ModeAllowlist, "*")} {
		if why := open.refusesName("any.test", 80); why != (refusal{}) {
			t.Error(why)
		}
	}
}

func TestPolicyAddresses(t *testing.T) {
	own := ranges([]string{"93.184.216.40/32", "10.0.0.40/24", "2606:2800::40/128", "fe80::40/64",
		"151.101.7.40/22", "2a04:4e42:7::40/64"})
	const closed, mine, lan, unlisted = "is closed", "machine that runs",
		"a network of the machine", notListed
	for _, c := range []struct {
		mode  Mode
		allow string // entries
		name  string
		dst   string
		why   string // part of it; empty: open
	}{
		{dst: "93.184.216.34"},
		{dst: "2606:2800::1"},
		{dst: "203.0.113.1"}, // documentation
		{dst: "::ffff:93.184.216.34"},
		{dst: "64:ff9b::5db8:d822"}, // NAT64 of a public address
		{dst: "2002:5db8:d822::1"},
		{dst: "0.0.0.0", why: closed}, {dst: "0.1.2.3", why: closed},
		{dst: "10.0.0.1", why: closed}, {dst: "10.255.255.255", why: closed}, {dst: "11.0.0.0"}, {dst: "9.255.255.255"},
		{dst: "100.64.0.1", why: closed}, {dst: "100.127.255.255", why: closed}, {dst: "100.128.0.0"}, {dst: "100.63.255.255"},
		{dst: "100.100.100.200", why: closed},
		{dst: "127.0.0.1", why: closed}, {dst: "127.255.255.254", why: closed}, {dst: "128.0.0.0"},
		{dst: "168.63.129.16", why: closed}, {dst: "168.63.129.17"},
		{dst: "169.254.169.254", why: closed}, {dst: "169.254.0.0", why: closed}, {dst: "169.255.0.0"},
		{dst: "172.16.0.0", why: closed}, {dst: "172.31.255.255", why: closed}, {dst: "172.32.0.0"}, {dst: "172.15.255.255"},
		{dst: "192.0.0.192", why: closed}, {dst: "192.88.99.1", why: closed},
		{dst: "192.168.0.1", why: closed}, {dst: "192.169.0.0"},
		{dst: "198.18.0.1", why: closed}, {dst: "198.19.255.255", why: closed}, {dst: "198.20.0.0"},
		{dst: "224.0.0.251", why: closed}, {dst: "239.255.255.255", why: closed},
		{dst: "240.0.0.1", why: closed}, {dst: "255.255.255.255", why: closed},
		{dst: "::", why: closed}, {dst: "::1", why: closed}, {dst: "::10.0.0.1", why: closed},
		{dst: "::ffff:10.0.0.1", why: closed}, {dst: "::ffff:127.0.0.1", why: closed}, {dst: "::ffff:0:10.0.0.1", why: closed},
		{dst: "64:ff9b::10.0.0.1", why: closed}, {dst: "64:ff9b::169.254.169.254", why: closed}, {dst: "64:ff9b:1::1", why: closed},
		{dst: "2002:a00:1::1", why: closed}, {dst: "2002:7f00:1::", why: closed},
		{dst: "100::1", why: closed}, {dst: "2001::1", why: closed},
		{dst: "fc00::1", why: closed}, {dst: "fd00:ec2::254", why: closed}, {dst: "fe80::1", why: closed}, {dst: "fec0::1", why: closed},
		{dst: "ff02::1", why: closed}, {dst: "2606:2800::1%eth0", why: "zone"},

		{dst: "93.184.216.40", why: mine}, {dst: "::ffff:93.184.216.40", why: mine}, {dst: "64:ff9b::93.184.216.40", why: mine},
		{dst: "2002:5db8:d828::1", why: mine}, {dst: "2606:2800::40", why: mine},
		{dst: "93.184.216.40", allow: "93.184.216.40"},
		{dst: "93.184.216.40", allow: "93.184.216.0/24", why: mine},
		{dst: "93.184.216.40", allow: "own.test", name: "own.test", why: mine},
		{dst: "10.0.0.40", allow: "10.0.0.0/8", why: mine},
		{dst: "10.0.0.40", allow: "10.0.0.40"},
		{dst: "fe80::40", allow: "fe80::/10", why: mine},

		// Its neighbours are a local network, whatever their addresses are.
		{dst: "151.101.4.1", why: lan}, {dst: "151.101.7.255", why: lan}, {dst: "151.101.3.255"}, {dst: "151.101.8.0"},
		{dst: "::ffff:151.101.4.1", why: lan}, {dst: "64:ff9b::151.101.4.1", why: lan}, {dst: "2002:9765:401::1", why: lan},
		{dst: "2a04:4e42:7::1", why: lan}, {dst: "2a04:4e42:8::1"},
		{dst: "151.101.4.1", allow: "lan.test", name: "lan.test", why: lan},
		{dst: "151.101.4.1", allow: "151.101.0.0/16", why: lan},
		{dst: "151.101.4.1", allow: "151.101.4.0/22"},
		{dst: "151.101.4.1", allow: "151.101.4.1:80"},
		{dst: "151.101.7.40", allow: "151.101.4.0/22", why: mine},

		{dst: "10.0.0.1", allow: "10.0.0.1"},
		{dst: "10.0.0.1", allow: "10.0.0.1:80"},
		{dst: "10.0.0.1", allow: "10.0.0.1:81", why: closed},
		{dst: "10.0.0.1", allow: "10.0.0.0/8"},
		{dst: "::ffff:10.0.0.1", allow: "10.0.0.0/8"},
		{dst: "10.0.0.1", allow: "0.0.0.0/0", why: closed},
		{dst: "10.0.0.1", allow: "8.0.0.0/5", why: closed},
		{dst: "64:ff9b::10.0.0.1", allow: "10.0.0.0/8", why: closed},
		{dst: "fd00::1", allow: "::/0", why: closed},
		{dst: "fd00::1", allow: "fd00::/64"},
		{dst: "10.0.0.1", allow: "db.test", name: "db.test", why: closed},
		{dst: "10.0.0.1", allow: "db.test 10.0.0.1", name: "db.test"},

		{mode: ModeAllowlist, dst: "93.184.216.34", why: unlisted},
		{mode: ModeAllowlist, dst: "93.184.216.34", allow: "a.test", why: unlisted},
		{mode: ModeAllowlist, dst: "93.184.216.34", allow: "a.test", name: "a.test"},
		{mode: ModeAllowlist, dst: "93.184.216.34", allow: "a.test:443", name: "a.test", why: unlisted},
		{mode: ModeAllowlist, dst: "93.184.216.34", allow: "93.184.0.0/16"},
		{mode: ModeAllowlist, dst: "93.184.216.34", allow: "0.0.0.0/0"},
		{mode: ModeAllowlist, dst: "93.184.216.34", allow: "*"},
		{mode: ModeAllowlist, dst: "93.184.216.34", allow: "*", name: "a.test"},
		{mode: ModeAllowlist, dst: "2606:2800::1", allow: "*:80"},
		{mode: ModeAllowlist, dst: "93.184.216.34", allow: "*:443", why: unlisted},
		{mode: ModeAllowlist, dst: "93.184.216.34", allow: "*:443", name: "a.test", why: unlisted},
		{mode: ModeAllowlist, dst: "10.0.0.1", allow: "*", why: closed},
		{mode: ModeAllowlist, dst: "10.0.0.1", allow: "*", name: "db.test", why: closed},
		{mode: ModeAllowlist, dst: "169.254.169.254", allow: "*", why: closed},
		{mode: ModeAllowlist, dst: "93.184.216.40", allow: "*", why: mine},
		{mode: ModeAllowlist, dst: "151.101.4.1", allow: "*", why: lan},
		{mode: ModeAllowlist, dst: "10.0.0.1", allow: "*.test", name: "a.test", why: closed},
		{mode: ModeAllowlist, dst: "127.0.0.1", allow: "a.test", name: "a.test", why: closed},
	} {
		if c.mode == "" {
			c.mode = ModeFiltered
		}
		p := policy(t, c.mode, strings.Fields(c.allow)...)
		got := p.refuses(c.name, netip.AddrPortFrom(netip.MustParseAddr(c.dst), 80), own).why
		if (got == "") != (c.why == "") || !strings.Contains(got, c.why) {
			t.Errorf("%s %s with %q: got %q, want %q", c.mode, c.dst, c.allow, got, c.why)
		}
	}
	p := policy(t, ModeFiltered)
	for _, dst := range []netip.AddrPort{{}, netip.MustParseAddrPort("93.184.216.34:0")} {
		if p.refuses("", dst, nil).why == "" {
			t.Errorf("%v is open", dst)
		}
	}
}

// Every closed range is closed from its first to its last address, in each of its forms.
func TestPolicyClosesWholeRanges(t *testing.T) {
	p := policy(t, ModeFiltered)
	for _, closed := range DefaultClosed() {
		for _, form := range forms(closed) {
			first, last := form.Addr(), lastOf(form)
			for _, a := range []netip.Addr{first, last} {
				if p.refuses("", netip.AddrPortFrom(a, 443), nil).why == "" {
					t.Errorf("%s of %s is open", a, closed)
				}
			}
		}
	}
}

func TestPolicyClosedRangesOfOnesOwn(t *testing.T) {
	p, err := NewPolicy(Rules{Mode: ModeFiltered, Closed: ranges([]string{"203.0.113.0/24"})})
	must(t, err)
	for dst, open := range map[string]bool{
		"203.0.113.1": false, "10.0.0.1": true, "64:ff9b::203.0.113.1": false, "fd00::1": true, "100.64.0.1": true,
		// Whatever the list says:
		"127.0.0.1": false, "::1": false, "0.0.0.0": false, "::": false, "::127.0.0.1": false, "64:ff9b::127.0.0.1": false, "2002:7f00:1::": false,
		"169.254.169.254": false, "fe80::1": false, "64:ff9b::169.254.169.254": false, "100.100.100.200": false, "168.63.129.16": false,
		"192.0.0.192": false, "fd00:ec2::254": false, "fd20:ce::254": false, "fd00:42::42": false, "224.0.0.1": false, "255.255.255.255": false, "ff02::1": false,
	} {
		if got := p.refuses("", netip.AddrPortFrom(netip.MustParseAddr(dst), 80),
			nil).why == ""; got != open {
			t.Errorf("%s: got %v", dst, got)
		}
	}
}

// No entry opens loopback and metadata. Other closed addresses are opened by trusted entries only,
// according to what is closed now.
func TestPolicyOpensByTheTrusted(t *testing.T) {
	own := ranges([]string{"93.184.216.40/32"})
	entries := []string{"127.0.0.1", "127.0.0.0/8:80", "::1", "::/96", "64:ff9b::7f00:1", "0.0.0.0",
		"169.254.169.254", "10.0.0.1", "fd00:ec2::254", "93.184.216.40", "203.0.113.7", "a.test"}
	closed := ranges([]string{"10.0.0.0/8", "203.0.113.0/24"})
	for dst, trusted := range map[string]bool{
		"127.0.0.1": false, "::1": false, "64:ff9b::127.0.0.1": false, "0.0.0.0": false, "::": false,
		"169.254.169.254": false, "fd00:ec2::254": false, "10.0.0.1": true, "93.184.216.40": true, "203.0.113.7": true,
	} {
		for _, r := range []Rules{{Mode: ModeFiltered, Closed: closed, Trusted: entries},
			{Mode: ModeFiltered, Closed: closed, Allow: entries}} {
			p, err := NewPolicy(r)
			must(t, err)
			want := trusted && r.Trusted != nil
			if got := p.refuses("a.test", netip.AddrPortFrom(netip.MustParseAddr(dst), 80),
				own).why; (got == "") != want {
				t.Errorf("%s, trusted %v: got %q", dst, r.Trusted != nil, got)
			}
		}
	}
}

// The entry that a refusal names allows the connection. If no entry does, it names none.
func TestRefusalsNameWhatOpens(t *testing.T) {
	own := ranges([]string{"93.184.216.40/24", "2606:2800::40/64", "172.16.0.7/16"})
	for _, c := range []struct {
		mode            Mode
		name, dst, want string
	}{
		{ModeFiltered, "", "10.0.0.1:80", "10.0.0.1:80"},
		{ModeFiltered, "", "[fd00::1]:80", "[fd00::1]:80"},
		{ModeFiltered, "db.test", "10.0.0.1:5432", "10.0.0.1:5432"}, // the name would not open it
		{ModeAllowlist, "db.test", "10.0.0.1:5432", "10.0.0.1:5432"},
		{ModeFiltered, "", "[64:ff9b::a00:1]:80", "[64:ff9b::a00:1]:80"},
		{ModeFiltered, "", "93.184.216.40:22", "93.184.216.40:22"},
		{ModeFiltered, "", "[64:ff9b::93.184.216.40]:22", "[64:ff9b::5db8:d828]:22"},
		{ModeFiltered, "", "93.184.216.41:22", "93.184.216.41:22"},
		{ModeFiltered, "", "[2606:2800::41]:22", "[2606:2800::41]:22"},
		{ModeFiltered, "", "172.16.0.7:22", "172.16.0.7:22"},
		{ModeFiltered, "", "169.254.169.254:80", ""},
		{ModeFiltered, "", "[64:ff9b::169.254.169.254]:80", ""},
		{ModeFiltered, "", "[fd00:ec2::254]:80", ""},
		{ModeFiltered, "", "100.100.100.200:80", ""},
		{ModeFiltered, "", "168.63.129.16:80", ""},
		{ModeFiltered, "", "[fe80::1]:80", ""},
		{ModeFiltered, "", "240.0.0.1:80", ""},
		{ModeAllowlist, "meta.test", "169.254.169.254:80", ""},
		{ModeAllowlist, "", "8.8.8.8:443", "8.8.8.8:443"},
		{ModeAllowlist, "a.test", "8.8.8.8:443", "a.test:443"},
		{ModeFiltered, "", "127.0.0.1:80", ""},
		{ModeFiltered, "local.test", "127.0.0.1:80", ""},
		{ModeFiltered, "", "[::1]:80", ""},
		{ModeFiltered, "", "0.0.0.0:80", ""},
		{ModeFiltered, "", "[64:ff9b::7f00:1]:80", ""},
		{ModeFiltered, "", "224.0.0.251:5353", ""},
		{ModeFiltered, "", "[ff02::1]:80", ""},
		{ModeFiltered, "", "8.8.8.8:0", ""},
		{ModeFiltered, "", "[fe80::1%eth0]:80", ""},
	} {
		dst := netip.MustParseAddrPort(c.dst)
		got := policy(t, c.mode).refuses(c.name, dst, own)
		if got.why == "" || got.opens != c.want {
			t.Errorf("%s %s %s: got %+v, want %q", c.mode, c.name, c.dst, got, c.want)
		}
		if c.want == "" {
			continue
		}
		if again := policy(t, c.mode, c.want).refuses(c.name, dst, own); again != (refusal{}) {
			t.Errorf("%s %s %s with %s: %+v", c.mode, c.name, c.dst, c.want, again)
		}
	}
	for name, want := range map[string]string{"a.test": "a.test", "metadata.google.internal": "",
		"localhost": "", "a.localhost": ""} {
		if got := policy(t, ModeAllowlist).refusesName(name, 0); got.why == "" ||
			got.opens != want {
			t.Errorf("%s: got %+v, want %q", name, got, want)
		}
	}
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// The canonical form of an entry parses as itself, and no entry opens a closed address that it does
// not contain.
func FuzzPolicyEntry(f *testing.F) {
	for _, s := range []string{"a.test", "*.a.test:80", "10.0.0.0/8:53", "[2001:db8::/32]:80",
		"::ffff:10.0.0.0/104", "10.1.2.3/8", "fe80::1%e", "[::1", ":80", "*.*"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := parseEntry(text)
		if err != nil {
			return
		}
		again, err := parseEntry(e.text)
		if err != nil || again != e {
			t.Fatalf("%q is %q, which is %+v, %v and not %+v", text, e.text, again, err, e)
		}
		p := policy(t, ModeAllowlist, text)
		for _, a := range addrs("127.0.0.1", "169.254.169.254", "::1", "fd00:ec2::254",
			"64:ff9b::a00:1") {
			if p.refuses("a.test", netip.AddrPortFrom(a, 80), nil).why == "" &&
				(e.name != "" || !e.prefix.Contains(a)) {
				t.Fatalf("%q opens %s", text, a)
			}
		}
	})
}
