// Package host is the backend of machines that already answer SSH. It boots and destroys no
// machine: a sandbox on it is a name for an account on a machine, with sessions beside that
// machine's own SSH server.
//
// If the machine runs Linux and accepts files, the guest is copied to it and serves the sessions;
// they outlive the daemon and the network. The machine's own SSH server does everything else:
// commands, files, forwarding. The package knows no gateway. It treats everything that the machine
// sends as hostile.
package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Name is the Instance.Backend of instances of this package.
const Name = "host"

// Options of a Backend.
type Options struct {
	// Guest returns the path of the guest binary for an architecture (amd64, arm64). An error means
	// that there is none; hosts then use another tier.
	Guest func(arch string) (string, error)
	Log   *slog.Logger // nil discards

	// KnownHosts are files with the machines' host keys, but not those of jump hosts. nil means the
	// files of the user's ssh configuration.
	KnownHosts []string
	// Signers log in to the machines, in place of keys from files and the agent. nil means keys
	// from files and the agent.
	Signers []ssh.Signer
	// Password returns the password of an account, also of one on a jump host. It is called during
	// a login when no key was accepted and the server accepts passwords, at most once for each
	// connection. It may ask a person; ctx and the server's timeout bound it. nil means that only
	// sandbox.Host may have a password.
	Password func(ctx context.Context, user, host string) (string, error)
	// Owner names this process in texts about the place of sessions; empty means "the daemon".
	Owner string
}

// Backend makes sandboxes from machines that answer SSH. Its methods may be called concurrently.
type Backend struct {
	guest func(arch string) (string, error)
	log   *slog.Logger
	own   Options // its settings of logins

	mu     sync.Mutex
	closed bool                  // guarded by mu
	locals map[string]*local     // guarded by mu; by Instance.ID
	typed  map[accountKey]string // guarded by mu; passwords that logged in; stored nowhere else
}

var (
	_ sandbox.Backend       = (*Backend)(nil)
	_ connect.SessionDialer = (*Backend)(nil)
)

// New returns a Backend. It makes no connection.
func New(o Options) *Backend {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Guest == nil {
		o.Guest = func(string) (string, error) {
			return "", errors.New("no guest binaries are installed")
		}
	}
	o.Owner = cmp.Or(o.Owner, "the daemon")
	return &Backend{guest: o.Guest, log: o.Log, own: o, locals: make(map[string]*local),
		typed: make(map[accountKey]string)}
}

// Boot logs in to the machine, finds its best tier of sessions, and copies the guest to it if
// possible.
func (b *Backend) Boot(ctx context.Context, spec sandbox.Spec) (inst sandbox.Instance, err error) {
	if err := checkSpec(spec); err != nil {
		return inst, &sandbox.BootError{Stage: sandbox.StageValidate, Err: err}
	}
	e, err := resolve(ctx, spec.Host.URI)
	if err != nil {
		return inst, &sandbox.BootError{Stage: sandbox.StageValidate, Err: err,
			Hint: "write ssh://[user@]host[:port], or a name of your ssh configuration"}
	}
	inst = sandbox.Instance{Backend: Name, ID: spec.ID, Ref: "ssh://" + e.String(),
		Image: "ssh://" + e.String(), Created: time.Now(), User: e.user,
		Runtime: "host", Network: sandbox.NetworkHost, Host: spec.Host}
	say := func(format string, args ...any) {
		if spec.Progress != nil {
			spec.Progress(fmt.Sprintf(format, args...))
		}
	}
	say("connecting to %s", e)
	conn, err := b.login(ctx, &inst)
	if err != nil {
		return sandbox.Instance{}, b.bootError(err)
	}
	s, err := b.sessions(ctx, inst, conn, say)
	if err != nil {
		if ctx.Err() != nil { // it may have been interrupted
			clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
			defer cancel()
			if err := b.Destroy(clean, inst); err != nil {
				b.log.Warn("a host that was not added is not cleaned up", "host", inst.Host.URI,
					"err", err)
			}
		}
		return sandbox.Instance{}, b.bootError(&sandbox.BootError{
			Stage: sandbox.StageGuest, Err: err})
	}
	tier, why := s.Tier()
	say("%s: tier %s: %s", e, tier, why)
	s.End()
	_ = s.Wait() // this code ended it
	return inst, nil
}

// checkSpec rejects settings that a host cannot have.
func checkSpec(spec sandbox.Spec) error {
	no := func(what string) error {
		return fmt.Errorf("%s: not available on an existing machine: %w", what,
			sandbox.ErrUnsupported)
	}
	h := spec.Host
	if _, err := wire.ParseLabel("sandbox id", spec.ID); err != nil {
		return err // it becomes a directory
	}
	switch {
	case h.URI == "":
		return errors.New("the host is missing")
	case spec.Image != "":
		return no("image " + spec.Image)
	case spec.Via != "":
		return no("network via " + string(spec.Via))
	case spec.Network != "" && spec.Network != sandbox.NetworkHost:
		return no("network " + string(spec.Network))
	case spec.Limits != sandbox.Limits{}:
		return no("limits")
	case spec.User != "":
		return fmt.Errorf("user %s: set it in the URI, as ssh://%s@host: %w", spec.User, spec.User,
			sandbox.ErrUnsupported)
	case spec.Sudo:
		return no("sudo")
	case len(spec.Mounts) > 0:
		return no("mount " + spec.Mounts[0].Path)
	case spec.Volume != (sandbox.Volume{}):
		return no("volume")
	case spec.Workdir != "":
		return no("workdir " + spec.Workdir)
	case len(spec.Env) > 0:
		return no("environment variables")
	case spec.Entrypoint != "":
		return no("an entrypoint")
	case spec.Trust != "" || len(spec.Authorities) > 0:
		return no("certificate authorities")
	case spec.Isolation != "":
		return no("isolation " + spec.Isolation)
	case len(spec.Options) > 0:
		return no("option " + spec.Options[0])
	}
	switch h.Tier {
	case "", TierGuest, TierMarks, TierScreen:
	default:
		return fmt.Errorf("tier %q: must be guest, marks or screen", h.Tier)
	}
	if _, err := regexp.Compile(h.Prompt); err != nil {
		return fmt.Errorf("prompt %q: %w", h.Prompt, err)
	}
	if h.Accept != "" && !strings.HasPrefix(h.Accept, "SHA256:") {
		return fmt.Errorf("fingerprint %q must begin with %q", h.Accept, "SHA256:")
	}
	return nil
}

// Dial connects to the machine's own SSH server.
func (b *Backend) Dial(ctx context.Context, inst sandbox.Instance) (sandbox.Peer, error) {
	asked := b.asking(ctx, inst.ID)
	_, peer, _, err := b.dial(ctx, &inst, asked)
	asked.record(err)
	return peer, err
}

func (b *Backend) dial(ctx context.Context, inst *sandbox.Instance, asked *asking) (e endpoint,
	peer sandbox.Peer, with credentials, err error) {
	if inst.Host.URI == "" {
		return e, peer, with, sandbox.ErrGone
	}
	e, err = resolve(ctx, inst.Host.URI)
	if err != nil {
		return e, peer, with, err
	}
	conn, err := e.dial(ctx, 0, asked)
	if err != nil {
		return e, peer, with, err
	}
	peer, with, err = b.peer(ctx, e, conn, inst, asked)
	return e, peer, with, err
}

// peer returns how to log in to e on conn, which it closes on an error.
func (b *Backend) peer(ctx context.Context, e endpoint, conn net.Conn, inst *sandbox.Instance,
	asked *asking) (peer sandbox.Peer, with credentials, err error) {
	if b.own.KnownHosts != nil {
		e.known = b.own.KnownHosts
	}
	pinned := func(key ssh.PublicKey) {
		inst.Host.Keys = []string{strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))}
	}
	peer, with.words, err = e.peer(conn, inst.Host, pinned)
	if err != nil {
		conn.Close()
		return peer, with, fmt.Errorf("%s: %w", e, err)
	}
	if b.own.Signers != nil {
		peer.Auth, with.words = []ssh.AuthMethod{ssh.PublicKeys(b.own.Signers...)},
			fmt.Sprintf("%d keys", len(b.own.Signers))
	}
	if get := asked.of(e); get != nil && inst.Host.PasswordFile == "" {
		with.add(ctx, e, &peer, get)
	}
	return peer, with, nil
}

// login makes one connection to the machine. It pins in inst a key that was accepted by its
// fingerprint.
func (b *Backend) login(ctx context.Context, inst *sandbox.Instance) (*connect.Conn, error) {
	asked := b.asking(ctx, inst.ID)
	e, peer, with, err := b.dial(ctx, inst, asked)
	if err != nil {
		asked.record(err)
		return nil, err
	}
	conn, err := enter(ctx, e, peer, with)
	asked.record(err)
	return conn, err
}

// credentials are everything that a login can use.
type credentials struct {
	words string
	// Why no password was available when the server asked for one; nil if there is no source.
	failed func() error
}

// add adds a password, which get returns when the server accepts one.
func (c *credentials) add(ctx context.Context, e endpoint, peer *sandbox.Peer, get passwordOf) {
	var methods []ssh.AuthMethod
	methods, c.failed = passwords(ctx, e, peer.Conn, get)
	peer.Auth, c.words = append(peer.Auth, methods...), c.words+", a password if the host takes one"
}

// enter logs in to peer, the server of e.
func enter(ctx context.Context, e endpoint, peer sandbox.Peer, with credentials) (*connect.Conn,
	error) {
	conn, err := connect.SSH(ctx, peer)
	if err != nil && with.failed != nil { // x/crypto tries the other methods, and drops this error
		if asked := with.failed(); asked != nil {
			return nil, asked
		}
	}
	if errors.Is(err, connect.ErrLogin) {
		return nil, &LoginError{User: e.user, Addr: e.addr(), to: e.name, words: with.words,
			err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.name, err)
	}
	return conn, nil
}

// LoginError names the account that a machine did not let in, and the credentials that were tried.
// It is a connect.ErrLogin.
type LoginError struct {
	User, Addr string // as for Options.Password

	to, words string
	err       error
}

func (e *LoginError) Error() string {
	return fmt.Sprintf("%s denied the login of %s: tried %s", e.to, e.User, e.words)
}
func (e *LoginError) Unwrap() error { return e.err }

// bootError names the failed step and what to do.
func (b *Backend) bootError(err error) error {
	boot := &sandbox.BootError{Stage: sandbox.StageConnect, Err: err}
	var unknown *UnknownKeyError
	var changed *ChangedKeyError
	var already *sandbox.BootError
	switch {
	case errors.As(err, &already):
		return err
	case errors.As(err, &unknown):
		boot.Stage, boot.Err = sandbox.StageHostKey, unknown
		boot.Hint =
			"compare it with the key on the host (ssh-keygen -lf /etc/ssh/ssh_host_…_key.pub), " +
				"then add --accept " + unknown.Fingerprint
		if unknown.Accepted != "" {
			boot.Hint = "it differs from --accept " + unknown.Accepted +
				": the connection may be intercepted, or the fingerprint belongs to another key " +
				"of the host"
		}
	case errors.As(err, &changed):
		boot.Stage, boot.Err = sandbox.StageHostKey, changed
		boot.Hint =
			"the connection may be intercepted; if the host was reinstalled, remove the old key " +
				"with ssh-keygen -R"
	case errors.Is(err, connect.ErrIdentity):
		boot.Stage = sandbox.StageHostKey
	case errors.Is(err, connect.ErrLogin):
		boot.Stage, boot.Hint = sandbox.StageLogin,
			"use --identity or --password-file, or add your key with ssh-copy-id; on a terminal, "+
				"sandboxd asks for a password"
	case errors.As(err, new(*fileError)):
		boot.Stage = sandbox.StageLogin
		boot.Hint = "use a file on the daemon's machine that its user may read"
	case errors.As(err, new(net.Error)):
		boot.Hint = "check that the host is up, and check its name and port"
	}
	return boot
}
