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

// reached is the connected server of package host.
type reached = *host.Reached

// reach connects as the user's ssh configuration says. ask returns the passwords of jump hosts; it
// may be nil.
func reach(
	ctx context.Context,
	t target,
	ask func(ctx context.Context, user, host string) (string, error),
) (*server, error) {
	r, err := host.Reach(ctx, t.uri(), ask)
	if err != nil {
		return nil, explain(err, Options{})
	}
	t.host, t.port, t.identities, t.knownHosts = r.Host, r.Port, r.Identities, r.KnownHosts
	return &server{target: t, conn: r.Conn, version: r.Version, reached: r}, nil
}

// place is the name of this library's directory of sessions on a host. All programs of an account
// share it.
const place = "agent"

// machine is the host of one client. It does the work that a daemon does for sandboxes.
type machine struct {
	backend   *host.Backend
	inst      sandbox.Instance
	options   Options
	passwords *passwords
	tier, why string // written only by Dial

	life    context.Context //nolint:containedctx // the client's
	dialing chan struct{}   // semaphore: one goroutine connects at a time

	mu      sync.Mutex
	control *connect.Control // guarded by mu; may be dead
}

// host returns a client of the connected host.
func (d *dialer) host(ctx context.Context) (*Client, error) {
	s, o, t := d.first, d.options, d.target
	switch {
	case o.Create, t.user == wire.ControlHost && o.Kind != KindHost:
		return nil, notGateway(s)
	case t.path != "":
		return nil, &Error{
			Code:    CodeUsage,
			Message: fmt.Sprintf("%s is a host: its URI cannot have a path", s.target.addr()),
			Hint:    "set the directory with ShellOptions.Start.Dir",
		}
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
	m.backend = host.New(
		host.Options{
			Guest:      guest,
			KnownHosts: o.KnownHosts,
			Signers:    o.Signers,
			Password:   d.passwords.source(),
			Owner:      "this process",
		},
	)
	m.inst = sandbox.Instance{
		Backend: host.Name,
		ID:      place,
		Host: sandbox.Host{URI: t.uri(), Identity: o.Identity, Accept: o.Host.Accept,
			Tier: o.Host.Tier, Prompt: o.Host.Prompt},
	}
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
	// keep the tier of the client's sessions, even if the host allows another one later
	m.inst.Host.Tier = m.tier
	return c, nil
}

// check returns a usage error for invalid options.
func (o Options) check() error {
	switch o.Host.Tier {
	case "", TierGuest, TierMarks, TierScreen:
	default:
		return wire.Errorf(
			wire.CodeUsage,
			"tier %q: must be guest, marks or screen",
			o.Host.Tier,
		)
	}
	if _, err := regexp.Compile(o.Host.Prompt); err != nil {
		return wire.Errorf(wire.CodeUsage, "prompt %q: %v", o.Host.Prompt, err)
	}
	if o.Host.Accept != "" && !strings.HasPrefix(o.Host.Accept, "SHA256:") {
		return wire.Errorf(wire.CodeUsage, "fingerprint %q must begin with %q", o.Host.Accept,
			"SHA256:")
	}
	for _, file := range o.KnownHosts {
		if _, err := os.Stat(file); err != nil {
			return fmt.Errorf("known_hosts: %w", err)
		}
	}
	return nil
}

// connected returns the live connection to the sessions, or opens one.
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
	// close does not see a connection that is set after it
	if err := context.Cause(m.life); err != nil {
		c.Close()
		return nil, err
	}
	m.control = c
	return c, nil
}

// reaches reports whether c still works. For sessions in this process it asks, because a terminal
// can report the end of the connection before c does.
func (m *machine) reaches(ctx context.Context, c *connect.Control) bool {
	if m.tier == TierGuest {
		return true // its streams report a broken connection
	}
	_, err := c.Do(ctx, wire.Control{Do: "health"})
	return err == nil
}

// open opens a session stream. Streams of sessions in this process outlive the connection, and
// report that it broke.
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

// ready reconnects before a command, on tiers whose sessions end with the connection.
func (m *machine) ready(ctx context.Context) error {
	if m.tier == TierGuest {
		return nil
	}
	_, err := m.connected(ctx)
	return err
}

// login opens a connection for commands and files.
func (m *machine) login(ctx context.Context) (*link, error) {
	c, err := m.backend.Login(ctx, m.inst)
	if err != nil {
		return nil, m.explain(ctx, err)
	}
	return newLink(c), nil
}

func (m *machine) close() error {
	m.dialing <- struct{}{} // the client's life has ended, so that a dial returns
	defer func() { <-m.dialing }()
	m.mu.Lock()
	c := m.control
	m.control = nil
	m.mu.Unlock()
	err := m.backend.Close() // closing the terminals needs the connection
	if c != nil {
		c.Close()
	}
	return err
}

func (m *machine) remove(ctx context.Context) error {
	if _, err := m.connected(ctx); err != nil { // Destroy needs a login
		return err
	}
	if err := m.backend.Destroy(ctx, m.inst); err != nil {
		return m.explain(ctx, err)
	}
	return nil
}

// explain returns err with a hint. It also forgets a rejected password.
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
		return because(
			err,
			CodeDenied,
			unknown.Error(),
			fmt.Sprintf(
				"if it is the host's key (there: ssh-keygen -lf /etc/ssh/ssh_host_…_key.pub), "+
					"accept it with Options.Host.Accept, or: echo '%s' >>%s",
				unknown.Line,
				file,
			),
		)
	case errors.As(err, &changed):
		return because(
			err,
			CodeDenied,
			changed.Error(),
			fmt.Sprintf(
				"the connection may be intercepted; if the host was reinstalled: ssh-keygen%s -R "+
					"'%s'",
				where,
				knownhosts.Normalize(changed.Host),
			),
		)
	case errors.Is(err, connect.ErrIdentity):
		return because(err, CodeDenied, err.Error(), "")
	case errors.Is(err, connect.ErrLogin):
		return because(
			err,
			CodeDenied,
			err.Error(),
			"name a key with Options.Identity or Signers, set Options.Host.Password, "+
				"or add the key to the host: ssh-copy-id",
		)
	case errors.As(err, new(net.Error)):
		return because(
			err,
			CodeUnavailable,
			err.Error(),
			"is the host up, and are the name and the port right?",
		)
	}
	return because(err, CodeUnavailable, err.Error(), "")
}

// findGuest looks for the guest binary next to this program and next to the sandboxd in $PATH.
// Otherwise it uses a static sandboxd itself, which can run as the guest.
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
	return "", fmt.Errorf(
		"there is no guest for %s next to this program or next to sandboxd in $PATH, "+
			"and that sandboxd is not static; set Options.Host.Guest",
		arch,
	)
}

// refused forgets the password of an account if err is a rejected login.
func (p *passwords) refused(err error) {
	var login *host.LoginError
	if errors.As(err, &login) {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.known, login.User+"@"+login.Addr)
	}
}
