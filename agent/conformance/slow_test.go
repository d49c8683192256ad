package conformance_test

import (
	"slices"
	"testing"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
	"github.com/sandboxd/sandboxd/agent/conformance/corpus"
)

// TestBackgroundCasesPassWhenProgramsStartLate runs cases that start and end a background program,
// in a sandbox where such a program starts half a second late.
func TestBackgroundCasesPassWhenProgramsStartLate(t *testing.T) {
	ctx := bounded(t)
	dial := gatewayOf(t)
	client, err := dial(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	// The programs of these cases sleep for 47xx seconds. Only those sleeps are delayed.
	late := "case $1 in 47*) /bin/sleep 0.5 ;; esac\nexec -a sleep /bin/sleep \"$@\"\n"
	names := []string{"nohup", "disown", "setsid", "open-output"}
	var cases []conformance.Case
	for _, c := range corpus.All() {
		if c.Group == "background" && slices.Contains(names, c.Name) {
			file := conformance.File{Path: "late/sleep", Text: "#!/bin/bash\n" + late, Mode: "755"}
			c.Files = append(slices.Clone(c.Files), file)
			first := conformance.Step{Do: conformance.Run, Text: "PATH=$HOME/late:$PATH",
				Want: conformance.Want{Ended: []agent.Ended{agent.EndedDone}, ExitCode: new(int)}}
			c.Steps = append([]conformance.Step{first}, c.Steps...)
			cases = append(cases, c)
		}
	}
	if len(cases) != len(names) {
		t.Fatalf("%d cases, want %v", len(cases), names)
	}
	all, err := conformance.All(
		ctx,
		cases,
		conformance.Options{Client: client, Dial: dial, Slow: 100},
	)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		if !o.Pass {
			t.Errorf("%s/%s: %s", o.Group, o.Case, o.Reason)
		}
	}
}
