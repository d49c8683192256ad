package task

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/sandboxd/sandboxd/agent/mcp"
)

// turn is one answer of the model with what became of it, whichever way the next request will write it down.
type turn struct {
	text    string
	calls   []toolCall
	results []string // of calls, in their order
	native  bool     // the calls were made as tool calls, and not as text
	told    string   // what the model is told beside
}

const role = `You carry out a task for a user by working in a sandbox: a Linux machine of its own, where you may install and change what you like. The user's directory %s is mounted there; only that is the user's, so what the task is to yield belongs there. Nobody answers questions: decide yourself.
Take one step at a time and look at each result. When the task is done and you have seen that it is, call done with a message for the user; if it cannot be done, call fail and say why. Never claim what you have not seen. You have %d answers in all: give what takes long a timeout_s of up to 600 rather than an answer for each wait.
`

// byText is for models without tools.
const byText = `
You have no tool calls. Answer with a few words and exactly one fenced block, and nothing behind it. Shell commands are run by
` + "```sh\nCOMMAND\n```" + `
and every tool, run too, is called by
` + "```tool\n" + `{"name": "TOOL", "arguments": {…}}` + "\n```" + `
You are told the result then. Never write a result yourself. The tools, with the JSON schema of their arguments:
`

// toolSpecs are the server's tools and the two that end a task.
func toolSpecs(s *mcp.Server) []toolSpec {
	var all []toolSpec
	add := func(name, about string, parameters any) {
		all = append(all, toolSpec{Type: "function", Function: functionSpec{Name: name, Description: about, Parameters: parameters}})
	}
	for _, t := range s.Tools() {
		add(t.Name, t.About, t.Arguments)
	}
	message := func(about string) any {
		return map[string]any{"type": "object", "required": []string{"message"}, "additionalProperties": false,
			"properties": map[string]any{"message": map[string]any{"type": "string", "description": about}}}
	}
	add(toolDone, "The task is done, and you have seen that it is. Ends it; nothing that you started goes on.", message("for the user: what was done, and where the result is"))
	add(toolFail, "The task cannot be done. Ends it.", message("for the user: why"))
	return all
}

// render writes the conversation down for the next request, with tools or as text.
func (r *run) render(tools bool) []message {
	dir := r.Dir
	if dir == "" {
		dir = "(where the shell begins)"
	}
	system := fmt.Sprintf(role, dir, r.MaxRounds) + "\n" + r.server.Instructions()
	if r.Shell != "" {
		system += "\nEach command of run is given to a fresh " + r.Shell + ": it begins in the same directory, and variables do not stay."
	}
	if !tools {
		system += byText
		for _, t := range r.tools {
			schema, err := json.Marshal(t.Function.Parameters)
			if err != nil {
				schema = []byte("{}")
			}
			system += fmt.Sprintf("- %s: %s %s\n", t.Function.Name, t.Function.Description, schema)
		}
	}
	all := []message{{Role: "system", Content: system}, {Role: "user", Content: r.Task}}
	for _, t := range r.turns {
		if tools && t.native {
			all = append(all, t.asCalls()...)
		} else {
			all = append(all, t.asText()...)
		}
	}
	return all
}

// asCalls is a turn for servers with tools.
func (t turn) asCalls() []message {
	said := message{Role: "assistant", Content: t.text}
	all := []message{{}}
	for i, c := range t.calls {
		arguments := c.arguments
		if !json.Valid([]byte(arguments)) || !strings.HasPrefix(arguments, "{") {
			arguments = "{}" // servers refuse to be told what their model wrote; the result says what was wrong
		}
		id := fmt.Sprintf("%s-%d", c.id, i) // some models give all calls one ID
		said.ToolCalls = append(said.ToolCalls, wireCall{ID: id, Type: "function", Function: wireFunction{Name: c.name, Arguments: arguments}})
		all = append(all, message{Role: "tool", ToolCallID: id, Content: t.results[i]})
	}
	all[0] = said
	if t.told != "" {
		all = append(all, message{Role: "user", Content: t.told})
	}
	return all
}

// asText is a turn for servers without, and one in which the model wrote calls as text.
func (t turn) asText() []message {
	said := t.text
	if t.native {
		for _, c := range t.calls {
			said += fmt.Sprintf("\n```tool\n{\"name\": %q, \"arguments\": %s}\n```", c.name, c.arguments)
		}
	}
	if strings.TrimSpace(said) == "" {
		said = "(nothing)" // servers refuse an empty message
	}
	heard := strings.TrimSpace(strings.Join(t.results, "\n") + "\n" + t.told)
	return []message{{Role: "assistant", Content: said}, {Role: "user", Content: heard}}
}

var (
	fence    = regexp.MustCompile("(?ms)^[ \t]*```[ \t]*([A-Za-z_]*)[^\n]*\n(.*?)^[ \t]*```[ \t]*$")
	callTag  = regexp.MustCompile(`(?s)<tool_call>\s*(\{.*?\})\s*</tool_call>`)
	shellTag = map[string]bool{"sh": true, "bash": true, "shell": true, "run": true, "zsh": true}
)

// fenced finds the first call that an answer writes as text. said is the answer up to its end: what a model makes up behind it – results,
// questions, its own answers to them – is not kept.
func fenced(answer string) (calls []toolCall, said string) {
	type found struct {
		end  int
		call toolCall
	}
	first, at := found{}, len(answer)+1
	for _, m := range fence.FindAllStringSubmatchIndex(answer, -1) {
		tag, body := strings.ToLower(answer[m[2]:m[3]]), answer[m[4]:m[5]]
		if shellTag[tag] && strings.TrimSpace(body) != "" {
			arguments, err := json.Marshal(map[string]string{"command": strings.TrimRight(body, "\n")})
			if err != nil {
				continue
			}
			first, at = found{m[1], toolCall{id: "text", name: "run", arguments: string(arguments)}}, m[0]
			break
		}
		if c, ok := writtenCall(body); ok && (tag == "tool" || tag == "json" || tag == "tool_call" || tag == "") {
			first, at = found{m[1], c}, m[0]
			break
		}
	}
	if m := callTag.FindStringSubmatchIndex(answer); m != nil && m[0] < at {
		if c, ok := writtenCall(answer[m[2]:m[3]]); ok {
			first = found{m[1], c}
		}
	}
	if first.end == 0 {
		return nil, answer
	}
	return []toolCall{first.call}, answer[:first.end]
}

// writtenCall reads a call that is written as a JSON object.
func writtenCall(s string) (toolCall, bool) {
	var c struct {
		Name       string          `json:"name"`
		Tool       string          `json:"tool"`
		Arguments  json.RawMessage `json:"arguments"`
		Parameters json.RawMessage `json:"parameters"`
	}
	if err := json.Unmarshal([]byte(s), &c); err != nil {
		return toolCall{}, false
	}
	if c.Name == "" {
		c.Name = c.Tool
	}
	if len(c.Arguments) == 0 {
		c.Arguments = c.Parameters
	}
	if c.Name == "" {
		return toolCall{}, false
	}
	return toolCall{id: "text", name: c.Name, arguments: argumentText(c.Arguments)}, true
}
