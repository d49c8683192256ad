package sshd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/person"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// join puts a person into the session that target names. With watch they only watch, whatever their rights.
func (s *session) join(ctx context.Context, target wire.Target, watch bool) {
	err := s.visit(ctx, target, watch, func(status int, words string) {
		if words != "" {
			s.say(words)
		}
		s.exit(status)
	})
	if err != nil {
		s.fail(err)
	}
}

// visit puts a person into a session until they leave or it ends. Then their terminal is their own again, and farewell gets their
// exit status and the last words. An error says that they did not get in.
func (s *session) visit(ctx context.Context, target wire.Target, watch bool, farewell func(status int, words string)) error {
	s.client.server.beginTTY()
	defer s.client.server.endTTY()
	p := person.New(person.Options{Out: s.channel, Cols: int(s.ask.pty.Cols), Rows: int(s.ask.pty.Rows), Prefix: s.client.server.prefix,
		Public: s.client.public, Read: s.readPerson})
	o := p.JoinOptions()
	o.Watch = watch
	at, created, err := s.attach(ctx, target, o)
	if err != nil {
		return err
	}
	defer at.Close()
	s.begin()
	if created != "" {
		p.Welcome(created)
	}
	farewell(person.Run(ctx, p, at, s.channel.Requests, func(q *ssh.Request) { _ = q.Reply(s.window(p, q), nil) }))
	return nil
}

// readPerson takes what the person types until their terminal has no more to say. It never waits for the session, so that leaving always
// works.
func (s *session) readPerson(ctx context.Context, p *person.Person) {
	src := s.inputUntil(ctx)
	for buf := make([]byte, smallBuffer); ; {
		n, err := src.Read(buf)
		if n > 0 {
			p.Type(ctx, buf[:n])
		}
		if err != nil {
			p.Leave(person.ErrDetached) // EOF detaches
			return
		}
	}
}

// window follows the size of the person's window.
func (s *session) window(p *person.Person, q *ssh.Request) bool {
	if q.Type != wire.RequestWindowChange {
		return false
	}
	w, ok := parseWindow(q.Payload)
	if !ok {
		return false
	}
	s.ask.pty.Cols, s.ask.pty.Rows = w.Cols, w.Rows // for whoever draws there next
	p.Resize(int(w.Cols), int(w.Rows))
	return true
}

// attach joins the session that target names, and makes the sandbox first if it is missing and the client may. created is
// what there is to say about a new one, empty otherwise.
func (s *session) attach(ctx context.Context, target wire.Target, o attach.JoinOptions) (at *attach.Attachment, created string, err error) {
	c := s.client
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	o.Watch = o.Watch || c.grant.Rights == wire.RightWatch
	o.Create = !o.Watch && !o.Fresh
	o.Progress = s.progress()
	at, err = c.hub().Sessions.Join(ctx, c.grant.Principal, target, o)
	if !errors.Is(err, lifecycle.ErrUnknown) {
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
	info, err := c.hub().Create(ctx, c.grant.Principal, lifecycle.NewSpec{Name: target.Sandbox, Reuse: true}, s.progress())
	if err != nil {
		return nil, "", err
	}
	created = fmt.Sprintf("new sandbox %s (%s, %.2f s)", info.Name, info.ShortImage(), time.Since(began).Seconds())
	at, err = c.hub().Sessions.Join(ctx, c.grant.Principal, target, o)
	return at, created, err
}
