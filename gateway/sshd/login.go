package sshd

import (
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// errLogin is why a login attempt failed. It is only logged: a client learns no reason.
var errLogin = errors.New("login denied")

// Errors of logins, and reasons for the end of access.
var (
	errNoKey   = errors.New("the key is not in authorized_keys")
	errExpired = errors.New("the key has expired")
)

// grantKey is the key of a successful attempt's *login in Permissions.ExtraData. Nothing else
// identifies a client: neither the user name, which routes, nor earlier attempts on the connection.
type grantKey struct{}

// login is a successful attempt.
type login struct {
	grant *grant
	key   ssh.PublicKey // or certificate
}

// loginOf returns the successful login, or nil.
func loginOf(p *ssh.Permissions) *login {
	if p == nil {
		return nil
	}
	l, _ := p.ExtraData[grantKey{}].(*login)
	return l
}

// login decides on one public key. The result applies to this attempt only; the user name is not
// considered.
func (k *Keys) login(c ssh.ConnMetadata, key ssh.PublicKey, now time.Time) (*ssh.Permissions,
	error) {
	g, err := k.look().admit(c.RemoteAddr(), key, now)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errLogin, err)
	}
	p := &ssh.Permissions{ExtraData: map[any]any{grantKey{}: &login{g, key}}}
	if cert, ok := key.(*ssh.Certificate); ok {
		if v, ok := cert.CriticalOptions[optSource]; ok {
			// The library enforces it.
			p.CriticalOptions = map[string]string{optSource: v}
		}
	}
	if g.NoTouch {
		p.Extensions = map[string]string{"no-touch-required": ""}
	}
	return p, nil
}

// admit returns what the file grants to a holder of key, or of a certificate, from addr.
func (f *keyFile) admit(addr net.Addr, key ssh.PublicKey, now time.Time) (*grant, error) {
	if err := weak(key); err != nil {
		return nil, err
	}
	g := f.keys[string(key.Marshal())]
	if cert, ok := key.(*ssh.Certificate); ok {
		var err error
		if g, err = f.certified(cert, now); err != nil {
			return nil, fmt.Errorf("certificate: %w", err)
		}
	}
	if g == nil {
		return nil, errNoKey
	}
	if err := g.admits(addr, now); err != nil {
		return nil, err
	}
	return g, nil
}

// Critical options of a user certificate (OpenSSH, PROTOCOL.certkeys).
const (
	optCommand = "force-command"
	optSource  = "source-address"
)

// certified returns what a certificate grants: its authority's line, minus what the certificate
// does not permit.
func (f *keyFile) certified(cert *ssh.Certificate, now time.Time) (*grant, error) {
	if _, nested := cert.SignatureKey.(*ssh.Certificate); nested {
		return nil, errors.New("signed by a certificate")
	}
	if _, nested := cert.Key.(*ssh.Certificate); nested {
		return nil, errors.New("issued for a certificate")
	}
	if cert.CertType != ssh.UserCert {
		return nil, errors.New("not a user certificate")
	}
	line := f.signers[string(cert.SignatureKey.Marshal())]
	if line == nil {
		return nil, errors.New("unknown authority")
	}
	// In OpenSSH's format, a certificate without principals is valid for all. Here it must name
	// one, which identifies the user.
	if len(cert.ValidPrincipals) == 0 {
		return nil, errors.New("names no principal")
	}
	name := cert.ValidPrincipals[0]
	if err := checkPrincipal(name); err != nil {
		return nil, err
	}
	if !line.names(name) {
		return nil, fmt.Errorf("the authority may not name %q", name)
	}
	checker := ssh.CertChecker{SupportedCriticalOptions: []string{optCommand, optSource},
		Clock: func() time.Time { return now }}
	if err := checker.CheckCert(name, cert); err != nil {
		return nil, err
	}

	g := *line
	g.Name, g.Key, g.authority = name, ssh.FingerprintSHA256(cert.Key), false
	if cert.ValidBefore <= math.MaxInt64 {
		if end := time.Unix(int64(cert.ValidBefore), 0); g.Options.Expires.IsZero() ||
			end.Before(g.Options.Expires) {
			g.Options.Expires = end
		}
	}
	if command, ok := cert.CriticalOptions[optCommand]; ok {
		if command == "" || g.Options.Command != "" && g.Options.Command != command {
			return nil, errors.New("force-command differs from its authority's")
		}
		g.Options.Command = command
	}
	if source, ok := cert.CriticalOptions[optSource]; ok && len(g.Options.From) == 0 {
		g.Options.From = strings.Split(source, ",")
	}
	lacks := func(extension string) bool { _, ok := cert.Extensions[extension]; return !ok }
	g.Options.NoPty = g.Options.NoPty || lacks("permit-pty")
	g.Options.NoForward = g.Options.NoForward || lacks("permit-port-forwarding")
	g.Options.NoAgent = g.Options.NoAgent || lacks("permit-agent-forwarding")
	g.Options.NoX11 = g.Options.NoX11 || lacks("permit-X11-forwarding")
	return &g, nil
}
