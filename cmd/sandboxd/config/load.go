package config

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/adrg/xdg"
	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/v2"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Sources are the sources of settings, besides their defaults. Later ones override earlier ones.
type Sources struct {
	Usual   []string          // files that may be missing
	File    string            // a file that must exist; empty: none
	Environ []string          // as from os.Environ
	Flags   map[string]string // by key
}

// Loaded is the effective configuration.
type Loaded struct {
	Config
	Errors   []Problem // Config is valid only if there are none
	Warnings []Problem // deprecated or ineffective settings

	merged *koanf.Koanf
	layers []*layer
}

// A Problem is one error or warning, and its fix.
type Problem struct {
	Source  string `json:"source"` // a file, a variable or a flag
	Line    int    `json:"line,omitempty"`
	Key     string `json:"key,omitempty"`
	Value   string `json:"value,omitempty"`
	Problem string `json:"problem"`
	Fix     string `json:"fix"`
}

// Where returns SOURCE, or FILE:LINE.
func (p Problem) Where() string { return where(p.Source, p.Line) }

// Message returns the problem in one line, without the fix.
func (p Problem) Message() string {
	what := p.Where() + ": "
	if p.Key != "" {
		what += p.Key
		if p.Value != "" {
			what += " " + strconv.Quote(p.Value)
		}
		what += ": "
	}
	return what + p.Problem
}

// layer has the settings of one source: the value of each key is a string or a []string.
type layer struct {
	entries  map[string]entry
	errors   []Problem
	warnings []Problem
}

type entry struct {
	value  any
	source string
	line   int
}

// Read implements koanf.Provider.
func (l *layer) Read() (map[string]any, error) {
	tree := make(map[string]any)
	for key, e := range l.entries {
		at := tree
		if section, name, nested := strings.Cut(key, "."); nested {
			if at[section] == nil {
				at[section] = make(map[string]any)
			}
			at, key = at[section].(map[string]any), name
		}
		at[key] = e.value
	}
	return tree, nil
}

// ReadBytes is not called: a layer needs no parser.
func (l *layer) ReadBytes() ([]byte, error) { return nil, errors.ErrUnsupported }

// Load reads and checks all sources. It reports every problem, not only the first.
func Load(s Sources) *Loaded {
	c := &Loaded{merged: koanf.New(".")}
	c.add(defaults())
	for _, path := range s.Usual {
		c.add(readFile(path, false))
	}
	if s.File != "" {
		c.add(readFile(s.File, true))
	}
	for _, prefix := range prefixes {
		c.add(readEnviron(prefix, s.Environ))
	}
	c.add(readFlags(s.Flags))
	for key, err := range c.crossCheck() {
		c.Errors = append(c.Errors, c.problem(key, c.entry(key), err))
	}
	return c
}

// Err returns all errors as one usage error, or nil.
func (c *Loaded) Err() error {
	if len(c.Errors) == 0 {
		return nil
	}
	hint := c.Errors[0].Fix
	if more := len(c.Errors) - 1; more > 0 {
		hint += fmt.Sprintf(" (%d more: sandboxd config check FILE)", more)
	}
	return &wire.Error{Code: wire.CodeUsage, Message: c.Errors[0].Message(), Hint: hint}
}

// Origin returns the origin of the value of a key: FILE:LINE, a variable, a flag, or default.
func (c *Loaded) Origin(key string) string {
	e := c.entry(key)
	return where(e.source, e.line)
}

// Source is Origin without the line.
func (c *Loaded) Source(key string) string { return c.entry(key).source }

// IsSet reports whether a source other than the defaults sets key.
func (c *Loaded) IsSet(key string) bool { return c.Source(key) != byDefault }

const byDefault = "default"

func (c *Loaded) entry(key string) entry {
	for _, l := range slices.Backward(c.layers) {
		if e, ok := l.entries[key]; ok {
			return e
		}
	}
	return entry{}
}

// add adds a layer that overrides the others, and checks its settings.
func (c *Loaded) add(l *layer) {
	c.layers = append(c.layers, l)
	c.Warnings = append(c.Warnings, l.warnings...)
	found := slices.Clone(l.errors)
	if err := c.merged.Load(l, nil); err != nil {
		found = append(found, Problem{Source: "config", Problem: err.Error()})
	}
	wrong := c.decode()
	for key, err := range c.check() {
		if wrong[key] == nil {
			wrong[key] = err
		}
	}
	for key, e := range l.entries {
		if err := wrong[key]; err != nil {
			found = append(found, c.problem(key, e, err))
		}
	}
	slices.SortFunc(found, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Key, b.Key))
	})
	c.Errors = append(c.Errors, found...)
}

// problem returns the Problem of the value of a key. Errors of values read "problem; what to
// write".
func (c *Loaded) problem(key string, e entry, err error) Problem {
	p := Problem{Source: e.source, Line: e.line, Key: key}
	p.Problem, p.Fix, _ = strings.Cut(err.Error(), "; ")
	if f := find(key); f != nil {
		if p.Fix = cmp.Or(p.Fix, f.Meaning); !f.Secret {
			p.Value = plain(f, e.value)
		}
	}
	return p
}

// decode sets Config from all layers, and returns the errors by key.
func (c *Loaded) decode() map[string]error {
	c.Config = Config{}
	wrong := make(map[string]error)
	err := c.merged.UnmarshalWithConf("", &c.Config, koanf.UnmarshalConf{
		DecoderConfig: &mapstructure.DecoderConfig{DecodeHook: decodeText, ErrorUnused: true},
	})
	collect(err, wrong)
	return wrong
}

// collect puts the errors of fields in err into wrong.
func collect(err error, wrong map[string]error) {
	switch e := err.(type) { //nolint:errorlint // walks the tree of wrapped errors
	case *mapstructure.DecodeError:
		key, _, _ := strings.Cut(e.Name(), "[") // of an element
		wrong[key] = e.Unwrap()
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			collect(one, wrong)
		}
	case interface{ Unwrap() error }:
		collect(e.Unwrap(), wrong)
	}
}

// decodeText converts the text or texts of a setting to its type.
func decodeText(from, to reflect.Type, data any) (any, error) {
	if to == reflect.TypeFor[Templates]() {
		return readTemplates(data)
	}
	text, ok := data.(string)
	if !ok {
		return data, nil
	}
	value := reflect.New(to)
	switch v := value.Interface().(type) {
	case encoding.TextUnmarshaler:
		err := v.UnmarshalText([]byte(text))
		return value.Elem().Interface(), err
	case *int, *int64:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, errors.New("not a whole number; write digits only, such as 64")
		}
		return n, nil
	case *float64:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, errors.New("not a number; write one such as 8 or 2.5")
		}
		return n, nil
	}
	if l, ok := reflect.Zero(to).Interface().(list); ok {
		return l.split(text), nil
	}
	return data, nil
}

// readTemplates reads NAME=IMAGE, from one text or several.
func readTemplates(data any) (any, error) {
	words, several := data.([]string)
	if text, ok := data.(string); ok {
		words = command.Words(text)
	} else if !several {
		return data, nil
	}
	all := make(Templates)
	for _, word := range words {
		name, image, ok := strings.Cut(word, "=")
		if !ok || name == "" || image == "" {
			return nil, fmt.Errorf("%q is not NAME=IMAGE; write NAME: IMAGE below the key", word)
		}
		all[name] = image
	}
	return all, nil
}

func defaults() *layer {
	computed := map[string]string{"state": agent.DefaultState(), "mount_roots": none}
	home, err := os.UserHomeDir()
	if err == nil && filepath.IsAbs(home) && filepath.Clean(home) != "/" {
		computed["mount_roots"] = home
	}
	if os.Getuid() != 0 {
		computed["oci.images"] = filepath.Join(xdg.DataHome, "sandboxd", "images")
	}
	l := &layer{entries: make(map[string]entry)}
	for _, f := range fields() {
		l.entries[f.Key] = entry{value: cmp.Or(computed[f.Key], f.Default), source: byDefault}
	}
	return l
}

func readFlags(flags map[string]string) *layer {
	l := &layer{entries: make(map[string]entry)}
	for _, key := range slices.Sorted(maps.Keys(flags)) {
		words := strings.Fields(find(key).Flag)
		l.entries[key] = entry{value: flags[key], source: words[len(words)-1]}
	}
	return l
}

func where(source string, line int) string {
	if line > 0 {
		return source + ":" + strconv.Itoa(line)
	}
	return source
}
