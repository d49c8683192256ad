package corpus

import (
	"strconv"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
)

// flow has cases about long input and programs that do not read it.
func flow() []conformance.Case {
	return []conformance.Case{
		{Name: "long-line", About: "a line that a terminal cannot accept is rejected, not cut",
			Steps: steps(
				runs("cat", asks(agent.WantLine, "")),
				types(repeat(5000, "x"), conformance.Want{Ended: ends(agent.EndedRefused),
					Error: agent.CodeLineTooLong}), keys(done(0), "^D"))},
		{Name: "longest-line", About: "4,095 bytes with their end are taken whole", Steps: steps(
			runs("wc -c", asks(agent.WantLine, "")),
			types(repeat(4094, "x"), asks(agent.WantLine, "")),
			keys(with(done(0), outputHas("4095")), "^D"))},
		{Name: "long-command", About: "a command of 100 KB works", Steps: steps(
			runs("printf %s "+repeat(100_000, "z")+" | sha256sum",
				prints(sum(repeat(100_000, "z"))+"  -\n")))},
		{Name: "long-line-at-prompt",
			About: "at the prompt the shell's line editor takes a line of any length", Steps: steps(
				run("true"), types("echo "+repeat(5000, "x")+" | wc -c",
					with(done(0), outputHas("5001"))))},
		{Name: "many-lines", About: "a program gets 2,000 typed lines, each whole", Steps: steps(
			runs("wc", asks(agent.WantLine, "")),
			conformance.Step{Do: conformance.Raw, Text: repeat(2000, "some text in a line\n"),
				Want: asks(agent.WantLine, "")},
			keys(with(done(0), func(w *conformance.Want) {
				w.Output = &conformance.Text{Matches: `2000 +10000 +40000`}
			}), "^D"))},
		{Name: "paste-interrupted",
			About: "^C during a large paste to a program that does not read is immediate",
			Steps: steps(
				works("sleep 100", 500),
				conformance.Step{Do: conformance.Raw,
					Text: repeat(20_000, "a line that nobody reads\n"), TimeoutMS: 10_000,
					AfterMS: 500,
					Want:    conformance.Want{Ended: ends(agent.EndedLost)}, Meanwhile: steps(
						conformance.Step{Do: conformance.Interrupt,
							Want: conformance.Want{Ended: ends(agent.EndedInterrupted),
								Phase: []agent.Phase{agent.PhasePrompt}, LatestMS: 500}})},
				runs("echo clean", prints("clean\n")))},
		{Name: "no-reader", About: "a program that stops reading does not block the writer: the " +
			"call returns at its timeout", Steps: steps(
			works("sleep 100", 300),
			conformance.Step{Do: conformance.Raw, Text: repeat(200_000, "x\n"), TimeoutMS: 1500,
				Want: conformance.Want{Ended: ends(agent.EndedLost), LatestMS: 4000}}, interrupts(),
			runs("echo clean", prints("clean\n")))},
		{Name: "type-ahead-eaten",
			About: "a program that eats what was typed ahead loses no later command", Steps: steps(
				runs("sleep 0.3; while read -t 0.1 -r -N 1 x; do :; done", done(0)),
				runs("echo one", prints("one\n")), runs("echo two", prints("two\n")))},
		{Name: "stdin-eaten", About: "nor does one that reads all of its input before it asks",
			Needs: []string{"python3"}, Steps: steps(
				runs(`python3 -c 'import termios; termios.tcflush(0, termios.TCIFLUSH)'`, done(0)),
				runs("echo one; sleep 0.2; echo two", prints("one\ntwo\n")),
				runs("echo three", prints("three\n")))},
		{Name: "hundred-commands",
			About: "a hundred commands, one after the other, each with its own output",
			Steps: hundred()},
	}
}

// hundred returns commands whose outputs must not be shifted by one.
func hundred() []conformance.Step {
	var all []conformance.Step
	for i := range 100 {
		n := strconv.Itoa(i)
		all = append(all, runs("echo answer "+n, prints("answer "+n+"\n")))
	}
	return all
}
