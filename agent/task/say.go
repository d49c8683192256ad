package task

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/sandboxd/sandboxd/agent/mcp"
)

// turn is one reply of the model with the results of its calls, independent of the format of
// requests.
type turn struct {
	text    string
	calls   []toolCall
	results []string // results of calls, in order
	native  bool     // the calls were tool calls, not text
	remark  string   // additional message to the model
}

const role = `You carry out a task for a user in a sandbox: an isolated Linux machine, where you can install
and change anything. The user's directory %s is mounted in it. Write the results of the
task to that directory: the user sees only it. No person answers questions: decide yourself.
Take one step at a time and read each result. When you have verified that the task is done, call
done with a message for the user. If it cannot be done, call fail and say why. Never claim what
you have not verified. You have %d replies in total: for long commands, set timeout_s to up to 600
instead of using a reply for each wait.
`

// byText is for models without tools.
const byText = `
You have no tool calls. Reply with a few words and exactly one fenced block, and nothing after it.
To run a shell command, write
` + "```sh\nCOMMAND\n```" + `
To call any tool, including run, write
` + "```tool\n" + `{"name": "TOOL", "arguments": {…}}` + "\n```" + `
You then receive the result. Never write a result yourself. The tools, with the JSON schemas of
their arguments:
`

// toolSpecs returns the server's tools and the two that end a task.
func toolSpecs(s *mcp.Server) []toolSpec {
	var all []toolSpec
	add := func(name, about string, parameters any) {
		all = append(
			all,
			toolSpec{
				Type:     "function",
				Function: functionSpec{Name: name, Description: about, Parameters: parameters},
			},
		)
	}
	for _, t := range s.Tools() {
		add(t.Name, t.About, t.Arguments)
	}
	message := func(about string) any {
		return map[string]any{
			"type":                 "object",
			"required":             []string{"message"},
			"additionalProperties": false,
			"properties": map[string]any{
				"message": map[string]any{"type": "string", "description": about},
			},
		}
	}
	add(
		toolDone,
		"The task is done and you have verified it. Ends the task and all its programs.",
		message("for the user: what was done, and where the result is"),
	)
	add(toolFail, "The task cannot be done. Ends the task and all its programs.",
		message("for the user: why"))
	return all
}

// render returns the conversation for the next request, with tool calls or as text.
func (r *run) render(tools bool) []message {
	dir := r.Dir
	if dir == "" {
		dir = "(the working directory of the shell)"
	}
	system := fmt.Sprintf(role, dir, r.MaxRounds) + "\n" + r.server.Instructions()
	if r.Shell != "" {
		system += "\nEach command of run runs in a new " + r.Shell +
			": it begins in the same directory, and variables are not kept."
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

// asCalls returns a turn for servers that support tools.
func (t turn) asCalls() []message {
	said := message{Role: "assistant", Content: t.text}
	all := []message{{}}
	for i, c := range t.calls {
		arguments := c.arguments
		if !json.Valid([]byte(arguments)) || !strings.HasPrefix(arguments, "{") {
			// servers reject invalid arguments, even if their model wrote them; the result has the
			// error
			arguments = "{}"
		}
		id := fmt.Sprintf("%s-%d", c.id, i) // some models use one ID for all calls
		said.ToolCalls = append(
			said.ToolCalls,
			wireCall{
				ID:       id,
				Type:     "function",
				Function: wireFunction{Name: c.name, Arguments: arguments},
			},
		)
		all = append(all, message{Role: "tool", ToolCallID: id, Content: t.results[i]})
	}
	all[0] = said
	if t.remark != "" {
		all = append(all, message{Role: "user", Content: t.remark})
	}
	return all
}

// asText returns a turn for servers without tools, and one whose calls the model wrote as text.
func (t turn) asText() []message {
	said := t.text
	if t.native {
		for _, c := range t.calls {
			said += fmt.Sprintf(
				"\n```tool\n{\"name\": %q, \"arguments\": %s}\n```",
				c.name,
				c.arguments,
			)
		}
	}
	if strings.TrimSpace(said) == "" {
		said = "(nothing)" // servers reject an empty message
	}
	results := strings.TrimSpace(strings.Join(t.results, "\n") + "\n" + t.remark)
	return []message{{Role: "assistant", Content: said}, {Role: "user", Content: results}}
}

var (
	fence    = regexp.MustCompile("(?ms)^[ \t]*```[ \t]*([A-Za-z_]*)[^\n]*\n(.*?)^[ \t]*```[ \t]*$")
	callTag  = regexp.MustCompile(`(?s)<tool_call>\s*(\{.*?\})\s*</tool_call>`)
	shellTag = map[string]bool{"sh": true, "bash": true, "shell": true, "run": true, "zsh": true}
)

// fenced returns the first call that a reply writes as text. said is the reply up to the end of
// that call: text after it, such as invented results, is dropped.
func fenced(answer string) (calls []toolCall, said string) {
	type found struct {
		end  int
		call toolCall
	}
	first, at := found{}, len(answer)+1
	for _, m := range fence.FindAllStringSubmatchIndex(answer, -1) {
		tag, body := strings.ToLower(answer[m[2]:m[3]]), answer[m[4]:m[5]]
		if shellTag[tag] && strings.TrimSpace(body) != "" {
			arguments, err := json.Marshal(
				map[string]string{"command": strings.TrimRight(body, "\n")},
			)
			if err != nil {
				continue
			}
			first, at = found{
				m[1],
				toolCall{id: "text", name: "run", arguments: string(arguments)},
			}, m[0]
			break
		}
		if c, ok := writtenCall(body); ok &&
			(tag == "tool" || tag == "json" || tag == "tool_call" || tag == "") {
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

// writtenCall parses a call that is written as a JSON object.
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
