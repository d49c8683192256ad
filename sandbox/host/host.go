// Package host is the backend of machines that answer SSH already. It boots nothing and destroys nothing: a sandbox on it is
// a name for somebody's account on a machine, with sessions beside that machine's own SSH server.
//
// Where the machine runs Linux and takes files, the guest is copied there and serves the sessions; they outlive the daemon
// and the network. Everything else – commands, files, forwarding – is the machine's own SSH server's. The package knows no
// gateway. What the machine sends is taken for hostile.
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

// Name is what Instance.Backend says of instances of this package.
const Name = "host"

// Options of a Backend.
type Options struct {
	// Guest returns the path of the guest binary for an architecture (amd64, arm64). An error means that there is none; hosts
	// then do without.
	Guest func(arch string) (string, error)
	Log   *slog.Logger // nil discards

	// KnownHosts are files that hold the machines' host keys, those of jump hosts apart. nil means the files that the user's
	// ssh configuration names.
	KnownHosts []string
	// Signers log in to the machines, in place of keys from files and the agent. nil means those.
	Signers []ssh.Signer
	// Password returns the password of an account, also of one on a jump host. It is called during a login when no key did and
	// the server takes one, at most once for each connection, and may ask a person: ctx, and the server's patience, bound it.
	// nil means that there is none but that of sandbox.Host.
	Password func(ctx context.Context, user, host string) (string, error)
	// Owner is what this process is in texts that say where sessions are; empty is "the daemon".
	Owner string
}

// Backend makes sandboxes of machines that answer SSH. Its methods may be called at once.
type Backend struct {
	guest func(arch string) (string, error)
	log   *slog.Logger
	own   Options // what it says of logging in

	mu     sync.Mutex
	closed bool                  // guarded by mu
	locals map[string]*local     // guarded by mu; by Instance.ID
	typed  map[accountKey]string // guarded by mu; passwords that let us in; nowhere else
}

var (
	_ sandbox.Backend       = (*Backend)(nil)
	_ connect.SessionDialer = (*Backend)(nil)
)

// New returns a Backend. It reaches nobody.
func New(o Options) *Backend {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Guest == nil {
		o.Guest = func(string) (string, error) { return "", errors.New("no guest binaries are here") }
	}
	o.Owner = cmp.Or(o.Owner, "the daemon")
	return &Backend{guest: o.Guest, log: o.Log, own: o, locals: make(map[string]*local), typed: make(map[accountKey]string)}
}

// Boot logs in to the machine, finds out which sessions it can have, and copies the guest there if it may.
func (b *Backend) Boot(ctx context.Context, spec sandbox.Spec) (inst sandbox.Instance, err error) {
	if err := refuse(spec); err != nil {
		return inst, &sandbox.BootError{Stage: "validate", Err: err}
	}
	e, err := resolve(ctx, spec.Host.URI)
	if err != nil {
		return inst, &sandbox.BootError{Stage: "validate", Err: err, Hint: "write ssh://[user@]host[:port], or a name of your ssh configuration"}
	}
	inst = sandbox.Instance{Backend: Name, ID: spec.ID, Ref: "ssh://" + e.String(), Image: "ssh://" + e.String(), Created: time.Now(), User: e.user,
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
		if ctx.Err() != nil { // perhaps in the middle of it
			clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
			defer cancel()
			if err := b.Destroy(clean, inst); err != nil {
				b.log.Warn("a host that was not added is not cleaned up", "host", inst.Host.URI, "err", err)
			}
		}
		return sandbox.Instance{}, b.bootError(&sandbox.BootError{Stage: "guest", Err: err})
	}
	tier, why := s.Tier()
	say("%s: tier %s: %s", e, tier, why)
	s.End()
	_ = s.Wait() // that it was ended here
	return inst, nil
}

// refuse says what a machine cannot be asked for.
func refuse(spec sandbox.Spec) error {
	no := func(what string) error {
		return fmt.Errorf("%s: a host is taken as it is: %w", what, sandbox.ErrUnsupported)
	}
	h := spec.Host
	if _, err := wire.ParseLabel("sandbox id", spec.ID); err != nil {
		return err // it becomes a directory
	}
	switch {
	case h.URI == "":
		return errors.New("no host is named")
	case spec.Image != "":
		return no("image " + spec.Image)
	case spec.Via != "":
		return no("network via " + string(spec.Via))
	case spec.Network != "" && spec.Network != sandbox.NetworkHost:
		return no("network " + string(spec.Network))
	case spec.Limits != sandbox.Limits{}:
		return no("limits")
	case spec.User != "":
		return fmt.Errorf("user %s: name it in the URI, as ssh://%s@host: %w", spec.User, spec.User, sandbox.ErrUnsupported)
	case spec.Sudo:
		return no("sudo")
	case len(spec.Mounts) > 0:
		return no("mount " + spec.Mounts[0].Path)
	case spec.Workdir != "":
		return no("workdir " + spec.Workdir)
	case len(spec.Env) > 0:
		return no("environment variables")
	case spec.Entrypoint != "":
		return no("an entrypoint")
	case spec.Trust != "":
		return no("certificate authorities")
	case spec.Isolation != "":
		return no("isolation " + spec.Isolation)
	case len(spec.Options) > 0:
		return no("option " + spec.Options[0])
	}
	switch h.Tier {
	case "", TierGuest, TierMarks, TierScreen:
	default:
		return fmt.Errorf("tier %q: there are guest, marks and screen", h.Tier)
	}
	if _, err := regexp.Compile(h.Prompt); err != nil {
		return fmt.Errorf("prompt %q: %w", h.Prompt, err)
	}
	if h.Accept != "" && !strings.HasPrefix(h.Accept, "SHA256:") {
		return fmt.Errorf("fingerprint %q has no SHA256: in front", h.Accept)
	}
	return nil
}

// Dial reaches the machine's own SSH server.
func (b *Backend) Dial(ctx context.Context, inst sandbox.Instance) (sandbox.Peer, error) {
	asked := b.asking(ctx, inst.ID)
	_, peer, _, err := b.dial(ctx, &inst, asked)
	asked.settle(err)
	return peer, err
}

func (b *Backend) dial(ctx context.Context, inst *sandbox.Instance, asked *asking) (e endpoint, peer sandbox.Peer, with credentials, err error) {
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

// peer says how to log in to e on conn, which it closes on an error.
func (b *Backend) peer(ctx context.Context, e endpoint, conn net.Conn, inst *sandbox.Instance, asked *asking) (peer sandbox.Peer, with credentials, err error) {
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
		peer.Auth, with.words = []ssh.AuthMethod{ssh.PublicKeys(b.own.Signers...)}, fmt.Sprintf("%d keys", len(b.own.Signers))
	}
	if get := asked.of(e); get != nil && inst.Host.PasswordFile == "" {
		with.add(ctx, e, &peer, get)
	}
	return peer, with, nil
}

// login makes one connection to the machine. A key that was accepted by its fingerprint is pinned in inst.
func (b *Backend) login(ctx context.Context, inst *sandbox.Instance) (*connect.Conn, error) {
	asked := b.asking(ctx, inst.ID)
	e, peer, with, err := b.dial(ctx, inst, asked)
	if err != nil {
		asked.settle(err)
		return nil, err
	}
	conn, err := enter(ctx, e, peer, with)
	asked.settle(err)
	return conn, err
}

// credentials are what there is to log in with.
type credentials struct {
	words  string
	failed func() error // why there was no password when one was asked for; nil where nobody is asked
}

// add adds a password, which get returns when the server takes one.
func (c *credentials) add(ctx context.Context, e endpoint, peer *sandbox.Peer, get passwordOf) {
	var methods []ssh.AuthMethod
	methods, c.failed = passwords(ctx, e, peer.Conn, get)
	peer.Auth, c.words = append(peer.Auth, methods...), c.words+", a password if the host takes one"
}

// enter logs in to peer, which is e.
func enter(ctx context.Context, e endpoint, peer sandbox.Peer, with credentials) (*connect.Conn, error) {
	conn, err := connect.SSH(ctx, peer)
	if err != nil && with.failed != nil { // x/crypto goes on with what else there is, and forgets it
		if asked := with.failed(); asked != nil {
			return nil, asked
		}
	}
	if errors.Is(err, connect.ErrLogin) {
		return nil, &LoginError{User: e.user, Addr: e.addr(), to: e.name, words: with.words, err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.name, err)
	}
	return conn, nil
}

// LoginError says which account a machine did not let us into, and with what. It is a connect.ErrLogin.
type LoginError struct {
	User, Addr string // as Options.Password has them

	to, words string
	err       error
}

func (e *LoginError) Error() string {
	return fmt.Sprintf("%s refuses the login of %s: tried %s", e.to, e.User, e.words)
}
func (e *LoginError) Unwrap() error { return e.err }

// bootError names the step that failed and what to do.
func (b *Backend) bootError(err error) error {
	boot := &sandbox.BootError{Stage: "connect", Err: err}
	var unknown *UnknownKeyError
	var changed *ChangedKeyError
	var already *sandbox.BootError
	switch {
	case errors.As(err, &already):
		return err
	case errors.As(err, &unknown):
		boot.Stage, boot.Err = "host key", unknown
		boot.Hint = "if that is the host's (there: ssh-keygen -lf /etc/ssh/ssh_host_…_key.pub), add --accept " + unknown.Fingerprint
		if unknown.Accepted != "" {
			boot.Hint = "that is another one than --accept " + unknown.Accepted + ": somebody may be in between, or the fingerprint is that of another of its keys"
		}
	case errors.As(err, &changed):
		boot.Stage, boot.Err = "host key", changed
		boot.Hint = "somebody may be in between; when the host was made anew, remove the old key with ssh-keygen -R"
	case errors.Is(err, connect.ErrIdentity):
		boot.Stage = "host key"
	case errors.Is(err, connect.ErrLogin):
		boot.Stage, boot.Hint = "login", "name a key with --identity or a password with --password-file, or add the key there: ssh-copy-id; on a terminal, a password is asked for"
	case errors.As(err, new(*fileError)):
		boot.Stage, boot.Hint = "login", "name a file of the daemon's machine, that its user may read"
	case errors.As(err, new(net.Error)):
		boot.Hint = "is the host up, and the name and the port right?"
	}
	return boot
}
