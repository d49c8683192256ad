package secret

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	caAge   = 10 * 365 * 24 * time.Hour
	leafAge = 7 * 24 * time.Hour
	skew    = time.Hour // that a clock may differ
)

// authority is the certificate authority of one sandbox. Its key is only in memory, and derives
// from a seed, so that programs trust it after a restart of the daemon. Its certificate is valid
// for the bound hosts and names below them, and for no address (RFC 5280, section 4.2.1.10). A
// change of the hosts makes another certificate with the same name and key, so that programs that
// have read an earlier one accept the hosts in it.
type authority struct {
	key  *ecdsa.PrivateKey
	id   []byte // of the key
	made time.Time

	mu     sync.Mutex
	hosts  []string                    // guarded by mu; sorted
	cert   *x509.Certificate           // guarded by mu; nil without hosts
	leaves map[string]*tls.Certificate // guarded by mu; by host
}

func newAuthority(seed []byte) (*authority, error) {
	k, err := authorityKey(seed)
	if err != nil {
		return nil, fmt.Errorf("broker: key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(&k.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("broker: key: %w", err)
	}
	id := sha256.Sum256(public)
	return &authority{key: k, id: id[:20], made: time.Now()}, nil
}

// authorityKey returns the key that derives from seed; for nil, a random one.
func authorityKey(seed []byte) (*ecdsa.PrivateKey, error) {
	if seed == nil {
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	for n := byte(0); ; n++ {
		mac := hmac.New(sha256.New, seed)
		mac.Write([]byte{n})
		// The number is not below the curve's order once in 2^32: then the next one.
		k, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), mac.Sum(nil))
		if err == nil || n == 255 {
			return k, err
		}
	}
}

// setHosts makes the certificate for hosts.
func (a *authority) setHosts(hosts []string) error {
	hosts = sorted(hosts)
	a.mu.Lock()
	defer a.mu.Unlock()
	if slices.Equal(hosts, a.hosts) {
		return nil
	}
	var cert *x509.Certificate
	if len(hosts) > 0 {
		serial, err := serialNumber()
		if err != nil {
			return err
		}
		template := &x509.Certificate{
			SerialNumber: serial, SubjectKeyId: a.id,
			Subject: pkix.Name{CommonName: "sandboxd broker of this sandbox",
				SerialNumber: fmt.Sprintf("%x", a.id[:8])},
			NotBefore: a.made.Add(-skew), NotAfter: a.made.Add(caAge),
			IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
			KeyUsage:                    x509.KeyUsageCertSign,
			ExtKeyUsage:                 []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
			PermittedDNSDomainsCritical: true,
			PermittedDNSDomains:         hosts,
			ExcludedIPRanges: []*net.IPNet{{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)},
				{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}},
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
		if err == nil {
			cert, err = x509.ParseCertificate(der)
		}
		if err != nil {
			return fmt.Errorf("broker: certificate authority: %w", err)
		}
	}
	a.hosts, a.cert, a.leaves = hosts, cert, make(map[string]*tls.Certificate)
	return nil
}

// pem returns the certificate, or nil without hosts.
func (a *authority) pem() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cert == nil {
		return nil
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// leaf returns the certificate of a host. It makes another one when half of its time is over.
func (a *authority) leaf(host string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if known := a.leaves[host]; known != nil && now.Before(known.Leaf.NotAfter.Add(-leafAge/2)) {
		return known, nil
	}
	if !slices.Contains(a.hosts, host) {
		return nil, fmt.Errorf("broker: host %s is not bound", host)
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("broker: key: %w", err)
	}
	template := &x509.Certificate{SerialNumber: serial, DNSNames: []string{host},
		NotBefore: now.Add(-skew), NotAfter: now.Add(leafAge), BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &k.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("broker: certificate of %s: %w", host, err)
	}
	made := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: k}
	if made.Leaf, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("broker: certificate of %s: %w", host, err)
	}
	a.leaves[host] = made
	return made, nil
}

// serialNumber returns a random positive number of at most 127 bits.
func serialNumber() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("broker: serial number: %w", err)
	}
	return n.Add(n, big.NewInt(1)), nil
}
