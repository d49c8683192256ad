package corpus

import (
	"fmt"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
)

// exits has cases about the exit status of commands.
func exits() []conformance.Case {
	var all []conformance.Case
	add := func(name, about, command string, exit int) {
		all = append(all, conformance.Case{Name: name, About: about,
			Steps: []conformance.Step{runs(command, done(exit)), run("true")}})
	}
	for _, n := range []int{0, 1, 2, 126, 127, 128, 129, 137, 143, 254, 255} {
		add(fmt.Sprintf("status-%d", n), fmt.Sprintf("exit status %d of a command is reported", n),
			fmt.Sprintf("(exit %d)", n), n)
	}
	add("status-300", "the shell keeps eight bits", "(exit 300)", 44)
	add("not-found", "a command that does not exist is 127", "no-such-program-anywhere", 127)
	add("not-executable", "a file that may not be run is 126", "/etc/passwd", 126)
	for _, s := range []struct {
		name string
		n    int
	}{{"HUP", 1}, {"INT", 2}, {"KILL", 9}, {"PIPE", 13}, {"TERM", 15}} {
		add("signal-"+s.name, fmt.Sprintf("a program that %s killed is 128+%d", s.name, s.n),
			fmt.Sprintf("sh -c 'kill -%s $$'", s.name), 128+s.n)
	}
	add("core-dump", "a program that dumped core is 128+6",
		"ulimit -c unlimited; cd /tmp/conformance-core && sh -c 'kill -ABRT $$'", 134)
	all[len(all)-1].Setup, all[len(all)-1].Cleanup = "mkdir -p /tmp/conformance-core",
		"rm -rf /tmp/conformance-core"
	add("pipeline", "a pipeline is its last command", "false | true", 0)
	add("pipeline-last", "a pipeline is its last command", "true | (exit 5)", 5)
	add("pipefail", "with pipefail it is the last that failed", "set -o pipefail; (exit 3) | true",
		3)
	add("subshell", "a subshell is its last command", "( true; (exit 9) )", 9)
	add("negated", "! turns a status round", "! true", 1)
	add("background", "starting a job is a success", "(exit 7) &", 0)
	add("function", "a function returns what it says", "f() { return 11; }; f", 11)
	add("kept", "$? at the next command is the status of the one before, as at a keyboard",
		"(exit 4)", 4)
	all[len(all)-1].Steps = []conformance.Step{runs("(exit 4)", done(4)),
		runs("echo $?", prints("4\n"))}
	all = append(all,
		conformance.Case{Name: "exec",
			About: "a command without a terminal: exact status, separate outputs",
			Steps: []conformance.Step{
				{Do: conformance.Exec, Text: "echo out; echo err >&2; exit 7",
					Want: conformance.Want{ExitCode: code(7), Output: text("out\n"),
						Stderr: text("err\n"),
						Basis:  []agent.Basis{agent.BasisExit}}}}},
		conformance.Case{Name: "exec-signal",
			About: "without a terminal a signal is reported by name (RFC 4254, section 6.10)",
			Steps: []conformance.Step{
				{Do: conformance.Exec, Text: "kill -TERM $$",
					Want: conformance.Want{Signal: "TERM"}}}},
		conformance.Case{Name: "quick",
			About: "true costs no more than a few milliseconds above the round trip",
			Steps: []conformance.Step{
				run("true"), {Do: conformance.Run, Text: "true",
					Want: conformance.Want{Ended: []agent.Ended{agent.EndedDone}, ExitCode: code(0),
						LatestMS: 20}}}},
	)
	return all
}
