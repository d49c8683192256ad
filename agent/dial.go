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

// Options configure [Dial]. The zero value works for a daemon that this user runs on this machine,
// for a gateway whose host key is in ~/.ssh/known_hosts and that accepts one of the user's keys,
// and for a host that the user's ssh logs in to without a question.
type Options struct {
	// Kind is the kind of server to expect. Empty means a gateway or a host. With KindGateway or
	// KindHost, Dial fails before the login if the server is of the other kind.
	Kind Kind

	// Create creates the sandbox with the daemon's defaults if it does not exist. It is an error
	// for a host.
	Create bool

	// Signers are the keys to log in with, in order. nil means Identity if that is set. Otherwise,
	// for a gateway, it means the client key in State, the keys of the ssh configuration,
	// ~/.ssh/id_ed25519, id_ecdsa and id_rsa without a passphrase, and the ssh agent. For a host it
	// means the keys and the agent of the ssh configuration.
	Signers []ssh.Signer

	// Identity is the path of a private key without a passphrase.
	Identity string

	// KnownHosts are the known_hosts files to look up the server's host key in. nil means, for a
	// gateway, those of State, ~/.ssh and the ssh configuration, and for a host those of the ssh
	// configuration. Dial rejects a key that is in none of them, and never adds a key.
	KnownHosts []string

	// State is the state directory of a daemon on this machine. Empty means [DefaultState]. It is
	// not used for a host.
	State string

	// DialTimeout bounds connecting and logging in. 0 means 30 s. The preparation of a host after
	// the login has its own bounds, up to two minutes if the guest has to be copied.
	DialTimeout time.Duration

	// Host has the options that apply to hosts only.
	Host HostOptions
}

// DefaultState returns the default state directory of a daemon: /var/lib/sandboxd-ssh for root,
// $XDG_STATE_HOME/sandboxd-ssh for other users.
func DefaultState() string {
	if os.Getuid() == 0 {
		return "/var/lib/sandboxd-ssh"
	}
	return filepath.Join(xdg.StateHome, "sandboxd-ssh")
}

// Dial connects to a sandbox through a gateway, or to a host, which is a machine with any other SSH
// server. Dial recognizes a gateway by the SSH identification string, which the server sends before
// the login and which its host key signs.
//
// For a sandbox, uri is ssh://NAME@HOST:PORT, NAME@HOST:PORT, or NAME@ALIAS, where ALIAS is a Host
// of the user's ssh configuration. NAME~SESSION selects the session of Shell(""). For a host, uri
// is ssh://[USER@]HOST[:PORT] or an alias with its whole ssh configuration. Options.Host has the
// options for hosts.
//
// ctx bounds the dial, not the connection. The caller closes the Client. Errors to branch on are
// [*Error] with a Hint: usage for an invalid argument; denied for an unknown or changed host key
// and for a rejected login; unavailable for other failures.
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
		return nil, wire.Errorf(
			wire.CodeUsage,
			"kind %q: must be %s or %s",
			o.Kind,
			KindGateway,
			KindHost,
		)
	}
	s, err := d.reach(ctx)
	if err != nil {
		return nil, err
	}
	d.first = s
	defer func() {
		if d.first != nil { // not logged in yet
			d.first.conn.Close()
		}
	}()
	if !s.isGateway() {
		return d.host(ctx)
	}
	if o.Kind == KindHost {
		return nil, &Error{
			Code:    CodeUsage,
			Message: s.target.addr() + " is a gateway, not a host",
			Hint:    "leave Options.Kind empty, and name a sandbox in the URI",
		}
	}
	return d.gateway(ctx, uri)
}

// dialer connects one client, at first and again after its connection broke.
type dialer struct {
	target    target // from the URI
	options   Options
	passwords *passwords
	first     *server // connected but not logged in; used by the next login
}

// server is an SSH server that has sent its identification string.
type server struct {
	target  target // its address and ssh configuration
	conn    net.Conn
	version string
	reached reached
}

func (s *server) isGateway() bool { return s.version == connect.Identification }

// timeout bounds one connection, including the login to a gateway.
func (d *dialer) timeout() time.Duration {
	if d.options.DialTimeout == 0 {
		return 30 * time.Second
	}
	return d.options.DialTimeout
}

// reach connects and reads the server's identification string.
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
		return nil, t.loginError(fmt.Errorf("gateway %s: %w", t.addr(), err))
	}
	version, conn, err := connect.Identify(ctx, conn)
	if err != nil {
		return nil, t.loginError(fmt.Errorf("gateway %s: %w", t.addr(), err))
	}
	return &server{target: t, conn: conn, version: version}, nil
}

// reachAny connects to a gateway or a host, possibly through jump hosts that take a password.
func (d *dialer) reachAny(ctx context.Context) (*server, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(d.timeout(), func() { cancel(context.DeadlineExceeded) })
	defer late.Stop()
	ask := d.passwords.source()
	if get := ask; get != nil {
		ask = func(ctx context.Context, user, host string) (string, error) {
			late.Stop() // a person may take longer to type a password
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

// gateway returns a client of a sandbox.
func (d *dialer) gateway(ctx context.Context, uri string) (*Client, error) {
	if d.target.user == "" {
		return nil, &Error{
			Code:    CodeUsage,
			Message: fmt.Sprintf("ssh URI %q names no sandbox", uri),
			Hint:    "write ssh://NAME@HOST:PORT",
		}
	}
	name, session := d.target.user, wire.DefaultSession
	if name != wire.ControlHost {
		t, err := wire.ParseTarget(name)
		if err != nil {
			return nil, err
		}
		name, session = t.Sandbox, t.Session
	}
	if d.options.Create && name != wire.ControlHost {
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

// create creates the sandbox through the control host, unless it exists.
func (d *dialer) create(ctx context.Context, name string) error {
	control := newClient(wire.ControlHost, "")
	control.dial = func(ctx context.Context) (*link, error) {
		return d.login(ctx, wire.ControlHost)
	}
	defer control.Close()
	var stdout, stderr bytes.Buffer
	exit, err := control.Exec(
		ctx,
		Cmd{Command: "new --if-missing --json " + name, Stdout: &stdout, Stderr: &stderr},
	)
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	if err := CommandError("new", exit.Code, stdout.Bytes(), stderr.String()); err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	return nil
}

// login opens one connection to the gateway and logs in as user.
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

// enter logs in to s, which must be a gateway.
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
	c, err := connect.SSH(
		ctx,
		sandbox.Peer{
			Conn:     s.conn,
			User:     user,
			HostKeys: keys,
			Auth:     []ssh.AuthMethod{ssh.PublicKeys(signers...)},
		},
	)
	if err != nil {
		return nil, t.loginError(fmt.Errorf("gateway %s as %s: %w", t.addr(), user, err))
	}
	return c, nil
}

// loginError returns err, which kept a client from logging in to the gateway t, with a hint.
func (t target) loginError(err error) error {
	switch {
	case errors.Is(err, connect.ErrIdentity):
		return because(
			err,
			CodeDenied,
			err.Error(),
			fmt.Sprintf(
				"the connection may be intercepted; if the daemon was reinstalled: ssh-keygen -R "+
					"'%s', or "+
					"remove the line from the file of Options.KnownHosts, and log in once with ssh",
				knownhosts.Normalize(t.addr()),
			),
		)
	case errors.Is(err, connect.ErrLogin):
		return because(
			err,
			CodeDenied,
			err.Error(),
			"name another key with Options.Identity or Signers, or the state directory of a "+
				"local daemon "+
				"with Options.State, or add the public key to authorized_keys in that directory",
		)
	case errors.Is(err, context.Canceled):
		return err
	}
	return because(
		err,
		CodeUnavailable,
		err.Error(),
		"is the daemon up, and the port right? sandboxd doctor reports both",
	)
}

// notGateway is the error of a dial to a sandbox whose server is not a gateway.
func notGateway(s *server) error {
	return &Error{
		Code: CodeUnavailable,
		Message: fmt.Sprintf("no gateway answers at %s: the server is %q", s.target.addr(),
			s.version),
		Hint: "is that the daemon's port? sandboxd doctor prints it",
	}
}

// hostKeys returns the gateway's keys from the known_hosts files.
func hostKeys(t target, o Options) ([]ssh.PublicKey, error) {
	files := o.KnownHosts
	if files == nil {
		files = append(files, filepath.Join(o.State, "known_hosts"))
		if home, err := os.UserHomeDir(); err == nil {
			files = append(files, filepath.Join(home, ".ssh", "known_hosts"))
		}
		files = slices.DeleteFunc(
			append(files, t.knownHosts...),
			func(f string) bool { _, err := os.Stat(f); return err != nil },
		)
	}
	var keys []ssh.PublicKey
	if len(files) > 0 {
		db, err := knownhosts.NewDB(files...)
		if err != nil {
			return nil, because(
				err,
				CodeUsage,
				"known_hosts: "+err.Error(),
				"set Options.KnownHosts to readable files",
			)
		}
		for _, k := range db.HostKeys(t.addr()) {
			keys = append(keys, k.PublicKey)
		}
	}
	if len(keys) == 0 {
		return nil, &Error{
			Code:    CodeDenied,
			Message: "the host key of " + t.addr() + " is not known",
			Hint: fmt.Sprintf(
				"for a local daemon, name its state directory with --state (in Go, "+
					"Options.State); otherwise log in once with ssh -p %s %s@%s and compare "+
					"the fingerprint",
				t.port,
				t.user,
				t.host,
			),
		}
	}
	return keys, nil
}

// signers returns the keys to log in with, and a function that closes the connection to the ssh
// agent.
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
		// servers limit the number of keys that a client offers
		if id := string(signer.PublicKey().Marshal()); !seen[id] {
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
		// As ssh does, skip a key that is missing, has a passphrase or needs an agent.
		if signer, err := readKey(file); err == nil {
			add(signer)
		}
	}
	closeAgent := none
	if path := os.Getenv("SSH_AUTH_SOCK"); path != "" {
		if conn, err := new(net.Dialer).DialContext(ctx, "unix", path); err == nil {
			stop := context.AfterFunc(ctx, func() { conn.Close() }) // the agent may not answer
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
		return nil, nil, &Error{Code: CodeDenied, Message: "no key to log in with",
			Hint: "name a key with Options.Identity, or the state directory of a local daemon " +
				"with Options.State, or create a key with ssh-keygen and add it to the daemon's " +
				"authorized_keys"}
	}
	return found, closeAgent, nil
}

func readKey(file string) (ssh.Signer, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, because(
			err,
			CodeUsage,
			"identity: "+err.Error(),
			"set Options.Identity to the path of a private key",
		)
	}
	signer, err := ssh.ParsePrivateKey(pem)
	if err != nil {
		return nil, because(
			err,
			CodeUsage,
			fmt.Sprintf("identity %s: %s", file, err),
			"set Options.Identity to the path of a private key without a passphrase; keys of an "+
				"ssh "+
				"agent need no option",
		)
	}
	return signer, nil
}
