package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Mode is how a policy treats addresses that are not listed.
type Mode string

// The modes of a policy.
const (
	ModeFiltered  Mode = "filtered"  // public and listed addresses are open
	ModeAllowlist Mode = "allowlist" // only listed addresses are open
)

// Rules define a policy. Each entry of the lists is a name (example.com), all names below one
// (*.example.com), an address, a range of addresses (10.1.2.0/24), or *, which stands for what
// ModeFiltered opens. Each may have a port (example.com:443, 10.1.2.3:5432, [2001:db8::1]:80).
//
// No entry opens loopback, link-local, metadata, multicast and reserved addresses. No name opens
// another closed address, whatever it resolves to.
type Rules struct {
	Mode    Mode
	Trusted []string // by the admin: a range inside a closed one opens it
	Allow   []string // by others: opens nothing that is closed, even if it was closed later

	// Closed are the ranges that only a trusted range opens. nil means DefaultClosed. Addresses
	// that no entry can open are closed in any case. So are the machine's networks, and its own
	// addresses, which must be opened individually.
	Closed []netip.Prefix

	// Bound are names whose port 443 is listed, and reached only through Options.Broker.
	Bound []string
}

// Policy decides what a sandbox may connect to. It is immutable and safe for concurrent use.
type Policy struct {
	mode    Mode
	entries []entry
	closed  []netip.Prefix
	bound   map[string]bool // names
}

// entry is one entry of a list: a name, a range of addresses, or everything that is not closed.
type entry struct {
	text   string       // canonical form
	name   string       // without the star; empty for addresses
	below  bool         // *.name: all names below, not the name itself
	prefix netip.Prefix // of addresses; invalid for others
	every  bool         // *: each name, and each address that is not closed
	port   uint16       // 0: all ports

	trusted bool // can open closed addresses
}

// closedForGood cannot be opened. It covers the machine itself, with services bound to loopback so
// that others cannot reach them. It also covers services for that machine, such as the metadata of
// a cloud.
var closedForGood = []string{
	"0.0.0.0/8",          // this host (RFC 791): Linux connects to itself
	"127.0.0.0/8",        // loopback
	"::/96",              // unspecified, loopback, IPv4-compatible (RFC 4291)
	"100.100.100.200/32", // Alibaba's metadata
	"168.63.129.16/32",   // Azure's host: a public address with special use
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

// namesForGood are names that only lead to such addresses: allowing one opens nothing.
var namesForGood = []string{
	"localhost",
	"instance-data", "instance-data.ec2.internal", // Amazon's
	"metadata", "metadata.goog", "metadata.google.internal", // Google's
	"metadata.tencentyun.com",
}

// closedByDefault are the other closed ranges. Documentation ranges are missing, because some
// networks use them for mirrors.
var closedByDefault = []string{
	"10.0.0.0/8",      // private (RFC 1918)
	"100.64.0.0/10",   // shared (RFC 6598); ours inside
	"172.16.0.0/12",   // private
	"192.88.99.0/24",  // relays of 6to4 (RFC 7526)
	"192.168.0.0/16",  // private
	"198.18.0.0/15",   // benchmarks (RFC 2544); names, inside
	"::ffff:0:0:0/96", // IPv4-translated (RFC 2765)
	"64:ff9b:1::/48",  // NAT64 of a network (RFC 8215): the position of the IPv4 address is unknown
	"100::/64",        // discard (RFC 6666)
	"2001::/32",       // Teredo (RFC 4380): leads to an IPv4 host behind a NAT
	"fc00::/7",        // unique local (RFC 4193)
	"fec0::/10",       // site-local, deprecated (RFC 3879)
}

// forGood are the ranges of closedForGood in all their forms.
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

// DefaultClosed returns the ranges that are closed unless they, or parts of them, are listed:
// loopback, private, shared, link-local, metadata, multicast and reserved ones. A policy also
// closes the NAT64 and 6to4 forms of a closed IPv4 range.
func DefaultClosed() []netip.Prefix {
	return ranges(closedForGood, closedByDefault)
}

// NewPolicy returns the policy of r. An error names the invalid entry.
func NewPolicy(r Rules) (*Policy, error) {
	if r.Mode != ModeFiltered && r.Mode != ModeAllowlist {
		return nil, fmt.Errorf("egress mode %q: must be %s or %s", r.Mode, ModeFiltered,
			ModeAllowlist)
	}
	closed := DefaultClosed()
	if r.Closed != nil {
		closed = append(ranges(closedForGood), r.Closed...)
	}
	p := &Policy{mode: r.Mode, bound: make(map[string]bool)}
	for _, text := range r.Bound {
		name, ok := canonicalName(text)
		if !ok || isNameForGood(name) {
			return nil, fmt.Errorf("bound name %q: must be the name of a host", text)
		}
		p.bound[name] = true
	}
	for _, c := range closed {
		if !c.IsValid() {
			return nil, errors.New("invalid closed range")
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

// Canonical returns the entry text in the form that is compared and shown.
func Canonical(text string) (string, error) {
	e, err := parseEntry(text)
	return e.text, err
}

// Mode returns how p treats addresses that are not listed.
func (p *Policy) Mode() Mode { return p.mode }

// Entries returns the list, in canonical form and in the order of comparison.
func (p *Policy) Entries() []string {
	list := make([]string, len(p.entries))
	for i, e := range p.entries {
		list[i] = e.text
	}
	return list
}

// errEntry says what an entry can be.
var errEntry = errors.New(
	"want a name, *.name, an address, a range such as 10.0.0.0/8, or *, each with :port or without")

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
	if host == "*" {
		e.every = true
		e.text = e.format()
		return e, nil
	}
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
	// 10.0.0 and 0x7f.1 look like names, but some resolvers treat them as addresses.
	if last := name[strings.LastIndexByte(name, '.')+1:]; last[0] >= '0' && last[0] <= '9' {
		return entry{}, errEntry
	}
	e.name, e.below = name, below
	e.text = e.format()
	return e, nil
}

// format returns the canonical form of an entry.
func (e entry) format() string {
	host := e.name
	switch {
	case e.every:
		host = "*"
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

// splitPort splits off the port. An IPv6 address with a port needs brackets.
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

// parseRange parses an address or a range. A range with bits set after its length is an error.
func parseRange(host string) (netip.Prefix, bool, error) {
	if strings.Contains(host, "%") {
		return netip.Prefix{}, false, errors.New("addresses with a zone are not supported")
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
		return netip.Prefix{}, false, fmt.Errorf("not a network address; use %s", masked)
	}
	return prefix, true, nil
}

// canonicalName returns name in lower case without a final dot, and whether it is a valid host
// name: letters, digits, hyphens and underscores, 63 in a label, 253 in total (RFC 1123, section
// 2.1; RFC 2181, section 11). An address is not a name.
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

// forms returns a range of IPv4 with its NAT64 (RFC 6052) and 6to4 (RFC 3056) forms in IPv6. Mapped
// addresses (::ffff:0:0/96) are compared as IPv4.
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
