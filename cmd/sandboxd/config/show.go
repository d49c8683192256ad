package config

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// A Setting is one key with its effective value.
type Setting struct {
	Key    string `json:"key"`
	Value  string `json:"value"` // as in a variable
	Origin string `json:"origin"`
}

const hidden = "(hidden)"

// Settings returns every setting. It hides the values of secrets.
func (c *Loaded) Settings() []Setting {
	var all []Setting
	for _, f := range fields() {
		value := plain(f, c.merged.Get(f.Key))
		if f.Secret && value != "" {
			value = hidden
		}
		all = append(all, Setting{f.Key, value, c.Origin(f.Key)})
	}
	return all
}

// plain returns a value in the form of a variable.
func plain(f *field, value any) string {
	texts, several := value.([]string)
	if !several {
		text, _ := value.(string)
		return text
	}
	switch l := reflect.Zero(f.typ).Interface().(type) {
	case Command:
		return text.Quote(texts...)
	case list:
		return l.join(texts)
	}
	return strings.Join(texts, " ")
}

// Write prints the effective configuration as a file that Load can read, each key with its meaning
// and the origin of its value. It hides secrets.
func (c *Loaded) Write(w io.Writer) error {
	var b bytes.Buffer
	section := ""
	for _, f := range fields() {
		indent, name := "", f.Key
		if in, short, nested := strings.Cut(f.Key, "."); nested {
			if in != section {
				section = in
				fmt.Fprintf(&b, "%s:\n", section)
			}
			indent, name = "  ", short
		}
		value, comment := c.yaml(f), ""
		if f.Secret && plain(f, c.merged.Get(f.Key)) != "" {
			value, comment = hidden, "# "
		}
		for _, line := range wrap(f.Meaning, 96) {
			fmt.Fprintf(&b, "%s# %s\n", indent, line)
		}
		fmt.Fprintf(&b, "%s%s%s: %s  # from %s\n", indent, comment, name, value, c.Origin(f.Key))
	}
	_, err := w.Write(b.Bytes())
	return err
}

// wrap splits text at spaces into lines of at most width bytes.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return append(lines, line)
}

// yaml returns the value of f on one line of YAML.
func (c *Loaded) yaml(f *field) string {
	value := c.merged.Get(f.Key)
	text, single := value.(string)
	switch {
	case f.listed():
		decoded, _ := decodeText(nil, f.typ, value) // checked when it was loaded
		node := new(yaml.Node)
		_ = node.Encode(decoded) // only strings
		node.Style = yaml.FlowStyle
		return oneLine(node)
	case single && f.Kind == "text", text == "":
		return oneLine(text)
	}
	return text
}

func oneLine(v any) string {
	text, err := yaml.Marshal(v)
	if s, ok := v.(string); ok && (err != nil || bytes.Count(text, []byte("\n")) > 1) {
		return strconv.QuoteToASCII(s) // also valid YAML
	}
	return strings.TrimSpace(string(text))
}
