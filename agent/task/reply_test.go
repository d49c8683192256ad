package task

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// For any input, readReply returns, and passes the same text to words as to the reply.
func FuzzReply(f *testing.F) {
	for _, s := range []string{`{"choices":[{"message":{"content":"hi"}}]}`,
		"data: {\"choices\":[{\"delta\":{\"content\":\"h\"}}]}\n\ndata: [DONE]\n", "data: [DONE]",
		"{", "", "<html>",
		`{"choices":[{"message":{"tool_calls":[{"function":{"name":"run","arguments":{"command":"ls"}}}]}}]}`, `{"choices":[{"message":{"content":[{"text":"a"},null,"b"]}}]}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var words strings.Builder
		r, err := readReply(strings.NewReader(s), func(w string) { words.WriteString(w) })
		if err != nil {
			return
		}
		if words.String() != r.text || !utf8.ValidString(r.text) {
			t.Errorf("%q: words are %q, the reply has %q", s, words.String(), r.text)
		}
		for _, c := range r.calls {
			if c.id == "" {
				t.Errorf("%q: a call without an ID", s)
			}
		}
	})
}

// What is taken for a call of an answer is at its beginning, and what is behind it is gone.
func FuzzFenced(f *testing.F) {
	for _, s := range []string{"```sh\nls\n```\nmore", "```tool\n{\"name\":\"run\"}\n```",
		"<tool_call>{\"name\":\"x\"}</tool_call>", "```", "``` \n```", "```python\nprint()\n```"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		calls, said := fenced(s)
		if !strings.HasPrefix(s, said) || len(calls) > 1 || len(calls) == 0 && said != s ||
			len(calls) == 1 && calls[0].name == "" {
			t.Errorf("%q: %+v, %q", s, calls, said)
		}
	})
}
