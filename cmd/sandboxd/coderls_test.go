package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/coding"
)

// Lists of agents have no control characters of a sandbox or a daemon.
func TestAgentListIsPrintable(t *testing.T) {
	const bad = "\x1b]52;c;aGk=\x07\t\n\u009b"
	i := coding.Info{Name: "web" + bad, Agent: bad, State: agent.SandboxState(bad), Branch: bad,
		Attention: "no", LastLine: bad}
	var table bytes.Buffer
	if err := agentTable(&table, []coding.Info{i}); err != nil {
		t.Fatal(err)
	}
	for _, got := range append(strings.Split(strings.TrimSuffix(table.String(), "\n"), "\n"),
		agentLine(i, false)) {
		if strings.ContainsAny(got, "\x1b\x07\t\u009b") {
			t.Errorf("control characters: %q", got)
		}
	}
	if n := strings.Count(table.String(), "\n"); n != 2 {
		t.Errorf("%d lines: %q", n, table.String())
	}
}
