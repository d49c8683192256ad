package corpus

import (
	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
)

// death has cases about shells that end: the end is reported immediately with its reason, and the
// next command runs in a new shell, with a note.
func death() []conformance.Case {
	fresh := conformance.Step{Do: conformance.Run, Text: "echo fresh",
		Want: with(prints("fresh\n"), func(w *conformance.Want) { w.Note = "shell_restarted" })}
	one := func(name, about, command string, exit int) conformance.Case {
		return conformance.Case{Name: name, About: about,
			Steps: steps(runs(command, dies(exit)), fresh)}
	}
	return []conformance.Case{
		one("exit", "exit ends the shell with the status of the last command", "exit", 0),
		one("exit-3", "exit with a status", "exit 3", 3),
		one("after-false", "exit after a command that failed", "false; exit", 1),
		one("errexit", "set -e makes a failing command the last one", "set -e; false", 1),
		one("errexit-later", "also one of a later call", "set -e; (exit 6)", 6),
		{Name: "errexit-next", About: "set -e stays, and the command that fails later is the last",
			Steps: steps(
				run("set -e"), run("true"), runs("false", dies(1)), fresh)},
		{Name: "nounset", About: "set -u ends a command, not the shell, as at a keyboard",
			Steps: steps(
				run("set -u"), runs("echo $no_such_variable",
					conformance.Want{Ended: ends(agent.EndedDone), ExitCode: code(1),
						Output: has("unbound variable")}), run("true"))},
		{Name: "xtrace", About: "set -x shows commands, and ours are not among them", Steps: steps(
			run("set -x"), runs("echo one", with(done(0), func(w *conformance.Want) {
				w.Output = &conformance.Text{Matches: `^\++ echo one\none\n$`}
			})), run("set +x"), runs("echo two", prints("two\n")))},
		{Name: "trap-exit", About: "an EXIT trap runs, and what it prints is kept", Steps: steps(
			run("trap 'echo bye' EXIT"), runs("exit 4", with(dies(4), outputHas("bye"))), fresh)},
		one("exec", "exec puts a program in the shell's place: its end is the shell's",
			"exec sh -c 'echo last; exit 7'", 7),
		{Name: "exec-ls", About: "exec ls: output and status are kept", Steps: steps(
			runs("exec ls -d /etc", with(dies(0), outputHas("/etc\n"))), fresh)},
		{Name: "kill", About: "a shell that was killed: dead with the signal, at once",
			Steps: steps(
				runs("kill -9 $$", conformance.Want{Ended: ends(agent.EndedDead),
					Phase: []agent.Phase{agent.PhaseDead}, Signal: "KILL", LatestMS: 1000}),
				fresh)},
		{Name: "killed-elsewhere", About: "also when it was at its prompt", Steps: steps(
			runs("echo $$ >/tmp/conformance-pid; echo one", prints("one\n")),
			exec("kill -9 $(cat /tmp/conformance-pid)", ""),
			conformance.Step{Do: conformance.Wait, For: []agent.Phase{agent.PhaseDead},
				Want: conformance.Want{Phase: []agent.Phase{agent.PhaseDead}, Signal: "KILL"}},
			fresh), Cleanup: "rm -f /tmp/conformance-pid"},
		{Name: "eof", About: "^D at the prompt ends the shell", Steps: steps(
			runs("(exit 5)", done(5)), keys(dies(5), "^D"), fresh)},
		{Name: "state-lost", About: "the fresh shell has none of the old one's variables",
			Steps: steps(
				run("A=old; cd /tmp"), runs("exit 1", dies(1)),
				runs(`echo "A=$A"; pwd`, with(done(0), func(w *conformance.Want) {
					w.Output = &conformance.Text{Has: []string{"A=\n"}, Lacks: []string{"/tmp"}}
				})))},
		{Name: "oom", Cannot: cannotBlind(quietUnknown),
			About: "a shell that the kernel kills for its memory: dead by KILL, with the reason",
			Steps: steps(
				conformance.Step{Do: conformance.Run,
					Text:      "x=$(tr '\\0' x </dev/zero | head -c 4G)",
					TimeoutMS: 120_000, Want: conformance.Want{Ended: ends(agent.EndedDead),
						Signal: "KILL", Note: "oom_killed"}}, fresh)},
	}
}
