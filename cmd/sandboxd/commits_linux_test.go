package main

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// No commit of a clone is lost, whatever happens to its sandbox: a program commits without a pause,
// the fault comes at a random moment, and then the sandbox is removed. The program notes each
// commit outside the sandbox.
func TestCommitsSurvive(t *testing.T) {
	rounds := times(t, "SANDBOXD_TEST_COMMITS", 8)
	m := newMachine(t)
	witness := filepath.Join(m.dir, "witness")
	must(t, os.Mkdir(witness, 0o777))
	m.start()
	dir := m.newProject()
	faults := []struct {
		name string
		do   func(name string)
	}{
		{"rm", func(string) {}},
		{"the daemon is killed", func(string) { m.kill(); m.start() }},
		{"docker kill", func(name string) {
			m.engine("kill", "sandboxd-"+m.describe(name).ID)
		}},
		{"the daemon is killed during a fetch", func(name string) {
			fetch := m.command("fetch", name)
			fetch.Dir = dir
			must(t, fetch.Start())
			<-time.After(rand.N(300 * time.Millisecond)) // a random moment of it
			m.kill()
			_ = fetch.Wait() // mostly an error
			m.start()
		}},
	}
	commits := 0
	for round := range rounds {
		fault := faults[round%len(faults)]
		name := "r" + strconv.Itoa(round)
		m.inDir(dir, 0, "new", name, "--clone", "--mount", witness)
		notes := filepath.Join(witness, name)
		m.begins(name, "cd "+dir+"; i=0; while :; do i=$((i+1)); echo $i >made; git add made; "+
			"git commit -qm $i && git rev-parse HEAD >>"+notes+"; done")
		m.eventually("there is a commit", func() bool {
			text, _ := os.ReadFile(notes)
			return len(text) > 0
		})
		<-time.After(rand.N(500 * time.Millisecond)) // a random moment
		fault.do(name)
		m.inDir(dir, 0, "rm", "-f", name)
		have := make(map[string]bool)
		for _, commit := range strings.Fields(git(t, dir, "rev-list", "sandboxes/"+name+"/"+name)) {
			have[commit] = true
		}
		text, err := os.ReadFile(notes)
		must(t, err)
		for _, commit := range strings.Fields(string(text)) {
			commits++
			if !have[commit] {
				t.Errorf("round %d, %s: commit %s is lost", round, fault.name, commit)
			}
		}
	}
	t.Logf("%d rounds, %d commits", rounds, commits)
}
