package conformance

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/agent"
)

func TestWant(t *testing.T) {
	const sum = "73cb3858a687a8494ca3323053016282f3dad39d42cf62ca4e79dda2aac7d9ac"
	zero, three, yes, sig := 0, 3, true, "TERM"
	exact, empty := "x\n", ""
	base := answer{
		elapsed: 40 * time.Millisecond,
		bytes:   "x\r\n",
		stderr:  "oops",
		result: agent.Result{
			Ended: agent.EndedDone, Phase: agent.PhasePrompt, ExitCode: &three, Output: "x\n",
			Prompt: "name? ", Cwd: "/tmp", Notes: []string{"shell_restarted"},
			Basis: []agent.Basis{
				agent.BasisProcess,
				agent.BasisMark,
			}, Foreground: &agent.Process{Argv: []string{"/usr/bin/cat"}},
			Attention: "no", Signal: &sig, Error: &agent.Error{Code: agent.CodeSyntax},
			Receipt: &agent.Receipt{Steps: []string{"^C", "TERM"}, Died: []int{4}}},
	}
	for name, c := range map[string]struct {
		want   Want
		failed string // fields, in order
	}{
		"nothing":           {Want{}, ""},
		"ended":             {Want{Ended: []agent.Ended{agent.EndedWaiting, agent.EndedDone}}, ""},
		"other end":         {Want{Ended: []agent.Ended{agent.EndedWaiting}}, "ended"},
		"exit code":         {Want{ExitCode: &three}, ""},
		"other exit code":   {Want{ExitCode: &zero}, "exit_code"},
		"kind of input":     {Want{Want: []agent.Want{agent.WantLine}}, "want"},
		"signal":            {Want{Signal: "TERM"}, ""},
		"error":             {Want{Error: agent.CodeSyntax, Note: "shell_restarted"}, ""},
		"other error":       {Want{Error: agent.CodeDenied, Note: "oom_killed"}, "error notes"},
		"front":             {Want{Foreground: "cat", Cwd: "/tmp"}, ""},
		"other front":       {Want{Foreground: "tac", Cwd: "/"}, "cwd foreground"},
		"layer":             {Want{Basis: []agent.Basis{agent.BasisProcess}}, ""},
		"not the strongest": {Want{Basis: []agent.Basis{agent.BasisMark}}, "basis"},
		"texts": {Want{Prompt: &Text{Has: []string{"name"}}, Output: &Text{Is: &exact},
			Bytes: &Text{Length: &three}, Stderr: &Text{Matches: "^o+ps$"}}, ""},
		"other texts": {Want{Prompt: &Text{Lacks: []string{"name"}},
			Output: &Text{Is: &empty}, Bytes: &Text{Length: &zero}, Stderr: &Text{Matches: "^p"}},
			"prompt output bytes stderr"},
		"no expression":  {Want{Output: &Text{Matches: "("}}, "output"},
		"checksum":       {Want{Output: &Text{SHA256: sum}}, ""},
		"other checksum": {Want{Bytes: &Text{SHA256: sum}}, "bytes"},
		"receipt":        {Want{Steps: []string{"^C", "TERM"}, Died: true}, ""},
		"other receipt":  {Want{Steps: []string{"^C"}}, "receipt.steps"},
		"listening":      {Want{Listens: &yes, Attention: "likely"}, "listens attention"},
		"in time":        {Want{LatestMS: 40, EarliestMS: 40}, ""},
		"too late":       {Want{LatestMS: 19}, "latest_ms"},
		"slow machine":   {Want{LatestMS: 20}, ""},
		"too early":      {Want{EarliestMS: 41}, "earliest_ms"},
	} {
		got, want, failed := c.want.check(base, 2)
		if s := strings.Join(failed, " "); s != c.failed {
			t.Errorf("%s: %q failed, want %q (got %v, want %v)", name, s, c.failed, got, want)
		}
	}
}

// TestWantOfNothing checks that a result without the expected fields fails and does not panic.
func TestWantOfNothing(t *testing.T) {
	n, yes := 0, true
	w := Want{
		Ended:      []agent.Ended{agent.EndedDone},
		Phase:      []agent.Phase{agent.PhasePrompt},
		Want:       []agent.Want{agent.WantLine},
		Listens:    &yes,
		Attention:  "no",
		ExitCode:   &n,
		Signal:     "INT",
		Error:      agent.CodeLost,
		Note:       "n",
		Cwd:        "/",
		Foreground: "sh",
		Basis:      []agent.Basis{agent.BasisExit},
		Prompt:     &Text{Has: []string{"x"}},
		Steps:      []string{"^C"},
		Died:       true,
		EarliestMS: 1,
	}
	_, want, failed := w.check(answer{}, 1)
	if len(failed) != len(want) || len(failed) != 16 {
		t.Errorf("%d of %d fields failed: %v", len(failed), len(want), failed)
	}
}

func TestShort(t *testing.T) {
	long := strings.Repeat("é", 1000)
	if s := short(long); len(s) > longest+30 ||
		!slices.Equal([]byte(s), []byte(strings.ToValidUTF8(s, "?"))) {
		t.Errorf("%q", s)
	}
	if s := short("as it is"); s != "as it is" {
		t.Errorf("%q", s)
	}
}
