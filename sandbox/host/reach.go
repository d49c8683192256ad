package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
)

// Reached is an unauthenticated connection to an SSH server that has identified itself. Its owner
// closes Conn, or passes it on.
type Reached struct {
	Conn    net.Conn
	Version string // identification string (RFC 4253, section 4.2)

	// From the user's ssh configuration of the URI.
	Host, Port string
	Identities []string // files of private keys
	KnownHosts []string // files

	e endpoint
}

// Reach connects to the SSH server at uri, as the user's ssh configuration says. ctx bounds it. It
// does not log in, except to jump hosts, with password as for Options.Password; it may be nil.
func Reach(ctx context.Context, uri string,
	password func(ctx context.Context, user, host string) (string, error)) (*Reached, error) {
	e, err := resolve(ctx, uri)
	if err != nil {
		return nil, err
	}
	conn, err := e.dial(ctx, 0, &asking{own: password})
	if err != nil {
		return nil, err
	}
	version, conn, err := connect.Identify(ctx, conn)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.addr(), err)
	}
	return &Reached{Conn: conn, Version: version, Host: e.host, Port: e.port,
		Identities: e.identities, KnownHosts: e.known, e: e}, nil
}

// Sessions is like DialSessions, on an existing connection, which it owns from then on.
func (b *Backend) Sessions(ctx context.Context, inst sandbox.Instance,
	r *Reached) (*connect.Control, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, uploadTimeout+startTimeout,
		errors.New("the machine takes too long"))
	defer cancel()
	asked := b.asking(ctx, inst.ID)
	peer, with, err := b.peer(ctx, r.e, r.Conn, &inst, asked)
	if err != nil {
		return nil, err
	}
	conn, err := enter(ctx, r.e, peer, with)
	asked.record(err)
	if err != nil {
		return nil, err
	}
	return b.control(ctx, inst, conn)
}

// Login makes a connection to the machine's own SSH server, for commands and files. The caller
// closes it.
func (b *Backend) Login(ctx context.Context, inst sandbox.Instance) (*connect.Conn, error) {
	return b.login(ctx, &inst)
}

// Local opens a stream to those sessions of an instance that are in this process. Unlike a stream
// of DialSessions it outlives the connection to the machine. So it reports the end of a session
// with its link; after another DialSessions the session can be started again. The stream ends with
// Close of the Backend. The caller closes it.
func (b *Backend) Local(id string) (io.ReadWriteCloser, error) {
	b.mu.Lock()
	lo := b.locals[id]
	b.mu.Unlock()
	if lo == nil {
		return nil, fmt.Errorf("%s: no session in this process", id)
	}
	ours, theirs, err := connect.Pipe()
	if err != nil {
		return nil, err
	}
	go func() { // ends with either side, or with the sessions
		// The other side learns how the stream ended.
		_ = lo.set.Serve(context.Background(), theirs, true)
	}()
	return ours, nil
}

// errTried means that the only password has been tried. It ends a login that would count as two
// failures.
var errTried = errors.New("the password was tried")

// passwords returns the ways to log in with the result of get. It calls get once and tries the
// password once, even if the server accepts passwords in two ways. failed returns why there was
// none to try.
func passwords(ctx context.Context, e endpoint, conn net.Conn,
	get passwordOf) (methods []ssh.AuthMethod, failed func() error) {
	asked := false
	var why error
	ask := func() (string, error) {
		if asked {
			return "", errTried
		}
		asked = true
		// The deadline of the handshake is too short for people. The server hangs up if login takes
		// too long (LoginGraceTime).
		if err := conn.SetDeadline(time.Time{}); err != nil {
			return "", err
		}
		password, err := get(ctx, e.user, e.addr())
		if err != nil {
			why = fmt.Errorf("password of %s: %w", e, err)
			return "", why
		}
		return password, conn.SetDeadline(time.Now().Add(dialTimeout))
	}
	questions := func(_, _ string, questions []string, echos []bool) ([]string, error) {
		switch {
		case len(questions) == 0:
			return nil, nil
		case len(questions) > 1 || echos[0]:
			return nil, errors.New("the server asks for other input than a password")
		}
		password, err := ask()
		return []string{password}, err
	}
	return []ssh.AuthMethod{ssh.PasswordCallback(ask), ssh.KeyboardInteractive(questions)},
		func() error { return why }
}
