package sshd

import (
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
)

// denied are the library's default algorithms that the server does not offer. Algorithms that the
// library adds later are offered without a change here.
var denied = []string{
	// SHA-1, in signatures, key exchange and MACs.
	ssh.KeyAlgoRSA, ssh.CertAlgoRSAv01, "ssh-dss", "ssh-dss-cert-v01@openssh.com",
	ssh.InsecureKeyExchangeDH14SHA1, ssh.InsecureKeyExchangeDH1SHA1,
	ssh.InsecureKeyExchangeDHGEXSHA1,
	ssh.HMACSHA1, ssh.InsecureHMACSHA196,
	// CBC, RC4.
	ssh.InsecureCipherAES128CBC, ssh.InsecureCipherTripleDESCBC,
	ssh.InsecureCipherRC4, ssh.InsecureCipherRC4128, ssh.InsecureCipherRC4256,
}

// offered returns list without denied algorithms.
func offered(list []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(a string) bool {
		return slices.Contains(denied, a) || strings.Contains(a, "nistp")
	})
}

// algorithms sets what c offers. Its order does not matter: the client's first choice that the
// server offers wins.
//
// Encrypt-and-MAC comes last, and only with SHA-2: libssh2 before 1.11, and so curl's sftp:// on
// Debian 12, supports neither encrypt-then-MAC nor AEAD ciphers. All other clients negotiate one of
// those.
func algorithms(c *ssh.ServerConfig) {
	c.SetDefaults()
	c.KeyExchanges = offered(c.KeyExchanges)
	c.Ciphers = offered(c.Ciphers)
	c.MACs = offered(c.MACs)
	slices.SortStableFunc(c.MACs, func(a, b string) int {
		return encryptAndMAC(a) - encryptAndMAC(b)
	})
	c.PublicKeyAuthAlgorithms = offered(ssh.SupportedAlgorithms().PublicKeyAuths)
}

func encryptAndMAC(mac string) int {
	if strings.Contains(mac, "-etm@") {
		return 0
	}
	return 1
}

// withoutSHA1 prevents an RSA host key from signing as ssh-rsa, which the library offers with every
// RSA key.
func withoutSHA1(k ssh.Signer) ssh.Signer {
	a, ok := k.(ssh.AlgorithmSigner)
	if !ok || k.PublicKey().Type() != ssh.KeyAlgoRSA {
		return k
	}
	restricted, err := ssh.NewSignerWithAlgorithms(
		a, []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256})
	if err != nil { // the key supports fewer algorithms
		return k
	}
	return restricted
}
