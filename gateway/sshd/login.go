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

// errLogin is why an attempt to log in was refused, for the log alone: a client learns that it was.
var errLogin = errors.New("login refused")

// Errors of logins, also those that keep a client from staying.
var (
	errNoKey   = errors.New("the key is not in authorized_keys")
	errExpired = errors.New("the key has expired")
)

// grantKey is where a successful attempt keeps its *login, in Permissions.ExtraData. Nothing else
// says who a client is: neither the user name, which routes, nor what earlier attempts on the
// connection were.
type grantKey struct{}

// login is an attempt that succeeded.
type login struct {
	grant *grant
	key   ssh.PublicKey // or certificate
}

// loginOf returns the login that succeeded, nil if there is none.
func loginOf(p *ssh.Permissions) *login {
	if p == nil {
		return nil
	}
	l, _ := p.ExtraData[grantKey{}].(*login)
	return l
}

// login decides on one public key. Its result is that of this attempt alone; the user name plays no part.
func (k *Keys) login(c ssh.ConnMetadata, key ssh.PublicKey, now time.Time) (*ssh.Permissions, error) {
	g, err := k.look().admit(c.RemoteAddr(), key, now)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errLogin, err)
	}
	p := &ssh.Permissions{ExtraData: map[any]any{grantKey{}: &login{g, key}}}
	if cert, ok := key.(*ssh.Certificate); ok {
		if v, ok := cert.CriticalOptions[optSource]; ok {
			// Which the library enforces.
			p.CriticalOptions = map[string]string{optSource: v}
		}
	}
	if g.NoTouch {
		p.Extensions = map[string]string{"no-touch-required": ""}
	}
	return p, nil
}

// admit returns what the file grants to who has key, or a certificate, and comes from addr.
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

// certified returns what a certificate grants: what its authority's line does, less what the certificate leaves out.
func (f *keyFile) certified(cert *ssh.Certificate, now time.Time) (*grant, error) {
	if _, nested := cert.SignatureKey.(*ssh.Certificate); nested {
		return nil, errors.New("it is signed by a certificate")
	}
	if _, nested := cert.Key.(*ssh.Certificate); nested {
		return nil, errors.New("it is for a certificate")
	}
	if cert.CertType != ssh.UserCert {
		return nil, errors.New("it is not for a user")
	}
	line := f.signers[string(cert.SignatureKey.Marshal())]
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
	if !line.names(name) {
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
