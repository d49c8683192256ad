package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/skeema/knownhosts"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/host"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// reached is the server as package host has it.
type reached = *host.Reached

// reach connects by the way that the user's ssh configuration says. ask has the passwords of jump hosts; it may be nil.
func reach(ctx context.Context, t target, ask func(ctx context.Context, user, host string) (string, error)) (*server, error) {
	r, err := host.Reach(ctx, t.uri(), ask)
	if err != nil {
		return nil, explain(err, Options{})
	}
	t.host, t.port, t.identities, t.knownHosts = r.Host, r.Port, r.Identities, r.KnownHosts
	return &server{target: t, conn: r.Conn, version: r.Version, reached: r}, nil
}

// place is the name under which this library has sessions on a machine: one for all programs of an account.
const place = "agent"

// machine is a host that a client has dialled. It does for the client what a daemon does for many.
type machine struct {
	backend   *host.Backend
	inst      sandbox.Instance
	options   Options
	passwords *passwords
	tier, why string // written by Dial alone

	life    context.Context //nolint:containedctx // the client's
	dialing chan struct{}   // semaphore of who connects

	mu      sync.Mutex
	control *connect.Control // guarded by mu; perhaps dead
}

// host makes a client of the machine that was reached.
func (d *dialer) host(ctx context.Context) (*Client, error) {
	s, o, t := d.first, d.options, d.target
	switch {
	case o.Create, t.user == wire.Lobby && o.Kind != KindHost:
		return nil, notGateway(s)
	case t.path != "":
		return nil, &Error{Code: CodeUsage, Message: fmt.Sprintf("%s is a host: its URI has no path", s.target.addr()), Hint: "name the directory in ShellOptions.Start.Dir"}
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	c := newClient(t.host, wire.DefaultSession)
	m := &machine{options: o, life: c.life, dialing: make(chan struct{}, 1), passwords: d.passwords}
	guest := o.Host.Guest
	if guest == nil {
		guest = findGuest
	}
	m.backend = host.New(host.Options{Guest: guest, KnownHosts: o.KnownHosts, Signers: o.Signers, Password: d.passwords.source(), Owner: "this process"})
	m.inst = sandbox.Instance{Backend: host.Name, ID: place, Host: sandbox.Host{URI: t.uri(), Identity: o.Identity, Accept: o.Host.Accept,
		Tier: o.Host.Tier, Prompt: o.Host.Prompt}}
	c.machine, c.dial, c.open = m, m.login, m.open
	d.first = nil
	control, err := m.backend.Sessions(ctx, m.inst, s.reached)
	if err != nil {
		err = m.explain(ctx, err)
		c.Close()
		return nil, err
	}
	m.control = control
	m.tier, m.why = control.Tier()
	m.inst.Host.Tier = m.tier // what the sessions of this client are in, whatever the machine allows later
	return c, nil
}

// check finds what cannot be meant.
func (o Options) check() error {
	switch o.Host.Tier {
	case "", TierGuest, TierMarks, TierScreen:
	default:
		return wire.Errorf(wire.CodeUsage, "tier %q: there are guest, marks and screen", o.Host.Tier)
	}
	if _, err := regexp.Compile(o.Host.Prompt); err != nil {
		return wire.Errorf(wire.CodeUsage, "prompt %q: %v", o.Host.Prompt, err)
	}
	if o.Host.Accept != "" && !strings.HasPrefix(o.Host.Accept, "SHA256:") {
		return wire.Errorf(wire.CodeUsage, "fingerprint %q has no SHA256: in front", o.Host.Accept)
	}
	for _, file := range o.KnownHosts {
		if _, err := os.Stat(file); err != nil {
			return fmt.Errorf("known_hosts: %w", err)
		}
	}
	return nil
}

// connected returns the live connection to the sessions, or makes one.
func (m *machine) connected(ctx context.Context) (*connect.Control, error) {
	ctx, done := within(ctx, m.life)
	defer done()
	select {
	case m.dialing <- struct{}{}:
		defer func() { <-m.dialing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	m.mu.Lock()
	old := m.control
	m.mu.Unlock()
	if old != nil && old.Err() == nil && m.reaches(ctx, old) {
		return old, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if old != nil {
		old.Close()
	}
	c, err := m.backend.DialSessions(ctx, m.inst)
	if err != nil {
		return nil, m.explain(ctx, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := context.Cause(m.life); err != nil { // close waits, and would not see it
		c.Close()
		return nil, err
	}
	m.control = c
	return c, nil
}

// reaches reports whether a connection to sessions in this process is of use: a terminal may have told of its end before it does so
// itself.
func (m *machine) reaches(ctx context.Context, c *connect.Control) bool {
	if m.tier == TierGuest {
		return true // its streams tell
	}
	_, err := c.Do(ctx, wire.Control{Do: "health"})
	return err == nil
}

// open opens a session stream. Those to sessions in this process outlive the connection, and tell that it broke.
func (m *machine) open(ctx context.Context) (io.ReadWriteCloser, error) {
	c, err := m.connected(ctx)
	if err != nil {
		return nil, err
	}
	if m.tier == TierGuest {
		return c.OpenStream(ctx)
	}
	return m.backend.Local(m.inst.ID)
}

// ready connects again, before a command, what ended with the connection.
func (m *machine) ready(ctx context.Context) error {
	if m.tier == TierGuest {
		return nil
	}
	_, err := m.connected(ctx)
	return err
}

// login makes a connection for commands and files.
func (m *machine) login(ctx context.Context) (*link, error) {
	c, err := m.backend.Login(ctx, m.inst)
	if err != nil {
		return nil, m.explain(ctx, err)
	}
	return newLink(c), nil
}

func (m *machine) close() error {
	m.dialing <- struct{}{} // the client's life has ended: who connects gives up
	defer func() { <-m.dialing }()
	m.mu.Lock()
	c := m.control
	m.control = nil
	m.mu.Unlock()
	err := m.backend.Close() // terminals are hung up while there is a connection
	if c != nil {
		c.Close()
	}
	return err
}

func (m *machine) remove(ctx context.Context) error {
	if _, err := m.connected(ctx); err != nil { // Destroy gives up on a machine that lets nobody in
		return err
	}
	if err := m.backend.Destroy(ctx, m.inst); err != nil {
		return m.explain(ctx, err)
	}
	return nil
}

// explain makes an error that says what to do. A password that was refused is forgotten.
func (m *machine) explain(ctx context.Context, err error) error {
	m.passwords.refused(err)
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", m.inst.Host.URI, context.Cause(ctx))
	}
	return explain(err, m.options)
}

func explain(err error, o Options) error {
	var unknown *host.UnknownKeyError
	var changed *host.ChangedKeyError
	var known *wire.Error
	file, where := "~/.ssh/known_hosts", ""
	if len(o.KnownHosts) > 0 {
		file = "'" + strings.ReplaceAll(o.KnownHosts[0], "'", `'\''`) + "'"
		where = " -f " + file
	}
	switch {
	case errors.As(err, &known):
		return err
	case errors.As(err, &unknown):
		return because(err, CodeDenied, unknown.Error(), fmt.Sprintf("if that is the host's (there: ssh-keygen -lf /etc/ssh/ssh_host_…_key.pub), "+
			"accept it with Options.Host.Accept, or: echo '%s' >>%s", unknown.Line, file))
	case errors.As(err, &changed):
		return because(err, CodeDenied, changed.Error(),
			fmt.Sprintf("somebody may be in between; when the host was made anew: ssh-keygen%s -R '%s'", where, knownhosts.Normalize(changed.Host)))
	case errors.Is(err, connect.ErrIdentity):
		return because(err, CodeDenied, err.Error(), "")
	case errors.Is(err, connect.ErrLogin):
		return because(err, CodeDenied, err.Error(),
			"name a key with Options.Identity or Signers, a password with Options.Host.Password, or add the key there: ssh-copy-id")
	case errors.As(err, new(net.Error)):
		return because(err, CodeUnavailable, err.Error(), "is the host up, and the name and the port right?")
	}
	return because(err, CodeUnavailable, err.Error(), "")
}

// findGuest looks for the guest beside this program and beside the sandboxd in $PATH. Where there is
// none a static sandboxd is the guest itself, as of its own daemon.
func findGuest(arch string) (string, error) {
	var programs []string
	if self, err := os.Executable(); err == nil {
		programs = append(programs, self)
	}
	if daemon, err := exec.LookPath("sandboxd"); err == nil {
		programs = append(programs, daemon)
	}
	for _, program := range programs {
		if g, ok := host.GuestsBeside(program); ok {
			if path, err := g.Path(arch); err == nil {
				return path, nil
			}
		}
	}
	for _, program := range programs {
		if filepath.Base(program) != "sandboxd" {
			continue
		}
		if g, err := host.GuestItself(program); err == nil {
			return g.Path(arch)
		}
	}
	return "", fmt.Errorf("there is no guest for %s beside this program, nor beside sandboxd in $PATH, "+
		"which is not static: Options.Host.Guest may name it", arch)
}

// refused forgets the password of an account that did not let us in.
func (p *passwords) refused(err error) {
	var login *host.LoginError
	if errors.As(err, &login) {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.known, login.User+"@"+login.Addr)
	}
}
