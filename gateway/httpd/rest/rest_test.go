package rest

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

type body struct {
	Code    string  `json:"code"`
	Timeout float64 `json:"timeout"`
	Options struct {
		Name string `json:"name"`
	} `json:"options"`
}

// A body with more than one meaning is rejected, and the error says why (A110).
func TestDecode(t *testing.T) {
	for name, c := range map[string]struct {
		kind, text string
		want       int // 0 is taken
	}{
		"right":                   {"application/json; charset=utf-8", `{"code":"x","timeout":1.5}`, 0},
		"a form":                  {"text/plain", `{"code":"x"}`, http.StatusUnsupportedMediaType},
		"nothing said of it":      {"", `{"code":"x"}`, http.StatusUnsupportedMediaType},
		"no value":                {"application/json", ``, http.StatusBadRequest},
		"two values":              {"application/json", `{} {}`, http.StatusBadRequest},
		"a key twice":             {"application/json", `{"code":"x","code":"y"}`, http.StatusBadRequest},
		"another case":            {"application/json", `{"Code":"x"}`, http.StatusBadRequest},
		"an unknown key":          {"application/json", `{"options":{"nmae":"x"}}`, http.StatusBadRequest}, //nolint:misspell // deliberate
		"NUL in a key":            {"application/json", "{\"code\\u0000\":\"x\"}", http.StatusBadRequest},
		"a number too large":      {"application/json", `{"timeout":1e999}`, http.StatusBadRequest},
		"no number":               {"application/json", `{"timeout":NaN}`, http.StatusBadRequest},
		"another type":            {"application/json", `{"code":{}}`, http.StatusBadRequest},
		"no UTF-8":                {"application/json", "{\"code\":\"\xff\"}", http.StatusBadRequest},
		"half a surrogate":        {"application/json", `{"code":"\ud800"}`, http.StatusBadRequest},
		"deep":                    {"application/json", `{"options":` + strings.Repeat("[", 100_000), http.StatusBadRequest},
		"deep and of any type":    {"application/json", strings.Repeat(`{"options":`, 80_000), http.StatusBadRequest},
		"large":                   {"application/json", `{"code":"` + strings.Repeat("x", MaxBody) + `"}`, http.StatusRequestEntityTooLarge},
		"trailing garbage":        {"application/json", `{"code":"x"}x`, http.StatusBadRequest},
		"a comment":               {"application/json", `{/**/"code":"x"}`, http.StatusBadRequest},
		"UTF-8 with a byte order": {"application/json", "\ufeff{}", http.StatusBadRequest},
	} {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/", strings.NewReader(c.text))
		r.Header.Set("Content-Type", c.kind)
		var v body
		err := Decode(httptest.NewRecorder(), r, &v)
		if c.want == 0 {
			if err != nil || v.Code != "x" || v.Timeout != 1.5 {
				t.Errorf("%s: %+v, %v", name, v, err)
			}
			continue
		}
		if err == nil || Status(err) != c.want {
			t.Errorf("%s: %v, want status %d", name, err, c.want)
		}
		if _, ok := errors.AsType[*wire.Error](err); err != nil && !ok {
			t.Errorf("%s: %T", name, err)
		}
	}
}

// Errors about a body use JSON's terms, not Go's.
func TestDecodeSays(t *testing.T) {
	for text, want := range map[string]string{
		`{"code":1}`:               `body: the number at "/code" is not a string`,
		`{"timeout":"1"}`:          `body: the string at "/timeout" is not a number`,
		`{"options":[]}`:           `body: the array at "/options" is not an object`,
		`[]`:                       `body: the array at "/" is not an object`,
		`{code: 1}`:                `body: invalid character 'c' at start of value after offset 1`,
		`{"options":{"other":1}}`:  `body: unknown field "/options/other"; known fields: name`,
		`{"code":"x","code":"y"}`:  `body: duplicate object member name "code" at "/code"`,
		`{"code":"x" "timeout":1}`: `body: invalid character '"' after object value (expecting ',' or '}') after offset 12`,
	} {
		var v body
		err := Unmarshal([]byte(text), &v, json.RejectUnknownMembers(true))
		if err == nil || err.Error() != want {
			t.Errorf("%s:\n got %v\nwant %s", text, err, want)
		}
	}
}

// For any body, Unmarshal returns a value or a public error.
func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte(`{"code":"x","options":{"name":"y"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var v body
		if err := Unmarshal(text, &v); err != nil && Status(err) != http.StatusBadRequest {
			t.Errorf("%v", err)
		}
	})
}

func TestStatus(t *testing.T) {
	for code, want := range map[wire.Code]int{wire.CodeNotFound: 404, wire.CodeDenied: 403,
		wire.CodeUsage: 400, wire.CodeExists: 409, wire.CodeUnavailable: 503,
		wire.CodeLimitQuota: 429, wire.CodeInternal: 500} {
		if got := Status(wire.Errorf(code, "x")); got != want {
			t.Errorf("%s: %d, want %d", code, got, want)
		}
	}
	if got := NewProblem(nil, errors.New("secret")); got.Status != 500 ||
		strings.Contains(got.Detail, "secret") {
		t.Errorf("%+v", got)
	}
}
