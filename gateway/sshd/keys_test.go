package sshd

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"log/slog"
	"math/big"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

func TestKeysFile(t *testing.T) {
	alice, bob, ca, bad := newSigner(t), newSigner(t), newSigner(t), newSigner(t)
	var logged bytes.Buffer
	path := writeKeys(t,
		"# people\n\n",
		keyLine(`principal="alice"`, alice.PublicKey()),
		keyLine(``, bob.PublicKey()),
		keyLine(`no-such-option`, bad.PublicKey()),
		keyLine(`cert-authority`, ca.PublicKey()),
		keyLine(`principal="mallory"`, alice.PublicKey()), // the first line applies
		"garbage\n",
		"ssh-ed25519 AAAAshort x\n", // a short key
	)
	k := OpenKeys(path, "owner", slog.New(slog.NewTextHandler(&logged, nil)))
	if g := k.lookup(alice.PublicKey()); g == nil || g.Name != "alice" ||
		g.Key != ssh.FingerprintSHA256(alice.PublicKey()) {
		t.Errorf("alice's key: got %+v", g)
	}
	if g := k.lookup(bob.PublicKey()); g == nil || g.Name != "owner" {
		t.Errorf("a line without principal: got %+v", g)
	}
	if g := k.lookup(bad.PublicKey()); g != nil {
		t.Errorf("a line with an unknown option lets in %+v", g)
	}
	if k.lookup(ca.PublicKey()) != nil || k.authority(ca.PublicKey()) == nil ||
		k.authority(alice.PublicKey()) != nil {
		t.Error("authorities and keys are mixed up")
	}
	for _, want := range []string{"line=5", "line=7", "line=8", "line=9"} {
		if !strings.Contains(logged.String(), want) {
			t.Errorf("log does not name %s:\n%s", want, logged.String())
		}
	}
	// Alice, owner, and an authority that may name anyone.
	if got, want := k.Principals(), 4; got != want {
		t.Errorf("%d principals, want %d", got, want)
	}
}

func TestLogsIn(t *testing.T) {
	alice, own, ca, any := newSigner(t), newSigner(t), newSigner(t), newSigner(t)
	lines := []string{keyLine(`principal="alice"`, alice.PublicKey()), keyLine(``, own.PublicKey()),
		keyLine(`cert-authority,principals="bob,alice"`, ca.PublicKey())}
	for _, tt := range []struct {
		principal        string
		key, certificate bool
	}{{"alice", true, true}, {"owner", true, false}, {"bob", false, true}, {"alcie", false, false},
		{"", false, false}} {
		key, certificate := OpenKeys(writeKeys(t, lines...), "owner", nil).LogsIn(tt.principal)
		if key != tt.key || certificate != tt.certificate {
			t.Errorf("%q: by key %v, by certificate %v", tt.principal, key, certificate)
		}
	}
	k := OpenKeys(writeKeys(t, append(lines, keyLine(`cert-authority`, any.PublicKey()))...),
		"owner", nil)
	if key, certificate := k.LogsIn("alcie"); key || !certificate {
		t.Errorf("an authority for all principals: by key %v, by certificate %v", key, certificate)
	}
}

func TestKeysReread(t *testing.T) {
	alice, bob := newSigner(t), newSigner(t)
	path := writeKeys(t, keyLine("", alice.PublicKey()))
	k := OpenKeys(path, "owner", nil)
	if k.lookup(bob.PublicKey()) != nil {
		t.Fatal("bob is let in before he is in the file")
	}
	// As editors do: another file in its place.
	if err := os.WriteFile(path+".new", []byte(keyLine("", bob.PublicKey())), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	if k.lookup(bob.PublicKey()) == nil || k.lookup(alice.PublicKey()) != nil {
		t.Error("the changed file does not count")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if k.lookup(bob.PublicKey()) != nil || k.Principals() != 0 {
		t.Error("bob is let in by a file that is gone")
	}
}

// A file written in place applies at once, also if its size and modification time are unchanged.
func TestKeysRereadInPlace(t *testing.T) {
	alice, bob := newSigner(t), newSigner(t)
	path := writeKeys(t, keyLine("", alice.PublicKey()))
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	k := OpenKeys(path, "owner", nil)
	if k.lookup(alice.PublicKey()) == nil {
		t.Fatal("alice is not let in")
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString(keyLine("", bob.PublicKey()))
	if err := errors.Join(err, f.Close(), os.Chtimes(path, old, old)); err != nil {
		t.Fatal(err)
	}
	if k.lookup(bob.PublicKey()) == nil || k.lookup(alice.PublicKey()) != nil {
		t.Error("the changed file does not count")
	}
}

// A file that others can write from now on is rejected, although it was not written.
func TestKeysFileOpened(t *testing.T) {
	key := newSigner(t)
	path := writeKeys(t, keyLine("", key.PublicKey()))
	k := OpenKeys(path, "root", nil)
	for _, step := range []struct {
		mode os.FileMode
		want bool
	}{{0o600, true}, {0o666, false}, {0o600, true}} {
		if err := os.Chmod(path, step.mode); err != nil {
			t.Fatal(err)
		}
		if got := k.lookup(key.PublicKey()) != nil; got != step.want {
			t.Errorf("mode %#o: let in %v, want %v", step.mode, got, step.want)
		}
	}
}

// Keys that are too weak, too large or of an unsupported type.
func TestWeakKeys(t *testing.T) {
	rsaKey := func(bits int, e int) ssh.PublicKey {
		n := new(big.Int).SetBit(big.NewInt(1), bits-1, 1)
		k, err := ssh.NewPublicKey(&rsa.PublicKey{N: n, E: e})
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	nist, err := ssh.NewPublicKey(&ec.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		key  ssh.PublicKey
		ok   bool
	}{
		{"ed25519", newSigner(t).PublicKey(), true},
		{"RSA 2048", rsaKey(2048, 65537), true},
		{"RSA 4096", rsaKey(4096, 65537), true},
		{"RSA 1024", rsaKey(1024, 65537), false},
		{"RSA 16384", rsaKey(16384, 65537), false},
		{"a NIST curve", nist, false},
	} {
		if err := weak(tt.key); (err == nil) != tt.ok {
			t.Errorf("%s: %v, want accepted %v", tt.name, err, tt.ok)
		}
	}
	for name, key := range map[string]ssh.PublicKey{"exponent 1": rsaKey(2048, 1),
		"20000 bits": rsaKey(20000, 3)} {
		began := time.Now()
		if k := OpenKeys(writeKeys(t, keyLine("", key)), "owner", nil); k.lookup(key) != nil {
			t.Errorf("%s: let in", name)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%s: took %v", name, took)
		}
	}
}

func FuzzParseKeys(f *testing.F) {
	f.Add([]byte(`principal="a" ` + someKey + "\n# x\n" + someKey))
	f.Add([]byte("cert-authority,restrict " + someKey))
	f.Fuzz(func(t *testing.T, b []byte) {
		keys, signers := parseKeys(b, "me", func(int, error) {})
		for _, g := range keys {
			if g.authority {
				t.Error("an authority may log in")
			}
		}
		for _, g := range signers {
			if !g.authority {
				t.Error("a key may sign")
			}
		}
	})
}
