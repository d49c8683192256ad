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

// Sandbox is one of a list, with what its sessions need a person for.
type Sandbox struct {
	lifecycle.Info
	Needs []attention.Need `json:"needs" doc:"what its sessions need, as far as it is known already"`
}

// Described is all that there is to say about a sandbox.
type Described struct {
	lifecycle.Description
	Needs []attention.Need `json:"needs"`
}

// Session is one of a sandbox, with what it needs a person for.
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

// sandboxes are the routes that say what there is.
func (s *Server) sandboxes(api huma.API) {
	huma.Register(api, operation("/v1/sandboxes", "list-sandboxes", "List sandboxes",
		"The caller's own sandboxes, and those that are shared with them, each with what its sessions need. It asks no sandbox: what is known already is the answer."),
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
				out.Body.Sandboxes = append(out.Body.Sandboxes, Sandbox{info, orNone(needs[info.Name])})
			}
			return &out, nil
		})
	huma.Register(api, operation("/v1/sandboxes/{name}", "describe-sandbox", "Describe a sandbox",
		"What it is made of, its limits and what it uses of them, how it is. One that runs is asked; one that does not is not started."),
		func(ctx context.Context, in *struct {
			Name     string `path:"name" doc:"name of the sandbox"`
			Packages bool   `query:"packages" doc:"with what is installed: programs are started in it"`
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
		"The sessions of a sandbox that runs, with their state, who is on them, who has the keyboard, and what they need."),
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
	huma.Register(api, operation("/v1/sandboxes/{name}/sessions/{session}/screen", "session-screen", "What the terminal shows",
		"The text on the screen of a session, with its size and cursor; of a sandbox that is stopped what it showed last. It starts nothing, and nobody's keyboard changes hands."),
		func(ctx context.Context, in *ofSession) (*reply[wire.Screen], error) {
			p := rest.Principal(ctx)
			p.Rights = wire.RightWatch // whoever looks starts no sandbox
			got, err := s.hub.Sessions.Screen(ctx, p, wire.Target{Sandbox: in.Name, Session: in.Session})
			if err != nil {
				return nil, failed(s.hub, err)
			}
			return &reply[wire.Screen]{got}, nil
		})
	huma.Register(api, operation("/v1/sandboxes/{name}/records", "list-records", "List records",
		"What is on record of the sandbox's sessions, also of those that have ended and of a sandbox that is stopped."),
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

// needs are those of p's sandboxes, by name.
func (s *Server) needs(ctx context.Context, p gateway.Principal, name string) (map[string][]attention.Need, error) {
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
