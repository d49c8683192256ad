package corpus

import (
	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
)

// notWaiting has cases with programs that do not wait for input: they must never be reported as
// waiting.
func notWaiting() []conformance.Case {
	one := func(name, about, command string, needs ...string) conformance.Case {
		return conformance.Case{Name: name, About: about, Needs: needs,
			Steps: steps(works(command, 1500), interrupts(), run("true"))}
	}
	threads := `import sys, threading, time
def work():
    while True: sum(range(1000)); time.sleep(0.01)
threading.Thread(target=work, daemon=True).start()
sys.stdin.readline()
`
	dev := `import http.server
http.server.test(http.server.SimpleHTTPRequestHandler, port=0, bind="127.0.0.1")
`
	return []conformance.Case{
		one("sleep", "sleep", "sleep 100"),
		one("cpu", "a loop that computes", "while :; do :; done"),
		one("wait", "a shell that waits for a job", "sleep 100 & wait"),
		one("tail", "tail -f of a file that does not grow", "tail -f /etc/passwd"),
		one("yes", "a flood of output", "yes"),
		one("socket", "a read from a socket that nobody writes to",
			`python3 -c 'import socket; a, b = socket.socketpair(socket.AF_UNIX); a.recv(1)'`,
			"python3"),
		one("tcp", "a TCP server that nobody calls",
			`python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); s.accept()'`,
			"python3"),
		{Name: "watch", About: "watch draws the whole screen and wants nothing",
			Needs: []string{"watch"}, Cannot: cannotBlind(quietUnknown),
			Steps: steps(works("watch -n 1 date", 1500), interrupts(), run("true"))},
		one("dev-null", "cat that reads something else", "cat /dev/zero >/dev/null"),
		one("asyncio-sleep", "an event loop with a timer",
			`python3 -c 'import asyncio; asyncio.run(asyncio.sleep(100))'`, "python3"),
		one("silent-prompt", "text that looks like a question asks nothing",
			`printf 'Continue? [y/N] '; sleep 100`),
		one("silent-password", "so does one that looks like a password's",
			`printf 'Password: '; sleep 100`),
		one("silent-shell", "and one that looks like a shell's prompt",
			`printf 'root@host:~# '; sleep 100`),
		one("spinner", "a spinner",
			`while :; do for c in '|' / - '\'; do printf '\r%s' "$c"; sleep 0.1; done; done`),
		{Name: "dev-server", About: "a web server in front", Needs: []string{"python3"},
			Files:   []conformance.File{{Path: "conformance-dev.py", Text: dev}},
			Steps:   steps(works("python3 conformance-dev.py", 2500), interrupts()),
			Cleanup: "rm -f conformance-dev.py"},
		{Name: "type-ahead", About: "what was typed ahead is still to be read: the program is " +
			"not waiting yet", Steps: steps(run("true"),
			conformance.Step{Do: conformance.Run, Text: "sleep 1; read x; echo got $x",
				Want: with(contains("got early"),
					func(w *conformance.Want) { w.EarliestMS = 900 }),
				AfterMS: 200, Meanwhile: steps(
					conformance.Step{Do: conformance.Type, Text: "early", TimeoutMS: 10_000})})},
		{Name: "threads", About: "a thread reads the keyboard while another works: it listens, " +
			"and never waits", Needs: []string{"python3"},
			Files: []conformance.File{{Path: "conformance-threads.py", Text: threads}},
			Steps: steps(
				conformance.Step{Do: conformance.Run, Text: "python3 conformance-threads.py",
					TimeoutMS: 3000, Want: conformance.Want{
						Ended: ends(agent.EndedAttention, agent.EndedDeadline),
						Phase: []agent.Phase{agent.PhaseRunning}, Listens: yes()}},
				keys(done(0), "Enter")), Cleanup: "rm -f conformance-threads.py"},
	}
}
