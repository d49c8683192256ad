package sshd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// attach joins the session that target names, and makes the sandbox first if it is missing and the client may. created is
// what there is to say about a new one, empty otherwise.
func (s *session) attach(ctx context.Context, target wire.Target, o gateway.JoinOptions) (at *gateway.Attachment, created string, err error) {
	c := s.client
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	o.Watch = o.Watch || c.grant.Rights == wire.RightWatch
	o.Create = !o.Watch && !o.Fresh
	o.Progress = s.progress()
	at, err = c.hub().Join(ctx, c.grant.Principal, target, o)
	if !errors.Is(err, gateway.ErrUnknown) {
		return at, "", err
	}
	if o.Watch {
		return nil, "", err
	}
	if err := c.hub().AutoCreate(c.grant.Principal, target.Sandbox); err != nil {
		return nil, "", err
	}
	began := time.Now()
	// Reuse: of two first logins at once both mean the same sandbox.
	info, err := c.hub().Create(ctx, c.grant.Principal, gateway.NewSpec{Name: target.Sandbox, Reuse: true}, s.progress())
	if err != nil {
		return nil, "", err
	}
	created = fmt.Sprintf("new sandbox %s (%s, %.2f s)", info.Name, info.ShortImage(), time.Since(began).Seconds())
	at, err = c.hub().Join(ctx, c.grant.Principal, target, o)
	return at, created, err
}

// exitOf is the exit status of an attachment whose session has ended as state says.
func exitOf(state wire.State) int {
	switch {
	case state.Phase != wire.PhaseDead:
		return wire.ExitTransport
	case state.ExitCode != nil:
		return *state.ExitCode & 0xff
	case state.Signal != "":
		return 128 + wire.SignalNumber(state.Signal)
	}
	return wire.ExitTransport
}
