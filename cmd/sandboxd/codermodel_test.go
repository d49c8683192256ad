package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/coder/websocket"
)

// coderTask is the beginning of coderPrompt, the prompt of these tests, and coderCommand what the
// scripted model does with it.
const (
	coderTask    = "Add the file made and commit it."
	coderPrompt  = coderTask + "\n\nIt has one line:\n- made by the agent"
	coderCommand = "sleep 3; echo made by the agent >made && git add made && git commit -qm 'add made'"
)

// object is a JSON object.
type object = map[string]any

// shellTools are the shell tools of programs, with the arguments that run coderCommand. A tool that
// takes a text instead has it as the argument "".
var shellTools = map[string]object{
	"Bash": {"command": coderCommand, "description": "Commit the file"},
	"bash": {"command": coderCommand, "description": "Commit the file"},
	"exec": {"": "text((await tools.exec_command({cmd: `" + coderCommand +
		"`})).output)"}, // JavaScript
	"exec_command":      {"cmd": coderCommand},
	"run_shell_command": {"command": coderCommand, "description": "Commit the file"},
}

// textAnswers are those to requests without tools, of aider: it edits and commits itself.
var textAnswers = []struct {
	asked, text string
	task        bool // it is the work of coderTask
}{
	{"one-line Git commit messages", "add made", false},
	{"*SEARCH/REPLACE block*", "made\n```\n<<<<<<< SEARCH\n=======\nmade by the agent\n" +
		">>>>>>> REPLACE\n```\n", true},
}

// scriptedModel speaks the APIs of several models. It answers a request for coderTask with a call
// of a shell tool, and all others with a word.
type scriptedModel struct {
	mu   sync.Mutex
	keys map[string]int // guarded by mu; number of requests by credential
	asks int            // guarded by mu; answers that are the work of coderTask
	cut  int            // guarded by mu; requests for coderTask without the rest of coderPrompt
	seen []string       // guarded by mu; methods and paths
}

// modelRequest is what the script needs of a request.
type modelRequest struct {
	path   string
	body   []byte
	model  string
	stream bool
	idle   bool     // no answer is wanted
	tools  []string // names
}

// turn is an answer of the model: a call of tool, or text.
type turn struct {
	tool, text string
	task       bool // it is the work of coderTask
}

// modelAPI is one of the protocols.
type modelAPI struct {
	end    string // of the path
	result string // text in requests that have the result of a tool
	write  func(w http.ResponseWriter, r modelRequest, t turn)
}

var modelAPIs = []modelAPI{
	{"/v1/messages", `"tool_result"`, writeMessages},
	{"/v1/responses", `_call_output"`, writeResponses},
	{"/v1/chat/completions", `"role":"tool"`, writeCompletions},
	{":streamGenerateContent", `"functionResponse"`, writeGemini},
	{":generateContent", `"functionResponse"`, writeGemini},
}

func (s *scriptedModel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.count(r)
	i := slices.IndexFunc(modelAPIs, func(a modelAPI) bool {
		return strings.HasSuffix(r.URL.Path, a.end)
	})
	request := modelRequest{path: r.URL.Path, body: body}
	switch {
	case i >= 0 && r.Header.Get("Upgrade") == "websocket":
		s.socket(w, r, modelAPIs[i])
	case i < 0 || request.parse() != nil:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"type":"error","error":{"type":"not_found_error","message":"no script"}}`)
	default:
		modelAPIs[i].write(w, request, s.turn(modelAPIs[i], request))
	}
}

// count records a request.
func (s *scriptedModel) count(r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, r.Method+" "+r.URL.Path)
	if s.keys == nil {
		s.keys = make(map[string]int)
	}
	s.keys[r.Header.Get("X-Api-Key")+r.Header.Get("X-Goog-Api-Key")+
		r.Header.Get("Authorization")]++
}

// turn returns the answer to a request, and counts it if it is the work of coderTask.
func (s *scriptedModel) turn(api modelAPI, r modelRequest) turn {
	t := turn{text: "finished."}
	for _, a := range textAnswers {
		if len(r.tools) == 0 && bytes.Contains(r.body, []byte(a.asked)) {
			t.text, t.task = a.text, a.task
			break
		}
	}
	if bytes.Contains(r.body, []byte(coderTask)) && !bytes.Contains(r.body, []byte(api.result)) &&
		!bytes.Contains(r.body, []byte(`"json_schema"`)) { // of a title
		for _, name := range r.tools {
			if shellTools[name] != nil {
				t.tool, t.task = name, true
			}
		}
	}
	if t.task {
		prompt, _ := json.Marshal(coderPrompt)
		s.mu.Lock()
		s.asks++
		if !bytes.Contains(r.body, bytes.Trim(prompt, `"`)) {
			s.cut++
		}
		s.mu.Unlock()
	}
	return t
}

// socket answers the requests of a WebSocket, a message each.
func (s *scriptedModel) socket(w http.ResponseWriter, r *http.Request, api modelAPI) {
	c, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer c.CloseNow()
	c.SetReadLimit(-1)
	for {
		_, body, err := c.Read(r.Context())
		request := modelRequest{path: r.URL.Path, body: body}
		if err != nil || request.parse() != nil {
			return
		}
		for _, event := range responseEvents(request, s.turn(api, request)) {
			text, _ := json.Marshal(event)
			if c.Write(r.Context(), websocket.MessageText, text) != nil {
				return
			}
		}
	}
}

// parse reads what all APIs have in common.
func (r *modelRequest) parse() error {
	type tool struct {
		Name                        string
		FunctionDeclarations, Tools []struct{ Name string }
	}
	var body struct {
		Model    string
		Stream   bool
		Generate *bool
		Tools    []tool
		Input    []struct{ Tools []tool }
	}
	if err := json.Unmarshal(r.body, &body); err != nil {
		return err
	}
	r.model, r.stream = body.Model, body.Stream ||
		strings.HasSuffix(r.path, ":streamGenerateContent")
	r.idle = body.Generate != nil && !*body.Generate
	for _, input := range body.Input {
		body.Tools = append(body.Tools, input.Tools...)
	}
	for _, tool := range body.Tools {
		r.tools = append(r.tools, tool.Name)
		for _, f := range slices.Concat(tool.FunctionDeclarations, tool.Tools) {
			r.tools = append(r.tools, f.Name)
		}
	}
	return nil
}

// arguments returns those of the call as JSON.
func (t turn) arguments() string {
	text, _ := json.Marshal(shellTools[t.tool])
	return string(text)
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}

// writeEvents sends server-sent events. Those with a type also get it as their name.
func writeEvents(w http.ResponseWriter, events ...object) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, event := range events {
		if event["type"] != nil {
			fmt.Fprintf(w, "event: %s\n", event["type"])
		}
		text, _ := json.Marshal(event)
		fmt.Fprintf(w, "data: %s\n\n", text)
		_ = http.NewResponseController(w).Flush()
	}
}

// writeMessages speaks Anthropic's Messages API.
func writeMessages(w http.ResponseWriter, r modelRequest, t turn) {
	block := object{"type": "text", "text": ""}
	delta, reason := object{"type": "text_delta", "text": t.text}, "end_turn"
	if t.tool != "" {
		block = object{"type": "tool_use", "id": "toolu_1", "name": t.tool, "input": object{}}
		delta = object{"type": "input_json_delta", "partial_json": t.arguments()}
		reason = "tool_use"
	}
	usage := object{"input_tokens": 1, "output_tokens": 1}
	message := object{"id": "msg_1", "type": "message", "role": "assistant", "model": r.model,
		"content": []any{}, "stop_reason": nil, "usage": usage}
	if !r.stream {
		message["content"] = []any{object{"type": "text", "text": t.text}}
		message["stop_reason"] = "end_turn"
		writeJSON(w, message)
		return
	}
	writeEvents(w,
		object{"type": "message_start", "message": message},
		object{"type": "content_block_start", "index": 0, "content_block": block},
		object{"type": "content_block_delta", "index": 0, "delta": delta},
		object{"type": "content_block_stop", "index": 0},
		object{"type": "message_delta", "usage": usage,
			"delta": object{"stop_reason": reason, "stop_sequence": nil}},
		object{"type": "message_stop"})
}

// writeResponses speaks OpenAI's Responses API.
func writeResponses(w http.ResponseWriter, r modelRequest, t turn) {
	events := responseEvents(r, t)
	if !r.stream {
		writeJSON(w, events[len(events)-1]["response"])
		return
	}
	writeEvents(w, events...)
}

// responseEvents returns the events of an answer, the last of which has all of it.
func responseEvents(r modelRequest, t turn) []object {
	text := object{"type": "output_text", "text": t.text, "annotations": []any{}}
	item := object{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
		"content": []any{text}}
	begun := maps.Clone(item)
	begun["status"], begun["content"] = "in_progress", []any{}
	at := func(kind string, more object) object {
		more["type"], more["output_index"], more["content_index"] = kind, 0, 0
		more["item_id"] = item["id"]
		return more
	}
	between := []object{
		at("response.content_part.added", object{"part": object{"type": "output_text", "text": "",
			"annotations": []any{}}}),
		at("response.output_text.delta", object{"delta": t.text}),
		at("response.output_text.done", object{"text": t.text}),
		at("response.content_part.done", object{"part": text}),
	}
	if t.tool != "" {
		item = object{"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": t.tool,
			"status": "completed", "arguments": t.arguments()}
		begun = maps.Clone(item)
		begun["status"], begun["arguments"] = "in_progress", ""
		between = []object{
			at("response.function_call_arguments.delta", object{"delta": t.arguments()}),
			at("response.function_call_arguments.done", object{"arguments": t.arguments()}),
		}
	}
	if code, ok := shellTools[t.tool][""]; ok {
		item = object{"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1",
			"name": t.tool, "status": "completed", "input": code}
		begun, between = item, nil
	}
	response := object{"id": "resp_1", "object": "response", "created_at": 1, "model": r.model,
		"status": "in_progress", "output": []any{}}
	done := maps.Clone(response)
	done["status"] = "completed"
	done["usage"] = object{"input_tokens": 1, "output_tokens": 1, "total_tokens": 2,
		"input_tokens_details":  object{"cached_tokens": 0},
		"output_tokens_details": object{"reasoning_tokens": 0}}
	events := []object{{"type": "response.created", "response": response}}
	if !r.idle {
		done["output"] = []any{item}
		events = append(events, at("response.output_item.added", object{"item": begun}))
		events = append(append(events, between...),
			at("response.output_item.done", object{"item": item}))
	}
	return append(events, object{"type": "response.completed", "response": done})
}

// writeCompletions speaks OpenAI's Chat Completions API, without tools.
func writeCompletions(w http.ResponseWriter, r modelRequest, t turn) {
	usage := object{"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
	answer := func(kind, member string, message object, reason any) object {
		return object{"id": "chatcmpl-1", "object": kind, "created": 1, "model": r.model,
			"usage": usage, "choices": []any{object{"index": 0, "finish_reason": reason,
				member: message}}}
	}
	message := object{"role": "assistant", "content": t.text}
	if !r.stream {
		writeJSON(w, answer("chat.completion", "message", message, "stop"))
		return
	}
	const chunk = "chat.completion.chunk"
	writeEvents(w, answer(chunk, "delta", message, nil), answer(chunk, "delta", object{}, "stop"))
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// writeGemini speaks Gemini's generateContent and streamGenerateContent.
func writeGemini(w http.ResponseWriter, r modelRequest, t turn) {
	part := object{"text": t.text}
	if t.tool != "" {
		part = object{"functionCall": object{"name": t.tool, "args": shellTools[t.tool]}}
	}
	answer := object{
		"candidates": []any{object{"index": 0, "finishReason": "STOP",
			"content": object{"role": "model", "parts": []any{part}}}},
		"usageMetadata": object{"promptTokenCount": 1, "candidatesTokenCount": 1,
			"totalTokenCount": 2},
	}
	if !r.stream {
		writeJSON(w, answer)
		return
	}
	writeEvents(w, answer)
}
