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

// reply is what a model answered, however its server writes that down.
type reply struct {
	text    string
	calls   []toolCall
	refusal string // it will not do it
	finish  string // why it ended: stop, tool_calls, length, content_filter; empty where nobody said
	tokens  int    // of request and answer; 0 where the server does not say
}

// toolCall is one call of a tool by a model.
type toolCall struct {
	id, name  string
	arguments string // JSON, if the model kept to it
}

const maxCalls = 32 // of one answer

// chunk is an answer, or a piece of one. Members that are strings by the book are read as what servers send for them.
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
	Function  *functionPiece  `json:"function_call"` // of servers before tools
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

// readReply reads an answer: one JSON object, or server-sent events (WHATWG HTML, section 9.2), whatever Content-Type says. words gets text as it comes.
func readReply(in io.Reader, words func(string)) (reply, error) {
	r := bufio.NewReaderSize(in, 64<<10)
	b := &builder{words: words}
	if mark, _ := r.Peek(3); string(mark) == "\xef\xbb\xbf" { // some write a byte order mark
		_, _ = r.Discard(3) // it was peeked at
	}
	for {
		c, err := r.Peek(1)
		if err != nil {
			return reply{}, cut(err)
		}
		if !strings.ContainsRune(" \t\r\n", rune(c[0])) {
			break
		}
		_, _ = r.Discard(1) // it was peeked at
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
			return reply{}, &EndpointError{Message: "the model's server answers without a choice", passes: true}
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
			return reply{}, &EndpointError{Message: "the model's server answers what is no JSON and no stream of events", Hint: "look at OPENAI_BASE_URL, which ends with /v1 mostly"}
		case errors.Is(err, io.EOF) && b.reply.finish != "": // [DONE] is not everybody's
			return b.finish()
		case err != nil:
			return reply{}, cut(err)
		}
	}
}

// cut is the error of an answer that ends in its middle.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadBytes('\n') // bounded by the reader below
	return bytes.TrimRight(line, "\r\n"), err
}

// builder puts an answer together of its pieces.
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
		return &EndpointError{Message: fmt.Sprintf("the model's server sends no JSON as it should be: %v", err), passes: true}
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		return &EndpointError{Message: "the model's server ends its answer: " + errorText(c.Error), passes: true}
	}
	if u := c.Usage; u != nil {
		b.reply.tokens = max(b.reply.tokens, u.Total, u.Prompt+u.Completion)
	}
	if len(c.Choices) == 0 {
		return nil // usage alone, or a sign of life
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

// call adds a piece of a call to the one that it belongs to: by its index; by its ID where a server sends none; else to the last.
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
		if len(b.calls) > 8*maxCalls { // an endless list; what is left of it is enough to say so
			return
		}
		b.calls = append(b.calls, at)
	}
	if c.ID != "" {
		at.id = c.ID
	}
	if at.name == "" { // servers repeat it, and none sends it in pieces
		at.name = strings.TrimSpace(c.Function.Name)
	}
	at.arguments.WriteString(argumentText(c.Function.Arguments))
}

// finish is done for a stream, in which nothing at all is no answer.
func (b *builder) finish() (reply, error) {
	if !b.chosen {
		return reply{}, &EndpointError{Message: "the model's server answers without a choice", passes: true}
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

// contentText is content in the shapes that there are: a string, null, a list of parts.
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

// argumentText is the text of arguments, which some servers send as the object itself.
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

// errorText is what an error member says.
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
