//go:build linux

package guest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Interrupting a program with a child in its own session, which ^C does not reach: the receipt
// reports the child, and the interrupt kills it as a last resort.
func TestInterruptSetsid(t *testing.T) {
	for _, test := range []struct {
		name, trap, steps string
	}{
		{"left", "", "^C"},
		{"killed", `trap "" INT TERM; `, "^C TERM KILL"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newSandbox(t)
			c := openSession(t, s.dial(t), wire.Attach{Session: "main", Create: true, Party: alice},
				wire.Handler{})
			ran := make(chan struct{})
			go func() {
				defer close(ran)
				// Its result comes from the interrupt.
				_, _ = c.Request(t.Context(),
					wire.Request{Verb: wire.VerbRun, Op: strings.Repeat("a", 32),
						Text: "sh -c '" + test.trap +
							"setsid sleep 1000 & echo $! >child; while :; do wait; sleep 0.1; done'"})
			}()
			var pid int
			await(t, "the child runs", func() bool {
				out := execute(t, s.dial(t), "cat child", "").Out
				pid, _ = strconv.Atoi(strings.TrimSpace(out))
				// Before, it is setsid, which ^C still reaches.
				return pid > 0 && strings.HasPrefix(
					execute(t, s.dial(t), fmt.Sprintf("tr '\\0' ' ' </proc/%d/cmdline", pid),
						"").Out, "sleep 1000")
			})
			r := ask(t, c, wire.Request{Verb: wire.VerbInterrupt})
			<-ran
			if r.Phase != wire.PhasePrompt || r.Receipt == nil ||
				strings.Join(r.Receipt.Steps, " ") != test.steps {
				t.Fatalf("got %+v, %+v", *r, r.Receipt)
			}
			left := test.steps == "^C"
			if left != slices.Equal(r.Receipt.Left, []int{pid}) ||
				left == slices.Contains(r.Receipt.Died, pid) || left != alive(pid) {
				t.Errorf("receipt %+v; the child %d lives: %v", *r.Receipt, pid, alive(pid))
			}
		})
	}
}

// The channel's own request interrupts a flood on a channel without a terminal (RFC 4254, section
// 6.9). The status comes after all earlier output.
func TestSignalInFlood(t *testing.T) {
	s := newSandbox(t)
	session, err := s.dial(t).NewSession()
	if err != nil {
		t.Fatal(err)
	}
	out, err := session.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Start("exec yes"); err != nil {
		t.Fatal(err)
	}
	expect(t, out, strings.Repeat("y\n", 5_000))
	if err := session.Signal(ssh.SIGINT); err != nil {
		t.Fatal(err)
	}
	go func() {
		buf := make([]byte, 64<<10)
		for {
			if _, err := out.Read(buf); err != nil {
				return
			}
		}
	}()
	if got := exitSignal(session.Wait()); got != "INT" {
		t.Errorf("ended by %q, want INT", got)
	}
}
