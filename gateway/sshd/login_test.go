package sshd

import (
	"crypto/rand"
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// attempt is the metadata of a connection during login.
type attempt struct {
	ssh.ConnMetadata
	addr net.Addr
}

func (a attempt) RemoteAddr() net.Addr { return a.addr }

var testTime = time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)

func tryLogin(k *Keys, key ssh.PublicKey) (*grant, error) {
	p, err := k.login(attempt{addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}}, key, testTime)
	return grantOf(p), err
}

// certify returns a valid certificate for key, unless change makes it invalid.
func certify(t *testing.T, ca ssh.Signer, key ssh.PublicKey,
	change func(*ssh.Certificate)) *ssh.Certificate {
	t.Helper()
	c := &ssh.Certificate{
		Key: key, CertType: ssh.UserCert, ValidPrincipals: []string{"alice", "team"},
		ValidAfter:  uint64(testTime.Add(-time.Hour).Unix()),
		ValidBefore: uint64(testTime.Add(time.Hour).Unix()),
		Permissions: ssh.Permissions{Extensions: map[string]string{"permit-pty": "",
			"permit-port-forwarding":  "",
			"permit-agent-forwarding": "", "permit-X11-forwarding": ""}},
	}
	if change != nil {
		change(c)
	}
	if err := c.SignCert(rand.Reader, ca); err != nil {
		t.Fatal(err)
	}
	// As it comes from the network.
	parsed, err := ssh.ParsePublicKey(c.Marshal())
	if err != nil {
		t.Fatal(err)
	}
	return parsed.(*ssh.Certificate)
}

func TestCertificates(t *testing.T) {
	ca, user, stranger := newSigner(t), newSigner(t), newSigner(t)
	for _, tt := range []struct {
		name   string
		line   string
		signer ssh.Signer
		change func(*ssh.Certificate)
		want   bool
	}{
		{"good", `cert-authority`, ca, nil, true},
		{"named principal", `cert-authority,principals="bob,alice"`, ca, nil, true},
		{"not the first principal", `cert-authority,principals="team"`, ca, nil, false},
		{"other principal", `cert-authority,principals="bob"`, ca, nil, false},
		{"unknown authority", `cert-authority`, stranger, nil, false},
		{"key that is no authority", ``, ca, nil, false},
		{"expired", `cert-authority`, ca, func(c *ssh.Certificate) { c.ValidBefore = uint64(testTime.Unix()) }, false},
		{"not yet valid", `cert-authority`, ca, func(c *ssh.Certificate) { c.ValidAfter = uint64(testTime.Add(time.Second).Unix()) }, false},
		{"valid indefinitely", `cert-authority`, ca, func(c *ssh.Certificate) { c.ValidBefore = ssh.CertTimeInfinity }, true},
		{"no principals", `cert-authority`, ca, func(c *ssh.Certificate) { c.ValidPrincipals = nil }, false},
		{"odd principal", `cert-authority`, ca, func(c *ssh.Certificate) { c.ValidPrincipals = []string{"../x"} }, false},
		{"for a host", `cert-authority`, ca, func(c *ssh.Certificate) { c.CertType = ssh.HostCert }, false},
		{"unknown critical option", `cert-authority`, ca, func(c *ssh.Certificate) {
			c.CriticalOptions = map[string]string{"verify-required": ""}
		}, false},
		{"forced command", `cert-authority`, ca, func(c *ssh.Certificate) {
			c.CriticalOptions = map[string]string{"force-command": "true"}
		}, true},
		{"another forced command", `cert-authority,command="false"`, ca, func(c *ssh.Certificate) {
			c.CriticalOptions = map[string]string{"force-command": "true"}
		}, false},
		{"empty forced command", `cert-authority`, ca, func(c *ssh.Certificate) {
			c.CriticalOptions = map[string]string{"force-command": ""}
		}, false},
		{"from elsewhere", `cert-authority,from="198.51.100.1"`, ca, nil, false},
		{"authority has expired", `cert-authority,expiry-time="20260101Z"`, ca, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := OpenKeys(writeKeys(t, keyLine(tt.line, ca.PublicKey())), "owner", nil)
			g, err := tryLogin(k, certify(t, tt.signer, user.PublicKey(), tt.change))
			if (err == nil) != tt.want {
				t.Fatalf("err %v, want login %v", err, tt.want)
			}
			if err == nil && g.Name != "alice" {
				t.Errorf("logged in as %q, want the first principal", g.Name)
			}
			if err != nil && !errors.Is(err, errLogin) {
				t.Errorf("error %v is not %v", err, errLogin)
			}
		})
	}
	t.Run("signature broken", func(t *testing.T) {
		k := OpenKeys(writeKeys(t, keyLine("cert-authority", ca.PublicKey())), "owner", nil)
		c := certify(t, ca, user.PublicKey(), nil)
		c.ValidPrincipals[0] = "root"
		if g, err := tryLogin(k, c); err == nil {
			t.Errorf("logged in as %+v", g)
		}
	})
	t.Run("what it leaves out is not allowed", func(t *testing.T) {
		k := OpenKeys(writeKeys(t, keyLine("cert-authority", ca.PublicKey())), "owner", nil)
		g, err := tryLogin(k, certify(t, ca, user.PublicKey(), func(c *ssh.Certificate) {
			c.Extensions = nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		if o := g.Options; !o.NoPty || !o.NoForward || !o.NoAgent || !o.NoX11 {
			t.Errorf("got %+v", o)
		}
	})
	t.Run("a certificate is no line of the file", func(t *testing.T) {
		c := certify(t, ca, user.PublicKey(), nil)
		k := OpenKeys(writeKeys(t, keyLine("", c)), "owner", nil)
		if g, err := tryLogin(k, c); err == nil {
			t.Errorf("logged in as %+v", g)
		}
	})
	t.Run("source-address", func(t *testing.T) {
		k := OpenKeys(writeKeys(t, keyLine("cert-authority", ca.PublicKey())), "owner", nil)
		c := certify(t, ca, user.PublicKey(), func(c *ssh.Certificate) {
			c.CriticalOptions = map[string]string{"source-address": "198.51.100.0/24,203.0.113.7"}
		})
		if _, err := k.login(attempt{addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}}, c,
			testTime); err == nil {
			t.Error("logged in from another address")
		}
		p, err := k.login(attempt{addr: &net.TCPAddr{IP: net.IPv4(203, 0, 113, 7)}}, c, testTime)
		if err != nil || p.CriticalOptions["source-address"] == "" {
			t.Fatalf("permissions %+v, err %v", p, err)
		}
		if g := grantOf(p); g == nil || len(g.Options.Unheld()) == 0 {
			t.Errorf("grant %+v: a token could be made, and used from anywhere", g)
		}
	})
}

// An attempt leaves no state besides its result.
func TestGrantOf(t *testing.T) {
	if g := grantOf(nil); g != nil {
		t.Errorf("no permissions grant %+v", g)
	}
	if g := grantOf(&ssh.Permissions{Extensions: map[string]string{"grant": "all"}}); g != nil {
		t.Errorf("others' permissions grant %+v", g)
	}
}
