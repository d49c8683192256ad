package mcp

import (
	"encoding/json"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
)

// Accepted arguments have the same meaning for other JSON parsers.
func FuzzArguments(f *testing.F) {
	for _, s := range []string{``, `null`, `{}`, `[]`, `{"from":1,"bytes":2,"session":"x"}`,
		`{"from":-1}`, `{"from":1,"from":2}`, `{"From":1}`, `{"bytes":1e300}`,
		`{"session":"\ud800"}`, `{"sandbox":null}`} {
		f.Add(s)
	}
	schema, err := jsonschema.For[logIn](nil)
	if err != nil {
		f.Fatal(err)
	}
	valid, err := schema.Resolve(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		in, err := arguments[logIn](json.RawMessage(text), valid)
		if err != nil || text == "" {
			return
		}
		var other logIn
		if err := json.Unmarshal([]byte(text), &other); err != nil || other != in {
			t.Errorf("%q: %+v, and %+v, %v", text, in, other, err)
		}
	})
}
