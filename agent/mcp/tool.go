package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// call is one call of a tool.
type call struct {
	server  *Server
	request *sdk.CallToolRequest
}

// answer is the reply of a tool: an object for programs and a text for the model. failed reports
// that the call failed.
type answer struct {
	object any
	text   string
	failed bool
	images []sdk.Content
}

// tool describes a tool for add.
type tool struct {
	name, about string
	reads       bool // the tool is read-only
}

// add adds a tool whose arguments are a JSON object for type In. Unknown, repeated and mistyped
// members are errors.
func add[In any](s *Server, t tool, do func(ctx context.Context, c *call, in In) (answer, error)) {
	schema, err := jsonschema.For[In](nil)
	if err != nil {
		panic(fmt.Sprintf("tool %s: %v", t.name, err)) // In is a type of this package
	}
	// Use a single type: some clients do not support lists of types, and null is never meant.
	for _, p := range schema.Properties {
		if i := slices.Index(p.Types, "null"); i >= 0 && len(p.Types) == 2 {
			p.Type, p.Types = p.Types[1-i], nil
		}
	}
	if s.options.Own {
		delete(schema.Properties, "sandbox")
		schema.PropertyOrder = slices.DeleteFunc(
			schema.PropertyOrder,
			func(name string) bool { return name == "sandbox" },
		)
	}
	valid, err := schema.Resolve(nil)
	if err != nil {
		panic(fmt.Sprintf("tool %s: %v", t.name, err))
	}
	yes := true
	def := &sdk.Tool{
		Name:        t.name,
		Description: t.about,
		InputSchema: schema,
		Annotations: &sdk.ToolAnnotations{ReadOnlyHint: t.reads, OpenWorldHint: &yes},
	}
	answered := func(ctx context.Context, r *sdk.CallToolRequest) answer {
		a, err := s.run(ctx, func(ctx context.Context) (answer, error) {
			in, err := arguments[In](r.Params.Arguments, valid)
			if err != nil {
				return answer{}, &agent.Error{
					Code:    agent.CodeUsage,
					Message: fmt.Sprintf("%s: %v", t.name, err),
					Hint:    "its arguments are: " + describe(schema),
				}
			}
			return do(ctx, &call{server: s, request: r}, in)
		})
		if err != nil {
			a = refusal(err)
		}
		return a
	}
	s.tools = append(
		s.tools,
		Tool{Name: t.name, About: t.about, Arguments: schema, answered: answered},
	)
	s.server.AddTool(
		def,
		func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			a := answered(ctx, r)
			return &sdk.CallToolResult{
				Meta: sdk.Meta{metaUntrusted: untrustedMembers},
				Content: append(
					[]sdk.Content{&sdk.TextContent{Text: a.text}},
					a.images...),
				StructuredContent: a.object,
				IsError:           a.failed,
			}, nil
		},
	)
}

// run runs do as one call of the client. It ends with the client's connection, and counts toward
// its limit of calls.
func (s *Server) run(
	ctx context.Context,
	do func(context.Context) (answer, error),
) (answer, error) {
	if err := s.enter(); err != nil {
		return answer{}, err
	}
	defer s.leave()
	ctx, done := s.within(ctx)
	defer done()
	return do(ctx)
}

// arguments decodes the arguments of a call. Its errors are written for the model.
func arguments[In any](text json.RawMessage, valid *jsonschema.Resolved) (In, error) {
	var in In
	if len(text) == 0 || string(text) == "null" {
		text = json.RawMessage("{}")
	}
	var all map[string]any
	if err := jsonv2.Unmarshal(text, &all); err != nil { // rejects a repeated name
		if text[0] != '{' {
			err = errors.New("the arguments are not an object")
		}
		return in, err
	}
	if err := valid.Validate(all); err != nil {
		return in, errors.New(strings.TrimPrefix(err.Error(), "validating root: "))
	}
	return in, jsonv2.Unmarshal(text, &in, jsonv2.RejectUnknownMembers(true))
}

// describe lists the arguments of a schema, for the hint of a usage error.
func describe(s *jsonschema.Schema) string {
	var all []string
	for _, name := range s.PropertyOrder {
		p := s.Properties[name]
		kind := p.Type
		if p.Items != nil {
			kind = "array of " + p.Items.Type + "s"
		}
		if slices.Contains(s.Required, name) {
			kind += ", required"
		}
		all = append(all, fmt.Sprintf("%s (%s)", name, kind))
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}

// refusal converts an error to the reply of a tool.
func refusal(err error) answer {
	e := public(err)
	return answer{object: map[string]any{"error": e}, text: errorText(e), failed: true}
}

// public converts every error to an agent.Error, which clients branch on. Messages need no filter
// here: the gateway has filtered them.
func public(err error) *agent.Error {
	var known *agent.Error
	var named *wire.Error // from the parsers of names
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &named):
		return &agent.Error{
			Code:    agent.Code(named.Code),
			Message: named.Message,
			Hint:    named.Hint,
			Reason:  named.Reason,
		}
	case errors.Is(err, context.Canceled), errors.Is(err, errGone):
		return &agent.Error{Code: agent.CodeUnavailable, Message: "the call was cancelled"}
	}
	return &agent.Error{Code: agent.CodeUnavailable, Message: err.Error()}
}

func errorText(e *agent.Error) string {
	said := fmt.Sprintf("%s: %s", e.Code, e.Message)
	if e.Hint != "" {
		said += "\nnext: " + e.Hint
	}
	return said
}

// broke reports whether err means that the connection to a sandbox no longer works.
func broke(err error) bool {
	var known *agent.Error
	if errors.As(err, &known) {
		return known.Code == agent.CodeLost || known.Code == agent.CodeNotFound ||
			known.Code == agent.CodeUnavailable
	}
	return err != nil && !errors.Is(err, context.Canceled) &&
		!errors.Is(err, context.DeadlineExceeded) &&
		!errors.Is(err, errGone)
}
