package corpus

import (
	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
)

// stdin has cases about standard input that is open, closed, or not a terminal: no program waits
// for input that cannot arrive.
func stdin() []conformance.Case {
	without := func(command, input string, w conformance.Want) conformance.Step {
		return conformance.Step{Do: conformance.Exec, Text: command, Stdin: input, Want: w}
	}
	ends0 := func(stdout string) conformance.Want {
		return conformance.Want{ExitCode: code(0),
			Output: text(stdout)}
	}
	return []conformance.Case{
		{Name: "none", About: "without a terminal and without input a reader sees the end at once",
			Steps: steps(without("cat; echo over", "", ends0("over\n")))},
		{Name: "given", About: "input that is given arrives, and ends",
			Steps: steps(without("cat; echo over", "one\ntwo", ends0("one\ntwoover\n")))},
		{Name: "large", About: "a megabyte of it, byte for byte",
			Steps: steps(without("sha256sum", repeat(100_000, "0123456789"),
				ends0(sum(repeat(100_000, "0123456789"))+"  -\n")))},
		{Name: "unread", About: "input that nobody reads holds nothing up",
			Steps: steps(without("echo over", repeat(400_000, "0123456789"), ends0("over\n")))},
		{Name: "read", About: "the shell's read fails there instead of waiting",
			Steps: steps(without("read x; echo $?", "", ends0("1\n")))},
		{Name: "python", About: "so does python's input()", Needs: []string{"python3"},
			Steps: steps(
				without("python3 -c 'input()'", "",
					conformance.Want{ExitCode: code(1), Stderr: has("EOFError")}))},
		{Name: "implied", About: "programs that read standard input when they are given no file",
			Steps: steps(
				without("grep -c x; wc -l; sort | uniq", "", ends0("0\n0\n")))},
		{Name: "no-terminal", About: "without a terminal there is none, for no descriptor",
			Steps: steps(
				without("for fd in 0 1 2; do test -t $fd && echo $fd; done; tty", "",
					conformance.Want{ExitCode: code(1), Output: text("not a tty\n")}))},
		{Name: "ssh-loop",
			About: "while read; do ssh …; done ends, though ssh reads what the loop does",
			Needs: []string{"ssh", "sshd"}, Setup: sshdSetup, Steps: steps(
				// the second line, if ssh ended first
				without("printf 'a\\nb\\n' | while read -r h; do "+sshCommand+" echo $h; done", "",
					conformance.Want{ExitCode: code(0),
						Output: &conformance.Text{Matches: `^a\n(b\n)?$`}}),
				without("printf 'a\\nb\\n' | while read -r h; do "+sshCommand+" -n echo $h; done",
					"",
					ends0("a\nb\n")),
				without(sshCommand+" echo alone", "", ends0("alone\n"))), Cleanup: sshdCleanup},
		{Name: "bash-ic", About: "an interactive shell for one command gives the terminal back",
			Steps: steps(
				runs("bash --norc -ic 'echo inner'", contains("inner\n")),
				runs("echo one", prints("one\n")),
				without("bash --norc -ic 'echo inner' 2>/dev/null", "", ends0("inner\n")))},
		{Name: "closed", About: "standard input that is closed",
			Steps: steps(runs("cat <&-; echo $?", contains("1\n")),
				runs("echo one", prints("one\n")))},
		{Name: "dev-null", About: "a reader of /dev/null does not wait",
			Steps: steps(runs("cat </dev/null", prints("")), runs("read x </dev/null", done(1)))},
		{Name: "shell-stdin", About: "a command that closes or redirects the shell's own input " +
			"ends the shell, and does not hang it", Steps: steps(
			runs("exec </dev/null", conformance.Want{Ended: ends(agent.EndedDead,
				agent.EndedDone)}),
			conformance.Step{Do: conformance.Wait, For: []agent.Phase{agent.PhaseDead},
				Want: conformance.Want{Phase: []agent.Phase{agent.PhaseDead}}},
			runs("echo one", contains("one\n")))},
	}
}
