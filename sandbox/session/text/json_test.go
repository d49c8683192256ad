package text

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// written is v as WriteJSON has it, of which nothing may reach a terminal that it does not print.
func written(t *testing.T, v any) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := WriteJSON(&out, v); err != nil {
		t.Fatal(err)
	}
	line, ended := strings.CutSuffix(out.String(), "\n")
	if !ended || !utf8.ValidString(line) {
		t.Fatalf("no line of UTF-8: %q", line)
	}
	for _, r := range line {
		if !strconv.IsPrint(r) {
			t.Fatalf("%U is written as it is, in %.200q", r, line)
		}
	}
	return out.Bytes()
}

// Every character of Unicode comes back as it was, as a value and as a key, and only what is
// printed is written as it is.
func TestWriteJSON(t *testing.T) {
	const block = 1 << 10
	for first := rune(0); first <= unicode.MaxRune; first += block {
		var all strings.Builder
		for r := first; r < first+block; r++ {
			if utf8.ValidRune(r) {
				all.WriteRune(r)
			}
		}
		want := all.String()
		var got map[string]string
		if err := json.Unmarshal(written(t, map[string]string{"value": want, want: "key"}),
			&got); err != nil {
			t.Fatal(err)
		}
		if got["value"] != want || got[want] != "key" {
			t.Fatalf("characters from %U on have changed", first)
		}
	}
	if got := string(written(t, map[string]any{"a<b>": "é 日本 \u009b31m\u202e\x7f\U000e0041",
		"raw": json.RawMessage("\"\x9b \\u009b\"")})); got !=
		`{"a<b>":"é 日本 \u009b31m\u202e\u007f\udb40\udc41","raw":"\ufffd \u009b"}`+"\n" {
		t.Errorf("got %s", got)
	}
}

// JSON of others, which may be no UTF-8, means the same as before.
func FuzzWriteJSON(f *testing.F) {
	f.Add([]byte("{\"a\x9b\": [1, \"\xe2\x80\", \"\\ud800\", null]}"))
	f.Add([]byte(`"\u202e` + "\u202e\x7f" + `"`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var want any
		if json.Unmarshal(raw, &want) != nil {
			t.Skip()
		}
		var got any
		if err := json.Unmarshal(written(t, json.RawMessage(raw)), &got); err != nil {
			t.Fatal(err)
		}
		a, _ := json.Marshal(want)
		b, _ := json.Marshal(got)
		if !bytes.Equal(a, b) {
			t.Errorf("%s has become %s", a, b)
		}
	})
}
