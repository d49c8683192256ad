package page

import (
	"context"
	"net/http"

	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/person"
	"github.com/sandboxd/sandboxd/gateway/view"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// asked is what the page wants of a session besides input.
type asked struct {
	Do   string `json:"do"` // take, give, keep, private, help, detach or resize
	Cols uint32 `json:"cols"`
	Rows uint32 `json:"rows"`
}

var commands = map[string]view.KeyKind{"take": view.Take, "give": view.Give, "keep": view.Keep, "private": view.Private, "help": view.Help, "detach": view.Detach}

// standing is how things are for them.
type standing struct {
	Session  string `json:"session"`
	Keyboard string `json:"keyboard"`
	Asking   string `json:"asking"`
	Private  string `json:"private"`
	Holds    bool   `json:"holds"`
	Asked    bool   `json:"asked"`
	MayDrive bool   `json:"may_drive"`
	Owner    bool   `json:"owner"`
	Line     string `json:"line"`
}

// terminal puts a person into a session: what it sends is what their terminal is to show, and how things stand.
func (d *Door) terminal(w http.ResponseWriter, r *http.Request) {
	d.serve(w, r, func(s *socket) error {
		cols, rows := window(r)
		caller := rest.Principal(r.Context())
		if caller.Kind != wire.Person {
			return &wire.Error{Code: wire.CodeDenied, Message: "this token is a program's, not a person's"}
		}
		p := person.New(person.Options{Out: s, Cols: cols, Rows: rows, Prefix: d.Prefix, Public: d.Hub.Public,
			Read: func(ctx context.Context, p *person.Person) { defer s.tasks.Done(); s.follow(ctx, p) },
			Report: func(now person.State) {
				_ = s.say(map[string]any{"stands": standing{Session: now.Target.Session, Keyboard: now.Keyboard, Asking: now.Asking, Private: now.Private, Holds: now.Holds,
					Asked: now.Asked, MayDrive: now.MayDrive, Owner: now.Owner, Line: now.Line}}) // its end comes with the socket's
			}})
		o := p.JoinOptions()
		o.Create = caller.Rights != wire.RightWatch
		at, err := d.Hub.Sessions.Join(r.Context(), caller, target(r), o)
		if err != nil {
			return err
		}
		defer at.Close()
		s.tasks.Add(1) // Run begins to read, once
		status, words := person.Run[struct{}](s.ctx, p, at, nil, nil)
		_ = s.say(map[string]any{"ended": map[string]any{"status": status, "words": words}}) // who is gone is not told
		return nil
	})
}

// follow does what the page wants until there is no more.
func (s *socket) follow(ctx context.Context, p *person.Person) {
	for {
		var a asked
		input, err := s.hear(&a)
		kind, known := commands[a.Do]
		switch {
		case s.ctx.Err() != nil:
			p.Leave(person.ErrGone)
			return
		case err != nil: // of this message only
		case len(input) > 0:
			p.Type(ctx, input)
		case known:
			p.Press(kind)
		case a.Do == "resize":
			p.Resize(wire.ClampSize(a.Cols, a.Rows))
		}
	}
}

func prefixName(prefix byte) string { return view.PrefixName(prefix) }
