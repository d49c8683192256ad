package page

import (
	"context"
	"net/http"

	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/person"
	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/gateway/view"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// asked is a command of the page to a session.
type asked struct {
	Do   string `json:"do"` // take, give, keep, private, help, detach, resize or pan
	Cols uint32 `json:"cols"`
	Rows uint32 `json:"rows"`
	X    int    `json:"x"` // as in view.KeyEvent
	Y    int    `json:"y"`
}

var commands = map[string]view.KeyKind{"take": view.Take, "give": view.Give, "keep": view.Keep,
	"private": view.Private, "help": view.Help, "detach": view.Detach}

// sessionState is the state of a session as the page shows it to its person.
type sessionState struct {
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

// terminal joins a person to a session, and starts it.
func (h *Handler) terminal(w http.ResponseWriter, r *http.Request) {
	h.serve(w, r, h.person(r, true))
}

// person returns what joins a person to the session of r. It sends terminal output and the
// session's state. With start, a session that does not run is started if the caller may start one.
func (h *Handler) person(r *http.Request, start bool) func(s *socket) error {
	return func(s *socket) error {
		cols, rows := window(r)
		caller := rest.Principal(r.Context())
		if caller.Kind != wire.Person {
			return errProgram
		}
		p := person.New(person.Options{Out: s, Cols: cols, Rows: rows, Prefix: h.Prefix,
			Public: h.Hub.Public,
			Record: func(ctx context.Context, read func(*record.Reader) error) error {
				return h.Hub.Sessions.ReadThrough(ctx, caller, target(r), 0, read)
			},
			Read: func(ctx context.Context, p *person.Person) {
				s.tasks.Go(func() { s.follow(ctx, p) })
			},
			Report: func(now person.State) {
				_ = s.say(map[string]any{"stands": sessionState{Session: now.Target.Session,
					Keyboard: now.Keyboard, Asking: now.Asking, Private: now.Private,
					Holds: now.Holds,
					// A failed send ends the socket.
					Asked: now.Asked, MayDrive: now.MayDrive, Owner: now.Owner, Line: now.Line}})
			}})
		o := p.JoinOptions()
		o.Create = start && caller.Rights != wire.RightWatch
		at, err := h.Hub.Sessions.Join(r.Context(), caller, target(r), o)
		if err != nil {
			return err
		}
		defer at.Close()
		status, words := person.Run[struct{}](s.ctx, p, at, nil, nil)
		// The client may be gone.
		_ = s.say(map[string]any{"ended": map[string]any{"status": status, "words": words}})
		return nil
	}
}

// follow passes input and commands of the page to p until the socket ends.
func (s *socket) follow(ctx context.Context, p *person.Person) {
	for {
		var a asked
		input, err := s.hear(&a)
		kind, known := commands[a.Do]
		switch {
		case s.ctx.Err() != nil:
			p.Leave(person.ErrGone)
			return
		case err != nil: // this message is invalid; ignore it
		case len(input) > 0:
			p.Type(ctx, input)
		case known:
			p.Press(view.KeyEvent{Kind: kind})
		case a.Do == "pan":
			p.Press(view.KeyEvent{Kind: view.Pan, X: max(-1, min(a.X, 1)), Y: max(-1, min(a.Y, 1))})
		case a.Do == "resize":
			p.Resize(wire.ClampSize(a.Cols, a.Rows))
		}
	}
}

func prefixName(prefix byte) string { return view.PrefixName(prefix) }
