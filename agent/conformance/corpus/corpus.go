// Package corpus has the cases of package conformance: what a terminal must do, and how its state
// must be reported. Most cases are known failures of some product. Cases are data, except those
// with a Func, which are Go code.
//
// The package does not run the cases.
package corpus

import (
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
	"github.com/sandboxd/sandboxd/agent/conformance/programs"
)

// Packages has the Debian packages of programs whose package has another name.
var Packages = map[string]string{
	"node":        "nodejs",
	"man":         "man-db",
	"sshd":        "openssh-server",
	"unbuffer":    "expect",
	"go":          "golang-go",
	"java":        "default-jdk-headless",
	"gcc":         "gcc libc6-dev",
	"script":      "bsdutils",
	"ssh-keygen":  "openssh-client",
	"sqlite3":     "sqlite3",
	"dpkg-divert": "dpkg",
	"killall":     "psmisc",
	"watch":       "procps",
	"top":         "procps",
	"pip3":        "python3-pip",
	"setsid":      "util-linux",
	"ipython3":    "ipython3",
	"lua5.4":      "lua5.4",
	"redis-cli":   "redis-tools",
	"irb":         "ruby",
	"php":         "php-cli",
}

// All returns all cases, group by group.
func All() []conformance.Case {
	var all []conformance.Case
	for _, group := range []struct {
		name  string
		cases []conformance.Case
	}{
		{"commands", commands()},
		{"flow", flow()},
		{"prompts", prompts()},
		{"death", death()},
		{"waiting", waiting()},
		{"not-waiting", notWaiting()},
		{"listening", listening()},
		{"interrupts", interrupting()},
		{"stdin", stdin()},
		{"background", background()},
		{"output", output()},
		{"exit", exits()},
		{"nesting", nesting()},
		{"nested", nested()},
		{"repl", repl()},
		{"transport", transport()},
		{"agents", programs.Cases()},
	} {
		for _, c := range group.cases {
			c.Group = group.name
			all = append(all, tiered(c))
		}
	}
	return all
}

// Groups returns the names of the groups, in order.
func Groups(cases []conformance.Case) []string {
	var names []string
	for _, c := range cases {
		if !slices.Contains(names, c.Group) {
			names = append(names, c.Group)
		}
	}
	return names
}

// Common expectations of steps.

func code(n int) *int               { return &n }
func is(s string) *string           { return &s }
func yes() *bool                    { b := true; return &b }
func no() *bool                     { b := false; return &b }
func repeat(n int, s string) string { return strings.Repeat(s, n) }

// text expects exactly this text.
func text(s string) *conformance.Text { return &conformance.Text{Is: is(s)} }

// has expects a text that contains all parts.
func has(parts ...string) *conformance.Text { return &conformance.Text{Has: parts} }

// run runs a command that must exit with 0.
func run(command string) conformance.Step {
	return conformance.Step{Do: conformance.Run, Text: command, Want: done(0)}
}

// runs runs a command with an expected result.
func runs(command string, w conformance.Want) conformance.Step {
	return conformance.Step{Do: conformance.Run, Text: command, Want: w}
}

// types types a line.
func types(line string, w conformance.Want) conformance.Step {
	return conformance.Step{Do: conformance.Type, Text: line, Want: w}
}

// keys presses keys.
func keys(w conformance.Want, names ...string) conformance.Step {
	return conformance.Step{Do: conformance.Keys, Keys: names, Want: w}
}

// exec runs a command without a terminal that must exit with 0 and print exactly this output.
func exec(command, stdout string) conformance.Step {
	return conformance.Step{Do: conformance.Exec, Text: command,
		Want: conformance.Want{ExitCode: code(0), Output: text(stdout)}}
}

// interrupts interrupts the program and expects the prompt.
func interrupts() conformance.Step {
	return conformance.Step{Do: conformance.Interrupt,
		Want: conformance.Want{Ended: []agent.Ended{agent.EndedInterrupted},
			Phase: []agent.Phase{agent.PhasePrompt}}}
}

// done expects the end of a command with this exit code.
func done(exit int) conformance.Want {
	return conformance.Want{Ended: []agent.Ended{agent.EndedDone},
		Phase: []agent.Phase{agent.PhasePrompt}, ExitCode: code(exit)}
}

// prints expects the end of a command with 0 and exactly this output.
func prints(output string) conformance.Want {
	w := done(0)
	w.Output = text(output)
	return w
}

// asks expects a program that waits for this kind of input. prompt is a part of the text before the
// cursor.
func asks(want agent.Want, prompt string) conformance.Want {
	w := conformance.Want{Ended: []agent.Ended{agent.EndedWaiting},
		Phase: []agent.Phase{agent.PhaseWaiting}, Want: []agent.Want{want}, Listens: no()}
	if prompt != "" {
		w.Prompt = has(prompt)
	}
	return w
}

// rests expects a program that reads the keyboard while it works and is idle.
func rests() conformance.Want {
	return conformance.Want{Ended: []agent.Ended{agent.EndedAttention},
		Phase: []agent.Phase{agent.PhaseRunning}, Listens: yes(), Attention: "likely"}
}

// dies expects the end of the shell.
func dies(exit int) conformance.Want {
	return conformance.Want{Ended: []agent.Ended{agent.EndedDead},
		Phase: []agent.Phase{agent.PhaseDead}, ExitCode: code(exit)}
}

// works expects a command that runs for ms milliseconds without waiting for input.
func works(command string, ms int64) conformance.Step {
	return conformance.Step{Do: conformance.Run, Text: command, TimeoutMS: ms,
		Want: conformance.Want{Ended: ends(agent.EndedDeadline),
			Phase: []agent.Phase{agent.PhaseRunning}, Attention: "no"}}
}

// shows returns w with the expected screen of the result. Without parts, it expects no screen.
func shows(w conformance.Want, on ...string) conformance.Want {
	w.Screen = has(on...)
	if len(on) == 0 {
		w.Screen = text("")
	}
	return w
}

func steps(all ...conformance.Step) []conformance.Step { return all }
func ends(how ...agent.Ended) []agent.Ended            { return how }

// with returns a changed w.
func with(w conformance.Want, more func(w *conformance.Want)) conformance.Want {
	if w.Output != nil {
		o := *w.Output
		w.Output = &o
	}
	more(&w)
	return w
}

// outputHas returns w with parts that the output must contain.
func outputHas(parts ...string) func(w *conformance.Want) {
	return func(w *conformance.Want) { w.Output = has(parts...) }
}

// contains expects the end of a command with 0 whose output contains parts.
func contains(parts ...string) conformance.Want { return with(done(0), outputHas(parts...)) }

// prompted expects the prompt after a command with this exit code.
func prompted(exit int) conformance.Want {
	return conformance.Want{Phase: []agent.Phase{agent.PhasePrompt}, ExitCode: code(exit)}
}

// stopped expects the prompt after ^C, with any exit code.
func stopped() conformance.Want {
	return conformance.Want{Ended: ends(agent.EndedDone, agent.EndedInterrupted),
		Phase: []agent.Phase{agent.PhasePrompt}}
}

// wait waits for the prompt.
func wait(w conformance.Want) conformance.Step {
	return conformance.Step{Do: conformance.Wait, For: []agent.Phase{agent.PhasePrompt}, Want: w}
}

// rawText types text without Enter.
func rawText(s string, w conformance.Want) conformance.Step {
	return conformance.Step{Do: conformance.Raw, Text: s, Want: w}
}

// asksAny is asks with several accepted kinds of input.
func asksAny(prompt string, want ...agent.Want) conformance.Want {
	w := asks("", prompt)
	w.Want = want
	return w
}

// attends expects a full-screen program that is idle, whether it reads or polls the terminal.
func attends(program string) conformance.Want {
	return conformance.Want{Ended: ends(agent.EndedAttention, agent.EndedWaiting),
		Foreground: program}
}
