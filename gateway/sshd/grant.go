package sshd

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/wire"
	"golang.org/x/crypto/ssh"
)

// grant is what one line of authorized_keys, or one certificate, allows. It is immutable.
type grant struct {
	gateway.Principal
	PermitListen []string // [host:]port that may be listened on in the sandbox; empty: any
	NoTouch      bool     // a security key need not be touched

	authority  bool     // the key signs certificates and cannot log in
	principals []string // of an authority: certificates must name one of them
}

// errOption is the error of a line with an unknown or unsupported option. Such a line is rejected,
// because options restrict.
var errOption = errors.New("authorized_keys option")

// parseOptions parses the options of a line, as split by ssh.ParseAuthorizedKey. The key belongs to
// owner unless the line names a principal.
func parseOptions(options []string, owner string) (*grant, error) {
	g := &grant{Principal: gateway.Principal{Name: owner, Kind: wire.Person,
		Rights: wire.RightDrive}}
	seen := map[string]bool{}
	for _, o := range options {
		name, value, hasValue := strings.Cut(o, "=")
		name = strings.ToLower(name)
		if hasValue {
			var err error
			if value, err = unquote(value); err != nil {
				return nil, fmt.Errorf("%w %q: %w", errOption, name, err)
			}
		}
		// Depending on the option, sshd uses the first of repeated ones or fails. Here, repetition
		// is an error.
		if once := name != "permitopen" && name != "permitlisten" && name != "environment"; once &&
			seen[name] {
			return nil, fmt.Errorf("%w %q is given twice", errOption, name)
		}
		seen[name] = true
		set, known := flagOptions[name], valueOptions[name]
		switch {
		case set == nil && known == nil:
			return nil, fmt.Errorf("%w %.64q is unknown", errOption, name)
		case set != nil && hasValue:
			return nil, fmt.Errorf("%w %q takes no value", errOption, name)
		case known != nil && !hasValue:
			return nil, fmt.Errorf("%w %q needs a value", errOption, name)
		case set != nil:
			set(g)
		default:
			if err := known(g, value); err != nil {
				return nil, fmt.Errorf("%w %q: %w", errOption, name, err)
			}
		}
	}
	switch {
	case g.authority && seen["principal"]:
		return nil, fmt.Errorf("%w \"principal\" applies to keys; a certificate names its own",
			errOption)
	case !g.authority && seen["principals"]:
		return nil, fmt.Errorf("%w \"principals\" requires cert-authority", errOption)
	}
	return g, nil
}

// flagOptions are the options without a value (sshd(8), AUTHORIZED_KEYS FILE FORMAT). Their order
// matters: options that allow come after restrict.
var flagOptions = map[string]func(*grant){
	"no-pty":              func(g *grant) { g.Options.NoPty = true },
	"no-port-forwarding":  func(g *grant) { g.Options.NoForward = true },
	"no-agent-forwarding": func(g *grant) { g.Options.NoAgent = true },
	"no-x11-forwarding":   func(g *grant) { g.Options.NoX11 = true },
	"restrict": func(g *grant) {
		g.Options.NoPty, g.Options.NoForward, g.Options.NoAgent, g.Options.NoX11 = true, true, true,
			true
	},
	"pty":               func(g *grant) { g.Options.NoPty = false },
	"port-forwarding":   func(g *grant) { g.Options.NoForward = false },
	"agent-forwarding":  func(g *grant) { g.Options.NoAgent = false },
	"x11-forwarding":    func(g *grant) { g.Options.NoX11 = false },
	"no-user-rc":        func(*grant) {}, // the daemon never runs ~/.ssh/rc
	"user-rc":           func(*grant) {},
	"cert-authority":    func(g *grant) { g.authority = true },
	"no-touch-required": func(g *grant) { g.NoTouch = true },
}

// valueOptions are the options with a value: those of sshd, and our principal, kind and role.
var valueOptions = map[string]func(*grant, string) error{
	// Accepted and ignored, as sshd does by default.
	"environment": func(*grant, string) error { return nil },
	"command": func(g *grant, v string) error {
		if v == "" {
			return errors.New("is empty")
		}
		g.Options.Command = v
		return nil
	},
	"from": func(g *grant, v string) error {
		g.Options.From = strings.Split(v, ",")
		_, err := matchSource(g.Options.From, netip.Addr{})
		return err
	},
	"permitopen": func(g *grant, v string) error {
		host, port, err := net.SplitHostPort(v)
		if err != nil || host == "" || !validPort(port) {
			return errors.New("is not host:port")
		}
		g.Options.PermitOpen = append(g.Options.PermitOpen, v)
		return nil
	},
	"permitlisten": func(g *grant, v string) error {
		port := v
		if strings.Contains(v, ":") {
			var err error
			if _, port, err = net.SplitHostPort(v); err != nil {
				return errors.New("is not [host:]port")
			}
		}
		if !validPort(port) {
			return errors.New("is not [host:]port")
		}
		g.PermitListen = append(g.PermitListen, v)
		return nil
	},
	"expiry-time": func(g *grant, v string) error {
		t, err := parseExpiry(v)
		g.Options.Expires = t
		return err
	},
	"principal": func(g *grant, v string) error {
		g.Name = v
		return checkPrincipal(v)
	},
	"principals": func(g *grant, v string) error {
		g.principals = strings.Split(v, ",")
		if slices.Contains(g.principals, "") {
			return errors.New("contains an empty name")
		}
		return nil
	},
	"kind": func(g *grant, v string) error {
		switch k := wire.PartyKind(v); k {
		case wire.Agent, wire.Person:
			g.Kind = k
			return nil
		}
		return errors.New("must be agent or person")
	},
	"role": func(g *grant, v string) error {
		switch r := wire.Rights(v); r {
		case wire.RightDrive, wire.RightWatch:
			g.Rights = r
			return nil
		}
		return errors.New("must be drive or watch")
	},
}

// unquote removes the quotes of an option's value. Inside them, only \" is an escape (sshd(8)).
func unquote(v string) (string, error) {
	if len(v) < 2 || v[0] != '"' || v[len(v)-1] != '"' {
		return "", errors.New("value is not in double quotes")
	}
	v = strings.ReplaceAll(v[1:len(v)-1], `\"`, `"`)
	if strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", errors.New("value has a control character")
	}
	return v, nil
}

// checkPrincipal validates a principal's name, which appears in logs, status lines and as an owner.
func checkPrincipal(name string) error {
	if name == "" || len(name) > 64 {
		return errors.New("principal must have 1 to 64 characters")
	}
	for i, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_':
		case i > 0 && (c == '.' || c == '-' || c == '@'):
		default:
			return errors.New("principal must consist of letters, digits and _ . - @")
		}
	}
	return nil
}

func validPort(s string) bool {
	if s == "*" {
		return true
	}
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

// parseExpiry parses YYYYMMDD[Z] and YYYYMMDDHHMM[SS][Z]. Without Z it is local time.
func parseExpiry(v string) (time.Time, error) {
	zone := time.Local
	if digits, ok := strings.CutSuffix(v, "Z"); ok {
		v, zone = digits, time.UTC
	}
	for _, layout := range []string{"20060102", "200601021504", "20060102150405"} {
		if len(v) == len(layout) {
			return time.ParseInLocation(layout, v, zone)
		}
	}
	return time.Time{}, errors.New("is not YYYYMMDD[HHMM[SS]][Z]")
}

// matchSource reports whether addr matches a list of addresses, CIDR blocks and patterns with * and
// ?. Entries with ! exclude (ssh_config(5), PATTERNS). Host names are an error, because they are
// not resolved.
func matchSource(list []string, addr netip.Addr) (bool, error) {
	addr = addr.Unmap().WithZone("")
	matched := false
	for _, p := range list {
		pattern, negated := strings.CutPrefix(strings.TrimSpace(p), "!")
		var hit bool
		switch {
		case strings.Contains(pattern, "/"):
			block, err := netip.ParsePrefix(pattern)
			if err != nil {
				return false, fmt.Errorf("%.64q is not a CIDR block", pattern)
			}
			hit = addr.IsValid() && block.Masked().Contains(addr)
		case strings.ContainsAny(pattern, "*?"):
			if strings.Trim(pattern, "0123456789abcdefABCDEF.:*?") != "" {
				return false, fmt.Errorf(
					"%.64q is not an address pattern; host names are not supported", pattern)
			}
			hit, _ = path.Match(pattern, addr.String()) // the pattern has no [ or \
			hit = hit && addr.IsValid()
		default:
			want, err := netip.ParseAddr(pattern)
			if err != nil {
				return false, fmt.Errorf("%.64q is not an address; host names are not supported",
					pattern)
			}
			hit = want.Unmap() == addr
		}
		if hit && negated {
			return false, nil
		}
		matched = matched || hit
	}
	return matched, nil
}

// admits returns why g does not allow a login from addr at now, or nil.
func (g *grant) admits(addr net.Addr, now time.Time) error {
	if g.expired(now) {
		return errExpired
	}
	if len(g.Options.From) > 0 {
		var source netip.Addr
		if tcp, ok := addr.(*net.TCPAddr); ok {
			source = tcp.AddrPort().Addr()
		}
		if ok, err := matchSource(g.Options.From, source); err != nil || !ok {
			return errors.New("the key does not allow logins from this address")
		}
	}
	return nil
}

// mayOpen returns why g does not allow a forward to host:port, or nil.
func (g *grant) mayOpen(host string, port uint32) error {
	return g.mayForward(g.Options.PermitOpen, host, port, "open")
}

// mayListen returns why g does not allow listening on host:port in the sandbox, or nil.
func (g *grant) mayListen(host string, port uint32) error {
	return g.mayForward(g.PermitListen, host, port, "listen on")
}

func (g *grant) mayForward(list []string, host string, port uint32, what string) error {
	switch {
	case g.Rights == wire.RightWatch:
		return errors.New("your key may only watch")
	case g.Options.NoForward:
		return errors.New("your key does not allow forwarding")
	case len(list) == 0:
		return nil
	}
	for _, p := range list {
		wantHost, wantPort := "*", p
		if strings.Contains(p, ":") {
			wantHost, wantPort, _ = net.SplitHostPort(p) // validated by parseOptions
		}
		if (wantHost == "*" || strings.EqualFold(wantHost, host)) &&
			(wantPort == "*" || wantPort == fmt.Sprint(port)) {
			return nil
		}
	}
	return fmt.Errorf("your key does not allow to %s %s", what,
		net.JoinHostPort(host, fmt.Sprint(port)))
}

// weak returns why the type or size of a key is not accepted, or nil.
func weak(key ssh.PublicKey) error {
	if cert, ok := key.(*ssh.Certificate); ok {
		key = cert.Key
	}
	switch t := key.Type(); {
	case t == ssh.KeyAlgoRSA:
		return weakRSA(key)
	case slices.Contains(offered(ssh.SupportedAlgorithms().PublicKeyAuths), t):
		return nil
	default:
		return fmt.Errorf("keys of type %s are not accepted", t)
	}
}

func weakRSA(key ssh.PublicKey) error {
	var bits int
	if k, ok := key.(ssh.CryptoPublicKey); ok {
		if sized, ok := k.CryptoPublicKey().(interface{ Size() int }); ok {
			bits = sized.Size() * 8
		}
	}
	if bits < 2048 || bits > 8192 {
		return fmt.Errorf("RSA keys must have 2048 to 8192 bits, not %d", bits)
	}
	return nil
}
