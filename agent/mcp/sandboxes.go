package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/sandboxd/sandboxd/agent"
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

// addSandboxes adds the tools about sandboxes as such. What gives a sandbox more than it has by default – directories of this machine,
// an open network – is for people.
func (s *Server) addSandboxes() {
	add(s, tool{name: "sandboxes", reads: true, about: "List the sandboxes that there are. Other tools take a name as the argument sandbox."},
		func(ctx context.Context, c *call, _ struct{}) (answer, error) {
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
