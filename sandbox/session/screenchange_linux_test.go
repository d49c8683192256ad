package session_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestNarrow runs commands in a terminal in which the typed line wraps.
func TestNarrow(t *testing.T) {
	for _, shell := range shells(t) {
		for _, cols := range []int{20, 40, 80} {
			set := newSet(t, shell)
			w := newWatch()
			c := dial(
				t,
				set,
				wire.Attach{
					Session: "main",
					Create:  true,
					Party:   agentParty("alice"),
					Start:   &wire.Start{Cols: cols, Rows: 10},
				},
				w.handler(),
			)
			for range 5 {
				if res := run(t, c, "echo hi"); res.Output != "hi\n" {
					t.Errorf("%s, %d columns: %q", shell, cols, res.Output)
				}
			}
			w.mu.Lock()
			prompt := map[bool]string{true: "# ",
				false: "$ "}[shell != "/bin/bash" && os.Getuid() == 0]
			plain := regexp.MustCompile(`\x1b\[\?2004[hl]\r?`).
				ReplaceAllString(string(w.output), "")
			w.mu.Unlock()
			if i := strings.Index(plain, "echo hi"); i < 0 ||
				strings.Trim(plain[i:], "\r") != strings.Repeat("echo hi\r\nhi\r\n"+prompt, 5) {
				t.Errorf("%s, %d columns: log %q", shell, cols, plain)
			}
		}
	}
}

// TestFullRow uses prompts of all widths. With one of them, the typed line ends with the row, and
// the line editor goes back to redraw its end.
func TestFullRow(t *testing.T) {
	w := newWatch()
	c := dial(
		t,
		newSet(t, "/bin/bash"),
		wire.Attach{
			Session: "main",
			Create:  true,
			Party:   agentParty("alice"),
			Start:   &wire.Start{Cols: 20, Rows: 10},
		},
		w.handler(),
	)
	for n := range 20 {
		if res := run(t, c, "PS1=$PS1+"); res.Output != "" {
			t.Errorf("behind a prompt of %d: %q", 2+n, res.Output)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if strings.Contains(string(w.output), "\x1b[A") {
		t.Errorf("log %q", w.output)
	}
}

// TestSlowPrompt uses a slow prompt. Input during that time would be echoed by the terminal and
// again by the shell.
func TestSlowPrompt(t *testing.T) {
	t.Parallel()
	set := newSet(t, "/bin/bash")
	w := newWatch()
	c := dial(
		t,
		set,
		wire.Attach{Session: "main", Create: true, Party: agentParty("alice")},
		w.handler(),
	)
	run(t, c, `PS1='$(sleep 0.3)> '`)
	for range 3 {
		if res := run(t, c, "echo hi"); res.Ended != wire.Done || res.Output != "hi\n" {
			t.Errorf("%s, %q", res.Ended, res.Output)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	plain := regexp.MustCompile(`\x1b\[\?2004[hl]\r?`).ReplaceAllString(string(w.output), "")
	if want := strings.Repeat("> echo hi\r\nhi\r\n", 3) + "> "; !strings.HasSuffix(plain, want) {
		t.Errorf("log %q, want it to end in %q", plain, want)
	}
}

func TestNotice(t *testing.T) {
	c := agentClient(t, newSet(t, "/bin/bash"))
	if res := run(t, c, "true"); res.Notice != nil {
		t.Errorf("notice %q of true", *res.Notice)
	}
	res := run(t, c, `printf '\033]9;build done\a'; sleep 0.05`)
	if res.Notice == nil || *res.Notice != "text build done" {
		t.Errorf("notice %v", res.Notice)
	}
	for _, tt := range []struct{ print, want string }{
		{`\a\033]0;title\a`, "bell"},
		{`\033]9;done\a\033]9;4;1;50\a`, "text done"},
		{`\033]0;title\a`, "title title"},
	} {
		res := run(t, c, "printf '"+tt.print+"'; sleep 0.05")
		got := "none"
		if res.Notice != nil {
			got = *res.Notice
		}
		if got != tt.want {
			t.Errorf("printf %s: notice %s, want %s", tt.print, got, tt.want)
		}
	}
}

// TestRunAfterResize runs commands directly after the size changes, when the line editor redraws
// its prompt. The log shows neither a second prompt nor any part of the line that starts a command.
func TestRunAfterResize(t *testing.T) {
	set := newSet(t, "/bin/bash")
	w := newWatch()
	c := dial(
		t,
		set,
		wire.Attach{Session: "main", Create: true, Party: agentParty("alice")},
		w.handler(),
	)
	run(t, c, "true")
	const n = 60
	for i := range n {
		if _, err := c.Request(t.Context(), wire.Request{Verb: wire.VerbResize, Cols: 80 + i%2,
			Rows: 24}); err != nil {
			t.Fatal(err)
		}
		if res := run(t, c, "echo hi"); res.Ended != wire.Done || res.Output != "hi\n" {
			t.Errorf("%s, %q, %v", res.Ended, res.Output, res.Error)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	plain := regexp.MustCompile(`\x1b\[[0-9?]*[a-zA-Z]`).ReplaceAllString(string(w.output), "")
	if strings.Contains(plain, "sbx") {
		t.Errorf("the line that starts a command is shown: %q", plain)
	}
	if got := len(regexp.MustCompile(`echo hi\r\n\r*hi\r\n`).FindAllString(plain, -1)); got != n {
		t.Errorf("%d of %d commands are shown as they ran: %q", got, n, plain)
	}
}
