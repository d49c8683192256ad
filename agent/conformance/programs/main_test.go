package programs

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/agenttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sandboxOf returns a client of a sandbox in memory.
func sandboxOf(t *testing.T) *agent.Client {
	t.Helper()
	client, err := agenttest.New(t).Dial(t.Context(), agenttest.Box)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}
