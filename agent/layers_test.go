package agent_test

import (
	"slices"
	"testing"

	"github.com/sandboxd/sandboxd/agent"
)

// TestWithout starts a session without process evidence, through gateway and guest.
func TestWithout(t *testing.T) {
	c := dial(t)
	sh := attach(t, c, agent.ShellOptions{
		Session: "new",
		Fresh:   true,
		Start:   agent.Start{Without: []agent.Basis{agent.BasisProcess}},
	},
	)
	res, err := sh.Run(bounded(t), "echo hi")
	if err != nil || res.Ended != agent.EndedDone ||
		!slices.Equal(res.Basis, []agent.Basis{agent.BasisMark}) {
		t.Errorf("got %+v, %v, want a prompt by its mark alone", res, err)
	}
}
