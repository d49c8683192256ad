package session_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestTakenOrNot runs commands in shells that cannot accept them. A command that is reported as
// done has run, and one that is reported as refused has not.
func TestTakenOrNot(t *testing.T) {
	for _, test := range []struct {
		name, shell string
		before      []string
		refused     bool
		says        string // part of the error
	}{
		{"its descriptor is closed", "/bin/bash", []string{"exec 61<&-"}, true, "descriptor 61"},
		{"all of them are", "/bin/bash", []string{`for fd in /proc/$$/fd/*; do fd=${fd##*/}; case $fd in 0|1|2|255) ;; *) eval "exec $fd>&-";; esac; done`}, true, "descriptor 61"},
		{"it is another file", "/bin/bash", []string{"echo 'touch instead' >i; exec 61<i"}, true,
			"descriptor 61"},
		{"it is a copy of its own", "/bin/bash", []string{"cat <&61 >i; exec 61<i"}, true,
			"descriptor 61"},
		{"no mapfile", "/bin/bash", []string{"enable -n mapfile"}, true, "descriptor 61"},
		{"no printf", "/bin/bash", []string{"enable -n printf"}, true, "did not take"},
		{"a builtin of the user's own", "/bin/bash", []string{"builtin() { :; }"}, true,
			"did not take"},
		{"a printf of the user's own", "/bin/bash", []string{"printf() { :; }"}, false, ""},
		{"a printf of the user's own", "/bin/dash", []string{"printf() { :; }"}, false, ""},
		{"a command of the user's own", "/bin/dash", []string{"command() { :; }"}, true,
			"did not take"},
		{"a print of the user's own", "/bin/zsh", []string{"print() { : }"}, false, ""},
	} {
		t.Run(filepath.Base(test.shell)+"/"+test.name, func(t *testing.T) {
			t.Parallel()
			c := agentClient(t, newSet(t, test.shell))
			home := strings.TrimSpace(run(t, c, "pwd").Output)
			for _, command := range test.before {
				run(t, c, command)
			}
			for range 2 {
				res := run(t, c, "touch ran; ls ran; (exit 3)")
				_, err := os.Stat(home + "/ran")
				ran := err == nil
				os.Remove(home + "/ran")
				switch {
				case test.refused && (res.Ended != wire.Refused || ran ||
					res.Error.Code != wire.CodeUnavailable ||
					!strings.Contains(res.Error.Message, test.says)):
					t.Errorf(
						"ended %s with output %q, %+v, ran %v; want a refusal with %q",
						res.Ended,
						res.Output,
						res.Error,
						ran,
						test.says,
					)
				case !test.refused && (res.Ended != wire.Done || !ran || code(res) != 3 ||
					res.Output != "ran\n"):
					t.Errorf(
						"ended %s with output %q and exit %d, %+v, ran %v; want done",
						res.Ended,
						res.Output,
						code(res),
						res.Error,
						ran,
					)
				}
			}
			if _, err := os.Stat(home + "/instead"); err == nil {
				t.Error("what the other file holds has run")
			}
		})
	}
}

// TestTakenBehindOthers runs a command while typed lines are queued before it. The call is done
// when the command has run.
func TestTakenBehindOthers(t *testing.T) {
	for _, shell := range []string{"/bin/bash", "/bin/dash", "/bin/zsh"} {
		for _, without := range [][]wire.Basis{nil, {wire.BasisProcess}} {
			t.Run(fmt.Sprint(filepath.Base(shell), without), func(t *testing.T) {
				t.Parallel()
				set := newSet(t, shell)
				c := dial(
					t,
					set,
					wire.Attach{
						Session: "main",
						Create:  true,
						Start:   &wire.Start{Without: without},
						Party:   agentParty("alice"),
					},
					wire.Handler{},
				)
				home := strings.TrimSpace(run(t, c, "n=0; pwd").Output)
				reported := 0
				var unsure bool
				for i := range 60 {
					do(
						t,
						c,
						wire.Request{
							Verb: wire.VerbType,
							Text: strings.Repeat("true\n", 1+i%4) + "true",
						},
					)
					res := run(t, c, "n=$((n+1)); echo $n >n; echo $n")
					switch {
					case res.Ended == wire.Done:
						reported++
						if res.Output != fmt.Sprintf("%d\n", reported) {
							t.Fatalf("command %d printed %q", reported, res.Output)
						}
					case res.Ended == wire.Refused && res.Error.Code == wire.CodeNotPrompt:
					case res.Ended == wire.Refused &&
						strings.Contains(res.Error.Message, "may have run"):
						unsure = true
					default:
						t.Fatalf("ended %s, %+v", res.Ended, res.Error)
					}
				}
				text, _ := os.ReadFile(home + "/n")
				if got := strings.TrimSpace(string(text)); reported == 0 ||
					got != fmt.Sprint(reported) && !unsure {
					t.Errorf("%s commands ran, %d were reported as done", got, reported)
				}
				t.Logf("%d of 60 done", reported)
			})
		}
	}
}

// TestTakenAfterInterrupt has a question of readline's consume the start of the input that makes
// the shell accept a command. The rest of that input must not run the previous command again.
func TestTakenAfterInterrupt(t *testing.T) {
	t.Parallel()
	c := agentClient(t, newSet(t, "/bin/bash"))
	for range 5 {
		leave(t, c, "sleep 0.6; echo OLD")
		do(t, c, wire.Request{Verb: wire.VerbInterrupt})
		do(t, c, wire.Request{Verb: wire.VerbKeys, Keys: []string{"Tab", "Tab"}, TimeoutMS: 1500})
		res := do(t, c, wire.Request{Verb: wire.VerbRun, Text: "echo one", TimeoutMS: 10_000})
		if strings.Contains(res.Output, "OLD") ||
			res.Ended != wire.Refused && (res.Ended != wire.Done || res.Output != "one\n") {
			t.Errorf("ended %s with output %q, %+v", res.Ended, res.Output, res.Error)
		}
		if res := run(t, c, "echo two"); res.Ended != wire.Done || res.Output != "two\n" {
			t.Errorf("and then: %s with output %q, %+v", res.Ended, res.Output, res.Error)
		}
	}
}

// TestCommandAtTheListOfCompletions runs a command while readline asks whether to list all
// completions, and while it shows a page of them.
func TestCommandAtTheListOfCompletions(t *testing.T) {
	t.Parallel()
	c := agentClient(t, newSet(t, "/bin/bash"))
	for _, test := range []struct{ answer, shown string }{
		{"", "possibilities? (y or n)"},
		{"y", "--More--"},
		{"y ", "--More--"},
	} {
		run(t, c, "clear")
		do(t, c, wire.Request{Verb: wire.VerbType, Raw: true, Text: "\t\t" + test.answer,
			TimeoutMS: 60_000})
		awaitScreen(t, c, test.shown, 1)
		if res := run(t, c, "echo one"); res.Ended != wire.Done || res.Output != "one\n" {
			t.Errorf("after %q: ended %s with output %q, %+v",
				test.answer, res.Ended, res.Output, res.Error)
		}
	}
}

// TestHardenedShell uses settings of hardened machines, and some rare ones. Commands run and return
// their own exit codes.
func TestHardenedShell(t *testing.T) {
	for _, test := range []struct{ rc, before string }{
		{"PS1='> '; readonly PROMPT_COMMAND='history -a'", ""},
		{"PS1='> '; readonly PS1", ""},
		{"readonly TMOUT=900 HISTFILE IFS", ""},
		{"", "readonly PS1 PS2 PS0 PROMPT_COMMAND"},
		{"", "set -k"},
		{"set -o vi; shopt -u promptvars", ""},
		{"", "shopt -u promptvars"},
		{"", "exec 2>/dev/null"},
		{"", "stty olcuc; stty -olcuc"},
	} {
		t.Run(test.rc+test.before, func(t *testing.T) {
			t.Parallel()
			c := agentClient(t, newRCSet(t, test.rc))
			if test.before != "" {
				run(t, c, test.before)
			}
			for range 8 {
				for command, want := range map[string]int{"true": 0, "(exit 3)": 3,
					"sh -c 'exit 4'": 4} {
					if res := run(t, c, command); res.Ended != wire.Done || code(res) != want ||
						res.Output != "" {
						t.Errorf(
							"%s: ended %s in phase %s with exit %d and %q, %+v",
							command,
							res.Ended,
							res.Phase,
							code(res),
							res.Output,
							res.Error,
						)
					}
				}
			}
		})
	}
}
