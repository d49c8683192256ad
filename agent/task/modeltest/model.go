// Package modeltest is a scripted language model behind OpenAI's Chat Completions API, for tests of
// code that uses models. It streams as real servers do, splits tool calls, and can simulate their
// faults.
package modeltest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"
)

// Step is one reply. The zero value is an empty reply.
type Step struct {
	Text    string `json:"text,omitempty"`
	Calls   []Call `json:"calls,omitempty"`
	Refusal string `json:"refusal,omitempty"`
	Finish  string `json:"finish,omitempty"` // finish_reason; empty means the one that fits
	Tokens  int    `json:"tokens,omitempty"` // in usage; 0 sends none
	Parts   bool   `json:"parts,omitempty"`  // content as a list of parts
	Plain   bool   `json:"plain,omitempty"`  // no stream, even if the request asks for one

	// Expect is a regular expression for the last message of the request. If it does not match, the
	// reply is status 418.
	Expect string `json:"expect,omitempty"`

	Status int               `json:"status,omitempty"` // with Raw as the body
	Header map[string]string `json:"header,omitempty"`
	Raw    string            `json:"raw,omitempty"` // exact body
	Fault  Fault             `json:"fault,omitempty"`
	// Times is how often the step is used. 0 means once, −1 always.
	Times int `json:"times,omitempty"`
}

// Call is one call of a tool. Arguments are sent as they are, even if they are not JSON.
type Call struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// Fault is a fault of a reply.
type Fault string

// Faults of a reply.
const (
	Hang    Fault = "hang"    // no byte, until the client disconnects
	Stall   Fault = "stall"   // a part of the reply, then nothing until the client disconnects
	Drip    Fault = "drip"    // a keepalive every few milliseconds, without end
	Endless Fault = "endless" // text without end
	Cut     Fault = "cut"     // the connection breaks in the middle
	Short   Fault = "short"   // the stream ends properly in its middle
)

// Server is a scripted server. It implements http.Handler.
type Server struct {
	NoTools bool // reject requests with tools, like servers of models without tools

	mu    sync.Mutex
	steps []Step           // guarded by mu; remaining steps
	seen  []map[string]any // guarded by mu; bodies of requests
	auth  []string         // guarded by mu; Authorization of requests
}

// New returns a Server that replies with steps, in order.
func New(steps ...Step) *Server { return &Server{steps: steps} }

// Read reads steps, one JSON object per line. It skips empty lines and lines that begin with #.
func Read(r io.Reader) ([]Step, error) {
	var all []Step
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		var s Step
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&s); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		all = append(all, s)
	}
	return all, lines.Err()
}

// Requests returns the bodies and the Authorization headers of the requests so far.
func (s *Server) Requests() (bodies []map[string]any, authorization []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]map[string]any(nil), s.seen...), append([]string(nil), s.auth...)
}

// Left returns the number of unused steps.
func (s *Server) Left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.steps)
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(io.LimitReader(r.Body, 64<<20))
	var body map[string]any
	switch {
	case err != nil:
		return
	case strings.HasSuffix(r.URL.Path, "/models") && r.Method == http.MethodGet:
		answer(
			w,
			http.StatusOK,
			map[string]any{
				"object": "list",
				"data":   []any{map[string]string{"id": "scripted", "object": "model"}},
			},
		)
		return
	case !strings.HasSuffix(r.URL.Path, "/chat/completions") || r.Method != http.MethodPost:
		fail(w, http.StatusNotFound, "no such page")
		return
	case json.Unmarshal(text, &body) != nil || body["model"] == "" ||
		!conversation(body["messages"]):
		fail(w, http.StatusBadRequest, "invalid request for a chat completion")
		return
	}
	s.mu.Lock()
	s.seen, s.auth = append(s.seen, body), append(s.auth, r.Header.Get("Authorization"))
	if _, tools := body["tools"]; tools && s.NoTools {
		s.mu.Unlock()
		fail(w, http.StatusBadRequest, "this model does not support tools")
		return
	}
	if len(s.steps) == 0 {
		s.mu.Unlock()
		fail(w, http.StatusTeapot, "the script is over")
		return
	}
	step := s.steps[0]
	switch {
	case step.Times > 1:
		s.steps[0].Times--
	case step.Times >= 0:
		s.steps = s.steps[1:]
	}
	s.mu.Unlock()
	if step.Expect != "" {
		if last := lastContent(body); !regexp.MustCompile(step.Expect).MatchString(last) {
			fail(
				w,
				http.StatusTeapot,
				fmt.Sprintf("the last message does not match %q: %s", step.Expect, last),
			)
			return
		}
	}
	streamed, _ := body["stream"].(bool)
	step.answer(w, r, streamed && !step.Plain)
}

// conversation reports whether messages are valid for strict servers: every tool call is followed
// by its result, and every result has a call.
func conversation(messages any) bool {
	list, _ := messages.([]any)
	open := make(map[any]bool)
	for _, m := range list {
		m, _ := m.(map[string]any)
		if m["role"] == "tool" {
			if !open[m["tool_call_id"]] {
				return false
			}
			delete(open, m["tool_call_id"])
			continue
		}
		if len(open) > 0 {
			return false
		}
		calls, _ := m["tool_calls"].([]any)
		for _, c := range calls {
			c, _ := c.(map[string]any)
			f, _ := c["function"].(map[string]any)
			if arguments, _ := f["arguments"].(string); !json.Valid([]byte(arguments)) {
				return false
			}
			if open[c["id"]] {
				return false
			}
			open[c["id"]] = true
		}
		if content, _ := m["content"].(string); content == "" && len(calls) == 0 {
			return false
		}
	}
	return len(list) > 0 && len(open) == 0
}

func lastContent(body map[string]any) string {
	messages, _ := body["messages"].([]any)
	last, _ := messages[len(messages)-1].(map[string]any)
	content, _ := last["content"].(string)
	return content
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may have disconnected
}

func fail(w http.ResponseWriter, status int, message string) {
	answer(
		w,
		status,
		map[string]any{"error": map[string]string{"message": message, "type": "scripted"}},
	)
}

func (s Step) answer(w http.ResponseWriter, r *http.Request, streamed bool) {
	for k, v := range s.Header {
		w.Header().Set(k, v)
	}
	switch {
	case s.Fault == Hang:
		<-r.Context().Done()
		return
	case s.Status != 0 || s.Raw != "":
		if s.Status != 0 {
			w.WriteHeader(s.Status)
		}
		_, _ = io.WriteString(w, s.Raw) // likewise
		return
	case !streamed:
		answer(w, http.StatusOK, s.whole())
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w).Flush
	send := func(line string) bool {
		_, err := io.WriteString(w, line)
		return err == nil && flush() == nil && r.Context().Err() == nil
	}
	event := func(v any) bool {
		text, err := json.Marshal(v)
		return err == nil && send("data: "+string(text)+"\n\n")
	}
	event(chunk(map[string]any{"role": "assistant", "content": ""}, nil))
	pieces := s.pieces()
	for i, p := range pieces {
		if i == len(pieces)/2 && !s.misbehave(r, send, event) {
			return
		}
		event(chunk(p, nil))
	}
	if len(pieces) == 0 && !s.misbehave(r, send, event) {
		return
	}
	event(chunk(map[string]any{}, s.finish()))
	if s.Tokens > 0 {
		event(
			map[string]any{
				"object":  "chat.completion.chunk",
				"choices": []any{},
				"usage":   map[string]int{"total_tokens": s.Tokens},
			},
		)
	}
	send("data: [DONE]\n\n")
}

// misbehave causes the Fault in the middle of a stream, and reports whether the stream continues.
func (s Step) misbehave(r *http.Request, send func(string) bool, event func(any) bool) bool {
	switch s.Fault {
	case Stall:
		<-r.Context().Done()
		return false
	case Short:
		return false
	case Cut:
		panic(http.ErrAbortHandler)
	case Drip:
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for send(": still here\n\n") {
			select {
			case <-tick.C:
			case <-r.Context().Done():
				return false
			}
		}
		return false
	case Endless:
		for event(chunk(map[string]any{"content": strings.Repeat("and so on ", 1000)}, nil)) {
		}
		return false
	}
	return true
}

func chunk(delta map[string]any, finish any) map[string]any {
	return map[string]any{"id": "x", "object": "chat.completion.chunk", "model": "scripted",
		"choices": []any{map[string]any{"index": 0, "delta": delta, "finish_reason": finish}}}
}

// pieces returns the deltas of a stream.
func (s Step) pieces() []map[string]any {
	var all []map[string]any
	for text := range split(s.Text) {
		all = append(all, map[string]any{"content": s.content(text)})
	}
	if s.Refusal != "" {
		all = append(all, map[string]any{"refusal": s.Refusal})
	}
	for i, c := range s.Calls {
		all = append(
			all,
			map[string]any{
				"tool_calls": []any{
					map[string]any{"index": i, "id": fmt.Sprintf("call-%d", i), "type": "function",
						"function": map[string]any{"name": c.Name, "arguments": ""}},
				},
			},
		)
		for text := range split(c.Arguments) {
			all = append(
				all,
				map[string]any{
					"tool_calls": []any{
						map[string]any{"index": i, "function": map[string]any{"arguments": text}},
					},
				},
			)
		}
	}
	return all
}

// split yields s in pieces of at least 7 characters, at most about 50 pieces of a long s.
func split(s string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		size := max(7, len(s)/50)
		r := []rune(s)
		for len(r) > 0 {
			n := min(size, len(r))
			if !yield(string(r[:n])) {
				return
			}
			r = r[n:]
		}
	}
}

func (s Step) content(text string) any {
	if s.Parts {
		return []any{map[string]string{"type": "text", "text": text}}
	}
	return text
}

func (s Step) finish() string {
	switch {
	case s.Finish != "":
		return s.Finish
	case len(s.Calls) > 0:
		return "tool_calls"
	}
	return "stop"
}

// whole returns the reply as one object.
func (s Step) whole() map[string]any {
	m := map[string]any{"role": "assistant", "content": s.content(s.Text)}
	if s.Refusal != "" {
		m["refusal"] = s.Refusal
	}
	var calls []any
	for i, c := range s.Calls {
		calls = append(
			calls,
			map[string]any{
				"id":       fmt.Sprintf("call-%d", i),
				"type":     "function",
				"function": map[string]any{"name": c.Name, "arguments": c.Arguments},
			},
		)
	}
	if calls != nil {
		m["tool_calls"] = calls
	}
	all := map[string]any{
		"id":      "x",
		"object":  "chat.completion",
		"model":   "scripted",
		"choices": []any{map[string]any{"index": 0, "message": m, "finish_reason": s.finish()}},
	}
	if s.Tokens > 0 {
		all["usage"] = map[string]int{"total_tokens": s.Tokens}
	}
	return all
}
