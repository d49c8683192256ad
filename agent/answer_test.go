package agent_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/agent"
)

// refusedAnswer checks that an answer was rejected because no program asks.
func refusedAnswer(t *testing.T, sh *agent.Shell, words string) {
	t.Helper()
	res, err := sh.Answer(bounded(t), "touch /tmp/answered-by-mistake")
	if err != nil || res.Ended != agent.EndedRefused || res.Error.Code != "not_waiting" ||
		!strings.Contains(res.Error.Message, words) {
		t.Errorf("answer: %s, %v; want not_waiting with %q", describe(res), err, words)
	}
}

func TestAnswer(t *testing.T) {
	t.Parallel()
	sh := shell(t)
	res, err := sh.Run(bounded(t), "read -p 'name? ' name")
	if err != nil || res.Ended != agent.EndedWaiting {
		t.Fatalf("%s, %v", describe(res), err)
	}
	if res, err = sh.Answer(bounded(t), "Ann"); err != nil || res.Ended != agent.EndedDone {
		t.Errorf("%s, %v", describe(res), err)
	}
	res, err = sh.Run(bounded(t), "echo $name")
	if got := done(t, res, err, 0); got != "Ann\n" {
		t.Errorf("the answer is %q", got)
	}
	refusedAnswer(t, sh, "at its prompt")

	if res, err = sh.Do(bounded(t), agent.Call{Command: "sleep 100",
		Timeout: time.Second}); err != nil ||
		res.Ended != agent.EndedDeadline {
		t.Fatalf("%s, %v", describe(res), err)
	}
	refusedAnswer(t, sh, `"sleep 100"`)
	if _, err = sh.Interrupt(bounded(t)); err != nil {
		t.Error(err)
	}

	// Text that was typed without a newline would precede the next command.
	res, err = sh.Run(bounded(t), "test ! -e /tmp/answered-by-mistake; echo $?")
	if got := done(t, res, err, 0); got != "0\n" {
		t.Errorf("after the refusals: %q", got)
	}

	// For a typed here-document without an end, the shell itself asks.
	if res, err = sh.Type(bounded(t), "cat <<END"); err != nil ||
		res.Ended != agent.EndedContinuation {
		t.Fatalf("%s, %v", describe(res), err)
	}
	if res, err = sh.Answer(bounded(t), "END"); err != nil || res.Ended != agent.EndedDone {
		t.Errorf("%s, %v", describe(res), err)
	}

	if _, err := sh.Do(bounded(t), agent.Call{Command: "true", Answer: true}); !isCode(
		err,
		"usage",
	) {
		t.Errorf("a command as an answer: %v", err)
	}
}
