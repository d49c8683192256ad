package session_test

import (
	"strings"
	"testing"

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
