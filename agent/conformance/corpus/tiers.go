package corpus

import (
	"maps"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
)

// Reasons why cases cannot pass without a layer.
const (
	endByMark    = "without marks the end of a command and its status are unknown"
	handedByMark = "without marks a command is typed, and the line editor, history and PS2 " +
		"change it"
	outputByMark  = "without marks the begin and end of a command's output are unknown"
	aboutMarks    = "the case tests marks, and there are none"
	quietUnknown  = "without process facts each quiet program is reported as one that may ask"
	statement     = "without marks a command is typed, and is a statement of the interpreter"
	noisy         = "with endless output there is no silence"
	listenUnknown = "without process facts the reader of the keyboard is unknown"
)

// cannotBlind is for a case that cannot pass without process evidence.
func cannotBlind(why string) map[conformance.Tier]string {
	return map[conformance.Tier]string{conformance.NoProcess: why, conformance.Neither: why}
}

// cannotTyped is for a case that cannot pass if commands are typed.
func cannotTyped(why string) map[conformance.Tier]string {
	return map[conformance.Tier]string{conformance.NoMarks: why, conformance.Neither: why}
}

// unmarked has the groups whose cases need marks, unless they need no session.
var unmarked = map[string]string{"commands": handedByMark, "prompts": aboutMarks, "exit": endByMark,
	"output": outputByMark, "transport": endByMark, "repl": statement}

// tiered adds to a case the expected results on weaker tiers, or why it cannot pass there.
func tiered(c conformance.Case) conformance.Case {
	cannot := make(map[conformance.Tier]string)
	for _, t := range conformance.Tiers {
		if !t.Marks() && unmarked[c.Group] != "" && !sessionless(c) {
			cannot[t] = unmarked[c.Group]
		}
	}
	maps.Copy(cannot, c.Cannot)
	c.Cannot = cannot
	c.Steps = weakerSteps(c.Steps, c.Cannot)
	return c
}

// sessionless reports whether a case needs no session.
func sessionless(c conformance.Case) bool {
	return c.Do == nil && !slices.ContainsFunc(c.Steps,
		func(s conformance.Step) bool { return s.Do != conformance.Exec })
}

func weakerSteps(all []conformance.Step, cannot map[conformance.Tier]string) []conformance.Step {
	all = slices.Clone(all)
	dead := false // the shell has ended
	for i, s := range all {
		again := dead && s.Do == conformance.Run // a run starts a shell anew
		dead = slices.Contains(s.Want.Ended, agent.EndedDead) ||
			slices.Contains(s.Want.Phase, agent.PhaseDead)
		if s.Meanwhile != nil {
			all[i].Meanwhile = weakerSteps(s.Meanwhile, cannot)
		}
		if s.Do == conformance.Exec || s.Do == conformance.Screen {
			continue
		}
		all[i].Without = make(map[conformance.Tier]conformance.Want)
		for _, t := range conformance.Tiers[1:] {
			w, said := s.Without[t]
			if !said {
				w = s.Want
			}
			if cannot[t] != "" {
				continue
			}
			weak := weaker(w, t)
			if again && !t.Marks() { // typed text is for the shell that has ended
				weak = conformance.Want{Ended: ends(agent.EndedRefused),
					Error: agent.CodeUnavailable}
			}
			if said {
				weak.Want = w.Want // the case sets it explicitly
			}
			all[i].Without[t] = weak
		}
	}
	return all
}

// weaker returns the expected result on a tier that replaces w.
func weaker(w conformance.Want, t conformance.Tier) conformance.Want {
	w.Ended, w.Phase = slices.Clone(w.Ended), slices.Clone(w.Phase)
	// without process evidence, waiting and listening are guesses, reported as such and later
	if t != conformance.NoMarks {
		asks := slices.Contains(w.Ended, agent.EndedWaiting) ||
			slices.Contains(w.Ended, agent.EndedAttention)
		if asks {
			w.Ended = append(w.Ended, agent.EndedAttention)
			w.LatestMS = 0
		}
		if slices.Contains(w.Phase, agent.PhaseWaiting) || asks &&
			slices.Contains(w.Phase, agent.PhaseRunning) {
			w.Phase = append(w.Phase, agent.PhaseOpaque)
		}
		// password input shows in the terminal's modes
		if !slices.Equal(w.Want, []agent.Want{agent.WantPassword}) {
			w.Want = nil
		}
		w.Listens, w.Foreground, w.Program = nil, "", ""
	}
	if !t.Marks() { // a shell at its prompt is reported as a program that waits
		if slices.Contains(w.Ended, agent.EndedDone) ||
			slices.Contains(w.Ended, agent.EndedInterrupted) {
			w.Ended = append(w.Ended, agent.EndedWaiting)
			if t == conformance.Neither {
				w.Ended, w.LatestMS = append(w.Ended, agent.EndedAttention), 0
			}
		}
		if slices.Contains(w.Phase, agent.PhasePrompt) {
			w.Phase = append(w.Phase, agent.PhaseWaiting)
			if t == conformance.Neither {
				w.Phase = append(w.Phase, agent.PhaseOpaque)
			}
		}
		if !slices.Contains(w.Ended, agent.EndedDead) {
			w.ExitCode = nil
		}
		w.Bytes, w.Cwd, w.Output = nil, "", within(w.Output)
	}
	return w
}

// within returns the expectation for a text between the echo of a command and a prompt.
func within(t *conformance.Text) *conformance.Text {
	if t == nil || t.Matches != "" {
		return nil
	}
	has := slices.Clone(t.Has)
	if t.Is != nil {
		has = append(has, strings.Split(strings.TrimSpace(*t.Is), "\n")...)
	}
	return &conformance.Text{Has: has}
}
