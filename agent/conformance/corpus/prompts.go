package corpus

import (
	"fmt"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
)

// prompts has cases about the detection of the end of a command: programs and settings of a user
// cannot fake it or break it, and it does not break them.
func prompts() []conformance.Case {
	prompt := []agent.Phase{agent.PhasePrompt}
	// still are commands that must work after each case.
	still := steps(runs("echo one", prints("one\n")), runs("(exit 3)", done(3)),
		runs("read -p '? ' x", asks(agent.WantLine, "? ")), types("a", done(0)))
	after := func(name, about string, first ...conformance.Step) conformance.Case {
		return conformance.Case{Name: name, About: about, Steps: append(first, still...)}
	}
	prepared := func(program, cleanup string, c conformance.Case) conformance.Case {
		c.Needs, c.Cleanup, c.Cannot = []string{program}, cleanup, cannotBlind(quietUnknown)
		return c
	}
	quiet := with(prints(""), nothing)
	cannotRead := conformance.Want{Ended: ends(agent.EndedRefused), Error: agent.CodeUnavailable}
	return []conformance.Case{
		{Name: "interrupted-prompt",
			About: "^C at an empty prompt is no command, and its 130 belongs to none", Steps: steps(
				run("true"), keys(conformance.Want{Phase: prompt}, "^C"),
				keys(conformance.Want{Phase: prompt}, "^C"), runs("echo one", prints("one\n")))},
		{Name: "interrupted-line", About: "^C drops a line that was typed and not ended",
			Steps: steps(
				run("true"), conformance.Step{Do: conformance.Raw, Text: "echo never",
					TimeoutMS: 1000},
				keys(conformance.Want{Phase: prompt}, "^C"), runs("echo one", prints("one\n")))},
		{Name: "spinner", About: "a spinner's bytes around a mark", Steps: steps(
			runs(`for i in 1 2 3 4 5 6 7 8 9 10; do printf '\r|'; printf '\r/'; done; printf '\r'`,
				done(0)), runs("echo one", prints("one\n")))},
		after("env", "env, set and declare -p end no command",
			runs("env; set; declare -p; declare -f; export -p", contains("HOME="))),
		after("integration", "nor does printing the integration that the shell read, where it is "+
			"to be had",
			runs("cat /proc/$$/fd/* 2>/dev/null </dev/null & sleep 0.2; kill $! 2>/dev/null; "+
				"wait; true", done(0))),
		after("secret", "the marks' secret is in no environment and no argument",
			conformance.Step{Do: conformance.Run,
				Text: `tr '\0' '\n' </proc/$$/environ | grep -ciE 'nonce|7337'; tr '\0' ' ' </proc/$$/cmdline | grep -ciE 'nonce|7337'; true`, Want: prints("0\n0\n")}),
		after("forged", "a forged mark is ordinary output",
			runs(
				`printf '\033]7337;D;0;00000000000000000000000000000000;1\033\\'; printf '\033]7337;A\007'; printf '\033]133;D;0\007\033]133;A\007'; sleep 0.5; (exit 9)`, with(done(9), func(w *conformance.Want) { w.EarliestMS = 450 }))),
		after("forged-prompt", "so is text that looks like the prompt",
			runs(`printf '\nroot@box:~# '; sleep 0.5; printf '\n$ '; (exit 8)`,
				with(done(8), func(w *conformance.Want) { w.EarliestMS = 450 }))),
		{Name: "descriptor", About: "a program that reads where the shell reads its commands " +
			"takes none away", Steps: steps(
			run("for fd in /proc/self/fd/*; do case $(readlink $fd) in *memfd*) bash -c 'while "+
				":; do read -N 7 -t 0.01 x; done' <&${fd##*/} >/dev/null 2>&1 & ;; esac; done"),
			runs("echo one", prints("one\n")), runs("echo two", prints("two\n")),
			runs("echo three", prints("three\n")), run("kill %% 2>/dev/null; wait; true"))},
		{Name: "descriptor-closed",
			About: "a shell whose descriptor is closed takes no command, and says so", Steps: steps(
				run("exec 61<&-"), runs("echo one; touch /tmp/conformance-ran", cannotRead),
				exec("ls /tmp/conformance-ran 2>/dev/null; true", ""))},
		{Name: "descriptor-replaced", About: "what another file holds is no command", Steps: steps(
			run("echo 'touch /tmp/conformance-ran' >/tmp/conformance-i; "+
				"exec 61</tmp/conformance-i"), runs("touch /tmp/conformance-ran", cannotRead),
			exec("ls /tmp/conformance-ran 2>/dev/null; rm /tmp/conformance-i", ""))},
		{Name: "exclusive", About: "a program has left the terminal to itself alone (TIOCEXCL)",
			Needs: []string{"python3"}, Steps: steps(
				run("python3 -c 'import fcntl, termios; fcntl.ioctl(0, termios.TIOCEXCL)'"),
				runs("echo one", prints("one\n")), runs("(exit 3)", done(3)))},
		after("readonly-command", "a PROMPT_COMMAND that is read-only",
			run("readonly PROMPT_COMMAND")),
		after("readonly-prompts", "prompts that are", run("readonly PS0 PS1 PS2")),
		after("set-k", "assignments anywhere in a command go to its environment", run("set -k")),
		after("promptvars", "prompts are not expanded", run("shopt -u promptvars")),
		after("stderr-gone", "the shell's standard error is elsewhere",
			run("exec 2>/dev/null; read() { builtin read \"$@\" 2>/dev/tty; }")),
		after("cut-mark", "half a mark at the end of the output is output",
			runs(`printf 'one\033]7337;'`, done(0))),
		prepared("python3", "rm -rf /tmp/conformance-v",
			after("venv", "a virtual environment changes the prompt",
				conformance.Step{Do: conformance.Run,
					Text: "python3 -m venv /tmp/conformance-v && . " +
						"/tmp/conformance-v/bin/activate",
					TimeoutMS: 60_000, Want: done(0)},
				runs("command -v python", prints("/tmp/conformance-v/bin/python\n")))),
		after("conda", "so does conda's way of doing it",
			run(`PS1='(base) '"$PS1"; PROMPT_COMMAND='PS1="(env) \u@\h:\w\$ "'`)),
		after("ps1-command", "a prompt that runs a program", run(`PS1='$(date +%s) \w\$ '`)),
		after("ps1-lines", "a prompt of two lines with colours",
			run(`PS1='\[\e[32m\]\u@\h \[\e[33m\]\w\[\e[0m\]\n\$ '`)),
		after("ps1-empty", "no prompt at all", run(`PS1=; PS2=`)),
		after("ps0", "a PS0 that is set already; what it prints is no output of the command",
			run(`PS0='[started]\n'`)),
		after("prompt-command", "PROMPT_COMMAND as a string",
			run(`PROMPT_COMMAND='true; (exit 77)'`)),
		after("prompt-command-array", "PROMPT_COMMAND as an array",
			run(`PROMPT_COMMAND=(true 'X=1' '(exit 77)')`)),
		after("debug-trap", "a DEBUG trap", run(`trap 'LAST=$BASH_COMMAND' DEBUG`)),
		after("err-trap", "an ERR trap", run(`trap 'FAILED=1' ERR`)),
		after("strict", "set -uo pipefail", run("set -uo pipefail")),
		{Name: "strict-e", About: "set -euo pipefail leaves commands that succeed alone",
			Steps: steps(run("set -euo pipefail"), runs("echo one", prints("one\n")),
				runs("false || true", quiet), runs("echo two", prints("two\n")))},
		after("vi", "the line editor's other mode", run("set -o vi")),
		after("clear", "clear", run("clear")),
		after("reset", "reset", run("reset")),
		after("form-feed", "^L at the prompt", run("true"),
			keys(conformance.Want{Phase: prompt}, "^L")),
		after("title", "a program that sets the window's title", run(`printf '\033]0;title\007'`)),
		after("alternate", "a program that leaves the alternate screen on",
			run(`printf '\033[?1049h'`)),
		after("no-newline", "output without an end of line", runs("printf x", prints("x"))),
		{Name: "no-newline-code", About: "printf x keeps x and the code",
			Steps: steps(runs("printf x; (exit 5)",
				with(done(5), func(w *conformance.Want) { w.Output = text("x") })),
				runs("printf y", prints("y")))},
		after("alias", "aliases of everything that an integration might use",
			run("alias printf=false echo=true builtin=false command=false read=false eval=false; "+
				"unalias -a")),
		after("functions", "functions with those names",
			run("printf() { command printf 'mine'; }; unset -f printf")),
		after("ifs", "another IFS", run("IFS=:")),
		after("path", "no PATH", run("P=$PATH; PATH=/nowhere"), run("PATH=$P")),
		after("posix", "posix mode", run("set -o posix")),
		after("noclobber", "noclobber, nullglob, extglob, globstar",
			run("set -C; shopt -s nullglob extglob globstar dotglob")),
		{Name: "exec-bash", About: "exec bash: a shell without integration is at its prompt; " +
			"weaker layers tell, or its own marks", Steps: steps(
			runs("exec bash --norc", conformance.Want{Ended: ends(agent.EndedDone,
				agent.EndedWaiting), LatestMS: 2000}),
			types("echo in-$((40+2))", conformance.Want{Ended: ends(agent.EndedDone,
				agent.EndedWaiting), Output: has("in-42")}))},
		{Name: "repl", About: "answers of a REPL are not shifted by one",
			Needs: []string{"python3"}, Steps: append(append(
				steps(runs("python3 -q", asksAny(">>> ", agent.WantRaw, agent.WantLine))),
				replSteps(20)...), types("exit()", done(0)))},
		{Name: "mixed", About: "interactive and plain commands mixed in one shell", Steps: steps(
			runs("echo one", prints("one\n")),
			runs("read x; echo got $x", asks(agent.WantLine, "")),
			types("a", contains("got a")), runs("echo two", prints("two\n")),
			runs("cat", asks(agent.WantLine, "")), keys(done(0), "^D"), runs("(exit 3)", done(3)),
			types("echo typed", contains("typed")), runs("echo three", prints("three\n")))},
		{Name: "rc-typed", About: "input typed while rc files run is not lost",
			Files: []conformance.File{{Path: "conformance-rc", Text: "sleep 1\n"}}, Steps: steps(
				run("true"), conformance.Step{Do: conformance.Type,
					Text: "exec bash --rcfile conformance-rc", TimeoutMS: 300},
				conformance.Step{Do: conformance.Type, Text: "echo typed-$((40+2)) early",
					TimeoutMS: 4000, Want: conformance.Want{Output: has("typed-42 early")}}),
			Cleanup: "rm -f conformance-rc"},
		{Name: "rc-zsh", Cannot: cannotBlind(
			"without process facts a shell without marks is not seen to read"),
			About: "an rc file that does exec zsh: the shell inside is at its prompt",
			Needs: []string{"zsh"},
			Files: []conformance.File{{Path: "/tmp/conformance-home/.bashrc",
				Text: "exec zsh -f\n"}},
			Start: conformance.Start{Env: []string{"HOME=/tmp/conformance-home"}},
			Steps: steps(conformance.Step{Do: conformance.Type, Text: "echo in-$ZSH_VERSION",
				TimeoutMS: 6000, Want: conformance.Want{
					Ended:  ends(agent.EndedDone, agent.EndedWaiting),
					Output: &conformance.Text{Matches: `in-[0-9]`}}}),
			Cleanup: "rm -rf /tmp/conformance-home"},
		{Name: "typed-alone", About: "a typed command is followed to its end, as one that is run",
			Steps: steps(
				run("true"), types("(exit 6)", done(6)),
				types("sleep 0.5; echo typed",
					with(contains("typed"), func(w *conformance.Want) { w.EarliestMS = 450 })))},
		{Name: "hidden", About: "a person sees no trace of the marks", Steps: steps(
			run("echo one"), conformance.Step{Do: conformance.Screen,
				Want: conformance.Want{Output: &conformance.Text{Has: []string{"one"},
					Lacks: []string{"7337", "]133", "\x1b"}}}},
			runs("read x", asks(agent.WantLine, "")), types("a", done(0)))},
		{Name: "cwd", About: "the shell's directory is reported with the prompt", Steps: steps(
			runs("cd /usr/share", with(done(0),
				func(w *conformance.Want) { w.Cwd = "/usr/share" })),
			runs("mkdir -p '/tmp/conformance dir; é' && cd '/tmp/conformance dir; é'",
				with(done(0), func(w *conformance.Want) { w.Cwd = "/tmp/conformance dir; é" }))),
			Cleanup: "rm -rf '/tmp/conformance dir; é'"},
	}
}

// replSteps returns n inputs to a Python prompt, each with its own output.
func replSteps(n int) []conformance.Step {
	var all []conformance.Step
	for i := range n {
		all = append(all, types(fmt.Sprintf("1000+%d", i),
			with(asksAny(">>> ", agent.WantRaw, agent.WantLine), func(w *conformance.Want) {
				w.Output = &conformance.Text{Has: []string{fmt.Sprintf("\n%d\n", 1000+i)}}
			})))
	}
	return all
}
