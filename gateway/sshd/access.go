package sshd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// accessEvery is the interval between checks of logins. Expiry times of keys are checked in
	// between.
	accessEvery = 250 * time.Millisecond
	// accessSoon is the interval after a change of the file.
	accessSoon = 50 * time.Millisecond
	// accessFarewell is the time for sessions to report why they end, after the client lost access.
	accessFarewell = 250 * time.Millisecond
)

// accessError is why a client lost access.
type accessError struct{ why error }

func (e *accessError) Error() string { return "your access has ended: " + e.why.Error() }
func (e *accessError) Unwrap() error { return wire.Errorf(wire.CodeDenied, "%s", e.Error()) }

// accessOver returns the error for a client that lost access, if that is why ctx ended. Otherwise
// it returns nil.
func accessOver(ctx context.Context) *wire.Error {
	var over *accessError
	if ctx.Err() == nil || !errors.As(context.Cause(ctx), &over) {
		return nil
	}
	return wire.Errorf(wire.CodeDenied, "%s", over.Error())
}

// expelled ends the channel with a message if the client lost access, and reports whether it did.
func (s *session) expelled(ctx context.Context) bool {
	e := accessOver(ctx)
	if e == nil {
		return false
	}
	s.say(e.Message)
	s.exit(wire.ExitTransport)
	return true
}

// checkAccess disconnects clients whose login would now fail or grant less, until ctx ends.
func (h *tracker) checkAccess(ctx context.Context) {
	var ending sync.WaitGroup
	defer ending.Wait()
	timer := time.NewTimer(accessEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		now := time.Now()
		files, next := h.options.Keys.recent(now), accessEvery
		if len(files) > 1 { // an older content still counts for a moment
			next = accessSoon
		}
		for _, c := range h.clients() {
			err := c.check(files, now)
			if err != nil && !c.over {
				c.over = true
				// Deny here, not in a goroutine that must be scheduled first: all clients lose
				// access at once.
				over := &accessError{err}
				if c.deny(over); c.alone() {
					c.conn.Close()
				} else {
					ending.Go(c.part)
				}
				c.log.Info("access has ended", "err", err)
			}
			if !c.over && !c.expires.IsZero() {
				next = min(next, c.expires.Sub(now))
			}
		}
		timer.Reset(max(next, accessSoon/5))
	}
}

// clients returns the clients that are logged in.
func (h *tracker) clients() (list []*client) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for n := range h.conns {
		if n.client != nil {
			list = append(list, n.client)
		}
	}
	return list
}

// checked is what the last check found about a client. Only checkAccess uses it.
type checked struct {
	by      *keyFile  // file that allows the login; nil before the first check
	expires time.Time // according to that file; zero: never
	over    bool      // the client lost access
}

// check returns why the client loses access, or nil if its login would still grant as much.
func (c *client) check(files recent, now time.Time) error {
	if c.by == files[0] && (c.expires.IsZero() || now.Before(c.expires)) {
		return nil
	}
	return files.holds(func(f *keyFile) error {
		end, err := f.stays(c.conn.RemoteAddr(), c.login, now)
		if err == nil && f == files[0] {
			c.by, c.expires = f, end
		}
		return err
	})
}

// stays checks a login l from addr again. If it would still grant as much, stays returns when it
// expires; zero means never. Otherwise it returns why not.
func (f *keyFile) stays(addr net.Addr, l *login, now time.Time) (end time.Time, err error) {
	g, err := f.admit(addr, l.key, now)
	if err != nil {
		return time.Time{}, err
	}
	return g.Options.Expires, g.covers(l.grant)
}

// deny rejects new channels of the client, and ends its sessions with err.
func (c *client) deny(err *accessError) {
	c.mu.Lock()
	c.revoked = err
	c.partLocked()
	c.mu.Unlock()
	c.end(err)
}

// alone reports whether a client that lost access has no open session.
func (c *client) alone() bool {
	select {
	case <-c.parted:
		return true
	default:
		return false
	}
}

// part closes the connection of a client that lost access, when its sessions have ended or after
// accessFarewell.
func (c *client) part() {
	timer := time.NewTimer(accessFarewell)
	defer timer.Stop()
	select {
	case <-c.parted:
	case <-timer.C:
	}
	c.conn.Close()
}

// partLocked closes parted when a client that lost access has no session left. The caller holds mu.
func (c *client) partLocked() {
	if c.revoked != nil && c.sessions == 0 {
		closeOnce(c.parted)
	}
}

// errLess means that a key allows less than at login.
var errLess = errors.New("authorized_keys now allows the key less than at login")

// covers returns errLess unless g allows all that before did. It does not compare from= and
// expiry-time=, which admits checks.
func (g *grant) covers(before *grant) error {
	now, old := g.Options, before.Options
	switch {
	case g.Name != before.Name, g.Kind != before.Kind,
		g.Rights != before.Rights && g.Rights != wire.RightDrive,
		now.NoPty && !old.NoPty, now.NoForward && !old.NoForward,
		now.NoAgent && !old.NoAgent, now.NoX11 && !old.NoX11,
		now.Command != "" && now.Command != old.Command,
		!within(old.PermitOpen, now.PermitOpen), !within(before.PermitListen, g.PermitListen):
		return errLess
	}
	return nil
}

// within reports whether list permits no more forwards than other. An empty list permits all.
func within(list, other []string) bool {
	if len(other) == 0 || len(list) == 0 {
		return len(other) == 0
	}
	return !slices.ContainsFunc(list, func(s string) bool { return !slices.Contains(other, s) })
}

// expired reports whether g has expired at now.
func (g *grant) expired(now time.Time) bool {
	return !g.Options.Expires.IsZero() && !now.Before(g.Options.Expires)
}

// names reports whether g is an authority whose certificates may name the principal.
func (g *grant) names(principal string) bool {
	return g.authority && (len(g.principals) == 0 || slices.Contains(g.principals, principal))
}

// backs returns why p's token loses its validity, or nil; see Keys.Backs.
func (f *keyFile) backs(p gateway.Principal, now time.Time) error {
	if p.Line == "" {
		for _, lines := range f.lines {
			for _, g := range lines {
				if g.lets(p.Name) && g.makes(p, now) == nil {
					return nil
				}
			}
		}
		return fmt.Errorf("no key in authorized_keys allows %s to create such a token", p.Name)
	}
	err := errors.New("the key that created it is no longer in authorized_keys")
	for _, g := range f.lines[p.Line] {
		if !g.lets(p.Name) {
			continue
		}
		if err = g.makes(p, now); err == nil {
			return nil
		}
	}
	return err
}

// lets reports whether g allows logins as the principal.
func (g *grant) lets(principal string) bool {
	if g.authority {
		return g.names(principal)
	}
	return g.Name == principal
}

// makes returns why a login by g could not create a token of p, or nil.
func (g *grant) makes(p gateway.Principal, now time.Time) error {
	switch names := g.Options.Unheld(); {
	case g.expired(now):
		return errors.New("the key that created it has expired")
	case len(names) > 0:
		return fmt.Errorf("the key that created it is now restricted: %s",
			strings.Join(names, ", "))
	case g.Rights == wire.RightWatch && p.Rights != wire.RightWatch:
		return errors.New("the key that created it may now only watch")
	case g.Kind == wire.Agent && p.Kind == wire.Person:
		return errors.New("the key that created it now belongs to a program")
	}
	return nil
}
