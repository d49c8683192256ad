package corpus

import (
	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
)

// sshCommand returns a command that runs line on the server of sshdSetup.
const sshCommand = "ssh -p 2299 -i /tmp/conformance-host -o IdentitiesOnly=yes -o " +
	"StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR localhost"

// nesting has cases about shells in shells, and about terminal modes that they leave.
func nesting() []conformance.Case {
	// inner expects an inner shell: its own marks report its prompt, or it waits.
	inner := func(name, about, command string, needs ...string) conformance.Case {
		at := conformance.Want{Ended: ends(agent.EndedDone, agent.EndedWaiting),
			Phase: []agent.Phase{agent.PhasePrompt, agent.PhaseWaiting}, LatestMS: 4000}
		return conformance.Case{Name: name, About: about, Needs: needs, Steps: steps(
			run("A=outer"), runs(command, at),
			types("printf 'in-%d\\n' 42", with(at, outputHas("in-42"))),
			types("exit 3", done(3)), runs("echo $A", prints("outer\n")))}
	}
	opaque := conformance.Want{Ended: ends(agent.EndedAttention),
		Phase: []agent.Phase{agent.PhaseOpaque}, Attention: "likely", LatestMS: 6000}
	lines := steps(runs("echo one", prints("one\n")),
		runs("read -p '? ' x; echo got $x", asks(agent.WantLine, "? ")),
		types("a", contains("got a")))
	repaired := func(name, about, command string, needs ...string) conformance.Case {
		return conformance.Case{Name: name, About: about, Needs: needs, Steps: append(steps(
			conformance.Step{Do: conformance.Run, Text: command,
				Want: conformance.Want{Ended: ends(agent.EndedDone)}}), lines...)}
	}
	// meant is for modes that a shell without marks keeps, because no command failed.
	meant := func(c conformance.Case) conformance.Case {
		c.Cannot = cannotTyped("without marks only the shell repairs its terminal, after a " +
			"program that a signal ended")
		return c
	}
	return []conformance.Case{
		inner("bash", "bash in bash", "bash --norc"),
		inner("dash", "dash in bash", "dash", "dash"),
		inner("zsh", "zsh in bash", "zsh -f", "zsh"),
		inner("fish", "fish in bash", "fish --no-config", "fish"),
		inner("su", "su - by root", "su -", "su"),
		{Name: "sudo-i", About: "sudo -i", Privileged: true, Needs: []string{"sudo"},
			Steps: inner("", "", "sudo -i").Steps},
		{Name: "deep", About: "bash in bash in bash, and back, with each one's status",
			Steps: steps(
				run("true"), runs("bash --norc", conformance.Want{Ended: ends(agent.EndedDone,
					agent.EndedWaiting)}), types("bash --norc",
					conformance.Want{Ended: ends(agent.EndedDone, agent.EndedWaiting)}),
				types("exit 4", conformance.Want{Ended: ends(agent.EndedDone, agent.EndedWaiting)}),
				types("exit 5", done(5)), runs("echo back", prints("back\n")))},
		{Name: "exec-zsh", About: "exec zsh: another shell in the first one's place",
			Needs: []string{"zsh"}, Steps: steps(
				runs("exec zsh -f", conformance.Want{Ended: ends(agent.EndedDone,
					agent.EndedWaiting),
					LatestMS: 4000}),
				types("echo in-$((40+2))", conformance.Want{Ended: ends(agent.EndedDone,
					agent.EndedWaiting), Output: has("in-42")}), types("exit 3", dies(3)))},
		{Name: "python-exit", About: "python and back by exit()", Needs: []string{"python3"},
			Steps: steps(
				runs("python3 -q", asksAny(">>> ", agent.WantRaw, agent.WantLine)),
				types("exit()", done(0)), runs("echo one", prints("one\n")))},
		{Name: "ssh", About: "ssh hides what it runs: opaque while it is quiet, and a prompt " +
			"again when it is over", Needs: []string{"ssh", "sshd"}, Setup: sshdSetup, Steps: steps(
			runs(sshCommand, opaque), types("echo in-$((40+2))", with(opaque, outputHas("in-42"))),
			types("exit 3", done(3)), runs("echo one", prints("one\n"))), Cleanup: sshdCleanup},
		{Name: "ssh-command", About: "ssh with a command ends with its status",
			Needs: []string{"ssh", "sshd"}, Setup: sshdSetup, Steps: steps(
				runs(sshCommand+" 'echo far; exit 6'", with(done(6), outputHas("far\n")))),
			Cleanup: sshdCleanup},
		{Name: "tmux", About: "tmux hides what it runs, too", Needs: []string{"tmux"}, Steps: steps(
			runs("tmux -L conformance new 'bash --norc'", opaque),
			types("echo in-$((40+2))", opaque),
			conformance.Step{Do: conformance.Screen,
				Want: conformance.Want{Output: has("in-42")}},
			types("exit", done(0)), runs("echo one", prints("one\n"))),
			Cleanup: "tmux -L conformance kill-server 2>/dev/null; true"},
		repaired("raw-left", "a terminal that a crash left raw and without echo is repaired "+
			"before the prompt is reported", "bash -c 'stty raw -echo; kill -9 $$'"),
		repaired("raw-crash", "whatever crashed",
			`python3 -c 'import os, tty; tty.setraw(0); os.kill(os.getpid(), 9)'`, "python3"),
		meant(repaired("raw-end", "also by a program that ended well",
			`python3 -c 'import tty; tty.setraw(0)'`, "python3")),
		meant(repaired("no-echo", "one without echo", "sh -c 'stty -echo'")),
		meant(repaired("no-signals", "one whose ^C is a byte", "sh -c 'stty -isig'")),
		meant(conformance.Case{Name: "no-signals-stop",
			About: "where ^C was a byte it is an interrupt again",
			Steps: steps(run("sh -c 'stty -isig'"), works("sleep 100", 500), interrupts())}),
		{Name: "stty", About: "what the shell's own stty sets stays", Steps: steps(
			run("stty -echo"), run("ls / >/dev/null"),
			runs("read -p '? ' x; echo got $x", asks(agent.WantPassword, "? ")),
			types("a", contains("got a")),
			run("stty echo"), runs("read -p '? ' x; echo got $x", asks(agent.WantLine, "? ")),
			types("a", contains("got a")))},
		{Name: "mouse-left", About: "a mouse mode, bracketed paste and a hidden cursor that were " +
			"left on break nothing", Steps: append(steps(
			run(`printf '\033[?1000h\033[?1006h\033[?2004h\033[?25l'`)), lines...)},
	}
}
