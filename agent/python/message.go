package python

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// This file has messages of Jupyter's protocol ("Messaging in Jupyter", version 5.3). The server's
// WebSocket has two formats: binary frames of a subprotocol, and JSON objects for older servers.

// maxMessage bounds a message from the sandbox. The rest of a longer one is read and dropped.
const maxMessage = 32 << 20

const (
	maxMIME  = 32  // representations of one display
	maxName  = 200 // bytes of the name of an exception or a representation
	maxLines = 200 // of a traceback

	maxTextLines = 100_000 // lines of a text that is a list of lines
)

type header struct {
	ID      string `json:"msg_id"`
	Type    string `json:"msg_type"`
	Session string `json:"session"`
	User    string `json:"username"`
	Date    string `json:"date"`
	Version string `json:"version"`
}

// message is a received message.
type message struct {
	Header  header `json:"header"`
	Parent  header `json:"parent_header"`
	Channel string `json:"channel"`
	Content part   `json:"content"`
}

// part is JSON that shares the memory of the text that it was read from.
type part []byte

func (p *part) UnmarshalJSON(text []byte) error {
	*p = text
	return nil
}

var errNoType = errors.New("message of the kernel: no type")

// parse parses a JSON message. Its text is untrusted.
func parse(text []byte) (message, error) {
	var m message
	if err := json.Unmarshal(text, &m); err != nil {
		return message{}, fmt.Errorf("message of the kernel: %w", err)
	}
	if m.Header.Type == "" {
		return message{}, errNoType
	}
	return m, nil
}

// request encodes a message to send, as a frame or as JSON.
func request(framed bool, session, id, kind, channel string, content any) ([]byte, error) {
	h := header{ID: id, Type: kind, Session: session, User: "sandboxd", Version: "5.3"}
	if !framed {
		return json.Marshal(
			map[string]any{
				"header":        h,
				"parent_header": struct{}{},
				"metadata":      struct{}{},
				"channel":       channel,
				"content":       content,
				"buffers":       []any{},
			},
		)
	}
	text, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	head, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	return frame(channel, head, []byte("{}"), []byte("{}"), text), nil
}

// output returns the output in a message of the iopub channel. ok is false if it has none.
func (m message) output() (o Output, ok bool) {
	var c struct {
		Name      string
		Text      string
		Data      forms
		Transient struct {
			ID string `json:"display_id"`
		}
		EName     string
		EValue    string
		Traceback some[string]
	}
	switch m.Header.Type {
	case "stream", "execute_result", "display_data", "update_display_data", "error":
	case "clear_output":
		return Output{Type: Clear}, true
	default:
		return o, false
	}
	if json.Unmarshal(m.Content, &c) != nil {
		return o, false
	}
	switch m.Header.Type {
	case "stream":
		o = Output{Type: Stdout, Chars: c.Text}
		if c.Name == "stderr" {
			o.Type = Stderr
		}
	case "error":
		o = Output{
			Type:      Failure,
			Name:      short(c.EName),
			Value:     c.EValue,
			Traceback: c.Traceback.first(maxLines),
		}
	default:
		o = Output{
			Type:   Display,
			ID:     short(c.Transient.ID),
			Update: m.Header.Type == "update_display_data",
		}
		if m.Header.Type == "execute_result" {
			o.Type = Value
		}
		o.Data = c.Data
		if o.Data == nil {
			o.Data = forms{}
		}
	}
	return o, true
}

// forms are the first maxMIME representations of a display. Further ones are not read: a map of 32
// MiB of tiny ones would take a GiB.
type forms map[string]json.RawMessage

func (f *forms) UnmarshalJSON(text []byte) error {
	all := make(forms)
	// jsontext reads a Buffer in place; json.Decoder would copy it.
	d := jsontext.NewDecoder(
		bytes.NewBuffer(text),
		jsontext.AllowDuplicateNames(true),
		jsontext.AllowInvalidUTF8(true),
	)
	switch t, err := d.ReadToken(); {
	case err != nil:
		return err
	case t.Kind() == 'n': // null
		return nil
	case t.Kind() != '{':
		return errors.New("data of a display: not an object")
	}
	for n := 0; d.PeekKind() == '"' && n < maxMIME; n++ {
		t, err := d.ReadToken()
		if err != nil {
			return err
		}
		kind := t.String()
		data, err := d.ReadValue()
		if err != nil {
			return err
		}
		if len(kind) <= maxName {
			all[kind] = json.RawMessage(bytes.Clone(data))
		}
	}
	*f = all
	return nil
}

// some is an array whose elements are decoded on demand.
type some[T any] json.RawMessage

func (s *some[T]) UnmarshalJSON(text []byte) error {
	*s = bytes.Clone(text)
	return nil
}

// first returns at most most elements, up to the first of another type.
func (s some[T]) first(most int) []T {
	d := json.NewDecoder(bytes.NewReader(s))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil
	}
	var all []T
	for d.More() && len(all) < most {
		var one T
		if d.Decode(&one) != nil {
			break
		}
		all = append(all, one)
	}
	return all
}

// short cuts a name to maxName bytes.
func short(s string) string {
	if len(s) <= maxName {
		return s
	}
	for i := maxName; ; i-- {
		if utf8.RuneStart(s[i]) {
			return s[:i]
		}
	}
}

// cutOff returns the content of a truncated stream message, and nothing for other messages. ok is
// false if the message does not belong to the call with that ID.
func cutOff(framed bool, text []byte, id string) (content []byte, ok bool) {
	if framed {
		m, err := unframe(text)
		if m.Header.Type == "stream" {
			content = m.Content
		}
		return content, err == nil && m.Parent.ID == id
	}
	begin := text[:min(len(text), 4<<10)]
	if bytes.Contains(begin, []byte(`"msg_type": "stream"`)) {
		_, content, _ = bytes.Cut(text, []byte(`"content": `))
	}
	return content, bytes.Contains(begin, []byte(id))
}

// beginning returns at most most bytes of text from the content of a truncated stream message, and
// their number. n is 0 for other messages.
func beginning(content []byte, most int) (o Output, n int64) {
	o.Type = Stdout
	if at := bytes.Index(content[:min(len(content), 100)], []byte(`"stderr"`)); at >= 0 {
		o.Type = Stderr
	}
	_, raw, found := bytes.Cut(content, []byte(`"text": "`))
	if !found {
		return o, 0
	}
	raw = raw[:min(len(raw), most)]
	// An escape at the end may be truncated.
	if at := bytes.LastIndexByte(raw, '\\'); at >= len(raw)-6 && at >= 0 {
		raw = bytes.TrimRight(raw[:at], `\`)
	}
	if err := json.Unmarshal(slices.Concat([]byte{'"'}, raw, []byte{'"'}), &o.Chars); err != nil {
		return o, 0
	}
	return o, int64(len(raw))
}
