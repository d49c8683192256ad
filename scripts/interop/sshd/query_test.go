package sshd

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
)

// kexInit is the first packet of a server (RFC 4253, section 7.1), of which the reader wants the
// lists.
type kexInit struct {
	Cookie     [16]byte `sshtype:"20"`
	Kex        []string
	HostKey    []string
	CipherIn   []string
	CipherOut  []string
	MACIn      []string
	MACOut     []string
	CompressIn []string
	Rest       []byte `ssh:"rest"`
}

// What is printed comes from the gateway's own first packet.
func TestOffer(t *testing.T) {
	k, err := offer()
	if err != nil {
		t.Fatal(err)
	}
	for name, list := range map[string][]string{"curve25519-sha256": k.Kex,
		"aes128-gcm@openssh.com": k.CipherOut, "hmac-sha2-256-etm@openssh.com": k.MACOut} {
		if !slices.Contains(list, name) {
			t.Errorf("%s is not in %q", name, list)
		}
	}
}

// query prints what the gateway offers of one kind, a line each.
func query(what string) error {
	k, err := offer()
	if err != nil {
		return err
	}
	lists := map[string][]string{"kex": k.Kex, "cipher": k.CipherOut, "mac": k.MACOut,
		"compression": k.CompressIn}
	list, ok := lists[what]
	if !ok {
		return fmt.Errorf("the gateway says nothing of %q", what)
	}
	for _, name := range list {
		// Signals, not algorithms: strict key exchange and extension negotiation.
		if !strings.HasPrefix(name, "kex-strict-") && !strings.HasPrefix(name, "ext-info-") {
			fmt.Println(name)
		}
	}
	return nil
}

// offer asks a gateway of our own.
func offer() (kexInit, error) {
	w := &world{log: slog.New(slog.DiscardHandler)}
	defer w.close()
	dir, err := os.MkdirTemp("", "sandboxd-regress-")
	if err != nil {
		return kexInit{}, err
	}
	defer os.RemoveAll(dir)
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return kexInit{}, err
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		return kexInit{}, err
	}
	key := filepath.Join(dir, "host")
	if err := os.WriteFile(key, pem.EncodeToMemory(block), 0o600); err != nil {
		return kexInit{}, err
	}
	if err := w.open(context.Background(),
		config{hostKeys: []string{key}, keys: []string{filepath.Join(dir, "none")}}); err != nil {
		return kexInit{}, err
	}
	near, far, err := sandboxtest.Pipe()
	if err != nil {
		return kexInit{}, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = w.server.Serve(ctx, &single{conn: near, done: make(chan struct{})})
	}()
	defer func() { far.Close(); cancel(); <-served }()
	if _, err := io.WriteString(far, "SSH-2.0-query\r\n"); err != nil {
		return kexInit{}, err
	}
	return readOffer(bufio.NewReader(far))
}

// readOffer reads a server's version line and first packet.
func readOffer(r *bufio.Reader) (kexInit, error) {
	var k kexInit
	if _, err := r.ReadString('\n'); err != nil {
		return k, err
	}
	var head [5]byte // length of what follows the first four, length of the padding
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return k, err
	}
	length, padding := binary.BigEndian.Uint32(head[:4]), uint32(head[4])
	if length > 35000 || length < padding+1 {
		return k, errors.New("malformed packet")
	}
	payload := make([]byte, length-padding-1)
	if _, err := io.ReadFull(r, payload); err != nil {
		return k, err
	}
	return k, ssh.Unmarshal(payload, &k)
}
