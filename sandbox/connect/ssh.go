// Package connect opens SSH connections to sandboxes: the handshake with pinned host keys, the
// daemon's control connection to each guest, and a pool of those. Use it for every backend, so that
// all handshakes are the same. Everything that a peer sends is untrusted.
//
// The package depends on no backend and no session. Package wire has the data of streams.
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

// Errors to branch on, in addition to those of package sandbox and of the network.
var (
	// ErrIdentity: the host key of the server is not pinned, so that it is not the expected
	// sandbox.
	ErrIdentity = errors.New("host key is not the pinned one")
	// ErrLogin: the server rejected the login. A retry does not help.
	ErrLogin = errors.New("login rejected")
	// ErrNoGuest: the SSH server is not a sandboxd guest.
	ErrNoGuest = errors.New("no guest answers")
	// ErrVersion: the guest and this daemon have no common protocol version.
	ErrVersion = errors.New("guest has another protocol version")
	// ErrClosed: the connection or the pool was closed on this side.
	ErrClosed = errors.New("closed")
)

// Bounds a login: x/crypto has no timeouts of its own.
const handshakeTimeout = 15 * time.Second

// As OpenSSH's ClientAliveInterval and ClientAliveCountMax: a dead peer is detected within two
// minutes.
const (
	aliveInterval = 30 * time.Second
	aliveCount    = 4
)

// GCM is first, because it has twice the throughput of chacha20 and the order of the client, which
// this is, wins.
var ciphers = []string{
	ssh.CipherAES128GCM, ssh.CipherAES256GCM, ssh.CipherChaCha20Poly1305,
	ssh.CipherAES128CTR, ssh.CipherAES192CTR, ssh.CipherAES256CTR,
}

// Conn is a connection to the SSH server of a sandbox. The caller must call Serve or Client, once.
type Conn struct {
	*sshconn.Conn

	net      net.Conn
	held     atomic.Bool     // the peer is frozen
	programs *stdio.Programs // nil if no file descriptors can be passed
}

// SSH logs in to peer. It owns peer.Conn, which it closes on an error; otherwise Conn.Close does.
// ctx bounds the handshake, not the connection. SSH accepts only host keys of peer.HostKeys, or
// those that peer.Known accepts. Errors to branch on: ErrLogin, and ErrIdentity, which wraps the
// error of Known.
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
			if !slices.ContainsFunc(
				peer.HostKeys,
				func(k ssh.PublicKey) bool { return bytes.Equal(k.Marshal(), key.Marshal()) },
			) {
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
		return nil, fmt.Errorf(
			"ssh handshake: %w: got %s",
			ErrIdentity,
			ssh.FingerprintSHA256(presented),
		)
	case err != nil && presented != nil && refusesLogin(err):
		return nil, fmt.Errorf("ssh handshake: %w", ErrLogin)
	case err != nil:
		peer.Conn.Close()
		return nil, fmt.Errorf("ssh handshake: %s%w", hostKeyHint(err), printableError{err})
	}
	return &Conn{Conn: conn, net: peer.Conn}, nil
}

// printableError is an error with text from a peer, made printable. Its chain is kept.
type printableError struct{ error }

func (e printableError) Error() string {
	return printable(strings.TrimPrefix(e.error.Error(), "ssh: handshake failed: "), 300)
}
func (e printableError) Unwrap() error { return e.error }

// hostKeyHint returns a hint for a failed negotiation whose common cause is a host key of a new
// type.
func hostKeyHint(err error) string {
	var negotiation *ssh.AlgorithmNegotiationError
	if errors.As(err, &negotiation) {
		return "no common algorithm (was the host key replaced by one of another type?): "
	}
	return ""
}

// refusesLogin reports whether err is a rejected login and not a broken connection. x/crypto has no
// type for it; a test checks the texts.
func refusesLogin(err error) bool {
	text := err.Error()
	return strings.Contains(text, "unable to authenticate") ||
		strings.Contains(text, "too many authentication attempts") ||
		// A rejected keyboard-interactive login without a question, which x/crypto treats as a
		// protocol error.
		strings.Contains(text, "unexpected message type 51 (expected 60)")
}

// hostKeyAlgorithms returns the algorithms of the pinned keys, so that a server with several keys
// uses one of these.
func hostKeyAlgorithms(keys []ssh.PublicKey) []string {
	var algorithms []string
	for _, key := range keys {
		if key.Type() == ssh.KeyAlgoRSA {
			// Never SHA-1.
			algorithms = append(algorithms, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
			continue
		}
		algorithms = append(algorithms, key.Type())
	}
	return slices.Compact(algorithms)
}

// Program returns a program on a channel; see stdio.Programs.Program.
func (c *Conn) Program(
	ctx context.Context,
	channel *sshconn.Channel,
	kind stdio.Kind,
) (*stdio.Program, error) {
	return c.programs.Program(ctx, channel, kind)
}

// KeepAlive sends a keepalive every 30 s and ends the connection if there is no reply for two
// minutes. It uses a deadline of the network connection, because a write to a dead peer could block
// indefinitely. It returns the error of Wait when the connection ends, or when ctx ends and no
// keepalive waits.
func (c *Conn) KeepAlive(ctx context.Context) error {
	return c.keepAlive(ctx, aliveInterval, aliveCount)
}

// Hold sets whether the peer is frozen. A frozen peer receives no keepalives.
func (c *Conn) Hold(frozen bool) {
	if c.held.Swap(frozen) == frozen {
		return
	}
	var until time.Time
	if !frozen {
		until = time.Now().Add(aliveInterval * aliveCount)
	}
	_ = c.net.SetDeadline(until) // an error means that the connection has ended
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
			// Nothing extends the deadline after this.
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
		// A rejection is a reply, too: few servers know the request.
		if _, _, err := c.SendRequest(wire.GlobalKeepalive, true, nil); err != nil {
			return c.Wait()
		}
		if c.net.SetDeadline(time.Now().Add(limit)) != nil {
			return c.Wait()
		}
	}
}

// printable makes s safe for a terminal or a log: control characters and invalid bytes become "?",
// and s is cut to limit bytes.
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
