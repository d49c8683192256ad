package sshd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/person"
	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// join joins a person to a session. With watch they are read-only, whatever their rights.
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

// visit joins a person to a session until they leave or it ends. Their terminal is then restored,
// and farewell receives their exit status and a last message. An error means that they could not
// join, or not go back to the session that they left for another.
func (s *session) visit(ctx context.Context, target wire.Target, watch bool,
	farewell func(status int, words string)) error {
	s.client.server.beginTTY()
	defer s.client.server.endTTY()
	var from *wire.Target // the session that they came from
	var notice string
	for {
		status, words, next, err := visitOne(ctx, s, target, watch, from != nil, notice)
		switch {
		case err != nil && from != nil && notice == "": // it has ended meanwhile: back
			target, notice = *from, plain(s.client.public(err).Message)
			continue
		case err != nil:
			return err
		case next == nil:
			farewell(status, words)
			return nil
		}
		left := target
		from, target, notice = &left, *next, ""
	}
}

// visitOne is visit for one session. An onward visit creates and starts nothing. notice is shown at
// first, unless it is empty. next is the session that they left for; nil if they left.
func visitOne(ctx context.Context, s *session, target wire.Target, watch, onward bool,
	notice string) (status int, words string, next *wire.Target, err error) {
	var at *attach.Attachment
	var asking *attention.Asked
	o := person.Options{Out: s.channel, Cols: int(s.ask.pty.Cols), Rows: int(s.ask.pty.Rows),
		Prefix: s.client.server.prefix, Public: s.client.public, Read: s.readPerson,
		Record: func(ctx context.Context, read func(*record.Reader) error) error {
			return s.client.hub().Sessions.ReadThrough(ctx, s.client.grant.Principal, at.Target(),
				0, read)
		}}
	if s.client.grant.Rights != wire.RightWatch { // others could not answer
		o.Others = func() (int, wire.Target) { return asking.Others(at.Target()) }
		o.Alert, o.Began = person.Alert(s.client.server.options.Alert),
			func() []wire.Target { return asking.Began() }
	}
	p := person.New(o)
	if o.Others != nil {
		asking = s.client.hub().Sessions.Asking(s.client.grant.Principal, p.Changed)
		defer asking.Close()
	}
	join := p.JoinOptions()
	join.Watch = watch
	var created string
	if onward {
		within, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		join.Watch = watch || s.client.grant.Rights == wire.RightWatch
		at, err = s.client.hub().Sessions.Join(within, s.client.grant.Principal, target, join)
	} else {
		at, created, err = s.attach(ctx, target, join)
	}
	if err != nil {
		return 0, "", nil, err
	}
	defer at.Close()
	s.begin()
	switch {
	case notice != "":
		p.Say(notice)
	case created != "":
		p.Welcome(created)
	}
	status, words = person.Run(ctx, p, at, s.channel.Requests, func(q *ssh.Request) {
		_ = q.Reply(s.window(p, q), nil)
	})
	if to, ok := p.Next(); ok {
		next = &to
	}
	return status, words, next, nil
}

// visiting passes a client's input to the person of the present visit.
type visiting struct {
	mu    sync.Mutex
	ctx   context.Context //nolint:containedctx // guarded by mu; of the visit
	p     *person.Person  // guarded by mu
	begun bool            // guarded by mu; a goroutine reads
	ended bool            // guarded by mu; at the end of input
}

// pass makes p the person of the visit, and reports whether the caller has to read. A visit that
// has ended does not replace a later one.
func (v *visiting) pass(ctx context.Context, p *person.Person) (read bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if ctx.Err() != nil && v.begun {
		return false
	}
	v.ctx, v.p = ctx, p
	if v.ended {
		p.Leave(person.ErrDetached)
	}
	read, v.begun = !v.begun, true
	return read
}

func (v *visiting) present() (context.Context, *person.Person) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.ctx, v.p
}

// readPerson begins to read the person's input until its end. That never waits for the session, so
// that leaving always works. Where no readers take turns, it goes on for later visits.
func (s *session) readPerson(ctx context.Context, p *person.Person) {
	v := &s.visiting
	if s.typed != nil {
		v = new(visiting)
	}
	if !v.pass(ctx, p) {
		return
	}
	go v.read(s.inputUntil(ctx)) // ends when the client closes its end, after the farewell
}

// read passes on what comes from src to the person of the present visit.
func (v *visiting) read(src io.Reader) {
	for buf := make([]byte, smallBuffer); ; {
		n, err := src.Read(buf)
		ctx, p := v.present()
		if n > 0 {
			p.Type(ctx, buf[:n])
		}
		if err != nil {
			v.mu.Lock()
			v.ended = true
			v.p.Leave(person.ErrDetached) // EOF detaches
			v.mu.Unlock()
			return
		}
	}
}

// window handles a change of the size of the person's window.
func (s *session) window(p *person.Person, q *ssh.Request) bool {
	if q.Type != wire.RequestWindowChange {
		return false
	}
	w, ok := parseWindow(q.Payload)
	if !ok {
		return false
	}
	s.ask.pty.Cols, s.ask.pty.Rows = w.Cols, w.Rows // for the next session of this terminal
	p.Resize(int(w.Cols), int(w.Rows))
	return true
}

// attach joins a session. If its sandbox is missing and the client may create it, attach creates
// it, and describes it in created. Otherwise created is empty.
func (s *session) attach(ctx context.Context, target wire.Target,
	o attach.JoinOptions) (at *attach.Attachment, created string, err error) {
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
	// With Reuse, concurrent first logins get the same sandbox.
	info, err := c.hub().Create(ctx, c.grant.Principal,
		lifecycle.NewSpec{Name: target.Sandbox, Reuse: true}, s.progress())
	if err != nil {
		return nil, "", err
	}
	created = fmt.Sprintf("new sandbox %s (%s, %.2f s)", info.Name, info.ShortImage(),
		time.Since(began).Seconds())
	at, err = c.hub().Sessions.Join(ctx, c.grant.Principal, target, o)
	return at, created, err
}
