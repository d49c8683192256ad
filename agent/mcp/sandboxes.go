package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/python"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// sandboxOut is what a model is told of a sandbox.
type sandboxOut struct {
	Name    string `json:"name"`
	State   string `json:"state"`
	Image   string `json:"image"`
	Network string `json:"network"`
	Dir     string `json:"dir,omitempty"` // of this machine, that it is of
}

func (s sandboxOut) String() string {
	said := fmt.Sprintf("%s: %s, image %s, network %s", s.Name, s.State, text.Line(s.Image, 100), s.Network)
	if s.Dir != "" {
		said += ", of " + text.Line(s.Dir, 200)
	}
	return said + "\n"
}

// description is what a model is told of one sandbox: much of it is the sandbox's own say-so, which the daemon made safe to show.
type description struct {
	Health   string            `json:"health"`
	About    string            `json:"about,omitempty"` // by who made it
	OS       string            `json:"os,omitempty"`
	Arch     string            `json:"arch,omitempty"`
	Account  string            `json:"account,omitempty"`
	Cwd      string            `json:"cwd,omitempty"`
	Shell    string            `json:"shell,omitempty"`
	Tools    map[string]string `json:"tools,omitempty"`
	Packages []struct {
		By    string           `json:"by"`
		Count int              `json:"count"`
		List  []python.Package `json:"list,omitempty"`
		Cut   bool             `json:"cut,omitempty"`
	} `json:"packages,omitempty"`
	Limits  string   `json:"limits_text"`
	Reaches string   `json:"network_text"`
	Allow   []string `json:"allow,omitempty"`
	Usage   string   `json:"usage,omitempty"`
	Notes   []string `json:"notes,omitempty"`
}

// String is d as a model reads it.
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

// describe tells of one sandbox.
func (s *Server) describe(ctx context.Context, name string) (answer, error) {
	if _, err := wire.ParseSandbox(name); err != nil {
		return answer{}, err
	}
	out, err := s.options.Gateway.Command(ctx, "describe", "--packages", "--json", "--", name)
	if refused, ok := errors.AsType[*agent.Error](err); ok && refused.Code == wire.CodeDenied { // packages are for who may run something
		out, err = s.options.Gateway.Command(ctx, "describe", "--json", "--", name)
	}
	if err != nil {
		return answer{}, err
	}
	var one struct {
		sandboxOut
		Description description `json:"description"`
	}
	if err := errors.Join(json.Unmarshal(out, &one.sandboxOut), json.Unmarshal(out, &one.Description)); err != nil {
		return answer{}, fmt.Errorf("describe: %w", err)
	}
	return answer{object: one, text: one.sandboxOut.String() + fence("description", one.Description.String())}, nil
}

// addSandboxes adds the tools about sandboxes as such. What gives a sandbox more than it has by default – directories of this machine,
// an open network – is for people.
func (s *Server) addSandboxes() {
	type listIn struct {
		Sandbox string `json:"sandbox,omitempty" jsonschema:"instead of a list: say all about this one, such as its system, tools, packages, limits and network"`
	}
	add(s, tool{name: "sandboxes", reads: true, about: "List the sandboxes that there are, or describe one. Other tools take a name as the argument sandbox."},
		func(ctx context.Context, c *call, in listIn) (answer, error) {
			if in.Sandbox != "" {
				return s.describe(ctx, in.Sandbox)
			}
			out, err := s.options.Gateway.Command(ctx, "ls", "--json")
			if err != nil {
				return answer{}, err
			}
			all := struct {
				Sandboxes []sandboxOut `json:"sandboxes"`
			}{[]sandboxOut{}}
			var said strings.Builder
			for lines := json.NewDecoder(bytes.NewReader(out)); ; {
				var info sandboxOut
				if err := lines.Decode(&info); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					return answer{}, fmt.Errorf("ls: %w", err)
				}
				all.Sandboxes = append(all.Sandboxes, info)
				said.WriteString(info.String())
			}
			if len(all.Sandboxes) == 0 {
				said.WriteString("no sandboxes\n")
			}
			return answer{object: all, text: said.String()}, nil
		})

	type newIn struct {
		Name    string `json:"name,omitempty" jsonschema:"lower-case letters, digits and hyphens; default a generated one"`
		Image   string `json:"image,omitempty" jsonschema:"image to boot; default the daemon's"`
		Network string `json:"network,omitempty" jsonschema:"filtered (the Internet, not this machine nor its networks) or none; default the daemon's"`
	}
	add(s, tool{name: "new_sandbox", about: "Make a new, empty sandbox and wait until it answers. Its name is for the argument sandbox of other tools."},
		func(ctx context.Context, c *call, in newIn) (answer, error) {
			words := []string{"new", "--json"}
			if in.Image != "" {
				words = append(words, "--image="+in.Image)
			}
			switch in.Network {
			case "":
			case "filtered", "none":
				words = append(words, "--network="+in.Network)
			default:
				return answer{}, &agent.Error{Code: wire.CodeUsage, Message: fmt.Sprintf("new_sandbox: network %q is not for tools", in.Network), Hint: "filtered or none; a person opens more"}
			}
			if in.Name != "" {
				if _, err := wire.ParseSandbox(in.Name); err != nil {
					return answer{}, err
				}
				words = append(words, "--", in.Name)
			}
			done := c.progress(ctx)
			defer done()
			out, err := s.options.Gateway.Command(ctx, words...)
			if err != nil {
				return answer{}, err
			}
			var info sandboxOut
			if err := json.Unmarshal(out, &info); err != nil {
				return answer{}, fmt.Errorf("new: %w", err)
			}
			return answer{object: info, text: info.String()}, nil
		})
}
