package agent_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/agent"
)

// A command whose sandbox is stopped is lost: the library neither repeats it nor starts the
// sandbox. The next attach starts the sandbox. A repeated op with its incarnation is lost there,
// too.
func TestRunReturnsLost(t *testing.T) {
	c := dial(t)
	sh := attach(t, c, agent.ShellOptions{})
	ran := filepath.Join(t.TempDir(), "ran")
	call := agent.Call{
		Command:     "echo ran >>" + ran + "; echo be''gun; sleep 1000",
		Op:          agent.NewOp(),
		Incarnation: sh.Incarnation(),
	}
	type answer struct {
		res agent.Result
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		res, err := sh.Do(bounded(t), call)
		answered <- answer{res, err}
	}()
	if _, err := sh.Expect(bounded(t), agent.Text("begun\r\n")); err != nil {
		t.Fatal(err)
	}
	if err := world.hub.Stop(bounded(t), alice, c.Sandbox()); err != nil {
		t.Fatal(err)
	}
	a := <-answered
	if !isCode(a.err, agent.CodeLost) || a.res.Ended != agent.EndedLost ||
		!slices.Contains(a.res.Notes, agent.LostStopped) ||
		a.res.ExitCode != nil {
		t.Fatalf("%s, notes %v, %v", describe(a.res), a.res.Notes, a.err)
	}
	if a.res.Output != "begun\n" {
		t.Errorf("output %q", a.res.Output)
	}
	// Unavailable where the shell knows already that its stream has ended, and so does not send the
	// call.
	if res, err := sh.Run(bounded(t), "true"); !isCode(err, agent.CodeLost) &&
		!isCode(err, agent.CodeUnavailable) {
		t.Errorf("on the shell that was: %s, %v", describe(res), err)
	}
	if info, err := world.hub.Get(bounded(t), alice, c.Sandbox()); err != nil ||
		info.State != "stopped" {
		t.Errorf("the sandbox is %s, %v", info.State, err)
	}
	again := attach(t, c, agent.ShellOptions{})
	res, err := again.Do(bounded(t), call)
	if lost := (*agent.Error)(nil); !errors.As(err, &lost) || lost.Reason != agent.LostShell ||
		res.Ended != agent.EndedLost {
		t.Errorf("the same call after a restart: %s, %v", describe(res), err)
	}
	if text, err := os.ReadFile(ran); err != nil || strings.Count(string(text), "\n") != 1 {
		t.Errorf("it ran %d times, %v", strings.Count(string(text), "\n"), err)
	}
}
