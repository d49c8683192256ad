package session_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session"
	"github.com/sandboxd/sandboxd/sandbox/session/proc"
	"github.com/sandboxd/sandboxd/sandbox/session/track"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestAnswerTooLate answers a question after the program has continued without the answer. A secret
// must not reach the program or shell that runs then.
func TestAnswerTooLate(t *testing.T) {
	for _, test := range []struct{ name, asker, then string }{
		{"a program that runs", `stty -echo; printf "Password: "; read x`, "sleep 30"},
		{"its shell's prompt", `stty -echo; printf "Password: "; read x`, "true"},
		{"one that listened", `while ! read -rsn1 -t 0.1 x; do :; done`, "sleep 30"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			set := newSet(t, "/bin/bash")
			c := fresh(t, set)
			res := run(
				t,
				c,
				"bash -c 'echo $$ >asker; "+test.asker+"'; stty echo; touch over; "+test.then,
			)
			if res.Ended != wire.Waiting && res.Ended != wire.Attention {
				t.Fatalf("ended %s, want a question", res.Ended)
			}
			other := fresh(t, set)
			run(t, other,
				"kill $(cat asker); until [ -e over ]; do sleep 0.05; done; sleep 0.3; rm over")
			res = do(
				t,
				c,
				wire.Request{Verb: wire.VerbType, Text: "s3cret", Answer: true, TimeoutMS: 5000},
			)
			if res.Ended != wire.Refused || res.Error == nil ||
				res.Error.Code != wire.CodeNotWaiting {
				t.Errorf("an answer to nobody: ended %s, %+v", res.Ended, res.Error)
			}
			do(t, c, wire.Request{Verb: wire.VerbInterrupt})
			reply, err := c.Request(t.Context(), wire.Request{Verb: wire.VerbScreen})
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(reply.Screen.Text, "s3cret") {
				t.Errorf("typed all the same: %q", reply.Screen.Text)
			}
		})
	}
}

// slowProber holds all looks that begin while an answer waits for a verdict, until long after.
type slowProber struct {
	session.Prober
	until atomic.Pointer[time.Time]
	free  chan struct{}
}

func (p *slowProber) Probe(ctx context.Context, tty session.TTY) (session.Facts, error) {
	if until := p.until.Load(); until != nil && time.Now().Before(*until) {
		<-p.free
	}
	return p.Prober.Probe(ctx, tty)
}

// TestAnswerOnABusyMachine answers a question where no verdict comes in time. What the processes do
// then decides.
func TestAnswerOnABusyMachine(t *testing.T) {
	t.Parallel()
	prober := &slowProber{Prober: proc.Prober{}, free: make(chan struct{})}
	c := fresh(t, newProbedSet(t, "/bin/bash", prober))
	if res := run(t, c, "read -p 'name? ' name"); res.Ended != wire.Waiting {
		t.Fatalf("ended %s", res.Ended)
	}
	until := time.Now().Add(track.AskTime)
	prober.until.Store(&until)
	time.AfterFunc(3*track.AskTime, func() { close(prober.free) })
	res := do(t, c, wire.Request{Verb: wire.VerbType, Text: "Ann", Answer: true, TimeoutMS: 60_000})
	if res.Ended != wire.Done || res.Error != nil {
		t.Errorf("ended %s in phase %s, %+v", res.Ended, res.Phase, res.Error)
	}
	if res := run(t, c, "echo $name"); res.Output != "Ann\n" {
		t.Errorf("the answer is %q", res.Output)
	}
}
