package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/agent"
)

// Tool is one of a Server's tools as a program offers it that asks a model itself, and speaks no MCP with it.
type Tool struct {
	Name      string
	About     string             // for the model
	Arguments *jsonschema.Schema // of the JSON object that Call takes; not to be changed

	answered func(context.Context, *sdk.CallToolRequest) answer
}

// Answer is what a tool answered.
type Answer struct {
	Text   string // for the model; what nobody vouches for stands between two lines that it cannot know
	Object any    // the same for programs: an agent.Result where a terminal was used
	Failed bool   // nothing was done
}

// Instructions are what a model is told of the tools beside what each says of itself.
func (s *Server) Instructions() string { return instructions }

// Tools are all tools, in a fixed order.
func (s *Server) Tools() []Tool { return slices.Clone(s.tools) }

// Call calls a tool as a client's call would. When ctx is cancelled, what the call started is interrupted before it returns.
func (s *Server) Call(ctx context.Context, tool string, arguments json.RawMessage) Answer {
	i := slices.IndexFunc(s.tools, func(t Tool) bool { return t.Name == tool })
	if i < 0 {
		a := refusal(&agent.Error{Code: agent.CodeNotFound, Message: fmt.Sprintf("there is no tool %.40q", tool)})
		return Answer{Text: a.text, Object: a.object, Failed: true}
	}
	a := s.tools[i].answered(ctx, &sdk.CallToolRequest{Params: &sdk.CallToolParamsRaw{Name: tool, Arguments: arguments}})
	return Answer{Text: a.text, Object: a.object, Failed: a.failed}
}

// EndSessions ends the sessions that calls were in, with all that runs there. It is for Servers with Options.Own, whose sessions are
// nobody else's. What is gone already is not an error.
func (s *Server) EndSessions(ctx context.Context) error {
	s.places.mu.Lock()
	begun := s.places.begun
	s.places.begun = nil
	s.places.mu.Unlock()
	var all error
	for _, session := range begun {
		t, err := s.places.target(ctx, where{})
		if err != nil {
			return err
		}
		t.Session = session
		sh, err := s.places.existing(ctx, t)
		if err == nil {
			err = sh.End(ctx)
		}
		if err != nil && !errors.Is(err, &agent.Error{Code: agent.CodeNotFound}) {
			all = errors.Join(all, fmt.Errorf("end session %s: %w", t, err))
		}
	}
	return all
}
