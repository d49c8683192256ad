package corpus

import (
	"strconv"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
)

// needsBoth is why a case about commands in nested shells cannot pass on weaker tiers.
const needsBoth = "a shell in a shell is found by its processes, and takes commands by marks"

// nested has cases about commands that run in a shell which was started in the session's own.
func nested() []conformance.Case {
	enters := func(depth int) conformance.Want {
		return conformance.Want{Ended: ends(agent.EndedDone),
			Phase: []agent.Phase{agent.PhasePrompt}, Depth: code(depth), LatestMS: 4000,
			Note: agent.NoteShellEntered}
	}
	in := func(depth int, w conformance.Want) conformance.Want {
		w.Depth = code(depth)
		return w
	}
	leaves := func(exit int) conformance.Step {
		return runs("exit "+strconv.Itoa(exit), conformance.Want{Ended: ends(agent.EndedDone),
			Phase: []agent.Phase{agent.PhasePrompt}, ExitCode: code(exit), Depth: code(0),
			Note: agent.NoteShellLeft})
	}
	// inside starts a shell, makes the steps in it, and leaves it.
	inside := func(name, about, command string, more ...conformance.Step) conformance.Case {
		all := steps(run("A=outer; cd /usr"), runs(command, enters(1)))
		all = append(all, more...)
		all = append(all, leaves(3), runs("echo $A $PWD", in(0, prints("outer /usr\n"))))
		return conformance.Case{Name: name, About: about, Steps: all}
	}
	needs := func(c conformance.Case, programs ...string) conformance.Case {
		c.Needs = programs
		return c
	}
	basic := func() []conformance.Step {
		return steps(
			runs("cd /tmp; echo one; sh -c 'exit 7'", in(1, conformance.Want{
				Ended: ends(agent.EndedDone), ExitCode: code(7), Output: text("one\n"),
				Cwd: "/tmp"})),
			runs("pwd", in(1, prints("/tmp\n"))),
			runs("false", in(1, done(1))))
	}
	// privileged is a case for a sandbox in which setuid programs work.
	privileged := func(c conformance.Case) conformance.Case {
		c.Privileged = true
		return c
	}
	// behind is a case about what stands at the prompt of a shell before the first command.
	behind := func(name, about, command string, pressed ...string) conformance.Case {
		return inside(name, about, command, keys(conformance.Want{}, pressed...),
			runs("echo hi; (exit 6)", in(1, conformance.Want{Ended: ends(agent.EndedDone),
				ExitCode: code(6), Output: text("hi\n")})))
	}
	bash := "bash --norc"
	files := func(c conformance.Case, all ...conformance.File) conformance.Case {
		c.Files = all
		return c
	}
	all := []conformance.Case{
		inside("bash", "bash in bash", bash, basic()...),
		inside("bash-rc", "with its start-up files", "bash", basic()...),
		needs(inside("dash", "dash in bash", "dash", basic()...), "dash"),
		inside("sh", "sh in bash", "sh", basic()...),
		needs(inside("zsh", "zsh in bash", "zsh -f", basic()...), "zsh"),
		needs(inside("su", "su by root", "su", basic()...), "su"),
		needs(inside("su-login", "su - by root", "su -", basic()...), "su"),
		needs(inside("su-user", "su - to another user", "su -s /bin/bash - nobody",
			runs("whoami", in(1, prints("nobody\n"))), runs("false", in(1, done(1)))), "su"),
		privileged(needs(inside("sudo-i", "sudo -i", "sudo -i", basic()...), "sudo")),
		privileged(needs(inside("sudo-s", "sudo -s", "sudo -s", basic()...), "sudo")),
		privileged(needs(inside("sudo-user", "sudo to another user",
			"sudo -u nobody bash --norc", runs("whoami", in(1, prints("nobody\n")))), "sudo")),
		needs(inside("newgrp", "newgrp", "newgrp root", basic()...), "newgrp"),
		needs(inside("script", "a shell behind script", "script -qe /dev/null",
			basic()...), "script"),
		needs(inside("timeout", "a shell behind timeout", "timeout --foreground 60 bash --norc",
			basic()...), "timeout"),
		needs(inside("chroot", "a shell below chroot", "chroot / bash --norc",
			basic()...), "chroot"),
		behind("half-typed", "a half-typed line", bash, "n", "o", ";"),
		behind("rest", "the rest of a command is missing", bash, "n", "'", "Enter"),
		behind("search", "the line editor searches", bash, "^R", "n"),
		behind("vi", "the command mode of vi", bash+" -o vi", "n", "o", "Escape"),
		needs(behind("zsh-vi", "the command mode of vi in zsh", "zsh -f -o vi", "n", "o",
			"Escape"), "zsh"),
		needs(behind("dash-rest", "the rest of a command is missing in dash", "dash", "n", "'",
			"Enter"), "dash"),
		inside("env", "without an environment", "env -i bash --norc", basic()...),
		inside("posix", "bash --posix", "bash --norc --posix", basic()...),
		inside("login", "a login shell", "bash --login", basic()...),
		inside("nice", "a shell behind another program", "nice bash --norc", basic()...),
		inside("errexit", "under set -e", bash, run("set -e"), runs("true && echo yes",
			in(1, prints("yes\n")))),
		inside("nounset", "under set -u", bash, run("set -u"), runs("echo ${A-none}",
			in(1, prints("none\n"))), run("set +u")),
		inside("xtrace", "under set -x", bash, run("set -x"), runs("echo hi",
			in(1, contains("+ echo hi\nhi\n"))), runs("set +x", in(1, done(0)))),
		inside("empty-ps1", "with an empty prompt", bash, run("PS1="), runs("echo hi",
			in(1, prints("hi\n"))), runs("false", in(1, done(1)))),
		inside("other-ps1", "with another prompt", bash, run("PS1='[\\w] $? > '"), runs("false",
			in(1, done(1))), runs("echo hi", in(1, prints("hi\n")))),
		inside("prompt-command", "with a PROMPT_COMMAND", bash,
			run("PROMPT_COMMAND='n=$((n+1))'"), runs("echo $n", in(1, done(0))),
			runs("sh -c 'exit 9'", in(1, done(9)))),
		inside("exit-trap", "with a trap that changes the status", bash,
			run("trap 'echo bye' EXIT")),
		inside("int-trap", "a trap for INT stays", "bash --norc", run("trap 'echo caught' INT"),
			runs("trap -p INT", in(1, contains("echo caught")))),
		inside("read", "a question in it", bash, runs("read -p 'name? ' x; echo got $x",
			asks(agent.WantLine, "name? ")), types("bob", contains("got bob"))),
		inside("password", "a password in it", bash, runs("read -s -p 'secret? ' x; echo",
			asks(agent.WantPassword, "secret? ")), types("s3cret", done(0)),
			runs("echo ${#x}", in(1, prints("6\n")))),
		inside("here-document", "a here-document in it", bash,
			runs("cat <<'X'\na\nb\nX", in(1, prints("a\nb\n")))),
		inside("many-lines", "a loop of many lines", bash,
			runs("for i in 1 2 3\ndo\n  echo $i\ndone", in(1, prints("1\n2\n3\n")))),
		inside("long", "a command of 40 KB", bash, runs("x='"+repeat(40000, "y")+"'; echo ${#x}",
			in(1, prints("40000\n")))),
		needs(inside("long-dash", "the same in dash", "dash", runs("x='"+repeat(40000, "y")+
			"'; echo ${#x}", in(1, prints("40000\n")))), "dash"),
		inside("no-newline", "output without a newline", bash, runs("printf x",
			in(1, prints("x")))),
		inside("incomplete", "an incomplete command is refused", bash, conformance.Step{
			Do: conformance.Run, Text: "echo 'a", Want: conformance.Want{
				Ended: ends(agent.EndedRefused), Error: agent.CodeSyntax}}),
		inside("continuation", "a line that is not complete", bash, run(":"),
			types("if true", conformance.Want{Ended: ends(agent.EndedContinuation)}),
			types("then echo yes; fi", contains("yes"))),
		inside("interrupt", "^C ends a command and not the shell", bash,
			works("sleep 100", 500), interrupts(), runs("echo here", in(1, prints("here\n")))),
		needs(inside("stubborn", "what ends a stubborn command leaves su and its shell alone", "su",
			run(":"), works("bash -c \"trap '' INT TERM; sleep 100; sleep 100\"", 500),
			conformance.Step{Do: conformance.Interrupt, Want: conformance.Want{
				Ended: ends(agent.EndedInterrupted), Depth: code(1)}},
			runs("echo here", in(1, prints("here\n")))), "su"),
		inside("typed-exit", "a typed command that lasts", bash, run(":"),
			types("sleep 0.3; (exit 4)", done(4))),
		inside("deadline", "a command that lasts", bash, works("sleep 1; (exit 5)", 200),
			wait(prompted(5))),
		inside("background", "a background job", bash, runs("sleep 30 &", in(1, done(0))),
			runs("kill %1; wait %1 2>/dev/null; echo over", in(1, contains("over")))),
		inside("typed", "a command that is typed", bash, run(":"),
			types("sh -c 'exit 8'", done(8))),
		inside("status", "its prompt does not have the status of the shell around it", bash,
			runs("echo $?", in(1, prints("0\n")))),
		inside("history", "what gives it marks is not in the history", bash, run("echo first"),
			runs("history | grep -c 'test -r .[/]dev'",
				in(1, conformance.Want{Output: text("0\n")}))),
		inside("variables", "it is another shell", bash, runs("echo ${A-none}",
			in(1, prints("none\n")))),
		inside("background-outside", "a job of the shell around it", bash, runs("jobs",
			in(1, prints("")))),
		inside("directory", "a directory with a newline", bash,
			runs("mkdir -p $'/tmp/a\\nb' && cd $'/tmp/a\\nb' && pwd", in(1, prints("/tmp/a\nb\n"))),
			run("cd /")),
		inside("alias", "an alias", bash, run("alias hi='echo hello'"), runs("hi",
			in(1, prints("hello\n")))),
		inside("unicode", "text outside of ASCII", bash, runs("echo 'ü 世界 👍'",
			in(1, prints("ü 世界 👍\n")))),
		inside("flood", "much output", bash, runs("seq 1 20000 | tail -1",
			in(1, prints("20000\n")))),
		inside("python", "python in it, and back", bash, runs("python3 -q",
			asksAny(">>> ", agent.WantRaw, agent.WantLine)), types("exit()", done(0)),
			runs("echo hi", in(1, prints("hi\n")))),
		{Name: "exec-bash", About: "another bash in place of the session's", Steps: steps(
			run("true"), runs("exec bash --norc", enters(0)), runs("echo hi; false",
				with(done(1), outputHas("hi\n"))), runs("exit 4", dies(4)))},
		needs(conformance.Case{Name: "exec-zsh", About: "zsh in place of the session's shell",
			Steps: steps(run("true"), runs("exec zsh -f", enters(0)), runs("echo hi",
				prints("hi\n")), runs("exit 4", dies(4)))}, "zsh"),
		{Name: "exec-inside", About: "exec in a shell in a shell ends that", Steps: steps(
			run("A=outer"), runs(bash, enters(1)), run("true"),
			runs("exec sh -c 'exit 6'", in(0, done(6))), runs("echo $A", prints("outer\n")))},
		{Name: "three-deep", About: "three shells deep, and back, with each one's status",
			Steps: steps(runs(bash, enters(1)), run("B=1"), runs(bash, enters(2)), run("B=2"),
				runs("dash", enters(3)), runs("B=3; echo $B", in(3, prints("3\n"))),
				runs("exit 7", in(2, done(7))), runs("echo $B", in(2, prints("2\n"))),
				runs("exit 8", in(1, done(8))), runs("echo $B", in(1, prints("1\n"))),
				leaves(9))},
		{Name: "unused", About: "two shells deep, and no command in the first", Steps: steps(
			runs(bash, enters(1)), types("bash --norc", conformance.Want{}),
			runs("echo hi", in(1, prints("hi\n"))), runs("exit 3", conformance.Want{
				Ended: ends(agent.EndedDone), Depth: code(1)}), runs("echo hi",
				in(1, prints("hi\n"))), leaves(4))},
		{Name: "killed", About: "a shell that is killed", Steps: steps(
			runs(bash, enters(1)), run("true"), runs("kill -9 $$", in(0, done(137))),
			runs("echo back", prints("back\n")))},
		{Name: "killed-unused", About: "one that is killed before a command ran in it",
			Steps: steps(run("A=outer"), runs(bash, enters(1)),
				exec("pkill -9 -nx bash", ""), runs("echo $A", prints("outer\n")))},
		{Name: "stopped", About: "a shell that is stopped and continued", Steps: steps(
			runs(bash, enters(1)), run("B=inner"), runs("suspend", in(0, conformance.Want{
				Ended: ends(agent.EndedDone)})), runs("echo ${B-none}", in(0, prints("none\n"))),
			runs("fg", enters(1)), runs("echo $B", in(1, contains("inner"))), leaves(3))},
		{Name: "exit-by-key", About: "a shell that ^D leaves", Steps: steps(runs(bash, enters(1)),
			run("true"), keys(prompted(0), "^D"), runs("echo back", in(0, prints("back\n"))))},
		files(conformance.Case{Name: "rc-exec", About: "start-up files that start another shell",
			Needs: []string{"zsh"}, Steps: steps(runs("bash --rcfile ~/rc", enters(1)),
				runs("echo $ZSH_NAME", in(1, prints("zsh\n"))), leaves(3))},
			conformance.File{Path: "rc", Text: "exec zsh -f\n"}),
		{Name: "script-reads", About: "a script that reads a line is no shell", Steps: steps(
			runs("bash -c 'read -e -p \"more? \" x; echo got $x'", asksAny("more? ",
				agent.WantRaw, agent.WantLine)), conformance.Step{Do: conformance.Run,
				Text: "echo no", Want: conformance.Want{Ended: ends(agent.EndedRefused),
					Error: agent.CodeNotPrompt}}, types("a", contains("got a")))},
		{Name: "not-vim", About: "an editor is no shell", Needs: []string{"vim"}, Steps: steps(
			runs("vim -u NONE -i NONE", attends("vim")), conformance.Step{Do: conformance.Run,
				Text: "echo no", Want: conformance.Want{Ended: ends(agent.EndedRefused),
					Error: agent.CodeNotPrompt}}, keys(done(0), "Escape", ":", "q", "!", "Enter"))},
		{Name: "false-name", About: "a program that only has a shell's name", Steps: steps(
			run("cp /bin/cat /tmp/bash"), runs("/tmp/bash", asks(agent.WantLine, "")),
			conformance.Step{Do: conformance.Run, Text: "echo no", Want: conformance.Want{
				Ended: ends(agent.EndedRefused), Error: agent.CodeNotPrompt}},
			keys(done(0), "^D"))},
		{Name: "password-of-su", About: "the password of su is no prompt", Needs: []string{"su"},
			Steps: steps(runs("su -s /bin/bash nobody -c 'su root'", asks(agent.WantPassword, "")),
				conformance.Step{Do: conformance.Run, Text: "echo no", Want: conformance.Want{
					Ended: ends(agent.EndedRefused), Error: agent.CodeNotPrompt}},
				keys(conformance.Want{}, "^C"))},
	}
	adopted := func(command string, w conformance.Want) conformance.Step {
		return conformance.Step{Do: conformance.Run, Text: command, Adopt: true, Want: w}
	}
	behindSSH := func(name, about, command string, more ...conformance.Step) conformance.Case {
		return conformance.Case{Name: name, About: about, Needs: []string{"ssh", "sshd"},
			Setup: sshdSetup, Cleanup: sshdCleanup, Steps: append(steps(
				run("A=outer; cd /usr"), runs(command, conformance.Want{
					Phase: []agent.Phase{agent.PhaseOpaque}})), more...)}
	}
	all = append(all,
		behindSSH("ssh", "a shell behind ssh, adopted", sshCommand,
			conformance.Step{Do: conformance.Run, Text: "echo no", Want: conformance.Want{
				Ended: ends(agent.EndedRefused), Error: agent.CodeNotPrompt}},
			adopted("cd /tmp; echo ${A-none}; (exit 7)", in(1, conformance.Want{
				Ended: ends(agent.EndedDone), ExitCode: code(7), Output: text("none\n"),
				Cwd: "/tmp", Note: agent.NoteShellEntered})),
			runs("pwd", in(1, prints("/tmp\n"))),
			runs("cat <<'X'\na\n\\\nü\nX", in(1, prints("a\n\\\nü\n"))),
			runs("x='"+repeat(40000, "y")+"'; echo ${#x}", in(1, prints("40000\n"))),
			leaves(3), runs("echo $A $PWD", in(0, prints("outer /usr\n")))),
		behindSSH("ssh-sh", "sh behind ssh", sshCommand+" -t 'PS1=\"far $ \" exec sh -i'",
			adopted("false", in(1, done(1))), runs("echo hi", in(1, prints("hi\n"))), leaves(4)),
		behindSSH("ssh-twice", "a shell in one behind ssh, adopted too", sshCommand,
			adopted("A=first", in(1, done(0))),
			runs("bash --norc", conformance.Want{Phase: []agent.Phase{agent.PhaseOpaque}}),
			adopted("echo ${A-none}; (exit 6)", in(2, conformance.Want{
				Ended: ends(agent.EndedDone), ExitCode: code(6), Output: text("none\n")})),
			runs("exit 5", in(1, done(5))), runs("echo $A", in(1, prints("first\n"))),
			leaves(3)),
		behindSSH("ssh-question", "a question behind ssh is no shell",
			sshCommand+" -t 'read -p \"password: \" x'",
			conformance.Step{Do: conformance.Run, Text: "echo no", Adopt: true,
				Want: conformance.Want{Ended: ends(agent.EndedRefused),
					Error: agent.CodeNotPrompt}}, types("a", done(0))),
		behindSSH("ssh-killed", "ssh is killed while a command runs behind it", sshCommand,
			adopted("true", in(1, done(0))),
			conformance.Step{Do: conformance.Run, Text: "sleep 100", Want: in(0,
				conformance.Want{Ended: ends(agent.EndedDone), Note: agent.NoteShellLeft}),
				AfterMS: 500, Meanwhile: steps(exec("pkill -x ssh", ""))},
			runs("echo $A", prints("outer\n"))),
	)
	for i := range all {
		all[i].Cannot = map[conformance.Tier]string{conformance.NoProcess: needsBoth,
			conformance.NoMarks: needsBoth, conformance.Neither: needsBoth}
	}
	return all
}
