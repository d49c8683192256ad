package task

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// reply is a reply of the model, independent of the server's format.
type reply struct {
	text    string
	calls   []toolCall
	refusal string // reason why the model refuses
	// why it ended: stop, tool_calls, length, content_filter; empty if unknown
	finish string
	tokens int // of request and reply; 0 if unknown
}

// toolCall is one call of a tool by a model.
type toolCall struct {
	id, name  string
	arguments string // should be JSON, but the model may write anything
}

const maxCalls = 32 // calls of one reply

// chunk is a reply or a part of a streamed one. Some members are raw JSON, because servers send
// other types than strings for them.
type chunk struct {
	Choices []struct {
		Delta        *piece `json:"delta"`
		Message      *piece `json:"message"`
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		Total      int `json:"total_tokens"`
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

type piece struct {
	Content   json.RawMessage `json:"content"`
	Refusal   json.RawMessage `json:"refusal"`
	ToolCalls []callPiece     `json:"tool_calls"`
	Function  *functionPiece  `json:"function_call"` // older servers
}

type callPiece struct {
	Index    *int          `json:"index"`
	ID       string        `json:"id"`
	Function functionPiece `json:"function"`
}

type functionPiece struct {
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

// readReply reads a reply: one JSON object, or server-sent events (WHATWG HTML, section 9.2),
// whatever the Content-Type. words receives text as it arrives.
func readReply(in io.Reader, words func(string)) (reply, error) {
	r := bufio.NewReaderSize(in, 64<<10)
	b := &builder{words: words}
	if mark, _ := r.Peek(3); string(mark) == "\xef\xbb\xbf" { // some servers send a byte order mark
		_, _ = r.Discard(3) // cannot fail after Peek
	}
	for {
		c, err := r.Peek(1)
		if err != nil {
			return reply{}, cut(err)
		}
		if !strings.ContainsRune(" \t\r\n", rune(c[0])) {
			break
		}
		_, _ = r.Discard(1) // cannot fail after Peek
	}
	if c, _ := r.Peek(1); c[0] == '{' {
		all, err := io.ReadAll(r)
		if err != nil {
			return reply{}, cut(err)
		}
		if err := b.add(all); err != nil {
			return reply{}, err
		}
		if !b.chosen {
			return reply{}, &EndpointError{
				Message: "the model's server returned a reply without a choice",
				passes:  true,
			}
		}
		return b.done()
	}
	events := false
	for {
		line, err := readLine(r)
		data, ok := bytes.CutPrefix(line, []byte("data:"))
		if ok && (err == nil || errors.Is(err, io.EOF)) {
			events = true
			data = bytes.TrimSpace(data)
			if string(data) == "[DONE]" {
				return b.finish()
			}
			if len(data) > 0 {
				if err := b.add(data); err != nil {
					return reply{}, err
				}
			}
		}
		switch {
		case errors.Is(err, io.EOF) && !events:
			return reply{}, &EndpointError{
				Message: "the model's server returned no JSON and no stream of events",
				Hint:    "check OPENAI_BASE_URL, which usually ends with /v1",
			}
		case errors.Is(err, io.EOF) && b.reply.finish != "": // some servers omit [DONE]
			return b.finish()
		case err != nil:
			return reply{}, cut(err)
		}
	}
}

// cut returns the error of an incomplete reply.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadBytes('\n') // the underlying reader is bounded
	return bytes.TrimRight(line, "\r\n"), err
}

// builder assembles a reply from its parts.
type builder struct {
	words  func(string)
	chosen bool
	reply  reply
	text   strings.Builder
	said   strings.Builder // refusal
	calls  []*growing
}

type growing struct {
	index     int
	id, name  string
	arguments strings.Builder
}

func (b *builder) add(data []byte) error {
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return &EndpointError{
			Message: fmt.Sprintf("the model's server sent invalid JSON: %v", err),
			passes:  true,
		}
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		return &EndpointError{
			Message: "the model's server reports an error: " + errorText(c.Error),
			passes:  true,
		}
	}
	if u := c.Usage; u != nil {
		b.reply.tokens = max(b.reply.tokens, u.Total, u.Prompt+u.Completion)
	}
	if len(c.Choices) == 0 {
		return nil // only usage, or a keepalive
	}
	b.chosen = true
	first := c.Choices[0]
	if first.FinishReason != "" {
		b.reply.finish = first.FinishReason
	}
	for _, p := range []*piece{first.Delta, first.Message} {
		if p != nil {
			b.piece(p)
		}
	}
	return nil
}

func (b *builder) piece(p *piece) {
	if s := contentText(p.Content); s != "" {
		b.text.WriteString(s)
		b.words(s)
	}
	b.said.WriteString(contentText(p.Refusal))
	for i, c := range p.ToolCalls {
		b.call(i, c)
	}
	if p.Function != nil {
		zero := 0
		b.call(0, callPiece{Index: &zero, Function: *p.Function})
	}
}

// call adds a part to its call. It finds the call by index, by ID if the server sends no index, or
// else uses the last call.
func (b *builder) call(i int, c callPiece) {
	var at *growing
	for _, g := range b.calls {
		switch {
		case c.Index != nil && g.index == *c.Index && (c.ID == "" || g.id == "" || g.id == c.ID),
			c.Index == nil && c.ID != "" && g.id == c.ID:
			at = g
		}
	}
	if at == nil && c.Index == nil && c.ID == "" && c.Function.Name == "" && len(b.calls) > 0 {
		at = b.calls[len(b.calls)-1]
	}
	if at == nil {
		at = &growing{index: -1 - i}
		if c.Index != nil {
			at.index = *c.Index
		}
		if len(b.calls) > 8*maxCalls { // drop further calls: only maxCalls of them run
			return
		}
		b.calls = append(b.calls, at)
	}
	if c.ID != "" {
		at.id = c.ID
	}
	if at.name == "" { // servers may repeat the name, but do not split it
		at.name = strings.TrimSpace(c.Function.Name)
	}
	at.arguments.WriteString(argumentText(c.Function.Arguments))
}

// finish is done for a stream. A stream without a choice is an error.
func (b *builder) finish() (reply, error) {
	if !b.chosen {
		return reply{}, &EndpointError{
			Message: "the model's server returned a reply without a choice",
			passes:  true,
		}
	}
	return b.done()
}

func (b *builder) done() (reply, error) {
	r := b.reply
	r.text, r.refusal = b.text.String(), b.said.String()
	for i, g := range b.calls {
		c := toolCall{id: g.id, name: g.name, arguments: strings.TrimSpace(g.arguments.String())}
		if c.id == "" {
			c.id = fmt.Sprintf("call_%d", i)
		}
		r.calls = append(r.calls, c)
	}
	return r, nil
}

// contentText returns the text of content: a string, null or a list of parts.
func contentText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var parts []json.RawMessage
	if json.Unmarshal(raw, &parts) != nil {
		return ""
	}
	var all strings.Builder
	for _, p := range parts {
		s = ""
		if json.Unmarshal(p, &s) == nil {
			all.WriteString(s)
			continue
		}
		var part struct {
			Text    json.RawMessage `json:"text"`
			Refusal string          `json:"refusal"`
		}
		if json.Unmarshal(p, &part) == nil && json.Unmarshal(part.Text, &s) == nil {
			all.WriteString(s)
		}
	}
	return all.String()
}

// argumentText returns arguments as text. Some servers send an object instead of a string.
func argumentText(raw json.RawMessage) string {
	var s string
	if len(raw) == 0 || string(raw) == "null" {
		return ""
	}
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

// errorText returns the text of an error member.
func errorText(raw json.RawMessage) string {
	var e struct {
		Message string `json:"message"`
		Type    string `json:"type"`
		Code    any    `json:"code"`
	}
	if json.Unmarshal(raw, &e) == nil && e.Message != "" {
		said := e.Message
		if code, ok := e.Code.(string); ok && code != "" {
			said += " (" + code + ")"
		} else if e.Type != "" {
			said += " (" + e.Type + ")"
		}
		return said
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}
