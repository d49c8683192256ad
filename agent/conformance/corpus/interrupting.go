package corpus

import (
	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
)

// interrupting has cases about interrupting programs.
func interrupting() []conformance.Case {
	prompt := []agent.Phase{agent.PhasePrompt}
	stops := func(died bool, sent ...string) conformance.Step {
		return conformance.Step{Do: conformance.Interrupt,
			Want: conformance.Want{Ended: ends(agent.EndedInterrupted), Phase: prompt, Steps: sent,
				Died: died}}
	}
	return []conformance.Case{
		{Name: "sleep", About: "^C is enough for most programs",
			Steps: steps(works("sleep 100", 300), stops(false, "^C"), run("true"))},
		{Name: "ignores-int", About: "a program that ignores INT gets TERM", Steps: steps(
			works(`bash -c 'trap "" INT; sleep 100; sleep 100'`, 300), stops(true, "^C", "TERM"),
			run("true"))},
		{Name: "ignores-term", About: "one that ignores both gets KILL", Steps: steps(
			works(`bash -c 'trap "" INT TERM; while :; do sleep 1; done'`, 300),
			stops(true, "^C", "TERM", "KILL"), run("true"))},
		{Name: "raw", About: "^C is only a byte to a program in raw mode: it gets TERM. Without " +
			"process evidence it may be reported as one that asks for a key",
			Needs: []string{"python3"}, Steps: steps(
				conformance.Step{Do: conformance.Run,
					Text:      `python3 -c 'import tty, time; tty.setraw(0); time.sleep(100)'`,
					TimeoutMS: 800, Want: conformance.Want{Ended: ends(agent.EndedDeadline)},
					Without: map[conformance.Tier]conformance.Want{
						conformance.NoProcess: {Ended: ends(agent.EndedDeadline,
							agent.EndedAttention)},
						conformance.Neither: {Ended: ends(agent.EndedDeadline,
							agent.EndedAttention)}}},
				stops(true, "^C", "TERM"), run("true"))},
		{Name: "keyboard-interrupt",
			About: "a program that catches ^C and cleans up is given the time",
			Needs: []string{"python3"}, Steps: steps(
				works("python3 -c 'import time\ntry: time.sleep(100)\nexcept KeyboardInterrupt: "+
					"print(\"cleaned up\")'", 800),
				conformance.Step{Do: conformance.Interrupt,
					Want: conformance.Want{Ended: ends(agent.EndedInterrupted), Phase: prompt,
						Steps: []string{"^C"}}})},
		{Name: "setsid", About: "a child in a session of its own dies with the rest, when it " +
			"comes to that", Steps: steps(
			works(`bash -c 'trap "" INT TERM; setsid -f sleep 4711; while :; do sleep 1; done'`,
				300), stops(true, "^C", "TERM", "KILL"),
			conformance.Step{Do: conformance.Exec, Text: "pgrep -fx 'sleep 4711'",
				Want: conformance.Want{ExitCode: code(1)}})},
		{Name: "flood", About: "^C while yes floods stops within 100 ms", Steps: steps(
			works("yes", 500), conformance.Step{Do: conformance.Interrupt,
				Want: conformance.Want{Ended: ends(agent.EndedInterrupted), Phase: prompt,
					Steps: []string{"^C"}, LatestMS: 100}}, run("true"))},
		{Name: "stop", About: "^Z leaves a stopped job and a prompt", Steps: steps(
			works("sleep 100", 300), keys(conformance.Want{Phase: prompt}, "^Z"),
			runs("jobs", contains("Stopped")), run("kill %1"))},
		{Name: "queue", About: "^C in a list of commands drops the rest", Steps: steps(
			works("sleep 100; echo second; echo third", 300), stops(false, "^C"),
			conformance.Step{Do: conformance.Screen,
				Want: conformance.Want{Output: &conformance.Text{Matches: `\A(?s:.*)\z`}}})},
		{Name: "loop", About: "^C ends a loop, not only its turn", Steps: steps(
			works("for i in 1 2 3 4 5 6 7 8 9; do sleep 1; done", 1500), stops(false, "^C"),
			run("true"))},
		{Name: "kill-at-deadline", Cannot: cannotTyped(handedByMark),
			About: "a call may ask that what still runs at its deadline is stopped", Steps: steps(
				conformance.Step{Do: conformance.Run, Text: "sleep 100", TimeoutMS: 300, Kill: true,
					Want: conformance.Want{Phase: prompt, Steps: []string{"^C"}}}, run("true"))},
		{Name: "deadline", About: "a deadline stops waiting and nothing else", Steps: steps(
			works("sleep 2; echo over", 300),
			wait(with(prompted(0), func(w *conformance.Want) { w.EarliestMS = 500 })))},
		{Name: "busy", Cannot: cannotTyped(handedByMark),
			About: "a second command is refused while one runs, with what runs", Steps: steps(
				works("sleep 100", 300), runs("true",
					conformance.Want{Ended: ends(agent.EndedRefused), Error: agent.CodeNotPrompt}),
				stops(false, "^C"))},
		{Name: "others", About: "a stuck command blocks no other session", Steps: steps(
			conformance.Step{Do: conformance.Run, Text: "trap '' INT; while :; do :; done",
				TimeoutMS: 4000, Want: conformance.Want{Ended: ends(agent.EndedDeadline)},
				AfterMS: 500, Meanwhile: steps(
					conformance.Step{Do: conformance.Run, Shell: "b", Text: "echo free",
						Want: with(prints("free\n"),
							func(w *conformance.Want) { w.LatestMS = 1000 })})},
		)},
		{Name: "empty-prompt", About: "^C at an empty prompt is no command", Steps: steps(
			run("true"), keys(conformance.Want{Phase: prompt}, "^C"),
			runs("echo one", prints("one\n")))},
	}
}
