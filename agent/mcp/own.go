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

// Tool is one of a Server's tools, for a program that calls a model itself, without MCP.
type Tool struct {
	Name      string
	About     string             // description for the model
	Arguments *jsonschema.Schema // schema of the arguments of Call; do not modify it

	answered func(context.Context, *sdk.CallToolRequest) answer
}

// Answer is the reply of a tool.
type Answer struct {
	Text   string // for the model; untrusted data is between two lines with a random ID
	Object any    // the same for programs: an agent.Result if the call used a terminal
	Failed bool   // the call failed
}

// Instructions returns the instructions for the model that apply to all tools.
func (s *Server) Instructions() string { return instructions }

// Tools returns all tools, in a fixed order.
func (s *Server) Tools() []Tool { return slices.Clone(s.tools) }

// Call calls a tool as a client does. If ctx is cancelled, Call interrupts the command that it
// started, and then returns.
func (s *Server) Call(ctx context.Context, tool string, arguments json.RawMessage) Answer {
	i := slices.IndexFunc(s.tools, func(t Tool) bool { return t.Name == tool })
	if i < 0 {
		a := refusal(
			&agent.Error{
				Code:    agent.CodeNotFound,
				Message: fmt.Sprintf("unknown tool %.40q", tool),
			},
		)
		return Answer{Text: a.text, Object: a.object, Failed: true}
	}
	a := s.tools[i].answered(
		ctx,
		&sdk.CallToolRequest{Params: &sdk.CallToolParamsRaw{Name: tool, Arguments: arguments}},
	)
	return Answer{Text: a.text, Object: a.object, Failed: a.failed}
}

// EndSessions ends the sessions that calls used, with their programs. It is for Servers with
// Options.Own, which share no session. A session that has ended is not an error.
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
