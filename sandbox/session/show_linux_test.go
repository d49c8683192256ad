package session_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	drawn   = `printf '\033]2;a title\a\033[?1049h\033[2J\033[3;5Hdrawn\033[4;2H'; `
	undrawn = `; printf '\033[?1049l'`
)

func TestResultShowsTheScreen(t *testing.T) {
	t.Parallel()
	c := agentClient(t, newSet(t, "/bin/bash"))
	for _, tt := range []struct {
		name, command string
		show          wire.ShowScreen
		ended         wire.Ended
		want          string // part of the screen; empty for no screen
	}{
		{"a program on the alternate screen that waits", drawn + "read -rsn1" + undrawn, "",
			wire.Waiting, "drawn"},
		{"one that listens and has come to rest", drawn + "read -rsn1 -t 60" + undrawn,
			wire.ScreenAuto, wire.Attention, "drawn"},
		{"one that works until the deadline", drawn + "sleep 60" + undrawn, "", wire.Deadline,
			"drawn"},
		{"a listener on the main screen", "echo at work; read -t 60 x", "", wire.Attention,
			"at work"},
		{"a question on the main screen", "read -p 'Name? ' x", "", wire.Waiting, ""},
		{"a program at work", "echo at work; sleep 60", "", wire.Deadline, ""},
		{"one that is done", "echo done", "", wire.Done, ""},
		{"one that has left the alternate screen", drawn + "sleep 0.1" + undrawn, "", wire.Done,
			""},
		{"never", drawn + "read -rsn1" + undrawn, wire.ScreenNever, wire.Waiting, ""},
		{"always", "echo done", wire.ScreenAlways, wire.Done, "done"},
		{"always, of a question", "read -p 'Name? ' x", wire.ScreenAlways, wire.Waiting, "Name?"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			timeout := int64(60_000)
			if tt.ended == wire.Deadline {
				timeout = 1500
			}
			res := do(
				t,
				c,
				wire.Request{
					Verb:      wire.VerbRun,
					Text:      tt.command,
					Screen:    tt.show,
					TimeoutMS: timeout,
				},
			)
			if res.Ended != tt.ended {
				t.Fatalf("ended %s, want %s: %+v", res.Ended, tt.ended, res)
			}
			switch {
			case tt.want == "" && res.Screen != nil:
				t.Errorf("it shows %q", res.Screen.Text)
			case tt.want != "" && (res.Screen == nil ||
				!strings.Contains(res.Screen.Text, tt.want)):
				t.Errorf("it shows %+v, want %q", res.Screen, tt.want)
			}
			if res.Ended != wire.Done {
				do(t, c, wire.Request{Verb: wire.VerbInterrupt})
				run(t, c, `printf '\033[?1049l'`)
			}
		})
	}
}

// TestShownScreen checks that a screen has its rows as text without trailing blank ones, the cursor
// and the title. It equals the answer to a screen request.
func TestShownScreen(t *testing.T) {
	c := agentClient(t, newSet(t, "/bin/bash"))
	res := do(t, c, wire.Request{Verb: wire.VerbRun, Text: drawn + "read -rsn1"})
	s := res.Screen
	if s == nil || s.Text != "\n\n    drawn" || s.CursorX != 1 || s.CursorY != 3 || !s.AltScreen ||
		s.Title != "a title" ||
		s.Cols != wire.DefaultCols ||
		s.Rows != wire.DefaultRows ||
		s.Offset < res.To {
		t.Fatalf("shows %+v", s)
	}
	asked, err := c.Request(t.Context(), wire.Request{Verb: wire.VerbScreen})
	if err != nil || *asked.Screen != *s {
		t.Errorf("asked for it is %+v, %v", asked.Screen, err)
	}
	// If the program keeps a run from the prompt, the Result has its screen instead.
	refused := do(t, c, wire.Request{Verb: wire.VerbRun, Text: "true"})
	if refused.Ended != wire.Refused || refused.Screen == nil || refused.Screen.Text != s.Text {
		t.Errorf("refused: %s, shows %+v", refused.Ended, refused.Screen)
	}
	// The results of type, keys and wait have the screen after them.
	if res := do(t, c, wire.Request{Verb: wire.VerbWait}); res.Screen == nil {
		t.Error("a wait shows nothing")
	}
	if res := do(t, c, wire.Request{Verb: wire.VerbKeys,
		Keys: []string{"x"}}); res.Ended != wire.Done ||
		res.Screen != nil {
		t.Errorf("back at the prompt: %s, shows %+v", res.Ended, res.Screen)
	}
	if _, err := c.Request(t.Context(), wire.Request{Verb: wire.VerbRun, Text: "true",
		Screen: "often"}); err == nil ||
		!strings.Contains(err.Error(), "never, auto or always") {
		t.Errorf("a word that is none: %v", err)
	}
}

func TestPrivateScreenIsNotShown(t *testing.T) {
	set := newSet(t, "/bin/bash")
	alice := agentClient(t, set)
	run(t, alice, "true")
	mine := newWatch()
	bob := dial(
		t,
		set,
		wire.Attach{Session: "main", Party: person("bob"), Quiet: true},
		mine.handler(),
	)
	setPrivate(t, bob, true)
	if err := bob.Input(t.Context(), []byte(`printf '\033[?1049hsecret-''42'; read -rsn1`+
		"\r")); err != nil {
		t.Fatal(err)
	}
	mine.text(t, "secret-42")
	for _, r := range []wire.Request{{Verb: wire.VerbWait, For: []wire.Phase{wire.PhaseWaiting}},
		{Verb: wire.VerbRun, Text: "true"}} {
		r.Screen = wire.ScreenAlways
		res := do(t, alice, r)
		all, err := json.Marshal(res)
		if err != nil || res.Screen != nil || strings.Contains(string(all), "secret-42") {
			t.Errorf("%s: %s, %v", r.Verb, all, err)
		}
	}
}

// TestScreenTooLarge checks that a screen that would fill a frame is omitted.
func TestScreenTooLarge(t *testing.T) {
	set := newSet(t, "/bin/bash")
	c := dial(t, set, wire.Attach{Session: "main", Create: true, Party: agentParty("alice"),
		Start: &wire.Start{Cols: wire.MaxCols, Rows: wire.MaxRows}}, wire.Handler{})
	res := do(t, c, wire.Request{Verb: wire.VerbRun, MaxOutput: -1,
		Text: `printf '\033[?1049h'; head -c 400000 /dev/zero | tr '\0' x; read -rsn1`})
	if res.Ended != wire.Waiting || res.Screen != nil ||
		!strings.Contains(strings.Join(res.Notes, " "), wire.NoteNoScreen) {
		t.Errorf("%s, screen %v, notes %q", res.Ended, res.Screen != nil, res.Notes)
	}
}
