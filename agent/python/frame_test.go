package python

import (
	"bytes"
	"context"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

// said returns a frame as the server sends it.
func said(channel, header, parent, content string) []byte {
	return frame(channel, []byte(header), []byte(parent), []byte("{}"), []byte(content))
}

// A frame is parsed as it was written, also with buffers.
func TestFrame(t *testing.T) {
	text, err := request(
		true,
		"s",
		"1",
		"execute_request",
		"shell",
		map[string]string{"code": "1+1"},
	)
	if err != nil {
		t.Fatal(err)
	}
	m, err := unframe(text)
	if err != nil || m.Header.ID != "1" || m.Header.Type != "execute_request" ||
		m.Header.Session != "s" ||
		m.Channel != "shell" ||
		string(m.Content) != `{"code":"1+1"}` {
		t.Errorf("%+v, %v", m, err)
	}
	// jupyter_server writes offsets of all parts and of the end.
	parts := []string{
		"iopub",
		`{"msg_type": "comm_msg"}`,
		`{"msg_id": "x"}`,
		"{}",
		`{"a": 1}`,
		"buffer",
		"another",
	}
	at := uint64(8 * (len(parts) + 2))
	buffers := binary.LittleEndian.AppendUint64(nil, uint64(len(parts)+1))
	for _, p := range parts {
		buffers = binary.LittleEndian.AppendUint64(buffers, at)
		at += uint64(len(p))
	}
	buffers = append(binary.LittleEndian.AppendUint64(buffers, at), strings.Join(parts, "")...)
	m, err = unframe(buffers)
	if err != nil || m.Header.Type != "comm_msg" || m.Parent.ID != "x" ||
		string(m.Content) != `{"a": 1}` {
		t.Errorf("with buffers: %+v, %v", m, err)
	}
}

// The begin of a message that is too long is used, in both formats.
func TestCutOff(t *testing.T) {
	long := `{"name": "stderr", "text": "begins ` + strings.Repeat("x", 100)
	framed := said("iopub", `{"msg_type": "stream"}`, `{"msg_id": "mine"}`, long)
	object := []byte(
		`{"header": {"msg_type": "stream"}, "parent_header": {"msg_id": "mine"}, "channel": "iopub", "content": ` + long,
	)
	for what, text := range map[bool][]byte{true: framed[:len(framed)-50],
		false: object[:len(object)-50]} {
		content, ok := cutOff(what, text, "mine")
		if o, n := beginning(content, 10); !ok || o.Type != Stderr || o.Chars != "begins xxx" ||
			n != 10 {
			t.Errorf("framed %v: %+v, %d, %v", what, o, n, ok)
		}
		if _, ok := cutOff(what, text, "another"); ok {
			t.Errorf("framed %v: of another call", what)
		}
	}
	display := said("iopub", `{"msg_type": "display_data"}`, `{"msg_id": "mine"}`, long)
	if content, ok := cutOff(true, display, "mine"); !ok || content != nil {
		t.Errorf("a display: %q, %v", content, ok)
	}
}

// Any frame is a message or an error, and nothing outside of it is read.
func FuzzFrame(f *testing.F) {
	whole := said(
		"iopub",
		`{"msg_type":"stream"}`,
		`{"msg_id":"x"}`,
		`{"name":"stdout","text":"a"}`,
	)
	f.Add(whole)
	f.Add(whole[:len(whole)-3])
	f.Add(whole[:frameHead])
	f.Add(bytes.Repeat([]byte{0xff}, frameHead+8))
	f.Add(bytes.Repeat([]byte{0}, frameHead))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := unframe(text)
		if err != nil {
			return
		}
		if m.Header.Type == "" || len(m.Content)+len(m.Channel) > len(text) ||
			!bytes.Contains(text, m.Content) {
			t.Errorf("%+v", m)
		}
		if o, ok := m.output(); ok {
			newRun(nil, Limits{Head: 10, Tail: 10, Displays: 2, Shown: 100}, nil).print(o)
		}
		newRun(nil, Limits{}, nil).handle(m)
		content, _ := cutOff(true, text, "x")
		if o, n := beginning(content, 5); n > 5 || len(o.Chars) > 15 {
			t.Errorf("begins with %q, %d", o.Chars, n)
		}
	})
}

// A server without the subprotocol is used with JSON messages.
func TestOlderServer(t *testing.T) {
	for _, subprotocols := range [][]string{nil, {subprotocol}} {
		in := fakeOf(t, subprotocols, func(ctx context.Context, c *websocket.Conn) {
			greet(ctx, c)
			for id := asked(ctx, c); id != ""; id = asked(ctx, c) {
				_ = c.Write(ctx, websocket.MessageText, []byte("["))
				_ = c.Write(ctx, websocket.MessageBinary, []byte("["))
				tell(ctx, c, id,
					"stream",
					"iopub",
					`{"name": "stdout", "text": "`+strings.Repeat("y", maxMessage)+`"}`,
				)
				tell(ctx, c, id, "execute_result", "iopub", `{"data": {"text/plain": "2"}}`)
				tell(ctx, c, id, "status", "iopub", `{"execution_state": "idle"}`)
				tell(ctx, c, id, "execute_reply", "shell", `{"status": "ok"}`)
			}
		}, nil)
		c, err := in.Context(t.Context(), "main")
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.Execute(t.Context(), Call{Code: "1+1"})
		if err != nil || !res.OK || len(res.Outputs) != 2 ||
			!strings.HasPrefix(res.Text(), "yyy") ||
			res.Outputs[1].Text("text/plain") != "2" ||
			res.Dropped != 1 ||
			res.Omitted < maxMessage/2 {
			t.Errorf(
				"%q: ok %v, %d outputs, %d dropped, %d left out, %v",
				subprotocols,
				res.OK,
				len(res.Outputs),
				res.Dropped,
				res.Omitted,
				err,
			)
		}
	}
}
