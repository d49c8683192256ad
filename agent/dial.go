package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/adrg/xdg"
	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	sshagent "golang.org/x/crypto/ssh/agent"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Options say how Dial gets in. The zero value works for a daemon of this user on this machine, for any gateway whose
// host key is in ~/.ssh/known_hosts and that knows one of the user's keys, and for every host that the user's ssh logs in to
// without asking anything.
type Options struct {
	// Kind is what has to answer. Empty means a gateway or a host. With KindGateway or KindHost the other one is an error, before
	// anybody logs in.
	Kind Kind

	// Create makes the sandbox if it does not exist, with the daemon's defaults. Hosts cannot be made: there it is an error.
	Create bool

	// Signers log in, first to last. nil means Identity, else the daemon's own client key in State, those
	// of ~/.ssh/id_ed25519, id_ecdsa and id_rsa that have no passphrase, and the ssh agent; for a host the keys and the agent
	// that the user's ssh configuration names.
	Signers []ssh.Signer

	// Identity is a file with a private key without a passphrase.
	Identity string

	// KnownHosts are files that hold the server's host key. nil means for a gateway State's own and ~/.ssh/known_hosts, for a
	// host those that the user's ssh configuration names. A key that is in none of them is refused; no key is learnt.
	KnownHosts []string

	// State is the state directory of a daemon on this machine. Empty means the default one. Hosts have no use for it.
	State string

	// DialTimeout bounds connecting and logging in. 0 is 30 s. What is done on a host after that has bounds of its own, two
	// minutes where the guest has to be copied.
	DialTimeout time.Duration

	// Host is about hosts alone.
	Host HostOptions
}

// DefaultState is the state directory of a daemon that was given none: /var/lib/sandboxd-ssh for root, else
// $XDG_STATE_HOME/sandboxd-ssh.
func DefaultState() string {
	if os.Getuid() == 0 {
		return "/var/lib/sandboxd-ssh"
	}
	return filepath.Join(xdg.StateHome, "sandboxd-ssh")
}

// Dial connects to a sandbox through a gateway, or to a host: a machine whose SSH server is no gateway. What answers at the
// address decides, by the identification string that it sends before anybody logs in and signs with its host key.
//
// For a sandbox uri is ssh://NAME@HOST:PORT, NAME@HOST:PORT, or NAME@ALIAS with an alias of the user's ssh configuration;
// NAME~SESSION says which session Shell("") means. For a host it is ssh://[USER@]HOST[:PORT] or an alias, all of whose
// configuration counts, and Options.Host says more.
//
// ctx bounds the dial, not the connection. The caller closes the Client. Errors to branch on are *Error, with what to do in
// Hint: usage for what cannot be meant, denied for a host key that is not known, or has changed, and for a refused login,
// unavailable for the rest.
func Dial(ctx context.Context, uri string, o Options) (*Client, error) {
	c, err := dial(ctx, uri, o)
	return c, public(err)
}

func dial(ctx context.Context, uri string, o Options) (*Client, error) {
	t, err := parseURI(uri)
	if err != nil {
		return nil, err
	}
	d := &dialer{target: t, options: o, passwords: newPasswords(o.Host.Password)}
	switch o.Kind {
	case KindGateway:
		return d.gateway(ctx, uri)
	case "", KindHost:
	default:
		return nil, wire.Errorf(wire.CodeUsage, "kind %q: there are %s and %s", o.Kind, KindGateway, KindHost)
	}
	s, err := d.reach(ctx)
	if err != nil {
		return nil, err
	}
	d.first = s
	defer func() {
		if d.first != nil { // nobody has logged in there
			d.first.conn.Close()
		}
	}()
	if !s.isGateway() {
		return d.host(ctx)
	}
	if o.Kind == KindHost {
		return nil, &Error{Code: CodeUsage, Message: s.target.addr() + " is a gateway and not a host", Hint: "leave Options.Kind out, and name a sandbox"}
	}
	return d.gateway(ctx, uri)
}

// dialer is how one client gets in, the first time and after its link broke.
type dialer struct {
	target    target // as the URI has it
	options   Options
	passwords *passwords
	first     *server // reached, and not yet logged in to; of whoever dials
}

// server is an SSH server that has said what it is.
type server struct {
	target  target // where it is, and what the user's ssh configuration says of it
	conn    net.Conn
	version string
	reached reached
}

func (s *server) isGateway() bool { return s.version == connect.Identification }

// timeout bounds one connection, up to and with the login to a gateway.
func (d *dialer) timeout() time.Duration {
	if d.options.DialTimeout == 0 {
		return 30 * time.Second
	}
	return d.options.DialTimeout
}

// reach connects, and learns what is there.
func (d *dialer) reach(ctx context.Context) (*server, error) {
	if d.options.Kind != KindGateway {
		return d.reachAny(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, d.timeout())
	defer cancel()
	t := d.target
	if err := t.resolve(ctx); err != nil {
		return nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", t.addr())
	if err != nil {
		return nil, t.notEntered(fmt.Errorf("gateway %s: %w", t.addr(), err))
	}
	version, conn, err := connect.Identify(ctx, conn)
	if err != nil {
		return nil, t.notEntered(fmt.Errorf("gateway %s: %w", t.addr(), err))
	}
	return &server{target: t, conn: conn, version: version}, nil
}

// reachAny connects to whatever is there, perhaps through jump hosts that take a password.
func (d *dialer) reachAny(ctx context.Context) (*server, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(d.timeout(), func() { cancel(context.DeadlineExceeded) })
	defer late.Stop()
	ask := d.passwords.source()
	if get := ask; get != nil {
		ask = func(ctx context.Context, user, host string) (string, error) {
			late.Stop() // it is not for people
			defer late.Reset(d.timeout())
			return get(ctx, user, host)
		}
	}
	s, err := reach(ctx, d.target, ask)
	if err != nil {
		d.passwords.refused(err)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: %w", d.target.uri(), context.Cause(ctx))
		}
	}
	return s, err
}

// gateway makes a client of a sandbox.
func (d *dialer) gateway(ctx context.Context, uri string) (*Client, error) {
	if d.target.user == "" {
		return nil, &Error{Code: CodeUsage, Message: fmt.Sprintf("ssh URI %q names no sandbox", uri), Hint: "write ssh://NAME@HOST:PORT"}
	}
	name, session := d.target.user, wire.DefaultSession
	if name != wire.Lobby {
		t, err := wire.ParseTarget(name)
		if err != nil {
			return nil, err
		}
		name, session = t.Sandbox, t.Session
	}
	if d.options.Create && name != wire.Lobby {
		if err := d.create(ctx, name); err != nil {
			return nil, err
		}
	}
	c := newClient(name, session)
	c.dial = func(ctx context.Context) (*link, error) { return d.login(ctx, name) }
	c.open = c.openStream
	if _, err := c.ssh(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// create asks the lobby for the sandbox. That it exists is what was wanted.
func (d *dialer) create(ctx context.Context, name string) error {
	lobby := newClient(wire.Lobby, "")
	lobby.dial = func(ctx context.Context) (*link, error) { return d.login(ctx, wire.Lobby) }
	defer lobby.Close()
	var stdout, stderr bytes.Buffer
	exit, err := lobby.Exec(ctx, Cmd{Command: "new --if-missing --json " + name, Stdout: &stdout, Stderr: &stderr})
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	if err := CommandError("new", exit.Code, stdout.Bytes(), stderr.String()); err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	return nil
}

// login makes one connection to the gateway as user.
func (d *dialer) login(ctx context.Context, user string) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout())
	defer cancel()
	s := d.first
	d.first = nil
	if s == nil {
		var err error
		if s, err = d.reach(ctx); err != nil {
			return nil, err
		}
	}
	c, err := d.enter(ctx, s, user)
	if err != nil {
		s.conn.Close()
		return nil, err
	}
	return newLink(c), nil
}

// enter logs in to s, which nobody but a gateway is asked for.
func (d *dialer) enter(ctx context.Context, s *server, user string) (*connect.Conn, error) {
	t, o := s.target, d.options
	if !s.isGateway() {
		return nil, notGateway(s)
	}
	if o.State == "" {
		o.State = DefaultState()
	}
	keys, err := hostKeys(t, o)
	if err != nil {
		return nil, err
	}
	signers, closeAgent, err := signers(ctx, o, t.identities)
	if err != nil {
		return nil, err
	}
	defer closeAgent()
	c, err := connect.SSH(ctx, sandbox.Peer{Conn: s.conn, User: user, HostKeys: keys, Auth: []ssh.AuthMethod{ssh.PublicKeys(signers...)}})
	if err != nil {
		return nil, t.notEntered(fmt.Errorf("gateway %s as %s: %w", t.addr(), user, err))
	}
	return c, nil
}

// notEntered says what to do about err, for which nobody got into the gateway t.
func (t target) notEntered(err error) error {
	switch {
	case errors.Is(err, connect.ErrIdentity):
		return because(err, CodeDenied, err.Error(), fmt.Sprintf("somebody may be in between; when the daemon was set up anew: ssh-keygen -R '%s', or remove "+
			"the line from the file of Options.KnownHosts, and log in once with ssh", knownhosts.Normalize(t.addr())))
	case errors.Is(err, connect.ErrLogin):
		return because(err, CodeDenied, err.Error(), "name another key with Options.Identity or Signers, for a daemon of this machine its directory with "+
			"Options.State, or add the public key to authorized_keys in that directory")
	case errors.Is(err, context.Canceled):
		return err
	}
	return because(err, CodeUnavailable, err.Error(), "is the daemon up, and the port right? it says so when it starts, and sandboxd doctor does")
}

// notGateway says that a sandbox cannot be there.
func notGateway(s *server) error {
	return &Error{Code: CodeUnavailable, Message: fmt.Sprintf("no gateway answers at %s, but %q", s.target.addr(), s.version),
		Hint: "is the port the daemon's? it says so when it starts, and sandboxd doctor does"}
}

// hostKeys returns the keys that known_hosts files have for the gateway.
func hostKeys(t target, o Options) ([]ssh.PublicKey, error) {
	files := o.KnownHosts
	if files == nil {
		files = append(files, filepath.Join(o.State, "known_hosts"))
		if home, err := os.UserHomeDir(); err == nil {
			files = append(files, filepath.Join(home, ".ssh", "known_hosts"))
		}
		files = slices.DeleteFunc(append(files, t.knownHosts...), func(f string) bool { _, err := os.Stat(f); return err != nil })
	}
	var keys []ssh.PublicKey
	if len(files) > 0 {
		db, err := knownhosts.NewDB(files...)
		if err != nil {
			return nil, because(err, CodeUsage, "known_hosts: "+err.Error(), "name files that can be read with Options.KnownHosts")
		}
		for _, k := range db.HostKeys(t.addr()) {
			keys = append(keys, k.PublicKey)
		}
	}
	if len(keys) == 0 {
		return nil, &Error{Code: CodeDenied, Message: "the host key of " + t.addr() + " is not known",
			Hint: fmt.Sprintf("for a daemon of this machine name its directory with --state (in Go, Options.State), else log in once with ssh -p %s %s@%s and compare the fingerprint", t.port, t.user, t.host)}
	}
	return keys, nil
}

// signers returns the keys to log in with, and a function that ends the connection to an ssh agent.
func signers(ctx context.Context, o Options, identities []string) ([]ssh.Signer, func(), error) {
	none := func() {}
	switch {
	case o.Signers != nil:
		return o.Signers, none, nil
	case o.Identity != "":
		signer, err := readKey(o.Identity)
		if err != nil {
			return nil, nil, err
		}
		return []ssh.Signer{signer}, none, nil
	}
	var found []ssh.Signer
	seen := make(map[string]bool)
	add := func(signer ssh.Signer) {
		if id := string(signer.PublicKey().Marshal()); !seen[id] { // a server counts the keys that it is offered
			seen[id] = true
			found = append(found, signer)
		}
	}
	own := filepath.Join(o.State, "identity")
	signer, err := readKey(own)
	switch {
	case err == nil:
		add(signer)
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission):
		return nil, nil, err
	}
	files := slices.Clone(identities)
	if home, err := os.UserHomeDir(); err == nil {
		for _, name := range []string{"id_ed25519", "id_ecdsa", "id_rsa"} {
			files = append(files, filepath.Join(home, ".ssh", name))
		}
	}
	for _, file := range files {
		// One that is missing, locked or of a kind that only an agent can use is passed over, as ssh does.
		if signer, err := readKey(file); err == nil {
			add(signer)
		}
	}
	closeAgent := none
	if path := os.Getenv("SSH_AUTH_SOCK"); path != "" {
		if conn, err := new(net.Dialer).DialContext(ctx, "unix", path); err == nil {
			stop := context.AfterFunc(ctx, func() { conn.Close() }) // one that does not answer
			more, err := sshagent.NewClient(conn).Signers()
			stop()
			if err == nil && len(more) > 0 {
				for _, signer := range more {
					add(signer)
				}
				closeAgent = func() { conn.Close() }
			} else {
				conn.Close()
			}
		}
	}
	if len(found) == 0 {
		return nil, nil, &Error{Code: CodeDenied, Message: "there is no key to log in with",
			Hint: "name one with Options.Identity, for a daemon of this machine its directory with Options.State, or make one with ssh-keygen and add it to the daemon's authorized_keys"}
	}
	return found, closeAgent, nil
}

func readKey(file string) (ssh.Signer, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, because(err, CodeUsage, "identity: "+err.Error(), "name the file of a private key with Options.Identity")
	}
	signer, err := ssh.ParsePrivateKey(pem)
	if err != nil {
		return nil, because(err, CodeUsage, fmt.Sprintf("identity %s: %s", file, err), "name the file of a private key without a passphrase with Options.Identity; keys of an ssh agent are "+
			"found by themselves")
	}
	return signer, nil
}
