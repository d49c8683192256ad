package session

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestLateAnswers has the answer to a question come late that busybox asks the terminal at every prompt: the screen is behind. It is
// nobody's when the shell has taken a command, and must be no part of what that one reads, or what its terminal shows.
func TestLateAnswers(t *testing.T) {
	m := newMemorySet(t, Options{Shell: func() Shell { return Shell{Path: "/bin/ash", FDDir: "/dev/fd"} }})
	defer m.close()
	alice := m.dial(wire.Attach{Session: "main", Create: true, Party: agent("alice")})
	defer alice.leave()
	s, term := m.lookup("main"), m.last()
	c := s.console
	nonce := regexp.MustCompile(`__sbx_k=([0-9a-f]+)`).FindSubmatch(c.marks.Script)[1]
	mark := func(kind string, n int, more string) string {
		return fmt.Sprintf("\x1b]7337;%s;%s;%d%s\a", kind, nonce, n, more)
	}
	prompt := func(n int) {
		t.Helper()
		term.print(mark("A", n, fmt.Sprintf(";0;0;/;%s", nonce)) + "$ " + mark("B", n, ""))
		if err := s.until(t.Context(), func() bool { return c.track.Counts().Prompted == uint64(n) && s.track.Phase() == wire.PhasePrompt }); err != nil {
			t.Fatal(err)
		}
	}
	const query, answer = "\x1b[6n", "\x1b[50;3R"
	asked := func() (end uint64) { // as if its answer were still to come
		_, end = s.log.bounds()
		return end
	}
	typed := func(what, want string) {
		t.Helper()
		if err := s.until(t.Context(), func() bool { return len(s.answers.owed) == 0 }); err != nil {
			t.Fatal(err)
		}
		got := ""
		select {
		case p := <-term.in:
			got = string(p)
		default:
		}
		if got != want {
			t.Errorf("%s: typed %q, want %q", what, got, want)
		}
	}

	prompt(1)
	at := asked()
	s.answers.owe([]byte(answer), at)
	typed("at its prompt", answer)

	ran := make(chan *wire.Result, 1)
	go func() {
		r, _ := alice.Request(t.Context(), wire.Request{Verb: wire.VerbRun, Text: "seq 4"})
		ran <- r.Result // nil after an error
	}()
	<-term.in // the line that makes the shell take it
	s.answers.owe([]byte(answer), at)
	typed("when a command has been typed", "")

	term.print(mark("C", 1, ";run;1"))
	if err := s.until(t.Context(), func() bool { return s.track.Command() != nil && s.track.Command().Started }); err != nil {
		t.Fatal(err)
	}
	s.answers.owe([]byte(answer), at)
	typed("when it has begun", "")

	term.print("1\r\n" + query)
	if got := string(<-term.in); got != "\x1b[3;1R" {
		t.Errorf("what the command asked is answered with %q", got)
	}
	at = asked()
	prompt(2)
	if r := <-ran; r == nil || r.Ended != wire.Done {
		t.Errorf("the command ended with %+v", r)
	}
	s.answers.owe([]byte(answer), at)
	typed("what a command asked that is over", "")
	term.print(query)
	if got := string(<-term.in); got != "\x1b[3;3R" {
		t.Errorf("what the next prompt asks is answered with %q", got)
	}
}
