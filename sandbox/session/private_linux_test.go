package session_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// model is the content of a screen that received only output.
func model(output string) *screen.Screen {
	s := screen.New(
		screen.Options{Cols: wire.DefaultCols, Rows: wire.DefaultRows, Scrollback: 1000},
	)
	_, _ = s.Write([]byte(output))
	return s
}

// knows reports whether any data that w received contains text.
func (w *watch) knows(t *testing.T, text string) bool {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	b, err := json.Marshal(w.events)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(w.output), text) || strings.Contains(string(b), text)
}

func over(_ string, events []wire.Event) bool {
	for _, e := range events {
		if e.Kind == wire.EventPrivate && e.By == "" {
			return true
		}
	}
	return false
}

func setPrivate(t *testing.T, c *wire.Client, on bool) {
	t.Helper()
	if _, err := c.Request(t.Context(), wire.Request{Verb: wire.VerbPrivate, On: on}); err != nil {
		t.Fatal(err)
	}
}

// TestPrivate types secrets in private mode and searches for them everywhere else.
func TestPrivate(t *testing.T) {
	for _, tt := range []struct{ name, first, last string }{
		{"lines", `printf '\033]2;tit''le-se''cret-42\a'; echo se''cret-42`, `X=secret-42`},
		{"scrolled", `for i in $(seq 200); do echo se''cret-42 $i; done`, `X=secret-42`},
		{"the alternate screen, and back", `printf '\033[?1049h se''cret-42'; printf '\033[?1049lse''cret-42\n'`, `X=secret-42`},
		{"on the alternate screen", `echo se''cret-42; printf '\033[?1049h se''cret-42\033[?2004h'`, `X=secret-42`},
		{"a program that waits", `echo se''cret-42`, "read -p 'secret-42? ' x\r"},
		{"a notice that is not complete", `echo se''cret-42`,
			"printf '\\033]9;secret-42'; read x\r"},
		{"a flood", `echo se''cret-42`, "while :; do echo se''cret-42; done\r"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			set := newSet(t, "/bin/bash")
			w, mine := newWatch(), newWatch()
			alice := dial(
				t,
				set,
				wire.Attach{
					Session: "main",
					Create:  true,
					Party:   agentParty("alice"),
					From:    wire.Offset{Word: wire.FromStart},
				},
				w.handler(),
			)
			run(t, alice, "echo pub''lic-1")
			bob := dial(
				t,
				set,
				wire.Attach{Session: "main", Party: person("bob"), Quiet: true},
				mine.handler(),
			)
			setPrivate(t, bob, true)
			if err := bob.Input(t.Context(), []byte(tt.first+"\r")); err != nil {
				t.Fatal(err)
			}
			mine.until(t, "the next prompt", func(out string, _ []wire.Event) bool {
				return strings.Contains(out, "secret-42") && strings.HasSuffix(out, "$ ")
			})
			if err := bob.Input(t.Context(), []byte(tt.last)); err != nil {
				t.Fatal(err)
			}
			mine.until(t, "the last line", func(out string, _ []wire.Event) bool {
				return strings.HasSuffix(out, "X=secret-42") ||
					strings.HasSuffix(out, "secret-42? ") ||
					strings.HasSuffix(out, "\x1b]9;secret-42") ||
					strings.Count(out, "secret-42") > 300
			})

			// During private mode.
			if _, err := alice.Request(t.Context(),
				wire.Request{Verb: wire.VerbScreen}); err == nil ||
				!strings.Contains(err.Error(), "private") {
				t.Errorf("the agent's look at the screen: %v", err)
			}
			if r, err := bob.Request(t.Context(),
				wire.Request{Verb: wire.VerbScreen}); err != nil ||
				!strings.Contains(r.Screen.Text, "secret-42") {
				t.Errorf("the person's own look: %v", err)
			}
			if res := do(t, alice, wire.Request{Verb: wire.VerbWait,
				TimeoutMS: 100}); strings.Contains(
				res.Output+res.Prompt,
				"secret",
			) ||
				res.Foreground != nil {
				t.Errorf("waiting: %+v", res)
			}
			late := newWatch()
			joined := dial(
				t,
				set,
				wire.Attach{
					Session: "main",
					Party:   person("carl"),
					From:    wire.Offset{Word: wire.FromStart},
				},
				late.handler(),
			)
			if a := joined.Attached(); a.Private != "person:bob" || a.State.Prompt != "" {
				t.Errorf("joined: %+v", a)
			}
			late.text(t, "public-1")
			info := set.List()[0]
			if info.Private != "person:bob" || info.State.LastLine != "" ||
				info.State.Prompt != "" ||
				info.State.Foreground != nil {
				t.Errorf("listed: %+v", info)
			}
			back := make(chan *wire.Result, 1)
			go func() {
				r, _ := alice.Request(
					t.Context(),
					wire.Request{Verb: wire.VerbWait, Keyboard: true},
				)
				back <- r.Result
			}()

			// Giving the keyboard back ends private mode.
			if _, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbGive}); err != nil {
				t.Fatal(err)
			}
			w.until(t, "the end of it", over)
			if strings.Contains(tt.name, "flood") {
				if r := do(t, alice,
					wire.Request{Verb: wire.VerbInterrupt}); r.Phase != wire.PhasePrompt {
					t.Fatalf("interrupted: %s", r.Phase)
				}
				<-back
				return // from then on, its output is public
			}
			res := <-back
			if res.Notice != nil && strings.Contains(*res.Notice, "secret") {
				t.Errorf("the agent's notice: %s", *res.Notice)
			}
			if res.TakenOver == nil || len(res.TakenOver.Commands) > 0 ||
				strings.Contains(res.Output, "secret") ||
				!strings.Contains(res.Output, "[private]") {
				t.Errorf("what happened: %q, %+v", res.Output, res.TakenOver)
			}
			r, err := alice.Request(t.Context(), wire.Request{Verb: wire.VerbScreen})
			if err != nil {
				t.Fatal(err)
			}
			sc := r.Screen
			if strings.Contains(sc.Text+sc.Title, "secret") {
				t.Errorf("the screen shows:\n%s", sc.Text)
			}
			if tt.name == "lines" && !strings.Contains(sc.Text, "public-1") {
				t.Errorf("what was there before is gone:\n%s", sc.Text)
			}
			var seen *screen.Screen
			w.until(t, "all output", func(out string, _ []wire.Event) bool {
				m := model(out)
				seen = m
				cur := m.Cursor()
				return m.Text() == sc.Text && cur.X == sc.CursorX && cur.Y == sc.CursorY &&
					m.Modes().AltScreen == sc.AltScreen
			})
			if strings.HasPrefix(tt.name, "on the alt") && !seen.Modes().BracketedPaste {
				t.Error("a mode that was set in private is not set")
			}
			if err := bob.Input(t.Context(), []byte("\x15\r")); err != nil { // clear the line
				t.Fatal(err)
			}
			if err := bob.Input(t.Context(), []byte(
				"printf '\\033[?1049l'; echo pub''lic-2\r")); err != nil {
				t.Fatal(err)
			}
			w.text(t, "public-2")
			if r, err = alice.Request(t.Context(),
				wire.Request{Verb: wire.VerbScreen}); err != nil ||
				strings.Contains(r.Screen.Text, "secret") {
				t.Errorf("behind the alternate screen, %v:\n%s", err, r.Screen.Text)
			}
			again := newWatch()
			dial(
				t,
				set,
				wire.Attach{
					Session: "main",
					Party:   person("dora"),
					From:    wire.Offset{Word: wire.FromStart},
				},
				again.handler(),
			)
			again.text(t, "public-2")
			for name, who := range map[string]*watch{"the agent": w, "who joined meanwhile": late,
				"who joined later": again} {
				if who.knows(t, "secret") {
					t.Errorf("%s has received the secret: %q", name, who.output)
				}
			}
			missed := uint64(0)
			w.mu.Lock()
			for _, e := range w.events {
				if e.Kind == wire.EventPrivate && e.By == "" {
					missed = e.Missed
				}
				if e.Kind == wire.EventLagged &&
					(e.Text != wire.WhyPrivate || missed != 0 || e.Missed == 0) {
					t.Errorf("lagged: %+v", e)
				}
			}
			w.mu.Unlock()
			if missed == 0 {
				t.Error("the stretch had no length")
			}
		})
	}
}

func TestPrivateIsForThePersonWhoDrives(t *testing.T) {
	set := newSet(t, "/bin/bash")
	alice := agentClient(t, set)
	run(t, alice, "true")
	bob := dial(t, set, wire.Attach{Session: "main", Party: person("bob")}, wire.Handler{})
	if _, err := alice.Request(t.Context(), wire.Request{Verb: wire.VerbPrivate,
		On: true}); err == nil {
		t.Error("an agent is private")
	}
	if _, err := alice.Request(t.Context(), wire.Request{Verb: wire.VerbTake}); err != nil {
		t.Fatal(err)
	}
	if _, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbPrivate,
		On: true}); err == nil {
		t.Error("private without the keyboard")
	}
	if _, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbTake}); err != nil {
		t.Fatal(err)
	}
	w := newWatch()
	dial(
		t,
		set,
		wire.Attach{
			Session: "main",
			Party:   person("carl"),
			From:    wire.Offset{Word: wire.FromStart},
		},
		w.handler(),
	)
	for range 3 { // on, off, and again
		setPrivate(t, bob, true)
		setPrivate(t, bob, true)
		setPrivate(t, bob, false)
		setPrivate(t, bob, false)
	}
	// The end of the shell ends it, too.
	setPrivate(t, bob, true)
	if err := bob.Input(t.Context(), []byte("echo last se''cret; exit 3\r")); err != nil {
		t.Fatal(err)
	}
	ends := func(n int) func(string, []wire.Event) bool {
		return func(_ string, events []wire.Event) bool {
			left := n
			for _, e := range events {
				if e.Kind == wire.EventPrivate && e.By == "" {
					left--
				}
			}
			return left <= 0
		}
	}
	w.until(t, "its end with the shell", ends(4))
	if w.knows(t, "secret") {
		t.Errorf("received: %q", w.output)
	}
	// The end of the session does, too.
	if res := run(t, bob, "true"); res.Ended != wire.Done {
		t.Fatalf("the next shell: %+v", res)
	}
	setPrivate(t, bob, true)
	if err := bob.Input(t.Context(), []byte("echo last se''cret\r")); err != nil {
		t.Fatal(err)
	}
	if _, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbClose}); err != nil {
		t.Fatal(err)
	}
	w.until(t, "its end with the session", ends(5))
	if w.knows(t, "secret") {
		t.Errorf("received: %q", w.output)
	}
}

// TestPrivateBelowTheWindow enlarges the window, which shows rows that a smaller one hid. Rows of
// private mode stay hidden, even if the size is the original one at its end.
func TestPrivateBelowTheWindow(t *testing.T) {
	set := newSet(t, "/bin/bash")
	alice := agentClient(t, set)
	run(t, alice, "echo pub''lic-1")
	mine := newWatch()
	bob := dial(t, set, wire.Attach{Session: "main", Party: person("bob")}, mine.handler())
	resize := func(rows int) {
		t.Helper()
		if _, err := bob.Request(t.Context(),
			wire.Request{Verb: wire.VerbResize, Cols: wire.DefaultCols, Rows: rows}); err != nil {
			t.Fatal(err)
		}
	}
	setPrivate(t, bob, true)
	resize(wire.DefaultRows + 10)
	if err := bob.Input(t.Context(), []byte(`printf '\033[58;1Hse''cret-42\033[2;1H'; echo e''nd`+
		"\r")); err != nil {
		t.Fatal(err)
	}
	mine.text(t, "end")
	resize(wire.DefaultRows)
	setPrivate(t, bob, false)
	mine.until(t, "the end of it", over)
	resize(wire.DefaultRows + 10)
	if r, err := alice.Request(t.Context(), wire.Request{Verb: wire.VerbScreen}); err != nil ||
		strings.Contains(r.Screen.Text, "secret") {
		t.Errorf("shown: %+v, %v", r.Screen, err)
	}
}

// TestPrivateIsOver checks that a command that an agent runs directly after private mode is not
// private.
func TestPrivateIsOver(t *testing.T) {
	t.Parallel()
	set := newSet(t, "/bin/bash")
	alice := agentClient(t, set)
	run(t, alice, "true")
	bob := dial(t, set, wire.Attach{Session: "main", Party: person("bob")}, wire.Handler{})
	for i := range 60 {
		if _, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbTake}); err != nil {
			t.Fatal(err)
		}
		setPrivate(t, bob, true)
		res := make(chan *wire.Result, 1)
		go func() {
			res <- do(t, alice, wire.Request{Verb: wire.VerbRun,
				Text: fmt.Sprintf("echo public-%d", i), Hold: true})
		}()
		// The screen falls behind.
		if err := bob.Input(t.Context(), []byte("seq 20000\r")); err != nil {
			t.Fatal(err)
		}
		if _, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbInterrupt}); err != nil {
			t.Fatal(err)
		}
		if _, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbGive}); err != nil {
			t.Fatal(err)
		}
		if r := <-res; r.Ended != wire.Done ||
			!strings.Contains(r.Output, fmt.Sprintf("public-%d", i)) {
			t.Fatalf("round %d: %+v", i, r)
		}
	}
}
