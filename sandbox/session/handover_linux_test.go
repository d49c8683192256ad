package session_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestWhatPeopleDidMeanwhile asks what people did with the keyboard after it was given back.
func TestWhatPeopleDidMeanwhile(t *testing.T) {
	set := newSet(t, "/bin/bash")
	alice := agentClient(t, set)
	run(t, alice, "true")
	if res := do(t, alice, wire.Request{Verb: wire.VerbWait,
		Keyboard: true}); res.Ended != wire.Returned ||
		res.TakenOver != nil ||
		res.Output != "" {
		t.Errorf("before anybody took it: %s, %+v, %q", res.Ended, res.TakenOver, res.Output)
	}
	w := newWatch()
	bob := dial(
		t,
		set,
		wire.Attach{Session: "main", Party: person("bob"), From: wire.Offset{Word: wire.FromStart}},
		w.handler(),
	)
	if _, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbTake}); err != nil {
		t.Fatal(err)
	}
	refused := do(t, alice, wire.Request{Verb: wire.VerbType, Text: "y"})
	if h := refused.TakenOver; refused.Ended != wire.Refused || h == nil || h.By != "person:bob" ||
		h.Until != 0 {
		t.Errorf("typing meanwhile: %s, %+v", refused.Ended, h)
	}
	if res := do(t, alice, wire.Request{Verb: wire.VerbWait, Keyboard: true,
		TimeoutMS: 50}); res.Ended != wire.Deadline ||
		res.TakenOver == nil {
		t.Errorf("a wait whose time is up: %s, %+v", res.Ended, res.TakenOver)
	}
	for _, line := range []string{"echo from bob", "false", "", "(exit 3)"} {
		n := 0
		w.until(
			t,
			"a prompt",
			func(_ string, events []wire.Event) bool { n = prompts(events); return n > 0 },
		)
		if err := bob.Input(t.Context(), []byte(line+"\r")); err != nil {
			t.Fatal(err)
		}
		w.until(
			t,
			"the next prompt",
			func(_ string, events []wire.Event) bool { return prompts(events) > n },
		)
	}
	back := make(chan *wire.Result, 1)
	go func() {
		r, _ := alice.Request(t.Context(), wire.Request{Verb: wire.VerbWait, Keyboard: true})
		back <- r.Result
	}()
	if _, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbGive}); err != nil {
		t.Fatal(err)
	}
	res := <-back
	if res == nil || res.Ended != wire.Returned || res.Phase != wire.PhasePrompt ||
		res.Keyboard != "" ||
		res.TakenOver == nil {
		t.Fatalf("the keyboard is back: %+v", res)
	}
	h := res.TakenOver
	if h.By != "person:bob" || h.Offset != res.From || h.Until != res.To || res.To <= res.From {
		t.Errorf("%s had it in [%d,%d) of [%d,%d)", h.By, h.Offset, h.Until, res.From, res.To)
	}
	if !strings.Contains(res.Output, "from bob\n") {
		t.Errorf("output %q", res.Output)
	}
	var did []string
	for _, c := range h.Commands {
		did = append(did, c.By+" "+c.Command)
		if c.ExitCode == nil {
			t.Errorf("%q has no exit code", c.Command)
		}
	}
	if want := []string{"person:bob echo from bob", "person:bob false",
		"person:bob (exit 3)"}; !slices.Equal(
		did,
		want,
	) {
		t.Fatalf("commands %q, want %q", did, want)
	}
	if *h.Commands[0].ExitCode != 0 || *h.Commands[1].ExitCode != 1 ||
		*h.Commands[2].ExitCode != 3 {
		t.Errorf(
			"exit codes %d %d %d",
			*h.Commands[0].ExitCode,
			*h.Commands[1].ExitCode,
			*h.Commands[2].ExitCode,
		)
	}
	// After an agent has held the keyboard, the period is over.
	run(t, alice, "true")
	if res := do(t, alice, wire.Request{Verb: wire.VerbWait,
		Keyboard: true}); res.TakenOver != nil {
		t.Errorf("reported again: %+v", res.TakenOver)
	}
}

// prompts returns how often the shell was at its prompt.
func prompts(events []wire.Event) (n int) {
	for _, e := range events {
		if e.Kind == wire.EventState && e.State.Phase == wire.PhasePrompt {
			n++
		}
	}
	return n
}

// TestWhatPeopleDidInAnotherSize changes the size, so that the line editor redraws the prompt. The
// lines are longer than a row.
func TestWhatPeopleDidInAnotherSize(t *testing.T) {
	set := newSet(t, "/bin/bash")
	alice := agentClient(t, set)
	run(t, alice, "PS1='root@web:~# '")
	w := newWatch()
	bob := dial(
		t,
		set,
		wire.Attach{Session: "main", Party: person("bob"), From: wire.Offset{Word: wire.FromStart}},
		w.handler(),
	)
	if _, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbTake}); err != nil {
		t.Fatal(err)
	}
	lines := []string{
		"echo by-person; false",
		"echo a b c d e f g h i j k l m n o p q r s t u v w x y z 1 2 3 4",
		"true",
	}
	for i, line := range lines {
		n, drawn := 0, 0
		w.until(t, "a prompt", func(out string, events []wire.Event) bool {
			n, drawn = prompts(events), strings.Count(out, "root@web:~# ")
			return n > i && drawn > i
		})
		if _, err := bob.Request(t.Context(),
			wire.Request{Verb: wire.VerbResize, Cols: 40 - i, Rows: 10}); err != nil {
			t.Fatal(err)
		}
		w.until(
			t,
			"the prompt in another size",
			func(out string, _ []wire.Event) bool {
				return strings.Count(out,
					"root@web:~# ") > drawn
			},
		)
		for i, key := range line + "\r" {
			w.mu.Lock()
			before := len(w.output)
			w.mu.Unlock()
			if err := bob.Input(t.Context(), []byte(string(key))); err != nil {
				t.Fatal(err)
			}
			if i < len(line) { // the line editor shows one key after the other
				w.until(
					t,
					"an echo",
					func(out string, _ []wire.Event) bool { return len(out) > before },
				)
			}
		}
		w.until(
			t,
			"the next prompt",
			func(_ string, events []wire.Event) bool { return prompts(events) > n },
		)
	}
	if _, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbGive}); err != nil {
		t.Fatal(err)
	}
	res := do(t, alice, wire.Request{Verb: wire.VerbWait, Keyboard: true})
	var did []string
	if res.TakenOver != nil {
		for _, c := range res.TakenOver.Commands {
			did = append(did, c.Command)
		}
	}
	if !slices.Equal(did, lines) {
		t.Errorf("commands %q, want %q", did, lines)
	}
}

// TestUnsentLine runs a command while a party's unsent line is at the prompt: the log shows the
// command, and the event has the party.
func TestUnsentLine(t *testing.T) {
	for _, tt := range []struct{ name, typed, left string }{
		{"at its end", "rm -rf /srv/data ", "$ rm -rf /srv/data ^C"},
		{"cursor in the middle", "rm -rf /srv/data\x01\x06", "$ rm -rf /srv/data"},
		{"over two rows", "rm -rf" + strings.Repeat(" /srv/data", 25) + "\x01", "/srv/data"},
		{"taken back", "rm -rf\x15", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			set := newSet(t, "/bin/bash")
			alice := agentClient(t, set)
			run(t, alice, "PS1='$ '; bind 'set enable-bracketed-paste off'")
			w := newWatch()
			party := person("bob")
			party.ID = "0123456789abcdef"
			bob := dial(t, set, wire.Attach{Session: "main", Party: party}, w.handler())
			if err := bob.Input(t.Context(), []byte(tt.typed)); err != nil {
				t.Fatal(err)
			}
			w.until(t, "the echo", func(out string, _ []wire.Event) bool {
				if tt.left == "" {
					return strings.Contains(out, "rm -rf") && strings.HasSuffix(out, "\x1b[K")
				}
				typed := strings.TrimRight(tt.typed, "\x01\x06")
				i := strings.LastIndex(out, typed[len(typed)-4:])
				return i >= 0 &&
					(len(typed) == len(tt.typed) || strings.HasSuffix(out, "\x1b[C") ||
						strings.HasSuffix(out, "\x1b[A"))
			})
			if _, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbGive}); err != nil {
				t.Fatal(err)
			}
			if res := run(t, alice, "echo hi"); res.Output != "hi\n" {
				t.Errorf("output %q", res.Output)
			}
			w.until(
				t,
				"the prompt behind it",
				func(out string, _ []wire.Event) bool { return strings.HasSuffix(out, "$ ") },
			)
			reply, err := alice.Request(t.Context(), wire.Request{Verb: wire.VerbScreen})
			if err != nil {
				t.Fatal(err)
			}
			rows := strings.Split(strings.TrimRight(reply.Screen.Text, "\n"), "\n")
			at := slices.IndexFunc(
				rows,
				func(r string) bool { return strings.TrimRight(r, " ") == "$ echo hi" },
			)
			if at < 1 || strings.TrimRight(rows[at+1], " ") != "hi" ||
				!strings.HasSuffix(strings.TrimRight(rows[at-1], " "), tt.left) {
				t.Errorf("the screen shows\n%s", strings.Join(rows, "\n"))
			}
			w.until(t, "the command", func(_ string, events []wire.Event) bool {
				return slices.ContainsFunc(events, func(e wire.Event) bool {
					if e.Kind != wire.EventCommand {
						return false
					}
					if told := e.ID == party.ID; told != (tt.left != "") {
						t.Errorf("reported that the line is gone: %v", told)
					}
					return true
				})
			})
		})
	}
}

// TestLineTypedAhead runs a command while an unsent line is at the prompt. The line was typed while
// an earlier command ran. Keys that such a command has read are no line, even if a job has printed
// after the prompt.
func TestLineTypedAhead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, runs, typed, stands string
		told                      bool
	}{
		{"nobody read it", "cat F", "rm -rf /srv/dota\x7f\x7f\x7fata ", "rm -rf /srv/data ", true},
		{"behind what was taken back", "cat F", "nothing\x15rm -rf /srv/data ", "rm -rf /srv/data ",
			true},
		{"a program read it", "(cat F; echo; echo of a job) & read -n 1 && echo", "q",
			"of a job\r\n", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			set := newSet(t, "/bin/bash")
			alice := agentClient(t, set)
			fifo := filepath.Join(t.TempDir(), "fifo")
			if err := syscall.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			run(t, alice, "PS1='$ '; bind 'set enable-bracketed-paste off'")
			w := newWatch()
			party := person("bob")
			party.ID = "0123456789abcdef"
			bob := dial(t, set, wire.Attach{Session: "main", Party: party}, w.handler())
			runs := strings.ReplaceAll(tt.runs, "F", fifo)
			if res := do(t, alice, wire.Request{Verb: wire.VerbRun, Text: runs,
				TimeoutMS: 1000}); res.Ended != wire.Deadline && // it has begun by then
				res.Ended != wire.Waiting {
				t.Fatalf("%q ended: %s", runs, res.Ended)
			}
			if _, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbTake}); err != nil {
				t.Fatal(err)
			}
			if err := bob.Input(t.Context(), []byte(tt.typed)); err != nil {
				t.Fatal(err)
			}
			read, echo := "the terminal's echo", "ata "
			if !tt.told {
				read, echo = "the prompt", "q\r\n$ "
			}
			w.until(
				t,
				read,
				func(out string, _ []wire.Event) bool { return strings.HasSuffix(out, echo) },
			)
			f, err := os.OpenFile(fifo, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
			w.until(t, "what stands at the prompt", func(out string, _ []wire.Event) bool {
				_, out, ok := strings.Cut(out, "$ ")
				return ok && strings.HasSuffix(out, tt.stands)
			})
			if _, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbGive}); err != nil {
				t.Fatal(err)
			}
			if res := run(t, alice, "echo hi"); res.Output != "hi\n" {
				t.Errorf("output %q", res.Output)
			}
			w.until(t, "the command", func(out string, events []wire.Event) bool {
				return strings.HasSuffix(out, "$ ") &&
					slices.ContainsFunc(events, func(e wire.Event) bool {
						return e.Kind == wire.EventCommand && e.Text == "echo hi" &&
							(e.ID == party.ID) == tt.told
					})
			})
			if shown := "$ " + tt.stands + "^C\r\n$ echo hi\r\n"; strings.Contains(
				string(w.output),
				shown,
			) != tt.told {
				t.Errorf("shown %q", w.output)
			}
		})
	}
}
