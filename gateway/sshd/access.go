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
	// accessEvery is how often it is looked whether logins still hold, beside the times at which
	// keys expire.
	accessEvery = 250 * time.Millisecond
	// accessSoon is how often after a change of the file.
	accessSoon = 50 * time.Millisecond
	// accessFarewell is what sessions have to say why they end, of a client that may not stay.
	accessFarewell = 250 * time.Millisecond
)

// accessError ends what a client has whose login no longer holds.
type accessError struct{ why error }

func (e *accessError) Error() string { return "your access has ended: " + e.why.Error() }
func (e *accessError) Unwrap() error { return wire.Errorf(wire.CodeDenied, "%s", e.Error()) }

// accessOver is what to tell the client whose login no longer holds, where that has ended ctx; else
// nil.
func accessOver(ctx context.Context) *wire.Error {
	var over *accessError
	if ctx.Err() == nil || !errors.As(context.Cause(ctx), &over) {
		return nil
	}
	return wire.Errorf(wire.CodeDenied, "%s", over.Error())
}

// expelled ends the channel, and says why, of a client whose login no longer holds, where that has
// ended ctx.
func (s *session) expelled(ctx context.Context) bool {
	e := accessOver(ctx)
	if e == nil {
		return false
	}
	s.say(e.Message)
	s.exit(wire.ExitTransport)
	return true
}

// checkAccess ends clients whose login no longer holds – it would fail by now, or grant less –
// until ctx ends.
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
		if len(files) > 1 { // something holds for a moment only
			next = accessSoon
		}
		for _, c := range h.clients() {
			err := c.check(files, now)
			if err != nil && !c.over {
				c.over = true
				// Here, not in a goroutine that has to wait for its turn: of many clients at once
				// none is let do anything more.
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

// clients are those that have logged in.
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

// checked is what checkAccess, whose it is alone, knows of a client.
type checked struct {
	by      *keyFile  // that says that the login holds; nil before the first look
	expires time.Time // by that file; zero is never
	over    bool      // it does not hold
}

// check says why the client may not stay. nil: its login would succeed, and grant no less.
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

// stays says why who logged in by l from addr may not stay. nil: the login would succeed, and grant
// no less, until the end that it returns; zero is never.
func (f *keyFile) stays(addr net.Addr, l *login, now time.Time) (end time.Time, err error) {
	g, err := f.admit(addr, l.key, now)
	if err != nil {
		return time.Time{}, err
	}
	return g.Options.Expires, g.covers(l.grant)
}

// deny lets the client open nothing more, and ends what its sessions do, because of err.
func (c *client) deny(err *accessError) {
	c.mu.Lock()
	c.revoked = err
	c.partLocked()
	c.mu.Unlock()
	c.end(err)
}

// alone reports whether no session of a client is open that may not stay.
func (c *client) alone() bool {
	select {
	case <-c.parted:
		return true
	default:
		return false
	}
}

// part closes the connection of a client that may not stay, when its sessions have said so.
func (c *client) part() {
	timer := time.NewTimer(accessFarewell)
	defer timer.Stop()
	select {
	case <-c.parted:
	case <-timer.C:
	}
	c.conn.Close()
}

// partLocked notes when a client that may not stay has no session any more. It is called with mu
// held.
func (c *client) partLocked() {
	if c.revoked != nil && c.sessions == 0 {
		closeOnce(c.parted)
	}
}

// errLess says that a grant allows less than another.
var errLess = errors.New("authorized_keys allows the key less than when it logged in")

// covers returns errLess if g does not allow all that the grant before did. Of from= and
// expiry-time= it says nothing: see admits.
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

// within reports whether a list of what may be forwarded allows no more than another. An empty one
// allows all.
func within(list, other []string) bool {
	if len(other) == 0 || len(list) == 0 {
		return len(other) == 0
	}
	return !slices.ContainsFunc(list, func(s string) bool { return !slices.Contains(other, s) })
}

// expired reports whether g is no longer good at now.
func (g *grant) expired(now time.Time) bool {
	return !g.Options.Expires.IsZero() && !now.Before(g.Options.Expires)
}

// names reports whether g is an authority's that may name the principal in certificates.
func (g *grant) names(principal string) bool {
	return g.authority && (len(g.principals) == 0 || slices.Contains(g.principals, principal))
}

// backs says why p holds no token any more; see Keys.Backs.
func (f *keyFile) backs(p gateway.Principal, now time.Time) error {
	if p.Line == "" {
		for _, lines := range f.lines {
			for _, g := range lines {
				if g.lets(p.Name) && g.makes(p, now) == nil {
					return nil
				}
			}
		}
		return fmt.Errorf("no key in authorized_keys lets %s make such a token", p.Name)
	}
	err := errors.New("the key that made it is no longer in authorized_keys")
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

// lets reports whether somebody can log in by g as the principal.
func (g *grant) lets(principal string) bool {
	if g.authority {
		return g.names(principal)
	}
	return g.Name == principal
}

// makes says why who is let in by g could not make a token of p.
func (g *grant) makes(p gateway.Principal, now time.Time) error {
	switch names := g.Options.Unheld(); {
	case g.expired(now):
		return errors.New("the key that made it has expired")
	case len(names) > 0:
		return fmt.Errorf("the key that made it is restricted by now: %s",
			strings.Join(names, ", "))
	case g.Rights == wire.RightWatch && p.Rights != wire.RightWatch:
		return errors.New("the key that made it may only watch by now")
	case g.Kind == wire.Agent && p.Kind == wire.Person:
		return errors.New("the key that made it is a program's by now")
	}
	return nil
}
