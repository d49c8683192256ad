package agent_test

import (
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/agent"
)

func TestTrace(t *testing.T) {
	sh := shell(t)
	res, err := sh.Run(bounded(t), "read -p 'name? ' name")
	if err != nil || res.Ended != agent.EndedWaiting {
		t.Fatalf("%s, %v", describe(res), err)
	}
	trace, err := sh.Trace(bounded(t))
	if err != nil || !strings.Contains(string(trace), `"before":"name? "`) ||
		!strings.Contains(string(trace), `"phase":"waiting"`) {
		t.Errorf("%v: %s", err, trace)
	}
}
