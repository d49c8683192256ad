package command

import (
	"io"
	"strings"
	"testing"
)

// Invalid numbers are rejected, instead of printing the whole log.
func TestLogRefusals(t *testing.T) {
	for line, want := range map[string]string{
		"--last 0":          "at least 1",
		"--tail 0":          "at least 1",
		"--last -1":         "at least 1",
		"--command 0":       "must not be 0",
		"--tail 1 --raw":    "--tail prints text",
		"--last 1 --tail 1": "use only one of",
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
