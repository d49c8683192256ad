package config

import (
	"slices"
	"strings"
)

// prefixes are the prefixes of variables. If two variables set one key, the last prefix wins.
var prefixes = []string{"SBX_", "SANDBOXD_"}

// notSettings are variables of the command line, and of a hook's command. TEST_… variables are for
// tests of sandboxd.
var notSettings = []string{"GATEWAY", "CONFIG", "HOOK_SANDBOX", "HOOK_SESSION", "HOOK_NEEDS",
	"HOOK_WANT", "HOOK_WAS", "HOOK_OWNER"}

// readEnviron reads the variables with one prefix. An unknown one is a warning, because it may
// belong to another product. An empty one counts as unset, because environment files cannot unset
// one.
func readEnviron(prefix string, environ []string) *layer {
	l := &layer{entries: make(map[string]entry)}
	for _, kv := range environ {
		variable, value, _ := strings.Cut(kv, "=")
		name, ours := strings.CutPrefix(variable, prefix)
		switch f := findVariable(name); {
		case !ours, value == "", slices.Contains(notSettings, name),
			strings.HasPrefix(name, "TEST_"):
		case f == nil:
			l.warnings = append(l.warnings, Problem{Source: variable,
				Problem: "not a setting of sandboxd", Fix: suggestVariable(prefix, name)})
		case f.prefix != "" && f.prefix != prefix:
			l.warnings = append(l.warnings, Problem{Source: variable, Key: f.Key,
				Problem: "ignored, because another product uses this variable", Fix: "set " +
					f.variable()})
		default:
			if f.Old != "" && name == envName(f.Old) {
				l.warnings = append(l.warnings, Problem{Source: variable, Key: f.Key,
					Problem: "old name", Fix: "set " + prefix + envName(f.Key)})
			}
			l.entries[f.Key] = entry{value: value, source: variable}
		}
	}
	return l
}

// findVariable returns the setting of the variable PREFIX_name, or nil.
func findVariable(name string) *field {
	for _, f := range fields() {
		if envName(f.Key) == name || f.Old != "" && envName(f.Old) == name {
			return f
		}
	}
	return nil
}

// suggestVariable returns the fix for an unknown variable.
func suggestVariable(prefix, name string) string {
	var known []string
	for _, f := range fields() {
		known = append(known, envName(f.Key))
	}
	if near := nearest(name, known); near != "" {
		return "did you mean " + prefix + near + "?"
	}
	return "if another product uses it, ignore this"
}
