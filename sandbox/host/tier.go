package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// stopGrace is how long the processes of sessions may take to end when a sandbox is removed.
const stopGrace = 2 * time.Second

// stopTimeout is how long a guest may take to end, with its processes.
const stopTimeout = 10 * time.Second

// How well the state of a machine's terminals is known, best first.
const (
	// A guest runs on the machine: sessions outlive the connection, and processes are visible.
	TierGuest  = "guest"
	TierMarks  = "marks"  // sessions are in the daemon; the shell reports its prompt and exit codes
	TierScreen = "screen" // sessions are in the daemon; only the screen is known
)

// DialSessions connects to the sessions of inst in the best way that the machine allows.
func (b *Backend) DialSessions(ctx context.Context, inst sandbox.Instance) (*connect.Control,
	error) {
	ctx, cancel := context.WithTimeoutCause(ctx, uploadTimeout+startTimeout,
		errors.New("the machine takes too long"))
	defer cancel()
	conn, err := b.login(ctx, &inst)
	if err != nil {
		return nil, err
	}
	return b.control(ctx, inst, conn)
}

// control makes the control connection over an authenticated connection. Its errors name the
// machine.
func (b *Backend) control(ctx context.Context, inst sandbox.Instance,
	conn *connect.Conn) (*connect.Control, error) {
	s, err := b.sessions(ctx, inst, conn, func(string, ...any) {})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", inst.Host.URI, err)
	}
	c, err := connect.NewControl(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", inst.Host.URI, err)
	}
	return c, nil
}

// sessions finds the best tier that a machine allows and returns its sessions, which own conn.
func (b *Backend) sessions(ctx context.Context, inst sandbox.Instance, conn *connect.Conn,
	say func(string, ...any)) (connect.Sessions, error) {
	l := b.newLink(inst, conn)
	fail := func(err error) (connect.Sessions, error) {
		l.End()
		_ = l.Wait() // this code ended it
		return nil, err
	}
	cut := func() error { // an interrupted probe shows nothing about the machine
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return l.lost()
	}
	tier, why := TierScreen, "tier screen was requested"
	f, err := probe(ctx, conn)
	switch {
	case cut() != nil:
		return fail(cut())
	case err != nil:
		why = "the machine does not run commands, or replaces them (ForceCommand?): " + err.Error()
		f = facts{}
	case inst.Host.Tier == TierScreen:
	case inst.Host.Tier == TierMarks:
		why = "tier marks was requested"
	default:
		p, err := b.install(ctx, conn, f, inst.ID, say)
		if err == nil {
			g := &guestLink{link: l, place: p}
			g.closed.Store(closesSockets(conn))
			return g, nil
		}
		why = "no guest: " + err.Error()
	}
	if err := cut(); err != nil {
		return fail(err)
	}
	if inst.Host.Tier == TierGuest {
		return fail(errors.New(why))
	}
	if err == nil && inst.Host.Tier != TierScreen {
		f.startupShell = startupShell(ctx, conn, f)
		if no := f.noMarks(f.startupShell); no == "" {
			tier = TierMarks
		} else {
			why += "; no marks: " + no
		}
	}
	if err := cut(); err != nil {
		return fail(err)
	}
	if inst.Host.Tier == TierMarks && tier != TierMarks {
		return fail(errors.New(why))
	}
	lo, err := b.localOf(inst, l, f, tier)
	if err != nil {
		return fail(err)
	}
	return &localLink{link: l, local: lo, tier: tier, why: why + ": sessions are in " +
		b.own.Owner + " and end with the connection"}, nil
}

// Destroy ends the sandbox's sessions and removes their files on the machine. It leaves the machine
// itself untouched. If the machine no longer accepts a login, the files stay and the error is a
// *sandbox.LeftError.
func (b *Backend) Destroy(ctx context.Context, inst sandbox.Instance) error {
	if err := b.forget(ctx, inst.ID); err != nil {
		return err
	}
	if inst.Host.URI == "" {
		return nil
	}
	for try := 1; ; try++ {
		conn, err := b.login(ctx, &inst)
		if errors.Is(err, connect.ErrLogin) || errors.Is(err, connect.ErrIdentity) {
			b.forgetPasswords(inst.ID)
			return &sandbox.LeftError{Where: inst.Host.URI, Err: reason(err),
				Hint: "if it had tier guest, remove its files on the host: " + leftover(inst.ID)}
		}
		if err != nil {
			return err
		}
		err = b.clean(ctx, inst, conn)
		no := (*noError)(nil)
		switch {
		// Dropbear occasionally closes a channel right after its opening.
		case errors.As(err, &no) && try < cleanTries && !errors.Is(no.err, errSlow):
		case errors.As(err, &no):
			b.log.Info("nothing to clean up", "sandbox", inst.ID, "err", no)
			b.forgetPasswords(inst.ID)
			return nil
		case err != nil:
			return fmt.Errorf("clean up %s: %w", inst.Host.URI, err)
		default:
			b.forgetPasswords(inst.ID)
			return nil
		}
	}
}

// cleanTries is how many connections are tried before a machine's failure is final.
const cleanTries = 3

// noError means that a machine runs no commands or has no files, and so has nothing of ours.
type noError struct {
	what string
	err  error
}

func (e *noError) Error() string { return fmt.Sprintf("%s: %v", e.what, e.err) }

// reason returns why a machine does not let us in, without the steps before.
func reason(err error) error {
	var changed *ChangedKeyError
	var unknown *UnknownKeyError
	var refused *LoginError
	switch {
	case errors.As(err, &changed):
		return changed
	case errors.As(err, &unknown):
		return unknown
	case errors.As(err, &refused):
		return refused
	}
	return err
}

// leftover is a command for the account's owner that ends the guest of a sandbox and removes its
// directory.
func leftover(id string) string {
	return fmt.Sprintf("pkill -f '%s host .*/%s'; rm -r ~/.cache/%s/%s", folder, id, folder, id)
}

// clean removes everything of inst on the machine behind conn, which it closes.
func (b *Backend) clean(ctx context.Context, inst sandbox.Instance, conn *connect.Conn) error {
	l := b.newLink(inst, conn)
	defer func() { l.End(); _ = l.Wait() }()
	// A machine that answers no has nothing of ours: a guest needs its shell and its SFTP. One that
	// no longer answers may have.
	no := func(what string, err error) error {
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", what, context.Cause(ctx))
		}
		if lost := l.lost(); lost != nil {
			return fmt.Errorf("%s: %w", what, lost)
		}
		return &noError{what, err}
	}
	f, err := probe(ctx, conn)
	if err != nil {
		return no("probe the machine", err)
	}
	if f.system != "Linux" {
		return nil // there is no guest for it
	}
	client, done, err := files(ctx, conn)
	if err != nil {
		return no("SFTP", err)
	}
	defer done()
	var errs []error
	for _, parent := range f.parents() {
		p := placeIn(parent, "0000000000000000", inst.ID)
		if _, err := client.Lstat(p.dir); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			errs = append(errs, no("list "+p.dir, err))
			continue
		}
		// Without its directory a guest cannot be found again: the directory stays as long as the
		// guest runs.
		if err := stop(ctx, conn, client, p); err != nil {
			errs = append(errs, fmt.Errorf("stop the guest in %s: %w", p.dir, err))
			continue
		}
		errs = append(errs, p.remove(client))
	}
	return errors.Join(errs...)
}

// orderBySocket gives an order to a session server whose program was removed, through its socket.
// It is not an error if nothing listens on the socket.
func orderBySocket(ctx context.Context, conn *connect.Conn, client *sftp.Client, p place,
	order []byte) error {
	c, err := openSocket(ctx, conn, p.dir+"/sock")
	var refused *ssh.OpenChannelError
	switch {
	case errors.As(err, &refused) && refused.Reason == ssh.ConnectionFailed:
		return client.Remove(p.dir + "/sock")
	case err != nil:
		return fmt.Errorf("its program was removed, and its socket does not answer: %w", err)
	}
	defer c.Close()
	return c.send(ctx, append(order, '\n'))
}

// stop ends the session server of a sandbox and its processes, and returns when they are gone.
func stop(ctx context.Context, conn *connect.Conn, client *sftp.Client, p place) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stopTimeout,
		fmt.Errorf("it did not end within %v: it may be stopped (SIGSTOP), or the machine busy",
			stopTimeout))
	defer cancel()
	if _, err := client.Lstat(p.dir + "/sock"); errors.Is(err, fs.ErrNotExist) {
		return nil // it does not run
	} else if err != nil {
		return err
	}
	guests, err := client.Glob(p.root + "/guest-*")
	if err != nil {
		return err
	}
	order, err := json.Marshal(wire.Control{Do: "stop", GraceMS: stopGrace.Milliseconds()})
	if err != nil {
		return err
	}
	if len(guests) > 0 {
		p.binary = guests[0] // any of them can connect to the running one
		err = ask(ctx, conn, p.command(), order)
	} else {
		err = orderBySocket(ctx, conn, client, p, order)
	}
	if err != nil {
		return err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := client.Lstat(p.dir + "/sock"); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
