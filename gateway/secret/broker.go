package secret

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// handshakeTimeout is how long a program may take for the TLS handshake.
const handshakeTimeout = 15 * time.Second

// Dial connects to a host's port 443, with the network policy of the sandbox.
type Dial func(ctx context.Context) (net.Conn, error)

// BrokerOptions configure a Broker.
type BrokerOptions struct {
	Roots *x509.CertPool // that verify servers; nil: those of this machine
	// Seed is secret and random. The key of the certificate authority derives from it: a broker
	// with the same seed has the same key. nil: a new key.
	Seed []byte
	// Denied is called when a connection or a request to a host is refused, Failed when one fails.
	// They must not block. nil discards.
	Denied, Failed func(host, why string)
	Log            *slog.Logger // nil discards
}

// Broker serves the connections of one sandbox to bound hosts. Its methods are safe for concurrent
// use.
type Broker struct {
	options BrokerOptions
	slots   chan struct{} // for requests

	mu        sync.Mutex
	authority *authority       // guarded by mu; nil before the first binding
	bound     map[string]Bound // guarded by mu; by host
}

// NewBroker returns a broker without bindings.
func NewBroker(o BrokerOptions) *Broker {
	if o.Denied == nil {
		o.Denied = func(string, string) {}
	}
	if o.Failed == nil {
		o.Failed = func(string, string) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Broker{options: o, slots: make(chan struct{}, maxRequests)}
}

// Bind replaces the bindings, also for open connections. It returns the certificate authority, in
// PEM, that the sandbox's programs must trust; nil without bindings.
func (b *Broker) Bind(all []Bound) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	bound := make(map[string]Bound)
	hosts := make([]string, 0, len(all))
	for _, one := range all {
		if _, ok := bound[one.Host]; ok {
			continue // the store has no two
		}
		bound[one.Host] = one
		hosts = append(hosts, one.Host)
	}
	if b.authority == nil {
		if len(hosts) == 0 {
			return nil, nil
		}
		var err error
		if b.authority, err = newAuthority(b.options.Seed); err != nil {
			return nil, err
		}
	}
	if err := b.authority.setHosts(hosts); err != nil {
		return nil, err
	}
	b.bound = bound
	return b.authority.pem(), nil
}

// Authority returns the certificate authority, as Bind did.
func (b *Broker) Authority() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.authority == nil {
		return nil
	}
	return b.authority.pem()
}

// Hosts returns the bound hosts, sorted.
func (b *Broker) Hosts() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	hosts := make([]string, 0, len(b.bound))
	for host := range b.bound {
		hosts = append(hosts, host)
	}
	slices.Sort(hosts)
	return hosts
}

// binding returns the binding of a host.
func (b *Broker) binding(host string) (Bound, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	one, ok := b.bound[host]
	return one, ok
}

// Serve serves one connection of a program to host until it ends, and closes it. When ctx ends, it
// ends the connection.
func (b *Broker) Serve(ctx context.Context, host string, conn net.Conn, dial Dial) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	program := &ending{Conn: conn, ended: make(chan struct{})}
	defer program.Close()
	defer context.AfterFunc(ctx, func() { _ = program.Close() })()
	secured, err := b.handshake(ctx, host, program)
	if err != nil {
		return
	}
	newProxy(b, host, dial).serve(ctx, secured, program.ended)
}

// ending is a connection that announces its end.
type ending struct {
	net.Conn
	ended chan struct{} // closed by Close
	once  sync.Once
}

// Close closes the connection once.
func (c *ending) Close() (err error) {
	c.once.Do(func() {
		err = c.Conn.Close()
		close(c.ended)
	})
	return err
}

// handshake ends the program's TLS.
func (b *Broker) handshake(ctx context.Context, host string, conn net.Conn) (*tls.Conn, error) {
	b.mu.Lock()
	authority := b.authority
	b.mu.Unlock()
	if authority == nil {
		return nil, errors.New("nothing is bound")
	}
	var denied string
	secured := tls.Server(conn, &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: protocols,
		SessionTicketsDisabled: true, // a ticket would outlive a change of the bindings
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			switch name := strings.ToLower(hello.ServerName); name {
			case host:
				return authority.leaf(host)
			case "":
				denied = "TLS without a server name (SNI)"
			default:
				denied = fmt.Sprintf("TLS is for %.80q", name)
			}
			return nil, errors.New(denied)
		},
	})
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	err := secured.HandshakeContext(ctx)
	switch op, ok := errors.AsType[*net.OpError](err); {
	case err == nil:
		return secured, nil
	case denied != "":
		b.options.Denied(host, denied)
	case ok && op.Op == "remote error":
		b.options.Denied(host, fmt.Sprintf("the program rejects the certificate of the broker "+
			"(%v): it pins the server's certificate, or does not read the file that "+
			"SSL_CERT_FILE names", op.Err))
	case isNotTLS(err):
		b.options.Denied(host, "not TLS")
	case errors.Is(err, io.EOF):
		b.options.Failed(host, "the program ended the TLS handshake: it may pin the server's "+
			"certificate")
	default:
		b.options.Failed(host, "TLS handshake of the program: "+plainError(err))
	}
	return nil, err
}

func isNotTLS(err error) bool {
	_, ok := errors.AsType[tls.RecordHeaderError](err)
	return ok
}

// plainError returns the text of an error without addresses of this machine.
func plainError(err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Source != nil {
		if op.Addr == nil {
			return fmt.Sprintf("%s: %v", op.Op, op.Err)
		}
		return fmt.Sprintf("%s %s: %v", op.Op, op.Addr, op.Err)
	}
	return err.Error()
}
