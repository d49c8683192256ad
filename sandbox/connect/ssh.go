// Package connect turns a sandbox.Peer into a live SSH connection: the handshake with pinned keys, the control connection
// that the daemon holds to each guest, and a pool of those. The handshake happens here and nowhere else, so that every
// backend is treated alike. Everything a peer sends is taken for hostile.
//
// It knows no backend and no session; what crosses a stream is the business of package wire.
package connect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"github.com/sandboxd/sandboxd/sandbox/stdio"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Errors that callers branch on, beside those of package sandbox and of the network.
var (
	// ErrIdentity: the server presented a host key that is not pinned. It is not the sandbox, or not the same one any more.
	ErrIdentity = errors.New("host key is not the pinned one")
	// ErrLogin: the server refused the login. Trying again does not help.
	ErrLogin = errors.New("login refused")
	// ErrNoGuest: an SSH server answered that is not a guest of ours.
	ErrNoGuest = errors.New("no guest answers")
	// ErrVersion: the guest speaks no version of the protocol that this daemon understands.
	ErrVersion = errors.New("guest speaks another protocol version")
	// ErrClosed: the connection or the pool was closed on this side.
	ErrClosed = errors.New("closed")
)

// A login that takes longer is over: x/crypto bounds none of its steps.
const handshakeTimeout = 15 * time.Second

// OpenSSH's ClientAliveInterval and -CountMax as its operators set them: a dead peer is noticed within two minutes.
const (
	aliveInterval = 30 * time.Second
	aliveCount    = 4
)

// gcm goes first: the client's order wins, and on this leg we are the client. It has twice the throughput of chacha20.
var ciphers = []string{
	ssh.CipherAES128GCM, ssh.CipherAES256GCM, ssh.CipherChaCha20Poly1305,
	ssh.CipherAES128CTR, ssh.CipherAES192CTR, ssh.CipherAES256CTR,
}

// Conn is a connection to the SSH server of a sandbox. Its holder calls Serve or Client, once.
type Conn struct {
	*sshconn.Conn

	net      net.Conn
	held     atomic.Bool     // the peer is frozen
	programs *stdio.Programs // nil where no descriptors can be passed
}

// SSH logs in to peer and owns peer.Conn from here on: it is closed on error, else by Conn.Close. ctx bounds the
// handshake, not the connection. Only a host key of peer.HostKeys is accepted, or one that peer.Known knows. Errors to
// branch on: ErrIdentity, which what Known says is wrapped in, and ErrLogin.
func SSH(ctx context.Context, peer sandbox.Peer) (*Conn, error) {
	if len(peer.HostKeys) == 0 && peer.Known == nil {
		peer.Conn.Close()
		return nil, fmt.Errorf("ssh handshake: %w: no key is pinned", ErrIdentity)
	}
	deadline := time.Now().Add(handshakeTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := peer.Conn.SetDeadline(deadline); err != nil {
		peer.Conn.Close()
		return nil, fmt.Errorf("ssh handshake: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { peer.Conn.Close() })

	var presented ssh.PublicKey
	var unknown error
	algorithms := peer.Algorithms
	if peer.Known == nil {
		algorithms = hostKeyAlgorithms(peer.HostKeys)
	}
	config := &ssh.ClientConfig{
		Config:            ssh.Config{Ciphers: ciphers},
		User:              peer.User,
		Auth:              peer.Auth,
		HostKeyAlgorithms: algorithms,
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			presented = key
			if peer.Known != nil {
				if unknown = peer.Known(key); unknown != nil {
					return ErrIdentity
				}
				return nil
			}
			if !slices.ContainsFunc(peer.HostKeys, func(k ssh.PublicKey) bool { return bytes.Equal(k.Marshal(), key.Marshal()) }) {
				return ErrIdentity
			}
			return nil
		},
		ClientVersion: "SSH-2.0-sandboxd",
	}
	conn, err := sshconn.Client(peer.Conn, config)
	ended := !stop()
	if err == nil && !ended {
		err = peer.Conn.SetDeadline(time.Time{})
	}
	switch {
	case ended:
		if conn != nil {
			conn.Close()
		}
		return nil, fmt.Errorf("ssh handshake: %w", context.Cause(ctx))
	case unknown != nil:
		peer.Conn.Close()
		return nil, fmt.Errorf("ssh handshake: %w: %w", ErrIdentity, unknown)
	case errors.Is(err, ErrIdentity):
		return nil, fmt.Errorf("ssh handshake: %w: got %s", ErrIdentity, ssh.FingerprintSHA256(presented))
	case err != nil && presented != nil && refusesLogin(err):
		return nil, fmt.Errorf("ssh handshake: %w", ErrLogin)
	case err != nil:
		peer.Conn.Close()
		return nil, fmt.Errorf("ssh handshake: %s%w", hostKeyHint(err), printableError{err})
	}
	return &Conn{Conn: conn, net: peer.Conn}, nil
}

// printableError is an error whose text a peer had a hand in, as it may be shown; the chain below it stays intact.
type printableError struct{ error }

func (e printableError) Error() string {
	return printable(strings.TrimPrefix(e.error.Error(), "ssh: handshake failed: "), 300)
}
func (e printableError) Unwrap() error { return e.error }

// hostKeyHint names the one negotiation failure that has a common cause: a host whose pinned key type is gone.
func hostKeyHint(err error) string {
	var negotiation *ssh.AlgorithmNegotiationError
	if errors.As(err, &negotiation) {
		return "no common algorithm (was the host key replaced by one of another type?): "
	}
	return ""
}

// refusesLogin tells a server's refusal from a broken connection. x/crypto has no type for it; a test holds the words.
func refusesLogin(err error) bool {
	text := err.Error()
	return strings.Contains(text, "unable to authenticate") || strings.Contains(text, "too many authentication attempts") ||
		// A refusal of keyboard-interactive without a question, which x/crypto takes for a mistake of the server's.
		strings.Contains(text, "unexpected message type 51 (expected 60)")
}

// hostKeyAlgorithms are those that the pinned keys can sign with: a server that has several keys shows one of these.
func hostKeyAlgorithms(keys []ssh.PublicKey) []string {
	var algorithms []string
	for _, key := range keys {
		if key.Type() == ssh.KeyAlgoRSA {
			algorithms = append(algorithms, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256) // never SHA-1
			continue
		}
		algorithms = append(algorithms, key.Type())
	}
	return slices.Compact(algorithms)
}

// Program makes a program of a channel; see stdio.Programs.Program.
func (c *Conn) Program(ctx context.Context, channel *sshconn.Channel, kind stdio.Kind) (*stdio.Program, error) {
	return c.programs.Program(ctx, channel, kind)
}

// KeepAlive asks the peer for a sign of life every 30 s and ends the connection when none came for two minutes. It does so
// by a deadline on the network connection, because a write to a dead peer blocks for ever otherwise. It returns when the
// connection ends, with what ended it as Wait says it, or when ctx does and no question is under way.
func (c *Conn) KeepAlive(ctx context.Context) error {
	return c.keepAlive(ctx, aliveInterval, aliveCount)
}

// Hold says that the peer is frozen, or goes on: while it is nobody asks it for signs of life.
func (c *Conn) Hold(frozen bool) {
	if c.held.Swap(frozen) == frozen {
		return
	}
	var until time.Time
	if !frozen {
		until = time.Now().Add(aliveInterval * aliveCount)
	}
	_ = c.net.SetDeadline(until) // of a connection that has ended
}

func (c *Conn) keepAlive(ctx context.Context, interval time.Duration, count int) error {
	limit := interval * time.Duration(count)
	if c.net.SetDeadline(time.Now().Add(limit)) != nil {
		return c.Wait()
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			// Nobody moves the deadline on any more.
			_ = c.net.SetDeadline(time.Time{})
			return context.Cause(ctx)
		case <-tick.C:
		}
		if c.held.Load() {
			if c.net.SetDeadline(time.Time{}) != nil {
				return c.Wait()
			}
			continue
		}
		// A refusal is a sign of life too: few servers know the request.
		if _, _, err := c.SendRequest(wire.GlobalKeepalive, true, nil); err != nil {
			return c.Wait()
		}
		if c.net.SetDeadline(time.Now().Add(limit)) != nil {
			return c.Wait()
		}
	}
}

// printable is s as it may be shown on a terminal or written to a log: control and invalid bytes become "?", and what is
// longer than limit bytes is cut.
func printable(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit] + "..."
	}
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) || r == 0xfffd {
			return '?'
		}
		return r
	}, s)
}
