package conformance

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/agent"
)

// Facts are fields of a result by name, for the report.
type Facts map[string]any

// answer is the result of a step.
type answer struct {
	result  agent.Result
	bytes   string
	stderr  string
	elapsed time.Duration
}

// longest is the maximal length of a reported text.
const longest = 200

// short shortens a reported text in its middle.
func short(s string) string {
	if len(s) <= longest {
		return s
	}
	head, tail := s[:longest/2], s[len(s)-longest/2:]
	return strings.ToValidUTF8(head, "") + fmt.Sprintf("… %d bytes …", len(s)-longest) +
		strings.ToValidUTF8(tail, "")
}

// check compares a result with w. got and want have the checked fields. failed has the names of
// those that differ, in the order of Want. slow is a factor for LatestMS.
func (w Want) check(a answer, slow float64) (got, want Facts, failed []string) {
	got, want = make(Facts), make(Facts)
	r := a.result
	judge := func(name string, ok bool, is, must any) {
		got[name], want[name] = is, must
		if !ok {
			failed = append(failed, name)
		}
	}
	if len(w.Ended) > 0 {
		judge("ended", slices.Contains(w.Ended, r.Ended), r.Ended, w.Ended)
	}
	if len(w.Phase) > 0 {
		judge("phase", slices.Contains(w.Phase, r.Phase), r.Phase, w.Phase)
	}
	if len(w.Want) > 0 {
		judge("want", slices.Contains(w.Want, r.Want), r.Want, w.Want)
	}
	if w.Listens != nil {
		judge("listens", r.Listens == *w.Listens, r.Listens, *w.Listens)
	}
	if w.Attention != "" {
		judge("attention", r.Attention == w.Attention, r.Attention, w.Attention)
	}
	if w.ExitCode != nil {
		judge("exit_code", r.ExitCode != nil && *r.ExitCode == *w.ExitCode, r.ExitCode, *w.ExitCode)
	}
	if w.Signal != "" {
		judge("signal", r.Signal != nil && *r.Signal == w.Signal, r.Signal, w.Signal)
	}
	if w.Error != "" {
		judge("error", r.Error != nil && r.Error.Code == w.Error, r.Error, w.Error)
	}
	if w.Note != "" {
		judge("notes", slices.Contains(r.Notes, w.Note), r.Notes, w.Note)
	}
	if w.Cwd != "" {
		judge("cwd", r.Cwd == w.Cwd, r.Cwd, w.Cwd)
	}
	if w.Depth != nil {
		depth := 0
		if r.Shell != nil {
			depth = r.Shell.Depth
		}
		judge("depth", depth == *w.Depth, depth, *w.Depth)
	}
	if w.Program != "" {
		judge("program", r.Program == w.Program, r.Program, w.Program)
	}
	if w.Foreground != "" {
		var name string
		if r.Foreground != nil && len(r.Foreground.Argv) > 0 {
			name = filepath.Base(r.Foreground.Argv[0])
		}
		judge("foreground", name == w.Foreground, name, w.Foreground)
	}
	if len(w.Basis) > 0 {
		judge("basis", len(r.Basis) > 0 && slices.Contains(w.Basis, r.Basis[0]), r.Basis, w.Basis)
	}
	text := func(name string, t *Text, is string) {
		if t != nil {
			must, ok := t.holds(is)
			judge(name, ok, short(is), must)
		}
	}
	text("prompt", w.Prompt, r.Prompt)
	text("output", w.Output, r.Output)
	text("bytes", w.Bytes, a.bytes)
	text("stderr", w.Stderr, a.stderr)
	var shown string
	if r.Screen != nil {
		shown = r.Screen.Text
	}
	text("screen", w.Screen, shown)
	if len(w.Steps) > 0 {
		judge(
			"receipt.steps",
			r.Receipt != nil && slices.Equal(r.Receipt.Steps, w.Steps),
			r.Receipt,
			w.Steps,
		)
	}
	if w.Died {
		judge(
			"receipt.died",
			r.Receipt != nil && len(r.Receipt.Died) > 0 && len(r.Receipt.Left) == 0,
			r.Receipt,
			"some, none left",
		)
	}
	ms := a.elapsed.Milliseconds()
	if w.LatestMS > 0 {
		judge("latest_ms", float64(ms) <= float64(w.LatestMS)*slow, ms, w.LatestMS)
	}
	if w.EarliestMS > 0 {
		judge("earliest_ms", ms >= w.EarliestMS, ms, w.EarliestMS)
	}
	return got, want, failed
}

// holds reports whether s matches. must describes the first rule that s breaks, or all rules.
func (t *Text) holds(s string) (must any, ok bool) {
	var rules []string
	type rule struct {
		ok   bool
		says string
	}
	var all []rule
	if t.Is != nil {
		all = append(all, rule{s == *t.Is, fmt.Sprintf("is %q", short(*t.Is))})
	}
	for _, has := range t.Has {
		all = append(all, rule{strings.Contains(s, has), fmt.Sprintf("has %q", short(has))})
	}
	for _, lacks := range t.Lacks {
		all = append(all, rule{!strings.Contains(s, lacks), fmt.Sprintf("lacks %q", short(lacks))})
	}
	if t.Matches != "" {
		re, err := regexp.Compile(t.Matches)
		all = append(all, rule{err == nil && re.MatchString(s), "matches " + t.Matches})
	}
	if t.Length != nil {
		all = append(
			all,
			rule{len(s) == *t.Length, fmt.Sprintf("has %d bytes, not %d", *t.Length, len(s))},
		)
	}
	if t.SHA256 != "" {
		sum := sha256.Sum256([]byte(s))
		is := hex.EncodeToString(sum[:])
		all = append(all, rule{is == t.SHA256, fmt.Sprintf("has SHA-256 %s, not %s", t.SHA256, is)})
	}
	for _, r := range all {
		if !r.ok {
			return r.says, false
		}
		rules = append(rules, r.says)
	}
	return strings.Join(rules, ", "), true
}
