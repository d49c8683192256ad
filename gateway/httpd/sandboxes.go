package httpd

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Sandbox is an entry of the list of sandboxes, with the attention states of its sessions.
type Sandbox struct {
	lifecycle.Info
	Needs []attention.Need `json:"needs" doc:"attention states of its sessions, from the last update"`
}

// Described is the description of a sandbox.
type Described struct {
	lifecycle.Description
	Needs []attention.Need `json:"needs"`
}

// Session is an entry of the list of sessions, with its attention state.
type Session struct {
	wire.SessionInfo
	Need *attention.Need `json:"need,omitempty"`
}

type reply[T any] struct{ Body T }

type named struct {
	Name string `path:"name" doc:"name of the sandbox"`
}

type ofSession struct {
	Name    string `path:"name" doc:"name of the sandbox"`
	Session string `path:"session" doc:"name of the session"`
}

// sandboxes adds the routes that list and describe sandboxes. They change nothing.
func (s *Server) sandboxes(api huma.API) {
	huma.Register(api, operation("/v1/sandboxes", "list-sandboxes", "List sandboxes",
		"The caller's own sandboxes and those shared with the caller, with the attention states "+
			"of their sessions. Returns the last known states and contacts no sandbox."),
		func(ctx context.Context, _ *struct{}) (*reply[struct {
			Sandboxes []Sandbox `json:"sandboxes"`
		}], error) {
			var out reply[struct {
				Sandboxes []Sandbox `json:"sandboxes"`
			}]
			p := rest.Principal(ctx)
			infos, err := s.hub.List(ctx, p)
			if err != nil {
				return nil, failed(s.hub, err)
			}
			needs, err := s.needs(ctx, p, "")
			if err != nil {
				return nil, err
			}
			out.Body.Sandboxes = []Sandbox{}
			for _, info := range infos {
				out.Body.Sandboxes = append(out.Body.Sandboxes,
					Sandbox{info, orNone(needs[info.Name])})
			}
			return &out, nil
		})
	huma.Register(api, operation("/v1/sandboxes/{name}", "describe-sandbox", "Describe a sandbox",
		"Its specification, limits, usage and state. A running sandbox is asked for its usage; a "+
			"stopped one is not started."),
		func(ctx context.Context, in *struct {
			Name     string `path:"name" doc:"name of the sandbox"`
			Packages bool   `query:"packages" doc:"also list installed packages; starts programs in the sandbox"`
		}) (*reply[Described], error) {
			p := rest.Principal(ctx)
			describe := s.hub.Describe
			if in.Packages {
				describe = s.hub.DescribePackages
			}
			d, err := describe(ctx, p, in.Name)
			if err != nil {
				return nil, failed(s.hub, err)
			}
			needs, err := s.needs(ctx, p, in.Name)
			if err != nil {
				return nil, err
			}
			return &reply[Described]{Described{d, orNone(needs[d.Name])}}, nil
		})
	huma.Register(api, operation("/v1/sandboxes/{name}/sessions", "list-sessions", "List sessions",
		"The sessions of a running sandbox: state, parties, keyboard and attention state."),
		func(ctx context.Context, in *named) (*reply[struct {
			Sessions []Session `json:"sessions"`
		}], error) {
			var out reply[struct {
				Sessions []Session `json:"sessions"`
			}]
			p := rest.Principal(ctx)
			infos, err := s.hub.Sessions.List(ctx, p, in.Name)
			if err != nil {
				return nil, failed(s.hub, err)
			}
			needs, err := s.needs(ctx, p, in.Name)
			if err != nil {
				return nil, err
			}
			out.Body.Sessions = []Session{}
			for _, info := range infos {
				one := Session{SessionInfo: info}
				for _, n := range needs[in.Name] {
					if n.Session == info.Name && !n.Gone {
						one.Need = &n
					}
				}
				out.Body.Sessions = append(out.Body.Sessions, one)
			}
			return &out, nil
		})
	huma.Register(api, operation("/v1/sandboxes/{name}/sessions/{session}/screen", "session-screen",
		"Get the screen",
		"The text on a session's screen, with size and cursor. For a stopped sandbox, the last "+
			"screen. It starts nothing and leaves the keyboard as it is."),
		func(ctx context.Context, in *ofSession) (*reply[wire.Screen], error) {
			p := rest.Principal(ctx)
			p.Rights = wire.RightWatch // a watcher starts no sandbox
			got, err := s.hub.Sessions.Screen(
				ctx, p, wire.Target{Sandbox: in.Name, Session: in.Session})
			if err != nil {
				return nil, failed(s.hub, err)
			}
			return &reply[wire.Screen]{got}, nil
		})
	huma.Register(api, operation("/v1/sandboxes/{name}/records", "list-records", "List records",
		"The records of the sandbox's sessions, including ended ones. Works for stopped sandboxes."),
		func(ctx context.Context, in *named) (*reply[struct {
			Records []record.Info `json:"records"`
		}], error) {
			var out reply[struct {
				Records []record.Info `json:"records"`
			}]
			all, err := s.hub.Sessions.Records(ctx, rest.Principal(ctx), in.Name)
			if err != nil {
				return nil, failed(s.hub, err)
			}
			out.Body.Records = append([]record.Info{}, all...)
			return &out, nil
		})
}

// needs returns the attention states that p may see, by sandbox. An empty name means all sandboxes.
func (s *Server) needs(ctx context.Context, p gateway.Principal,
	name string) (map[string][]attention.Need, error) {
	all, err := s.hub.Sessions.Attention(ctx, p, name)
	if err != nil {
		return nil, failed(s.hub, err)
	}
	by := make(map[string][]attention.Need)
	for _, n := range all {
		by[n.Sandbox] = append(by[n.Sandbox], n)
	}
	return by, nil
}

func orNone(all []attention.Need) []attention.Need {
	if all == nil {
		return []attention.Need{}
	}
	return all
}
