package python

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

// Any input is a message or an error, within limits, and its output can be printed.
func FuzzMessage(f *testing.F) {
	for _, seed := range []string{
		`{"header":{"msg_id":"1","msg_type":"stream"},"parent_header":{"msg_id":"x"},"channel":"iopub","content":{"name":"stdout","text":"a"}}`,
		`{"header":{"msg_type":"execute_result"},"parent_header":{"msg_id":"x"},"content":{"data":{"image/png":"iVBORw0=","text/plain":["a","b"],"application/json":{"a":[1]}},"execution_count":1}}`,
		`{"header":{"msg_type":"error"},"parent_header":{"msg_id":"x"},"content":{"ename":"E","evalue":"v","traceback":["1","2"]}}`,
		`{"header":{"msg_type":"input_request"},"parent_header":{"msg_id":"x"},"channel":"stdin","content":{"prompt":"? ","password":true}}`,
		`{"header":{"msg_type":"execute_reply"},"parent_header":{"msg_id":"x"},"channel":"shell","content":{"status":"ok","execution_count":1}}`,
		`{"header":{"msg_type":"status"},"parent_header":{"msg_id":"x"},"content":{"execution_state":"idle"}}`,
		`{"header":{"msg_type":"stream"},"content":[]}`, `{"header":null}`, `[[[[`, "", "\xff",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := parse(text)
		if err != nil {
			return
		}
		r := newRun(nil, Limits{Head: 10, Tail: 10, Displays: 2, Shown: 100}, nil)
		if o, ok := m.output(); ok {
			new(gallery).add(&Context{}, &o)
			r.print(o)
			if o.Type == Failure && len(o.Name) > maxName || len(o.Data) > maxMIME {
				t.Errorf("out of bounds: %+v", o)
			}
		}
		r.handle(m)
		c := &Context{in: &Interpreter{}, name: "main"}
		c.handle(&link{hello: newRun(nil, Limits{}, nil)}, &m)
		res := c.result(r)
		_ = res.Text()
		if len(res.Prompt) > maxPrompt {
			t.Errorf("a prompt of %d bytes", len(res.Prompt))
		}
		if _, err := json.Marshal(res); err != nil {
			t.Error(err)
		}
	})
}

// Head and tail of text are kept in order, without split characters, and omitted bytes are counted
// exactly.
func FuzzCollector(f *testing.F) {
	f.Add("abcdefghijklmnopqrstuvwxyz", uint8(3), uint8(5))
	f.Add(strings.Repeat("ä€", 20), uint8(7), uint8(1))
	f.Fuzz(func(t *testing.T, text string, piece, other uint8) {
		if !utf8.ValidString(text) || piece == 0 {
			return
		}
		c := collector{limits: Limits{Head: 16, Tail: 16, Displays: 3, Shown: 100}}
		sent := 0
		for i, rest := 0, []rune(text); len(rest) > 0; i++ {
			n := min(int(piece), len(rest))
			kind := Stdout
			if other > 0 && i%int(other) == 0 {
				kind = Stderr
			}
			c.add(Output{Type: kind, Chars: string(rest[:n])})
			sent += len(string(rest[:n]))
			rest = rest[n:]
		}
		got, marked := "", int64(0)
		for _, o := range c.outputs() {
			got += o.Chars
			marked += o.Omitted
		}
		if !utf8.ValidString(got) || len(got) > 32 || len(got)+int(c.omitted) != sent ||
			marked != c.omitted {
			t.Errorf(
				"%q: kept %q, left out %d, of which %d are marked",
				text,
				got,
				c.omitted,
				marked,
			)
		}
		if c.omitted == 0 && got != text {
			t.Errorf("%q became %q", text, got)
		}
	})
}
