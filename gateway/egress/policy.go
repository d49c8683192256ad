package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Mode says what a policy does with addresses that nobody listed.
type Mode string

// The modes of a policy.
const (
	ModeFiltered  Mode = "filtered"  // public addresses are open, and what is listed
	ModeAllowlist Mode = "allowlist" // only what is listed is open
)

// Rules are what a policy is made of. Each entry of the lists is a name (example.com), all names below one (*.example.com), an address
// or a range of addresses (10.1.2.0/24), each with a port or without (example.com:443, 10.1.2.3:5432, [2001:db8::1]:80).
//
// No entry opens loopback, link-local, metadata, multicast and reserved addresses. No name opens another closed address, wherever it
// points.
type Rules struct {
	Mode    Mode
	Trusted []string // of whoever runs the daemon: a range inside of a closed one opens it
	Allow   []string // of others: opens nothing that is closed, be it that it was not yet when it was listed

	// Closed are the ranges that are open only by such a range; nil is DefaultClosed. What no entry opens is closed whatever it
	// says. So are the networks that the machine which dials is in, and its own addresses, which are opened one by one.
	Closed []netip.Prefix
}

// Policy says what a sandbox may connect to. It is immutable and safe for concurrent use.
type Policy struct {
	mode    Mode
	entries []entry
	closed  []netip.Prefix
}

// entry is one line of the list: a name, or a range of addresses.
type entry struct {
	text   string       // as it was given
	name   string       // without the star; empty for addresses
	below  bool         // *.name: every name below, not the name itself
	prefix netip.Prefix // of addresses
	port   uint16       // 0 is every port

	trusted bool // it may open what is closed
}

// closedForGood opens to nobody, whatever is listed: it is the machine that dials, by services that were bound to itself so that
// nobody reaches them, or it is what answers whoever asks for that machine, such as the metadata of a cloud.
var closedForGood = []string{
	"0.0.0.0/8",          // this host (RFC 791): Linux connects to itself
	"127.0.0.0/8",        // loopback
	"::/96",              // unspecified, loopback, IPv4-compatible (RFC 4291)
	"100.100.100.200/32", // Alibaba's metadata
	"168.63.129.16/32",   // Azure's host: a public address that is none
	"169.254.0.0/16",     // link-local (RFC 3927), metadata
	"192.0.0.0/24",       // protocol assignments (RFC 6890); Oracle's metadata
	"224.0.0.0/4",        // multicast
	"240.0.0.0/4",        // reserved, and broadcast
	"fd00:42::42/128",    // Scaleway's metadata
	"fd00:ec2::/32",      // Amazon's
	"fd20:ce::254/128",   // Google's
	"fe80::/10",          // link-local
	"ff00::/8",           // multicast
}

// namesForGood are names that lead to such addresses alone: allowing one opens nothing.
var namesForGood = []string{
	"localhost",
	"instance-data", "instance-data.ec2.internal", // Amazon's
	"metadata", "metadata.goog", "metadata.google.internal", // Google's
	"metadata.tencentyun.com",
}

// closedByDefault is the rest, with a reason per line. Documentation ranges are not in it: some networks use them for mirrors.
var closedByDefault = []string{
	"10.0.0.0/8",      // private (RFC 1918)
	"100.64.0.0/10",   // shared (RFC 6598); ours inside
	"172.16.0.0/12",   // private
	"192.88.99.0/24",  // relays of 6to4 (RFC 7526)
	"192.168.0.0/16",  // private
	"198.18.0.0/15",   // benchmarks (RFC 2544); names, inside
	"::ffff:0:0:0/96", // IPv4-translated (RFC 2765)
	"64:ff9b:1::/48",  // NAT64 of a network's own (RFC 8215): where the IPv4 address stands is not known
	"100::/64",        // discard (RFC 6666)
	"2001::/32",       // Teredo (RFC 4380): leads to an IPv4 host behind a NAT
	"fc00::/7",        // unique local (RFC 4193)
	"fec0::/10",       // site-local, as was (RFC 3879)
}

// forGood are the ranges of closedForGood in all of their forms.
var forGood = slices.Concat(mapEach(ranges(closedForGood), forms)...)

func ranges(texts ...[]string) []netip.Prefix {
	return mapEach(slices.Concat(texts...), netip.MustParsePrefix)
}

func mapEach[T, U any](list []T, f func(T) U) []U {
	out := make([]U, len(list))
	for i, v := range list {
		out[i] = f(v)
	}
	return out
}

// DefaultClosed returns the ranges that are closed unless they, or parts of them, are listed: loopback, private, shared, link-local,
// metadata, multicast and reserved ones. A policy closes the NAT64 and 6to4 forms of a closed IPv4 range too.
func DefaultClosed() []netip.Prefix {
	return ranges(closedForGood, closedByDefault)
}

// NewPolicy returns the policy of r. An error names the entry that is none.
func NewPolicy(r Rules) (*Policy, error) {
	if r.Mode != ModeFiltered && r.Mode != ModeAllowlist {
		return nil, fmt.Errorf("egress mode %q: there are %s and %s", r.Mode, ModeFiltered, ModeAllowlist)
	}
	closed := DefaultClosed()
	if r.Closed != nil {
		closed = append(ranges(closedForGood), r.Closed...)
	}
	p := &Policy{mode: r.Mode}
	for _, c := range closed {
		if !c.IsValid() {
			return nil, errors.New("a closed range is not a range")
		}
		p.closed = append(p.closed, forms(c.Masked())...)
	}
	for i, text := range slices.Concat(r.Trusted, r.Allow) {
		e, err := parseEntry(text)
		if err != nil {
			return nil, err
		}
		e.trusted = i < len(r.Trusted)
		if !slices.Contains(p.entries, e) {
			p.entries = append(p.entries, e)
		}
	}
	return p, nil
}

// Canonical returns text, an entry of Rules, as it is compared and shown.
func Canonical(text string) (string, error) {
	e, err := parseEntry(text)
	return e.text, err
}

// Mode returns what p does with addresses that nobody listed.
func (p *Policy) Mode() Mode { return p.mode }

// Entries returns the list, in the form and the order in which it is compared.
func (p *Policy) Entries() []string {
	list := make([]string, len(p.entries))
	for i, e := range p.entries {
		list[i] = e.text
	}
	return list
}

// errEntry is what an entry can be.
var errEntry = errors.New("want a name, *.name, an address or a range such as 10.0.0.0/8, each with :port or without")

func parseEntry(text string) (entry, error) {
	e, err := parseTarget(text)
	if err != nil {
		return entry{}, fmt.Errorf("allow %q: %w", text, err)
	}
	return e, nil
}

func parseTarget(text string) (entry, error) {
	host, port, err := splitPort(text)
	if err != nil {
		return entry{}, err
	}
	e := entry{port: port}
	if prefix, ok, err := parseRange(host); err != nil {
		return entry{}, err
	} else if ok {
		e.prefix = prefix
		e.text = e.format()
		return e, nil
	}
	name, below := strings.CutPrefix(host, "*.")
	name, ok := canonicalName(name)
	if !ok {
		return entry{}, errEntry
	}
	// 10.0.0 and 0x7f.1 are names by their letters and addresses to some resolvers.
	if last := name[strings.LastIndexByte(name, '.')+1:]; last[0] >= '0' && last[0] <= '9' {
		return entry{}, errEntry
	}
	e.name, e.below = name, below
	e.text = e.format()
	return e, nil
}

// format is the one way in which an entry is written.
func (e entry) format() string {
	host := e.name
	switch {
	case e.below:
		host = "*." + e.name
	case e.name == "" && e.prefix.IsSingleIP():
		host = e.prefix.Addr().String()
	case e.name == "":
		host = e.prefix.String()
	}
	if e.port == 0 {
		return host
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(int(e.port))
}

// splitPort cuts the port off. An address of IPv6 needs brackets to have one.
func splitPort(text string) (host string, port uint16, err error) {
	if strings.Contains(text, "://") {
		return "", 0, errEntry
	}
	host, digits := text, ""
	if rest, ok := strings.CutPrefix(text, "["); ok {
		var after string
		if host, after, ok = strings.Cut(rest, "]"); !ok {
			return "", 0, errEntry
		}
		if after != "" {
			if digits, ok = strings.CutPrefix(after, ":"); !ok || digits == "" {
				return "", 0, errEntry
			}
		}
		if !strings.Contains(host, ":") {
			return "", 0, errEntry
		}
	} else if strings.Count(text, ":") == 1 {
		if host, digits, _ = strings.Cut(text, ":"); digits == "" {
			return "", 0, errEntry
		}
	}
	if digits == "" {
		return host, 0, nil
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || n == 0 {
		return "", 0, fmt.Errorf("port %q: want a number from 1 to 65535", digits)
	}
	return host, uint16(n), nil
}

// parseRange reads an address or a range. A range with bits behind its length is an error: it is not what was meant.
func parseRange(host string) (netip.Prefix, bool, error) {
	if strings.Contains(host, "%") {
		return netip.Prefix{}, false, errors.New("an address with a zone means nothing outside of its machine")
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), true, nil
	}
	if !strings.Contains(host, "/") {
		return netip.Prefix{}, false, nil
	}
	prefix, err := netip.ParsePrefix(host)
	if err != nil {
		return netip.Prefix{}, false, errEntry
	}
	if prefix.Addr().Is4In6() {
		if prefix.Bits() < 96 {
			return netip.Prefix{}, false, errEntry
		}
		prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
	}
	if masked := prefix.Masked(); masked != prefix {
		return netip.Prefix{}, false, fmt.Errorf("the range with that length is %s", masked)
	}
	return prefix, true, nil
}

// canonicalName returns name in lower case without the dot at its end, and whether it can be a host's name: letters, digits,
// hyphens and underscores, 63 to a label, 253 in all (RFC 1123, section 2.1; RFC 2181, section 11). A name that is an address, is not one.
func canonicalName(name string) (string, bool) {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if name == "" || len(name) > 253 {
		return "", false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return "", false
		}
		for _, c := range []byte(label) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return "", false
			}
		}
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return "", false
	}
	return name, true
}

// forms returns a range of IPv4 with what leads to it by IPv6: NAT64 (RFC 6052) and 6to4 (RFC 3056). Mapped ones (::ffff:0:0/96)
// are compared as what they stand for.
func forms(p netip.Prefix) []netip.Prefix {
	p = unmap(p)
	if !p.Addr().Is4() {
		return []netip.Prefix{p}
	}
	nat64 := netip.MustParseAddr("64:ff9b::").As16()
	sixToFour := netip.MustParseAddr("2002::").As16()
	four := p.Addr().As4()
	copy(nat64[12:], four[:])
	copy(sixToFour[2:], four[:])
	return []netip.Prefix{
		p,
		netip.PrefixFrom(netip.AddrFrom16(nat64), 96+p.Bits()),
		netip.PrefixFrom(netip.AddrFrom16(sixToFour), 16+p.Bits()),
	}
}
