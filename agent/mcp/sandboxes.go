package mcp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// sandboxOut is a sandbox in a list for the model.
type sandboxOut struct {
	Name    string `json:"name"`
	State   string `json:"state"`
	Image   string `json:"image"`
	Network string `json:"network"`
	Dir     string `json:"dir,omitempty"` // directory of the workspace that it belongs to
}

func (s sandboxOut) String() string {
	said := fmt.Sprintf(
		"%s: %s, image %s, network %s",
		s.Name,
		s.State,
		text.Line(s.Image, 100),
		s.Network,
	)
	if s.Dir != "" {
		said += ", of " + text.Line(s.Dir, 200)
	}
	return said + "\n"
}

func outOf(sb agent.Sandbox) sandboxOut {
	return sandboxOut{
		Name:    sb.Name,
		State:   string(sb.State),
		Image:   sb.Image,
		Network: string(sb.Network),
		Dir:     sb.Dir,
	}
}

// description is one sandbox in detail for the model. Much of it is reported by the sandbox itself;
// the daemon has removed control characters.
type description struct {
	Health   string            `json:"health"`
	About    string            `json:"about,omitempty"` // notes of its creator
	OS       string            `json:"os,omitempty"`
	Arch     string            `json:"arch,omitempty"`
	Account  string            `json:"account,omitempty"`
	Cwd      string            `json:"cwd,omitempty"`
	Shell    string            `json:"shell,omitempty"`
	Tools    map[string]string `json:"tools,omitempty"`
	Packages []agent.Packages  `json:"packages,omitempty"`
	Limits   string            `json:"limits_text"`
	Reaches  string            `json:"network_text"`
	Allow    []string          `json:"allow,omitempty"`
	Usage    string            `json:"usage,omitempty"`
	Notes    []string          `json:"notes,omitempty"`
}

func descriptionOf(d agent.Description) description {
	return description{
		Health:   d.Health,
		About:    d.About,
		OS:       d.OS,
		Arch:     d.Arch,
		Account:  d.Account,
		Cwd:      d.Cwd,
		Shell:    d.Shell,
		Tools:    d.Tools,
		Packages: d.Packages,
		Limits:   d.LimitsText,
		Reaches:  d.NetworkText,
		Allow:    d.Allow,
		Usage:    d.Usage,
		Notes:    d.Notes,
	}
}

// String returns d as text for the model.
func (d description) String() string {
	var b strings.Builder
	line := func(name, said string, most int) {
		if said = strings.TrimSpace(text.Line(said, most)); said != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, said)
		}
	}
	line("health", d.Health, 300)
	line("about", d.About, 4<<10)
	line("system", d.OS+" "+d.Arch, 200)
	line("user", d.Account, 200)
	line("cwd", d.Cwd, 400)
	line("shell", d.Shell, 200)
	line("network", d.Reaches, 400)
	line("allowed", strings.Join(d.Allow, " "), 1000)
	line("limits", d.Limits, 400)
	line("usage", d.Usage, 200)
	line("tools", strings.Join(slices.Sorted(maps.Keys(d.Tools)), " "), 1000)
	for _, note := range d.Notes {
		line("note", note, 400)
	}
	for _, p := range d.Packages {
		names := make([]string, len(p.List))
		for i, one := range p.List {
			names[i] = one.Name + " " + one.Version
		}
		said := fmt.Sprintf("%d %s", p.Count, strings.Join(names, ", "))
		if p.Cut {
			said += ", and more"
		}
		line("packages of "+text.Line(p.By, 20), said, maxListedPy)
	}
	return b.String()
}

// describe returns the details of one sandbox.
func (s *Server) describe(ctx context.Context, name string) (answer, error) {
	d, err := s.gateway.DescribePackages(ctx, name)
	denied, ok := errors.AsType[*agent.Error](err)
	if ok && denied.Code == agent.CodeDenied { // the caller has the right watch
		d, err = s.gateway.Describe(ctx, name)
	}
	if err != nil {
		return answer{}, err
	}
	one := struct {
		sandboxOut
		Description description `json:"description"`
	}{outOf(d.Sandbox), descriptionOf(d)}
	return answer{
		object: one,
		text:   one.sandboxOut.String() + fence("description", one.Description.String()),
	}, nil
}

// addSandboxes adds the tools that list and create sandboxes. They cannot grant a sandbox more than
// the defaults, such as directories of this machine or an open network.
func (s *Server) addSandboxes() {
	type listIn struct {
		Sandbox string `json:"sandbox,omitempty" jsonschema:"describe this sandbox instead: system, tools, packages, limits and network"`
	}
	add(
		s,
		tool{
			name:  "sandboxes",
			reads: true,
			about: "List your sandboxes, or describe one. Other tools accept the name as " +
				"argument sandbox.",
		},
		func(ctx context.Context, c *call, in listIn) (answer, error) {
			if in.Sandbox != "" {
				return s.describe(ctx, in.Sandbox)
			}
			sandboxes, err := s.gateway.List(ctx)
			if err != nil {
				return answer{}, err
			}
			all := struct {
				Sandboxes []sandboxOut `json:"sandboxes"`
			}{[]sandboxOut{}}
			var said strings.Builder
			for _, sb := range sandboxes {
				all.Sandboxes = append(all.Sandboxes, outOf(sb))
				said.WriteString(outOf(sb).String())
			}
			if len(all.Sandboxes) == 0 {
				said.WriteString("no sandboxes\n")
			}
			return answer{object: all, text: said.String()}, nil
		},
	)

	type newIn struct {
		Name    string          `json:"name,omitempty" jsonschema:"lower-case letters, digits and hyphens; default a generated name"`
		Image   string          `json:"image,omitempty" jsonschema:"container image; default the daemon's"`
		Network sandbox.Network `json:"network,omitempty" jsonschema:"filtered (the Internet, but not this machine and its networks) or none; default the daemon's"`
	}
	add(
		s,
		tool{
			name: "new_sandbox",
			about: "Create a new sandbox and wait until it is ready. Pass its name to other " +
				"tools as argument sandbox.",
		},
		func(ctx context.Context, c *call, in newIn) (answer, error) {
			switch in.Network {
			case "", sandbox.NetworkFiltered, sandbox.NetworkNone:
			default:
				return answer{}, &agent.Error{
					Code: agent.CodeUsage,
					Message: fmt.Sprintf("new_sandbox: network %q is not available to tools",
						in.Network),
					Hint: "use filtered or none; only a person can allow more",
				}
			}
			done := c.progress(ctx)
			defer done()
			sb, err := s.gateway.Create(
				ctx,
				agent.Spec{Name: in.Name, Image: in.Image, Network: in.Network},
			)
			if err != nil {
				return answer{}, err
			}
			info := outOf(sb)
			return answer{object: info, text: info.String()}, nil
		},
	)
}
