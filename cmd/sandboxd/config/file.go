package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFile is the largest configuration file, in bytes.
const maxFile = 1 << 20

// readFile reads one file. It may be missing unless it is required.
func readFile(path string, required bool) *layer {
	l := &layer{entries: make(map[string]entry)}
	r := reader{layer: l, path: path}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) && !required {
		return l
	}
	var text []byte
	if err == nil {
		defer file.Close()
		text, err = io.ReadAll(io.LimitReader(file, maxFile+1))
	}
	switch {
	case err != nil:
		r.fail(0, "", reason(err), "name a readable file")
	case len(text) > maxFile:
		r.fail(0, "", "larger than 1 MiB", "name a configuration file")
	default:
		r.document(text)
	}
	return l
}

// reason is err without the operation and path of package os.
func reason(err error) string {
	if e := new(fs.PathError); errors.As(err, &e) {
		return e.Err.Error()
	}
	return err.Error()
}

// reader reads a file into a layer. It walks the nodes of the YAML, which have line numbers.
type reader struct {
	*layer
	path string
}

func (r *reader) fail(line int, key, problem, fix string) {
	p := Problem{Source: r.path, Line: line, Key: key, Problem: problem, Fix: fix}
	r.errors = append(r.errors, p)
}

func (r *reader) warn(line int, key, problem, fix string) {
	p := Problem{Source: r.path, Line: line, Key: key, Problem: problem, Fix: fix}
	r.warnings = append(r.warnings, p)
}

const oneKeyALine = "write KEY: VALUE, one on a line"

func (r *reader) document(text []byte) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var doc, next yaml.Node
	err := decoder.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return // empty, or only comments
	}
	if err == nil {
		if err = decoder.Decode(&next); err == nil {
			r.fail(next.Line, "", "a second document", "remove the line --- and all below it")
			return
		}
	}
	if !errors.Is(err, io.EOF) && err != nil {
		r.syntax(err)
		return
	}
	switch root := doc.Content[0]; {
	case root.Kind == yaml.MappingNode:
		r.section("", root)
	case root.Tag == nullTag:
	default:
		r.fail(root.Line, "", "not keys with values, but "+shape(root), oneKeyALine)
	}
}

var yamlError = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)`)

func (r *reader) syntax(err error) {
	line, what, fix := 0, err.Error(), "see the example in docs/examples/sandboxd.yaml"
	if m := yamlError.FindStringSubmatch(what); m != nil {
		line, _ = strconv.Atoi(m[1])
		what = m[2]
	}
	if strings.Contains(what, "cannot start any token") {
		fix = "indent with spaces, not with tabs; put text that begins with @, ` or % in quotes"
	}
	r.fail(line, "", "not YAML: "+what, fix)
}

const nullTag = "!!null"

// section reads the keys below prefix.
func (r *reader) section(prefix string, node *yaml.Node) {
	for pair := range slices.Chunk(node.Content, 2) {
		name, value := pair[0], pair[1]
		key := prefix + name.Value
		f := find(key)
		switch {
		case name.Kind != yaml.ScalarNode:
			r.fail(name.Line, "", "a key that is not one word", oneKeyALine)
		case hasAlias(name) || hasAlias(value):
			r.fail(name.Line, key, "aliases (*NAME, <<) are not supported",
				"write the value itself")
		case f != nil:
			r.setting(f, key, prefix, name.Line, value)
		case !isSection(key):
			r.fail(name.Line, "", fmt.Sprintf("unknown key %q", key), suggest(key))
		case value.Kind == yaml.MappingNode:
			r.section(key+".", value)
		case value.Tag != nullTag:
			r.fail(name.Line, key, "a section, not "+shape(value), "indent below it: "+below(key))
		}
	}
}

// setting reads the value of f, which the file calls key.
func (r *reader) setting(f *field, key, prefix string, line int, node *yaml.Node) {
	if first, twice := r.entries[f.Key]; twice {
		r.fail(line, f.Key, fmt.Sprintf("set twice, first in line %d", first.line),
			"remove one of them")
		return
	}
	value, problem, fix := r.value(f, line, node)
	if problem != "" {
		r.fail(line, f.Key, problem, fix)
		return
	}
	switch {
	case key == f.Old:
		r.warn(line, f.Key, "old name "+key, "write "+f.Key)
	case prefix == "" && strings.Contains(key, "."):
		section, name, _ := strings.Cut(key, ".")
		r.warn(line, f.Key, "old form, a key with a dot", "write "+name+" below "+section+":")
	}
	r.entries[f.Key] = entry{value: value, source: r.path, line: line}
}

// value returns the text or texts of node, or why it is invalid for f and what to write.
func (r *reader) value(f *field, line int, node *yaml.Node) (value any, problem, fix string) {
	switch {
	case node.Kind == yaml.ScalarNode && node.Tag == nullTag:
		if f.listed() {
			return []string{}, "", ""
		}
		return "", "", ""
	case node.Kind == yaml.ScalarNode && f.Kind == "text" && node.Tag != "!!str":
		return nil, "not a text, but " + shape(node), "put it in quotes"
	case node.Kind == yaml.ScalarNode:
		if f.listed() && f.Kind != "command" {
			fix := "write a " + f.Kind + ": " + examples[f.Kind]
			r.warn(line, f.Key, "old form, one text for several values", fix)
		}
		return node.Value, "", ""
	case node.Kind == yaml.SequenceNode && f.listed() && f.Kind != "map":
		return elements(node.Content)
	case node.Kind == yaml.MappingNode && f.Kind == "map":
		return pairs(node.Content)
	}
	return nil, "not a " + f.Kind + ", but " + shape(node), "write " + examples[f.Kind]
}

// examples are values of a kind.
var examples = map[string]string{
	"text":     "one text",
	"number":   "a number, such as 64",
	"size":     "a size, such as 512m",
	"duration": "a duration, such as 30m",
	"path":     "one path",
	"network":  "filtered, allowlist, none or bridge",
	"list":     "[FIRST, SECOND]",
	"command":  "[PROGRAM, ARGUMENT]",
	"map":      "{NAME: VALUE}",
}

func elements(nodes []*yaml.Node) (value any, problem, fix string) {
	texts := []string{}
	for _, n := range nodes {
		if n.Tag != "!!str" {
			return nil, "a list with " + shape(n) + " in it", "put texts in quotes"
		}
		texts = append(texts, n.Value)
	}
	return texts, "", ""
}

// pairs returns the pairs of a mapping as KEY=VALUE.
func pairs(nodes []*yaml.Node) (value any, problem, fix string) {
	texts, seen := []string{}, map[string]bool{}
	for pair := range slices.Chunk(nodes, 2) {
		name, n := pair[0], pair[1]
		switch {
		case name.Kind != yaml.ScalarNode || n.Tag != "!!str":
			return nil, "a map with " + shape(n) + " in it",
				"write NAME: VALUE, and put texts in quotes"
		case strings.Contains(name.Value, "="):
			return nil, fmt.Sprintf("a name with = in it: %q", name.Value), "use another name"
		case seen[name.Value]:
			return nil, fmt.Sprintf("%q set twice", name.Value), "remove one of them"
		}
		seen[name.Value] = true
		texts = append(texts, name.Value+"="+n.Value)
	}
	return texts, "", ""
}

// hasAlias reports whether node refers to another one. No setting needs aliases, and a few lines of
// them can expand to gigabytes.
func hasAlias(node *yaml.Node) bool {
	return node.Kind == yaml.AliasNode || node.Tag == "!!merge" ||
		slices.ContainsFunc(node.Content, hasAlias)
}

// shape describes node for the user.
func shape(node *yaml.Node) string {
	switch {
	case node.Kind == yaml.SequenceNode:
		return "a list"
	case node.Kind == yaml.MappingNode:
		return "keys with values"
	case node.Tag == "!!int", node.Tag == "!!float":
		return "a number"
	case node.Tag == "!!bool":
		return "true or false"
	case node.Tag == "!!timestamp":
		return "a date"
	case node.Tag == nullTag:
		return "nothing"
	}
	return "a text"
}

// below lists the keys of a section.
func below(section string) string {
	var names []string
	for _, f := range fields() {
		if name, ok := strings.CutPrefix(f.Key, section+"."); ok {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}
