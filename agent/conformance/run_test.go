package conformance_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
	"github.com/sandboxd/sandboxd/agent/conformance/corpus"
)

// TestRunner runs cases that pass, that fail, and that break in several ways, and checks their
// outcomes.
func TestRunner(t *testing.T) {
	ctx := bounded(t)
	dial := gatewayOf(t)
	client, err := dial(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	done := func(exit int) conformance.Want {
		return conformance.Want{Ended: []agent.Ended{agent.EndedDone}, ExitCode: &exit}
	}
	run := func(command string, w conformance.Want) conformance.Step {
		return conformance.Step{Do: conformance.Run, Text: command, Want: w}
	}
	waits := conformance.Want{Ended: []agent.Ended{agent.EndedWaiting}}
	x := "x"
	cases := []conformance.Case{
		{
			Name: "holds",
			Steps: []conformance.Step{
				run("exit_with() { return $1; }; exit_with 3", done(3)),
				run("true", done(0)),
			},
		},
		{
			Name: "differs",
			Steps: []conformance.Step{
				run("true", done(0)),
				run("(exit 4)", done(3)),
				run("true", done(0)),
			},
		},
		{
			Name: "files",
			Files: []conformance.File{
				{Path: "conformance-file", Text: "#!/bin/sh\necho here\n", Mode: "755"},
			},
			Setup: "test -s conformance-file",
			Steps: []conformance.Step{
				run(
					"./conformance-file",
					conformance.Want{Output: &conformance.Text{Has: []string{"here"}}},
				),
			},
			Cleanup: "rm conformance-file",
		},
		{
			Name:  "no-setup",
			Setup: "echo why >&2; exit 5",
			Steps: []conformance.Step{run("true", done(0))},
		},
		{Name: "no-cleanup", Steps: []conformance.Step{run("true", done(0))}, Cleanup: "exit 6"},
		{
			Name:  "wedged",
			Steps: []conformance.Step{run("trap '' INT TERM; while read -r x; do :; done", waits)},
		},
		{Name: "after-wedged", Steps: []conformance.Step{run("true", done(0))}},
		{Name: "answers", Steps: []conformance.Step{run("read -r x; echo $x", waits),
			{
				Do:   conformance.Type,
				Text: "x",
				Want: conformance.Want{ExitCode: new(int)},
			},
			{Do: conformance.Screen,
				Want: conformance.Want{Output: &conformance.Text{Has: []string{"x"}}}}}},
		{
			Name: "keys",
			Steps: []conformance.Step{
				run("cat", waits),
				{Do: conformance.Raw, Text: "x", TimeoutMS: 100},
				{
					Do:   conformance.Keys,
					Keys: []string{"^D", "^D"},
					Want: done(0),
				},
				{Do: conformance.Wait, For: []agent.Phase{agent.PhasePrompt}, Want: done(0)},
			},
		},
		// Start the shell before the command, whose time limit is short.
		{Name: "stops", Steps: []conformance.Step{run("true", done(0)),
			{
				Do:        conformance.Run,
				Text:      "sleep 100",
				TimeoutMS: 2000,
				Want:      conformance.Want{Ended: []agent.Ended{agent.EndedDeadline}},
			},
			{Do: conformance.Interrupt, Want: conformance.Want{Steps: []string{"^C"}}}}},
		{
			Name: "two-shells",
			Steps: []conformance.Step{
				{
					Do:   conformance.Run,
					Text: ": >two-shells; sleep 100",
					Want: conformance.Want{Ended: []agent.Ended{agent.EndedInterrupted}},
					Meanwhile: []conformance.Step{
						{
							Do:    conformance.Run,
							Shell: "b",
							Text:  "until test -e two-shells; do sleep 0.1; done",
							Want:  done(0),
						},
						{Do: conformance.End, Shell: "b"},
						{Do: conformance.Interrupt},
					},
				},
			},
			Cleanup: "rm two-shells",
		},
		{
			Name: "exec",
			Steps: []conformance.Step{
				{
					Do:    conformance.Exec,
					Text:  "cat; echo e >&2; exit 2",
					Stdin: "x",
					Want: conformance.Want{
						Output: &conformance.Text{
							Is: &x,
						}, Stderr: &conformance.Text{Has: []string{"e"}},
						Basis: []agent.Basis{agent.BasisExit}},
				},
			},
		},
		{Name: "no-verb", Steps: []conformance.Step{{Do: "dance"}}},
		{Name: "no-program", Needs: []string{"no-such-program-of-any-package"}},
		{Name: "privileged", Privileged: true},
		{Name: "cannot", Cannot: map[conformance.Tier]string{conformance.Full: "never"}},
		{Name: "go", Func: "go", Do: func(ctx context.Context, w conformance.World) error {
			sh, err := w.Attach(ctx, w.Client)
			if err != nil {
				return err
			}
			defer sh.Close()
			return sh.End(ctx)
		}},
		{
			Name: "go-fails",
			Func: "go",
			Do: func(context.Context, conformance.World) error {
				return errors.New(
					"as it must")
			},
		},
	}
	for i := range cases {
		cases[i].Group = "g"
	}
	var reported int
	all, err := conformance.All(
		ctx,
		cases,
		conformance.Options{
			Client: client,
			Dial:   dial,
			Report: func(conformance.Outcome) { reported++ },
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[string]string{
		"differs":    "step 2 run: exit_code: got 4, want 3",
		"no-setup":   "why",
		"no-cleanup": "clean up: exit code 6",
		"no-verb":    "dance",
		"no-program": "no-such-program-of-any-package",
		"privileged": "--sudo",
		"cannot":     "never",
		"go-fails":   "as it must",
	}
	for _, o := range all {
		reason, fails := reasons[o.Case]
		if o.Pass == fails || !strings.Contains(o.Reason, reason) {
			t.Errorf("%s: pass %t: %q, want %q", o.Case, o.Pass, o.Reason, reason)
		}
		if text, err := json.Marshal(o); err != nil ||
			!strings.Contains(string(text), `"case":"`+o.Case+`"`) {
			t.Errorf("%s: %s: %v", o.Case, text, err)
		}
	}
	if reported != len(cases) || len(all) != len(cases) {
		t.Errorf("%d outcomes, %d reported, of %d cases", len(all), reported, len(cases))
	}
	score := conformance.ScoreOf(all)
	if want := (conformance.Count{Cases: 18, Pass: 10, Fail: 5, NotRun: 2,
		Excused: 1}); score.Count != want ||
		score.OK() ||
		score.Groups["g"][conformance.Full] != want {
		t.Errorf("score %+v, want %+v", score, want)
	}
	table := score.Table()
	for _, row := range []string{"| g | 10 of 17, 2 not run, 1 cannot |",
		"| g/differs | full | step 2 run: exit_code: got 4, want 3 |", "| full | never | 1 |"} {
		if !strings.Contains(table, row) {
			t.Errorf("no row %s in\n%s", row, table)
		}
	}
}

// TestCorpus runs two groups of the corpus, which need only common programs, in a sandbox in
// memory.
func TestCorpus(t *testing.T) {
	ctx := bounded(t)
	dial := gatewayOf(t)
	client, err := dial(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var cases []conformance.Case
	for _, c := range corpus.All() {
		if c.Group == "exit" {
			cases = append(cases, c)
		}
	}
	all, err := conformance.All(
		ctx,
		cases,
		conformance.Options{Client: client, Dial: dial, Slow: 100},
	)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		if !o.Pass {
			t.Errorf("%s/%s: %s", o.Group, o.Case, o.Reason)
		}
	}
}
