package config

import (
	"cmp"
	_ "embed"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// field describes one setting.
type field struct {
	Key      string // dotted, as in quota.memory
	Kind     string // text, number, size, duration, path, network, list, command or map
	Default  string // as in a variable
	Computed string // how the default is computed, if it depends on the machine
	Meaning  string
	OneOf    []string // the allowed values; nil: all of its kind
	Flag     string   // such as "serve --ssh"; empty if no flag sets it
	Old      string   // its former key
	Secret   bool

	prefix string // the only prefix of its variable; empty: each of prefixes
	typ    reflect.Type
}

// variable returns its environment variable, as in the reference.
func (f *field) variable() string {
	return cmp.Or(f.prefix, "SANDBOXD_") + envName(f.Key)
}

// listed reports whether its value is a list or a map.
func (f *field) listed() bool {
	return f.typ.Kind() == reflect.Slice || f.typ.Kind() == reflect.Map
}

func envName(key string) string { return strings.ToUpper(strings.ReplaceAll(key, ".", "_")) }

// section is a key that has keys below it.
type section struct{ Key, Meaning string }

// fields returns every setting, in the order of Config.
func fields() []*field { return scan().fields }

// sections returns every section, in the order of Config.
func sections() []section { return scan().sections }

type table struct {
	fields   []*field
	byKey    map[string]*field // former keys, too
	sections []section
}

var scan = sync.OnceValue(func() table {
	t := table{byKey: make(map[string]*field)}
	t.add(reflect.TypeFor[Config](), "", meanings(source))
	return t
})

func (t *table) add(typ reflect.Type, prefix string, meaning map[string]string) {
	for f := range typ.Fields() {
		key, about := prefix+f.Tag.Get("koanf"), meaning[typ.Name()+"."+f.Name]
		if _, leaf := kinds[f.Type]; !leaf {
			t.sections = append(t.sections, section{key, about})
			t.add(f.Type, key+".", meaning)
			continue
		}
		setting := &field{
			Key: key, Kind: kinds[f.Type], Meaning: about, typ: f.Type,
			Default: f.Tag.Get("default"), Computed: f.Tag.Get("computed"),
			OneOf: strings.Fields(f.Tag.Get("oneof")), Flag: f.Tag.Get("flag"),
			Old: f.Tag.Get("old"), Secret: f.Tag.Get("secret") != "", prefix: f.Tag.Get("env"),
		}
		t.fields = append(t.fields, setting)
		t.byKey[key] = setting
		if setting.Old != "" {
			t.byKey[setting.Old] = setting
		}
	}
}

// source is the source text of Config. The comment of each field is its meaning: Go keeps no
// comments at run time, and a tag cannot have several lines.
//
//go:embed settings.go
var source string

var (
	typeLine  = regexp.MustCompile(`^type (\w+) struct`)
	fieldLine = regexp.MustCompile(`^\t(\w+) .*koanf:`)
)

// meanings returns the comments of fields, by TYPE.FIELD.
func meanings(source string) map[string]string {
	all := make(map[string]string)
	var typ string
	var comment []string
	for line := range strings.Lines(source) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "//"); ok {
			comment = append(comment, strings.TrimSpace(text))
			continue
		}
		if m := typeLine.FindStringSubmatch(line); m != nil {
			typ = m[1]
		} else if m := fieldLine.FindStringSubmatch(line); m != nil {
			all[typ+"."+m[1]] = strings.Join(comment, " ")
		}
		comment = nil
	}
	return all
}

// find returns the setting with a key or former key, or nil.
func find(key string) *field {
	return scan().byKey[key]
}

func isSection(key string) bool {
	return slices.ContainsFunc(sections(), func(s section) bool { return s.Key == key })
}

// suggest returns the fix for an unknown key.
func suggest(unknown string) string {
	if near := nearest(unknown, knownKeys()); near != "" {
		return "did you mean " + near + "?"
	}
	return "to list all keys: sandboxd config show"
}

// knownKeys returns the keys of settings and sections.
func knownKeys() []string {
	var keys []string
	for _, f := range fields() {
		keys = append(keys, f.Key)
	}
	for _, s := range sections() {
		keys = append(keys, s.Key)
	}
	return keys
}

// nearest returns the word that is most similar to s, or "" if none is similar.
func nearest(s string, words []string) string {
	best, at := "", len(s)/3+2
	for _, w := range words {
		if d := text.Distance(strings.ToLower(s), strings.ToLower(w)); d < at {
			best, at = w, d
		}
	}
	return best
}
