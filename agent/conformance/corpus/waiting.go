package corpus

import (
	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
)

// waiting has cases with programs that wait for input: that is reported, with the kind of input.
func waiting() []conformance.Case {
	line, password, raw := agent.WantLine, agent.WantPassword, agent.WantRaw
	// node expects a question of node. Its event loop may have a timer at first: then it is
	// reported as listening.
	node := func(prompt string) conformance.Want {
		return conformance.Want{Ended: ends(agent.EndedWaiting, agent.EndedAttention),
			Phase: []agent.Phase{agent.PhaseWaiting, agent.PhaseRunning},
			Want:  []agent.Want{raw}, Prompt: has(prompt), LatestMS: 3000}
	}
	still := func(w conformance.Want) conformance.Step {
		return conformance.Step{Do: conformance.Wait, For: []agent.Phase{agent.PhaseWaiting},
			Want: w}
	}
	idle := conformance.Step{Do: conformance.Exec, Text: "sleep 18", TimeoutMS: 60_000,
		Want: conformance.Want{ExitCode: code(0)}}
	// collected waits until the garbage collector's timers have expired: then the newest node polls
	// without a timeout (the fourth argument of epoll_wait and epoll_pwait is -1; see
	// proc_pid_syscall(5)).
	collected := conformance.Step{Do: conformance.Exec, TimeoutMS: 120_000,
		Want: conformance.Want{ExitCode: code(0)},
		Text: `sleep 18; for i in $(seq 400); do read -r n a b c timeout rest </proc/$(pgrep -n -x 'node|nodejs')/syscall && [ "$timeout" = 0xffffffff ] && exit; sleep 0.2; done; exit 1`}
	return []conformance.Case{
		{Name: "read", About: "bash's read waits for a line", Steps: steps(
			runs(`read x; echo "got $x"`, asks(line, "")), types("a b", prints("a b\ngot a b\n")))},
		{Name: "read-p", About: "bash's read with a prompt: the prompt is reported", Steps: steps(
			runs(`read -p 'name? ' x; echo "hello $x"`, asks(line, "name? ")),
			types("Ada", prints("Ada\nhello Ada\n")))},
		{Name: "read-s", About: "bash's read without echo wants a password", Steps: steps(
			runs(`read -s -p 'secret: ' x; echo; echo ${#x}`, asks(password, "secret: ")),
			types("abcd", prints("\n4\n")))},
		{Name: "read-t", Cannot: cannotBlind(listenUnknown),
			About: "bash's read with a time-out polls: it listens, and goes on by itself",
			Steps: steps(
				runs(`read -t 2 -p 'quick: ' x; echo "code $?"`,
					conformance.Want{Ended: ends(agent.EndedAttention), Listens: yes(),
						Attention: "likely", EarliestMS: 700}),
				wait(prompted(0)))},
		{Name: "select", About: "bash's select menu", Steps: steps(
			runs(`select x in red green; do echo "chose $x"; break; done`, asks(line, "#? ")),
			types("2", contains("chose green")))},
		{Name: "cat", About: "cat reads the terminal until ^D", Steps: steps(
			runs("cat", asks(line, "")), types("one", asks(line, "")), keys(done(0), "^D"))},
		{Name: "tee", About: "tee reads the terminal", Steps: steps(
			runs("tee conformance-tee", asks(line, "")), types("one", asks(line, "")),
			keys(done(0), "^D"), exec("cat conformance-tee", "one\n")),
			Cleanup: "rm -f conformance-tee"},
		{Name: "pipe", About: "cat in front of a pipe waits, grep behind it does not hide that",
			Steps: steps(
				runs("cat | grep --line-buffered x", asks(line, "")), types("axb", asks(line, "")),
				keys(done(0), "^D"))},
		{Name: "later", About: "a program that works first, then asks", Steps: steps(
			conformance.Step{Do: conformance.Run, Text: "(sleep 1; read x; echo got $x)",
				Want: with(asks(line, ""), func(w *conformance.Want) { w.EarliestMS = 990 })},
			types("z", contains("got z")))},
		{Name: "dev-tty", About: "a program that opens /dev/tty, with standard input elsewhere",
			Steps: steps(
				runs("echo piped | { read x </dev/tty; echo \"tty $x\"; cat; }", asks(line, "")),
				types("z", contains("tty z", "piped")))},
		{Name: "timeout-foreground", About: "timeout --foreground leaves its child the terminal",
			Steps: steps(
				runs("timeout --foreground 60 cat", asks(line, "")), keys(done(0), "^D"))},
		{Name: "strace", About: "a traced program waits as one that is not",
			Needs: []string{"strace"}, Steps: steps(
				runs("strace -o /dev/null cat", asks(line, "")), keys(done(0), "^D"))},
		{Name: "stopped-job", About: "a stopped job leaves a prompt, and waits again in front",
			Steps: steps(
				runs("cat", asks(line, "")), keys(prompted(148), "^Z"),
				runs("jobs", contains("Stopped")),
				runs("fg", asks(line, "")), keys(done(0), "^D"))},
		{Name: "sigttin", About: "a background reader is stopped, and its shell is at its prompt",
			Steps: steps(
				run("cat & true"), run("sleep 0.3"), runs("jobs", contains("Stopped")),
				runs("kill -9 %1; wait; true", done(0)))},

		{Name: "python-input", About: "python's input()", Needs: []string{"python3"}, Steps: steps(
			runs(`python3 -c 'print("hi", input("age? "))'`, asks(line, "age? ")),
			types("42", contains("hi 42")))},
		{Name: "python-getpass", About: "python's getpass()", Needs: []string{"python3"},
			Steps: steps(
				runs(`python3 -c 'import getpass; print(len(getpass.getpass("pw: ")))'`,
					asks(password, "pw: ")),
				types("secret", with(contains("6"),
					func(w *conformance.Want) { w.Output.Lacks = []string{"secret"} })))},
		{Name: "python-repl", About: "python's prompt; answers belong to their questions",
			Needs: []string{"python3"}, Steps: steps(
				runs("python3 -q", asksAny(">>> ", raw, line)),
				types("6*7", with(asksAny(">>> ", raw, line), outputHas("42"))),
				types("6*8", with(asksAny(">>> ", raw, line), func(w *conformance.Want) {
					w.Output = &conformance.Text{Has: []string{"48"}, Lacks: []string{"42"}}
				})),
				types("exit(3)", done(3)))},
		{Name: "python-asyncio",
			About: "an event loop that reads the terminal through a pipe transport",
			Needs: []string{"python3"},
			Files: []conformance.File{{Path: "conformance-asyncio.py", Text: `import asyncio, sys
async def main():
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print("ready", end=" ", flush=True)
    print("got", (await reader.readline()).decode().strip())
asyncio.run(main())
`}}, Steps: steps(runs("python3 conformance-asyncio.py", asks(line, "ready ")), types("z", contains("got z"))), Cleanup: "rm -f conformance-asyncio.py"},
		{Name: "perl", About: "perl's <STDIN>", Needs: []string{"perl"}, Steps: steps(
			runs(`perl -e '$|=1; print "who? "; $x=<STDIN>; print "hi $x"'`, asks(line, "who? ")),
			types("Ada", contains("hi Ada")))},
		{Name: "node-repl", About: "node's prompt asks, and waits as soon as nothing else is " +
			"due: its collector sets timers after it had much to do, some of 8 s and one of 0.6 s",
			Needs: []string{"node"}, Steps: steps(
				runs("node", node("> ")), collected, still(asksAny("> ", raw)),
				types("6*7", with(node("> "), outputHas("42"))), types(".exit", done(0)))},
		{Name: "node-question", About: "so does its readline.question()", Needs: []string{"node"},
			Steps: steps(
				runs(
					`node -e 'const r=require("readline").createInterface({input:process.stdin,output:process.stdout}); r.question("who? ",a=>{console.log("hi "+a);r.close()})'`, node("who? ")),
				collected, still(asksAny("who? ", raw)), types("Ada", contains("hi Ada")))},
		{Name: "node-timer",
			About: "one whose own timer is due goes on without an answer: it never waits",
			Needs: []string{"node"}, Cannot: cannotBlind(listenUnknown), Steps: steps(
				runs(
					`node -e 'const r=require("readline").createInterface({input:process.stdin,output:process.stdout}); r.question("who? ",()=>{}); r.on("SIGINT",()=>process.exit()); setTimeout(()=>r.close(),60000)'`,
					conformance.Want{Ended: ends(agent.EndedAttention),
						Phase: []agent.Phase{agent.PhaseRunning}, Listens: yes(),
						Prompt: has("who? ")}),
				idle, still(conformance.Want{Ended: ends(agent.EndedAttention),
					Phase: []agent.Phase{agent.PhaseRunning}, Listens: yes()}),
				keys(done(0), "^C"))},
		{Name: "passwd", About: "passwd wants a password, twice", Needs: []string{"passwd"},
			Setup: "id conformance-pw >/dev/null 2>&1 || useradd conformance-pw", Steps: steps(
				runs("passwd conformance-pw", asks(password, "New password: ")),
				types("cheese-4711", asks(password, "Retype new password: ")),
				types("cheese-4711", done(0))), Cleanup: "userdel conformance-pw"},
		{Name: "ssh-keygen", About: "ssh-keygen asks for a file, then for a passphrase",
			Needs: []string{"ssh-keygen"}, Steps: steps(
				runs("ssh-keygen -t ed25519", asks(line, "Enter file in which to save the key")),
				types("/tmp/conformance-key", asks(password, "Enter passphrase")),
				types("long enough", asks(password, "Enter same passphrase again")),
				types("long enough", done(0))), Cleanup: "rm -f /tmp/conformance-key*"},
		{Name: "apt-get", About: "apt-get asks whether to go on", Needs: []string{"apt-get"},
			Setup: "apt-get remove -y -qq toilet toilet-fonts libcaca0 >/dev/null; apt-get " +
				"update -qq", Steps: steps(
				conformance.Step{Do: conformance.Run, Text: "apt-get install toilet",
					TimeoutMS: 60_000,
					Want:      asks(line, "Do you want to continue? [Y/n] ")},
				types("n", with(done(1), outputHas("Abort."))))},
		{Name: "git-log", About: "git log with a pager waits for it",
			Needs: []string{"git", "less"}, Setup: "rm -rf conformance-git && git init -q " +
				"conformance-git && cd conformance-git && for i in $(seq 80); do git -c " +
				"user.name=a " +
				"-c user.email=a@b commit -q --allow-empty -m \"number $i\"; done",
			Steps: steps(runs("GIT_PAGER='less -+F' git -C conformance-git log",
				asks(agent.WantPager, ":")), keys(asks(agent.WantPager, ":"), "Space"),
				keys(done(0), "q")), Cleanup: "rm -rf conformance-git"},
		{Name: "git-commit", About: "git commit opens an editor, whose user is asked",
			Needs: []string{"git", "vim"},
			Setup: "rm -rf conformance-git && git init -q conformance-git",
			Steps: steps(runs("GIT_EDITOR='vim -u NONE' git -C conformance-git -c user.name=a -c "+
				"user.email=a@b commit --allow-empty", attends("vim")),
				rawText("ithe message\x1b", attends("")),
				types(":wq", with(done(0), outputHas("the message"))),
				exec("git -C conformance-git log --format=%s", "the message\n")),
			Cleanup: "rm -rf conformance-git"},
		{Name: "man", About: "man with a pager", Needs: []string{"man", "less"},
			Files: []conformance.File{{Path: "conformance.1",
				Text: ".TH X 1\n.SH NAME\nx\n" + repeat(200, ".PP\nline\n")}},
			Steps: steps(runs("MANPAGER='less -+F' man -l ./conformance.1",
				asks(agent.WantPager, "")), keys(done(0), "q")), Cleanup: "rm -f conformance.1"},
		{Name: "less", About: "less waits as a pager", Needs: []string{"less"}, Steps: steps(
			runs("less /etc/services", asks(agent.WantPager, "")),
			keys(asks(agent.WantPager, ""), "Space"), keys(done(0), "q"))},
		{Name: "vim", About: "vim at rest asks its user", Needs: []string{"vim"}, Steps: steps(
			runs("vim -u NONE conformance-vim", attends("vim")),
			rawText("ihello\x1b", attends("vim")), types(":wq", done(0)),
			exec("cat conformance-vim", "hello\n")), Cleanup: "rm -f conformance-vim"},
		{Name: "nano", About: "nano at rest asks its user", Needs: []string{"nano"}, Steps: steps(
			runs("nano conformance-nano", attends("nano")), rawText("hello", attends("nano")),
			keys(attends("nano"), "^X"), rawText("y", attends("nano")), keys(done(0), "Enter"),
			exec("cat conformance-nano", "hello\n")), Cleanup: "rm -f conformance-nano"},
		{Name: "gdb", About: "gdb's prompt", Needs: []string{"gdb"}, Steps: steps(
			conformance.Step{Do: conformance.Run, Text: "gdb -q -nx",
				Want: asksAny("(gdb) ", raw, line)},
			types("print 6*7", with(asksAny("(gdb) ", raw, line), outputHas("= 42"))),
			types("quit", done(0)))},
		{Name: "sqlite3", About: "sqlite3's prompt", Needs: []string{"sqlite3"}, Steps: steps(
			runs("sqlite3", asksAny("sqlite> ", raw, line)),
			types("select 6*7;", with(asksAny("sqlite> ", raw, line), outputHas("42"))),
			types(".quit", done(0)))},
		{Name: "script", About: "script(1) relays to a terminal of its own: the program inside " +
			"is judged", Needs: []string{"script"}, Steps: steps(
			runs("script -qec 'cat' /dev/null", asks(line, "")), types("one", asks(line, "")),
			keys(done(0), "^D"))},
		{Name: "pty-spawn", About: "so does python's pty.spawn", Needs: []string{"python3"},
			Steps: steps(
				runs(`python3 -c 'import pty; pty.spawn(["cat"])'`, asks(line, "")),
				types("one", asks(line, "")), keys(done(0), "^D"))},
		{Name: "unbuffer", About: "so does unbuffer -p, which switches echo off inside " +
			"(stty_init) and out: by the modes of both that is how a secret is asked for",
			Needs: []string{"unbuffer"}, Steps: steps(
				conformance.Step{Do: conformance.Run, Text: "unbuffer -p cat",
					Want: asks(password, ""),
					Without: map[conformance.Tier]conformance.Want{
						// the inner terminal is not visible there
						conformance.NoProcess: asks(raw, ""), conformance.Neither: asks(raw, "")}},
				keys(stopped(), "^C"))},
		{Name: "expect-interact", About: "so does expect's interact", Needs: []string{"expect"},
			Steps: steps(
				runs(`expect -c 'spawn -noecho cat; interact'`, asksAny("", raw, line)),
				keys(done(0), "^D"))},
		{Name: "ssh-host-key", About: "ssh's question about a host key",
			Needs: []string{"ssh", "sshd"}, Setup: sshdSetup, Steps: steps(
				runs("ssh -p 2299 -o UserKnownHostsFile=/dev/null localhost",
					asks(line, "(yes/no/[fingerprint])? ")), types("no", done(255))),
			Cleanup: sshdCleanup},
		{Name: "ssh-password", About: "ssh's question for a password",
			Needs: []string{"ssh", "sshd"}, Setup: sshdSetup, Steps: steps(
				runs("ssh -p 2299 -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o "+
					"PubkeyAuthentication=no -o PreferredAuthentications=password localhost",
					asks(password, "password: ")), keys(stopped(), "^C")), Cleanup: sshdCleanup},

		{Name: "sudo-password", About: "sudo asks for a password", Privileged: true,
			Needs: []string{"sudo"}, Setup: userSetup, Steps: steps(
				runs("su - conformance -c 'sudo -S -k true'", asks(password, "password")),
				types("wrong", asks(password, "")), keys(stopped(), "^C")), Cleanup: userCleanup},
		{Name: "sudo-use-pty", About: "sudo with use_pty relays to a terminal of its own",
			Privileged: true, Needs: []string{"sudo"},
			Setup: "echo 'Defaults use_pty' >/etc/sudoers.d/conformance", Steps: steps(
				runs("sudo cat", asks(line, "")), types("one", asks(line, "")),
				keys(done(0), "^D")), Cleanup: "rm -f /etc/sudoers.d/conformance"},
		{Name: "su-password", About: "su asks for a password", Privileged: true,
			Needs: []string{"su"}, Setup: userSetup, Steps: steps(
				runs("su - conformance -c 'su -'", asks(password, "Password: ")),
				conformance.Step{Do: conformance.Keys, Keys: []string{"^C"}, Want: stopped(),
					Without: map[conformance.Tier]conformance.Want{
						// the outer su takes two seconds to end, with the terminal in the modes of
						// the question
						conformance.NoProcess: {}}},
				wait(conformance.Want{Phase: []agent.Phase{agent.PhasePrompt}})),
			Cleanup: userCleanup},
		{Name: "no-setuid",
			About: "where setuid programs do not work sudo says so, and nobody waits",
			Needs: []string{"sudo"}, Setup: userSetup, Steps: steps(
				runs("su - conformance -c 'sudo true'",
					with(done(1), outputHas("no new privileges")))),
			Cleanup: userCleanup},
	}
}

// sshdSetup starts an SSH server on the sandbox's loopback. sshdCleanup ends it.
const (
	sshdSetup = "mkdir -p /run/sshd && ssh-keygen -q -t ed25519 -N '' -f /tmp/conformance-host " +
		"<<<y >/dev/null && /usr/sbin/sshd -h /tmp/conformance-host -p 2299 -o " +
		"ListenAddress=127.0.0.1 -o PidFile=/tmp/conformance-sshd.pid -o " +
		"PasswordAuthentication=yes -o PermitRootLogin=yes -o StrictModes=no -o " +
		"AuthorizedKeysFile=/tmp/conformance-host.pub -o UsePAM=no -E /dev/null </dev/null " +
		">/dev/null 2>&1"
	sshdCleanup = "kill $(cat /tmp/conformance-sshd.pid); rm -f /tmp/conformance-sshd.pid " +
		"/tmp/conformance-host*"
)

// userSetup creates a user with a password.
const (
	userSetup = "id conformance >/dev/null 2>&1 || useradd -m -s /bin/bash conformance; echo " +
		"conformance:cheese | chpasswd; echo 'conformance ALL=(ALL) ALL' " +
		">/etc/sudoers.d/conformance-user"
	userCleanup = "rm -f /etc/sudoers.d/conformance-user; userdel -r conformance 2>/dev/null; true"
)
