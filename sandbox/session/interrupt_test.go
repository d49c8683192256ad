package session_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// fresh is a session of its own at its first prompt.
func fresh(t *testing.T, set *session.Set) *wire.Client {
	t.Helper()
	c := without(t, set)
	run(t, c, "true")
	return c
}

// TestLadder interrupts programs of all kinds. What they print at the end of their start tells that they are at it.
func TestLadder(t *testing.T) {
	set := newSet(t, "/bin/bash")
	for _, test := range []struct {
		name, command string
		steps         string
		ended         wire.Ended
		phase         wire.Phase
	}{
		{"sleep", "sh -c 'echo begun; exec sleep 100'", "^C", wire.Interrupted, wire.PhasePrompt},
		{"rest of a list", "sh -c 'echo begun; exec sleep 100'; echo not this", "^C", wire.Interrupted, wire.PhasePrompt},
		{"loop of the shell", "echo begun; while :; do :; done", "^C", wire.Interrupted, wire.PhasePrompt},
		{"loop of programs", "echo begun; while :; do /bin/true; done", "^C", wire.Interrupted, wire.PhasePrompt},
		{"pipeline", "sh -c 'echo begun; exec sleep 100' | cat", "^C", wire.Interrupted, wire.PhasePrompt},
		{"ignores INT", `sh -c 'trap "" INT; echo begun; sleep 100'`, "^C TERM", wire.Interrupted, wire.PhasePrompt},
		{"ignores INT and TERM", `sh -c 'trap "" INT TERM; echo begun; sleep 100'`, "^C TERM KILL", wire.Interrupted, wire.PhasePrompt},
		{"raw mode", `sh -c 'stty raw -echo; echo begun; exec sleep 100'`, "^C TERM", wire.Interrupted, wire.PhasePrompt},
		{"raw mode, ignores TERM", `sh -c 'trap "" TERM; stty raw -echo; echo begun; exec sleep 100'`, "^C TERM KILL", wire.Interrupted, wire.PhasePrompt},
		{"shell that ignores INT", `trap "" INT; echo begun; while :; do :; done`, "^C KILL", wire.Dead, wire.PhaseDead},
		{"handles INT and asks", `python3 -c '
import time
print("begun", flush=True)
try:
    time.sleep(100)
except KeyboardInterrupt:
    input("really? ")'`, "^C", wire.Interrupted, wire.PhaseWaiting},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := fresh(t, set)
			begun(t, c, test.command)
			res := do(t, c, wire.Request{Verb: wire.VerbInterrupt})
			if res.Ended != test.ended || res.Phase != test.phase || res.Receipt == nil {
				t.Fatalf("got %s, %s, %+v", res.Ended, res.Phase, res.Receipt)
			}
			r := res.Receipt
			if strings.HasPrefix(test.name, "loop of programs") && len(r.Steps) > 1 {
				return // bash loses a ^C around a fork, and on a busy machine the next ones, too
			}
			if got := strings.Join(r.Steps, " "); got != test.steps {
				t.Errorf("steps %q, want %q", got, test.steps)
			}
			if len(r.Left) != 0 || len(r.Died) != len(r.Signaled) || (len(r.Signaled) > 0) != (test.steps != "^C") {
				t.Errorf("receipt %+v, want that everything that was signalled has died", r)
			}
			if res.Phase != wire.PhasePrompt {
				return
			}
			if res := run(t, c, "echo on"); res.Output != "on\n" {
				t.Errorf("the next command prints %q", res.Output)
			}
		})
	}
}

// begun runs a command and returns when it has printed the word, while it goes on.
func begun(t *testing.T, c *wire.Client, command string) {
	t.Helper()
	res := do(t, c, wire.Request{Verb: wire.VerbRun, Text: command, TimeoutMS: 300})
	for end := time.Now().Add(time.Minute); ; {
		reply, err := c.Request(t.Context(), wire.Request{Verb: wire.VerbScreen})
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(strings.Fields(strings.ReplaceAll(reply.Screen.Text, "echo begun", "")), "begun") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%q never begins: %s, %q", command, res.Ended, reply.Screen.Text)
		}
	}
}

// TestStop stops a program from the keyboard: a job and a prompt. It is no interrupt, and the job goes on when it is told to.
func TestStop(t *testing.T) {
	c := fresh(t, newSet(t, "/bin/bash"))
	begun(t, c, "sh -c 'echo begun; exec sleep 1003'")
	res := do(t, c, wire.Request{Verb: wire.VerbKeys, Keys: []string{"^Z"}})
	if res.Ended != wire.Done || res.Phase != wire.PhasePrompt {
		t.Fatalf("got %s, %s", res.Ended, res.Phase)
	}
	if res := run(t, c, "jobs"); !strings.Contains(res.Output, "Stopped") {
		t.Errorf("jobs: %q", res.Output)
	}
	res = do(t, c, wire.Request{Verb: wire.VerbRun, Text: "fg", TimeoutMS: 300})
	if res.Ended != wire.Deadline || res.Phase != wire.PhaseRunning {
		t.Errorf("fg: %s, %s", res.Ended, res.Phase)
	}
	if res := do(t, c, wire.Request{Verb: wire.VerbInterrupt}); res.Phase != wire.PhasePrompt {
		t.Errorf("interrupt: %s", res.Phase)
	}
}

// TestInterruptAtFork interrupts commands while the shell is starting them: whatever ^C met then, it is not lost.
func TestInterruptAtFork(t *testing.T) {
	c := fresh(t, newSet(t, "/bin/bash"))
	const n = 30
	enough := 0
	for i := range n {
		ran := make(chan *wire.Result, 1)
		go func() {
			reply, err := c.Request(t.Context(), wire.Request{Verb: wire.VerbRun, Text: fmt.Sprintf("sleep %d", 2000+i), TimeoutMS: 60_000})
			if err != nil {
				t.Error(err)
			}
			ran <- reply.Result
		}()
		for end := time.Now().Add(time.Minute); ; { // until it has begun
			reply, err := c.Request(t.Context(), wire.Request{Verb: wire.VerbList})
			if err != nil {
				t.Fatal(err)
			}
			if reply.Sessions[0].State.Phase == wire.PhaseRunning {
				break
			}
			if time.Now().After(end) {
				t.Fatal("the command does not begin")
			}
		}
		res := do(t, c, wire.Request{Verb: wire.VerbInterrupt})
		if res.Phase != wire.PhasePrompt {
			t.Errorf("%d: got %s, %s, %+v", i, res.Ended, res.Phase, res.Receipt)
		}
		if len(res.Receipt.Steps) == 1 {
			enough++
		}
		<-ran
	}
	if enough < n*9/10 { // the others were too slow: this machine is busy
		t.Errorf("^C was enough %d times of %d", enough, n)
	}
}
