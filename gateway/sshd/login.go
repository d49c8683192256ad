package sshd

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"golang.org/x/crypto/ssh"
)

// errLogin is why an attempt to log in was refused, for the log alone: a client learns that it was.
var errLogin = errors.New("login refused")

// grantKey is where a successful attempt keeps its *grant, in Permissions.ExtraData. Nothing else says who a client is:
// neither the user name, which routes, nor what earlier attempts on the connection were.
type grantKey struct{}

// grantOf returns what the login that succeeded was granted.
func grantOf(p *ssh.Permissions) *grant {
	if p == nil {
		return nil
	}
	g, _ := p.ExtraData[grantKey{}].(*grant)
	return g
}

// login decides on one public key. Its result is that of this attempt alone; the user name plays no part.
func (k *Keys) login(c ssh.ConnMetadata, key ssh.PublicKey, now time.Time) (*ssh.Permissions, error) {
	if err := weak(key); err != nil {
		return nil, fmt.Errorf("%w: %w", errLogin, err)
	}
	var g *grant
	var options map[string]string
	if cert, ok := key.(*ssh.Certificate); ok {
		var err error
		if g, err = k.certified(cert, now); err != nil {
			return nil, fmt.Errorf("%w: certificate: %w", errLogin, err)
		}
		if v, ok := cert.CriticalOptions[optSource]; ok {
			options = map[string]string{optSource: v} // which the library enforces
		}
	} else if g = k.lookup(key); g == nil {
		return nil, fmt.Errorf("%w: no such key", errLogin)
	}
	if err := g.admits(c.RemoteAddr(), now); err != nil {
		return nil, fmt.Errorf("%w: %w", errLogin, err)
	}
	p := &ssh.Permissions{CriticalOptions: options, ExtraData: map[any]any{grantKey{}: g}}
	if g.NoTouch {
		p.Extensions = map[string]string{"no-touch-required": ""}
	}
	return p, nil
}

// Critical options of a user certificate (OpenSSH, PROTOCOL.certkeys).
const (
	optCommand = "force-command"
	optSource  = "source-address"
)

// certified returns what a certificate grants: what its authority's line does, less what the certificate leaves out.
func (k *Keys) certified(cert *ssh.Certificate, now time.Time) (*grant, error) {
	if _, nested := cert.SignatureKey.(*ssh.Certificate); nested {
		return nil, errors.New("it is signed by a certificate")
	}
	if _, nested := cert.Key.(*ssh.Certificate); nested {
		return nil, errors.New("it is for a certificate")
	}
	if cert.CertType != ssh.UserCert {
		return nil, errors.New("it is not for a user")
	}
	line := k.authority(cert.SignatureKey)
	if line == nil {
		return nil, errors.New("its authority is not known")
	}
	// A certificate for nobody is for everybody in OpenSSH's format; here it says who somebody is.
	if len(cert.ValidPrincipals) == 0 {
		return nil, errors.New("it names no principal")
	}
	name := cert.ValidPrincipals[0]
	if err := checkPrincipal(name); err != nil {
		return nil, err
	}
	if len(line.principals) > 0 && !slices.Contains(line.principals, name) {
		return nil, fmt.Errorf("its authority may not name %q", name)
	}
	checker := ssh.CertChecker{SupportedCriticalOptions: []string{optCommand, optSource}, Clock: func() time.Time { return now }}
	if err := checker.CheckCert(name, cert); err != nil {
		return nil, err
	}

	g := *line
	g.Name, g.Key, g.authority = name, ssh.FingerprintSHA256(cert.Key), false
	if cert.ValidBefore <= math.MaxInt64 {
		if end := time.Unix(int64(cert.ValidBefore), 0); g.Options.Expires.IsZero() || end.Before(g.Options.Expires) {
			g.Options.Expires = end
		}
	}
	if command, ok := cert.CriticalOptions[optCommand]; ok {
		if command == "" || g.Options.Command != "" && g.Options.Command != command {
			return nil, errors.New("its forced command is not its authority's")
		}
		g.Options.Command = command
	}
	lacks := func(extension string) bool { _, ok := cert.Extensions[extension]; return !ok }
	g.Options.NoPty = g.Options.NoPty || lacks("permit-pty")
	g.Options.NoForward = g.Options.NoForward || lacks("permit-port-forwarding")
	g.Options.NoAgent = g.Options.NoAgent || lacks("permit-agent-forwarding")
	g.Options.NoX11 = g.Options.NoX11 || lacks("permit-X11-forwarding")
	return &g, nil
}
