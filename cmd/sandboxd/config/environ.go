package config

import (
	"slices"
	"strings"
)

// prefixes of variables; of two that set one key, that with the last prefix counts.
var prefixes = []string{"SBX_", "SANDBOXD_"}

// notSettings are variables of the command line, and those that a hook's command gets; TEST_… are
// for tests of sandboxd.
var notSettings = []string{"GATEWAY", "CONFIG", "HOOK_SANDBOX", "HOOK_SESSION", "HOOK_NEEDS",
	"HOOK_WANT", "HOOK_WAS", "HOOK_OWNER"}

// readEnviron reads the variables with one prefix. An unknown one may be another product's: that
// is a warning. An empty one is as good as unset, because environment files cannot unset.
func readEnviron(prefix string, environ []string) *layer {
	l := &layer{entries: make(map[string]entry)}
	for _, kv := range environ {
		variable, value, _ := strings.Cut(kv, "=")
		name, ours := strings.CutPrefix(variable, prefix)
		switch f := findVariable(name); {
		case !ours, value == "", slices.Contains(notSettings, name), strings.HasPrefix(name, "TEST_"):
		case f == nil:
			l.warnings = append(l.warnings, Problem{Source: variable,
				Problem: "not a setting of sandboxd", Fix: suggestVariable(prefix, name)})
		case f.prefix != "" && f.prefix != prefix:
			l.warnings = append(l.warnings, Problem{Source: variable, Key: f.Key,
				Problem: "ignored, because another product uses this variable", Fix: "set " + f.variable()})
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

// findVariable returns the setting that NAME of PREFIX_NAME means; nil: none.
func findVariable(name string) *field {
	for _, f := range fields() {
		if envName(f.Key) == name || f.Old != "" && envName(f.Old) == name {
			return f
		}
	}
	return nil
}

// suggestVariable returns what to do about an unknown variable.
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
