package session

import (
	"fmt"
	"os"
	"regexp"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestLateAnswers delays the answer to the query that busybox sends at every prompt, because the
// screen is behind. If the shell has accepted a command by then, the answer is dropped. It must not
// be part of the command's input, or shown on its terminal.
func TestLateAnswers(t *testing.T) {
	m := newMemorySet(
		t,
		Options{Shell: func() Shell { return Shell{Path: "/bin/ash", FDDir: "/dev/fd"} }},
	)
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
		if err := s.until(t.Context(), func() bool {
			return c.track.Counts().Prompted == uint64(
				n) && s.track.Phase() == wire.PhasePrompt
		}); err != nil {
			t.Fatal(err)
		}
	}
	const query, answer = "\x1b[6n", "\x1b[50;3R"
	asked := func() (end uint64) { // as if its answer were pending
		_, end = s.log.bounds()
		return end
	}
	typed := func(what, want string) {
		t.Helper()
		if err := s.until(t.Context(), func() bool {
			return len(
				s.answers.owed) == 0
		}); err != nil {
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
	<-term.in // the line that makes the shell accept the command
	s.answers.owe([]byte(answer), at)
	typed("when a command has been typed", "")

	term.print(mark("C", 1, ";run;1"))
	if err := s.until(t.Context(), func() bool {
		return s.track.Command() != nil &&
			s.track.Command().Started
	}); err != nil {
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

// frontShell is an idleShell with another group in the foreground.
type frontShell struct {
	idleShell
	front int
}

func (f frontShell) Front() (int, error) { return f.front, nil }

// TestAnswerBehindUnreadOutput lets the time of an answer run out while output is unread, as on a
// busy machine. If the shell is in the foreground, the unread output may include the mark that the
// asker has ended. Then the answer would be typed at the prompt. A foreground program may print at
// any time.
func TestAnswerBehindUnreadOutput(t *testing.T) {
	for _, tt := range []struct {
		name  string
		front int
		want  string
	}{
		{"the shell has the terminal", 1, ""},
		{"the program has the terminal", 7, "answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				// A pipe has no modes, like a terminal in raw mode.
				master, prints, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				defer master.Close()
				defer prints.Close()
				if _, err := prints.WriteString("mark"); err != nil {
					t.Fatal(err)
				}
				s := newSession(
					NewSet(Options{Prober: readingShell{new(atomic.Int64)}}),
					"main",
					wire.Start{},
				)
				m := newMemory()
				defer m.Close()
				own := frontShell{idleShell{master: master}, tt.front}
				c := &console{s: s, shell: &shell{marked: true}, term: m, local: own}
				c.stack.c = c
				s.mu.Lock()
				tracker, news := s.track.Restart(c.known(), s.momentLocked(c))
				s.track, c.track, s.console = tracker, tracker, c
				s.reportLocked(c, news)
				end := s.log.append([]byte("query"))
				s.mu.Unlock()

				s.answers.owe([]byte("answer"), end)
				if err := s.until(t.Context(),
					func() bool { return len(s.answers.owed) == 0 }); err != nil {
					t.Fatal(err)
				}
				got := ""
				select {
				case p := <-m.in:
					got = string(p)
				default:
				}
				if got != tt.want {
					t.Errorf("typed %q, want %q", got, tt.want)
				}
				s.cancel(errClosed)
				s.wg.Wait()
			})
		})
	}
}
