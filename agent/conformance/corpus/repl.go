package corpus

import (
	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
)

// repl has cases about interpreters: they wait for a statement at a prompt of their own, by which
// they are named, and type returns when the prompt is back.
func repl() []conformance.Case {
	// at expects the interpreter's prompt.
	at := func(program, prompt string) conformance.Want {
		w := asksAny(prompt, agent.WantRaw, agent.WantLine)
		w.Ended, w.Program = ends(agent.EndedWaiting, agent.EndedAttention), program
		return w
	}
	// inside starts an interpreter, makes the steps at its prompt, and leaves it.
	inside := func(name, program, command, prompt string, leave conformance.Step,
		more ...conformance.Step) conformance.Case {
		all := append(steps(run("A=outer"), runs(command, at(program, prompt)),
			conformance.Step{Do: conformance.Run, Text: "echo no", Want: conformance.Want{
				Ended: ends(agent.EndedRefused), Error: agent.CodeNotPrompt}}), more...)
		return conformance.Case{Name: name, About: "statements typed to " + program,
			Needs: []string{program},
			Steps: append(all, leave, runs("echo $A", prints("outer\n")))}
	}
	// says types a statement, whose output has parts, and expects the prompt again.
	says := func(program, prompt, statement string, parts ...string) conformance.Step {
		return types(statement, with(at(program, prompt), outputHas(parts...)))
	}
	python := func(statement string, parts ...string) conformance.Step {
		return says("python3", ">>> ", statement, parts...)
	}
	all := []conformance.Case{
		inside("python", "python3", "python3 -q", ">>> ", types("exit(3)", done(3)),
			python("6*7", "42"), python("1/0", "ZeroDivisionError"), python("x = 5"),
			python("print(x)", "5")),
		inside("python-block", "python3", "python3 -q", ">>> ", keys(done(0), "^D"),
			types("for i in range(2):", at("python3", "... ")),
			types("  print('line', i)", at("python3", "... ")),
			keys(with(at("python3", ">>> "), outputHas("line 0", "line 1")), "Enter")),
		inside("python-question", "python3", "python3 -q", ">>> ", types("exit()", done(0)),
			types("x = input('name? ')", asksAny("name? ", agent.WantRaw, agent.WantLine)),
			python("bob"), python("x", "'bob'")),
		inside("python-interrupt", "python3", "python3 -q", ">>> ", types("exit()", done(0)),
			conformance.Step{Do: conformance.Type, Text: "while True: pass", TimeoutMS: 500,
				Want: conformance.Want{Ended: ends(agent.EndedContinuation, agent.EndedDeadline,
					agent.EndedWaiting)}},
			conformance.Step{Do: conformance.Keys, Keys: []string{"Enter"}, TimeoutMS: 1000,
				Want: conformance.Want{Ended: ends(agent.EndedDeadline)}},
			conformance.Step{Do: conformance.Interrupt, Want: conformance.Want{
				Ended: ends(agent.EndedInterrupted), Program: "python3"}},
			python("6*7", "42")),
		inside("python-debugger", "python3",
			"python3 -m pdb /usr/lib/python3*/this.py", "(Pdb) ",
			types("q", done(0)), says("python3", "(Pdb) ", "p 6*7", "42")),
		inside("ipython", "ipython3", "ipython3 --no-banner --simple-prompt", "In [1]: ",
			types("exit", done(0)), says("ipython3", "In [2]: ", "6*7", "42")),
		inside("node", "node", "node", "> ", types(".exit", done(0)),
			says("node", "> ", "6*7", "42"), says("node", "> ", "nosuch", "ReferenceError")),
		inside("sqlite", "sqlite3", "sqlite3", "sqlite> ", types(".quit", done(0)),
			says("sqlite3", "sqlite> ", "select 6*7;", "42"),
			types("select", at("sqlite3", "   ...> ")),
			says("sqlite3", "sqlite> ", "'two';", "two")),
		inside("gdb", "gdb", "gdb -q -nx", "(gdb) ", types("quit", done(0)),
			says("gdb", "(gdb) ", "print 6*7", "42")),
		inside("lua", "lua5.4", "lua5.4", "> ", keys(done(0), "^D"),
			says("lua5.4", "> ", "6*7", "42"), types("for i = 1, 2 do", at("lua5.4", ">> ")),
			says("lua5.4", "> ", "print(i) end", "1", "2")),
		inside("perl", "perl", "perl -de 1", "  DB<1> ", types("q", done(0)),
			says("perl", "  DB<2> ", "print 6*7", "42")),
		inside("irb", "irb", "irb -f --noautocomplete", "irb(main):001:0> ",
			types("exit", done(0)), says("irb", "irb(main):002:0> ", "6*7", "42")),
		inside("php", "php", "php -a", "php > ", types("quit", done(0)),
			says("php", "php > ", "echo 6*7;", "42")),
		inside("sftp", "sftp", "sftp -D /usr/lib/openssh/sftp-server", "sftp> ",
			types("bye", done(0)), says("sftp", "sftp> ", "pwd", "Remote working directory")),
		inside("redis", "redis-cli", "redis-cli -h 127.0.0.1 -p 1", "not connected> ",
			types("exit", done(0)),
			says("redis-cli", "not connected> ", "ping", "Could not connect")),
		{Name: "script", About: "what a script asks is not its interpreter's prompt",
			Needs: []string{"python3"}, Steps: steps(runs(`python3 -c 'input("> ")'`,
				asksAny("> ", agent.WantRaw, agent.WantLine)), types("a", done(0)))},
	}
	return all
}
