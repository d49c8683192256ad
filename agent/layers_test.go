package agent_test

import (
	"slices"
	"testing"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestWithout starts a session that has to do without process facts, through gateway and guest.
func TestWithout(t *testing.T) {
	c := dial(t)
	sh := attach(t, c, agent.ShellOptions{Session: "new", Fresh: true, Start: wire.Start{Without: []wire.Basis{wire.BasisProcess}}})
	res, err := sh.Run(bounded(t), "echo hi")
	if err != nil || res.Ended != agent.EndedDone || !slices.Equal(res.Basis, []wire.Basis{wire.BasisMark}) {
		t.Errorf("got %+v, %v, want a prompt by its mark alone", res, err)
	}
}
