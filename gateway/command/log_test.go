package command

import (
	"io"
	"strings"
	"testing"
)

// Numbers that name nothing are refused, and not taken for the whole log.
func TestLogRefusals(t *testing.T) {
	for line, want := range map[string]string{
		"--last 0":          "above 0",
		"--tail 0":          "above 0",
		"--last -1":         "above 0",
		"--command 0":       "from 1 on",
		"--tail 1 --raw":    "--tail is for text",
		"--last 1 --tail 1": "exclude each other",
	} {
		root := Tree(&Env{})
		root.SetArgs(append([]string{"log", "demo"}, strings.Fields(line)...))
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		if err := root.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", line, err, want)
		}
	}
}
