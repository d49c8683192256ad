// Package corpus is what must be true of a terminal and of what a caller is told of it, as cases of package conformance:
// most of them once went wrong in some product. They are data; Func cases are Go, and say so.
//
// It knows nothing of how the cases are run.
package corpus

import (
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
	"github.com/sandboxd/sandboxd/agent/conformance/programs"
)

// Packages are the Debian packages of programs that have another name.
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
}

// All is the corpus, group by group.
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

// Groups are the names of the groups of cases, in their order.
func Groups(cases []conformance.Case) []string {
	var names []string
	for _, c := range cases {
		if !slices.Contains(names, c.Group) {
			names = append(names, c.Group)
		}
	}
	return names
}

// What most steps want.

func code(n int) *int               { return &n }
func is(s string) *string           { return &s }
func yes() *bool                    { b := true; return &b }
func no() *bool                     { b := false; return &b }
func repeat(n int, s string) string { return strings.Repeat(s, n) }

// text is what a text must be: exactly that.
func text(s string) *conformance.Text { return &conformance.Text{Is: is(s)} }

// has is what a text must hold.
func has(parts ...string) *conformance.Text { return &conformance.Text{Has: parts} }

// run is a command that ends with 0.
func run(command string) conformance.Step {
	return conformance.Step{Do: conformance.Run, Text: command, Want: done(0)}
}

// runs is a command with what is wanted of it.
func runs(command string, w conformance.Want) conformance.Step {
	return conformance.Step{Do: conformance.Run, Text: command, Want: w}
}

// types is a line that is typed.
func types(line string, w conformance.Want) conformance.Step {
	return conformance.Step{Do: conformance.Type, Text: line, Want: w}
}

// keys are pressed.
func keys(w conformance.Want, names ...string) conformance.Step {
	return conformance.Step{Do: conformance.Keys, Keys: names, Want: w}
}

// exec is a command without a terminal that ends with 0 and prints exactly that.
func exec(command, stdout string) conformance.Step {
	return conformance.Step{Do: conformance.Exec, Text: command, Want: conformance.Want{ExitCode: code(0), Output: text(stdout)}}
}

// interrupts stops what runs and wants the prompt back.
func interrupts() conformance.Step {
	return conformance.Step{Do: conformance.Interrupt, Want: conformance.Want{Ended: []agent.Ended{agent.EndedInterrupted}, Phase: []agent.Phase{agent.PhasePrompt}}}
}

// done is the end of a command.
func done(exit int) conformance.Want {
	return conformance.Want{Ended: []agent.Ended{agent.EndedDone}, Phase: []agent.Phase{agent.PhasePrompt}, ExitCode: code(exit)}
}

// prints is the end of a command with 0 that printed exactly that.
func prints(output string) conformance.Want {
	w := done(0)
	w.Output = text(output)
	return w
}

// asks is a program that waits for input of that kind. prompt is part of the text before the cursor.
func asks(want agent.Want, prompt string) conformance.Want {
	w := conformance.Want{Ended: []agent.Ended{agent.EndedWaiting}, Phase: []agent.Phase{agent.PhaseWaiting}, Want: []agent.Want{want}, Listens: no()}
	if prompt != "" {
		w.Prompt = has(prompt)
	}
	return w
}

// rests is a program that listens beside its work and has come to rest.
func rests() conformance.Want {
	return conformance.Want{Ended: []agent.Ended{agent.EndedAttention}, Phase: []agent.Phase{agent.PhaseRunning}, Listens: yes(), Attention: "likely"}
}

// dies is the end of the shell.
func dies(exit int) conformance.Want {
	return conformance.Want{Ended: []agent.Ended{agent.EndedDead}, Phase: []agent.Phase{agent.PhaseDead}, ExitCode: code(exit)}
}

// works is a command that runs on and waits for nothing, for ms milliseconds.
func works(command string, ms int64) conformance.Step {
	return conformance.Step{Do: conformance.Run, Text: command, TimeoutMS: ms, Want: conformance.Want{Ended: ends(agent.EndedDeadline),
		Phase: []agent.Phase{agent.PhaseRunning}, Attention: "no"}}
}

// shows is w with that on the screen that comes with the answer. Without any, no screen comes.
func shows(w conformance.Want, on ...string) conformance.Want {
	w.Screen = has(on...)
	if len(on) == 0 {
		w.Screen = text("")
	}
	return w
}

func steps(all ...conformance.Step) []conformance.Step { return all }
func ends(how ...agent.Ended) []agent.Ended            { return how }

// with is w with something more.
func with(w conformance.Want, more func(w *conformance.Want)) conformance.Want {
	if w.Output != nil {
		o := *w.Output
		w.Output = &o
	}
	more(&w)
	return w
}

// outputHas adds what the output must hold.
func outputHas(parts ...string) func(w *conformance.Want) {
	return func(w *conformance.Want) { w.Output = has(parts...) }
}

// contains is the end of a command with 0 whose output holds parts.
func contains(parts ...string) conformance.Want { return with(done(0), outputHas(parts...)) }

// prompted is the prompt, after a command that ended so.
func prompted(exit int) conformance.Want {
	return conformance.Want{Phase: []agent.Phase{agent.PhasePrompt}, ExitCode: code(exit)}
}

// stopped is the prompt after ^C, whatever the program made of it.
func stopped() conformance.Want {
	return conformance.Want{Ended: ends(agent.EndedDone, agent.EndedInterrupted), Phase: []agent.Phase{agent.PhasePrompt}}
}

// wait waits for the prompt.
func wait(w conformance.Want) conformance.Step {
	return conformance.Step{Do: conformance.Wait, For: []agent.Phase{agent.PhasePrompt}, Want: w}
}

// rawText is typed without Enter.
func rawText(s string, w conformance.Want) conformance.Step {
	return conformance.Step{Do: conformance.Raw, Text: s, Want: w}
}

// asksAny is asks with one of several kinds of input.
func asksAny(prompt string, want ...agent.Want) conformance.Want {
	w := asks("", prompt)
	w.Want = want
	return w
}

// attends is a full-screen program in whose turn it is not: its user is asked, whether it reads or polls the terminal.
func attends(program string) conformance.Want {
	return conformance.Want{Ended: ends(agent.EndedAttention, agent.EndedWaiting), Foreground: program}
}
