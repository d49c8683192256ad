package session_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/openssh"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// sshCommand returns the line that logs in to a server of the test, with a login shell that is
// shell.
func sshCommand(t *testing.T, shell string) string {
	t.Helper()
	openssh.NeedTerminals(t)
	srv := openssh.Start(t, openssh.Settings{RC: "PS1='far \\$ '\n"})
	return "ssh -F none -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=" +
		srv.Dir + "/known -o IdentitiesOnly=yes -o LogLevel=ERROR -i " + srv.Identity + " -p " +
		srv.Port + " -t " + srv.User + "@127.0.0.1 '" + shell + "'"
}

// atPromptOf runs a command that connects to another machine, and waits until that shows something.
func atPromptOf(t *testing.T, c *wire.Client, command string) *wire.Result {
	t.Helper()
	res := do(t, c, wire.Request{Verb: wire.VerbRun, Text: command, TimeoutMS: 20000})
	waits := func() bool { // it connects, or it draws
		asks := res.Prompt != "" || res.LooksLikeShell || res.Screen != nil && res.Screen.AltScreen
		return res.Phase == wire.PhaseRunning || res.Phase == wire.PhaseOpaque && !asks
	}
	for end := time.Now().Add(time.Minute); waits() && time.Now().Before(end); {
		res = do(t, c, wire.Request{Verb: wire.VerbWait, For: []wire.Phase{wire.PhasePrompt},
			TimeoutMS: 100})
	}
	return res
}

// Commands run in a shell behind ssh that was adopted, with exit codes and directory, until it
// ends.
func TestRelay(t *testing.T) {
	for name, shell := range map[string]string{
		"bash":    "exec bash -i",
		"dash":    "PS1=\"far $ \" exec dash -i",
		"busybox": "PS1=\"far $ \" exec busybox ash -i",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := agentClient(t, newSet(t, "/bin/bash"))
			run := func(text string, adopt bool) *wire.Result {
				t.Helper()
				return do(t, c, wire.Request{Verb: wire.VerbRun, Text: text, TimeoutMS: 20000,
					Adopt: adopt})
			}
			run("cd /usr", false)
			got := atPromptOf(t, c, sshCommand(t, shell))
			if got.Phase != wire.PhaseOpaque || !got.LooksLikeShell || got.Shell != nil {
				t.Fatalf("ssh: %+v, error %v", got, got.Error)
			}
			got = run("echo no", false)
			if got.Ended != wire.Refused || got.Error.Code != wire.CodeNotPrompt ||
				got.To != got.From {
				t.Fatalf("not adopted: %+v, error %v", got, got.Error)
			}
			got = run("cd /tmp; echo out; (exit 7)", true)
			if got.Ended != wire.Done || got.ExitCode == nil || *got.ExitCode != 7 ||
				got.Output != "out\n" || got.Cwd != "/tmp" || got.Shell == nil ||
				got.Shell.Depth != 1 || got.Shell.Argv[0] != "ssh" ||
				!slices.Contains(got.Notes, wire.NoteShellEntered) ||
				!slices.Contains(got.Notes, wire.NoteAdvisory) {
				t.Fatalf("adopted: %+v, error %v", got, got.Error)
			}
			for _, tt := range []struct {
				text, output string
				exit         int
			}{
				{"pwd", "/tmp\n", 0},
				{"false", "", 1},
				{"cat <<'X'\na\n\\\n ü\nX", "a\n\\\n ü\n", 0},
				{"x='" + strings.Repeat("y", 40000) + "'; echo ${#x}", "40000\n", 0},
				{"seq 1 20000 | tail -1", "20000\n", 0},
			} {
				got = run(tt.text, false)
				if got.Ended != wire.Done || got.ExitCode == nil || *got.ExitCode != tt.exit ||
					got.Output != tt.output {
					t.Fatalf("%.40q: %+v, error %v", tt.text, got, got.Error)
				}
			}
			got = run("sleep 3; echo late", false)
			if got.Output != "late\n" {
				t.Errorf("a silent command: %+v, error %v", got, got.Error)
			}
			got = run("read -r x; echo got $x", false)
			if got.Ended != wire.Attention && got.Ended != wire.Waiting {
				t.Errorf("a question: %+v, error %v", got, got.Error)
			}
			got = do(t, c, wire.Request{Verb: wire.VerbType, Text: "bob", TimeoutMS: 20000})
			if got.Ended != wire.Done || !strings.Contains(got.Output, "got bob") {
				t.Errorf("answered: %+v, error %v", got, got.Error)
			}
			got = leave(t, c, "sleep 100")
			if got.Ended != wire.Deadline {
				t.Errorf("sleep: %+v, error %v", got, got.Error)
			}
			got = do(t, c, wire.Request{Verb: wire.VerbInterrupt})
			if got.Ended != wire.Interrupted || got.Shell == nil {
				t.Errorf("interrupt: %+v %+v, error %v", got, got.Receipt, got.Error)
			}
			got = run("exit 3", false)
			if got.Ended != wire.Done || got.Shell != nil || got.ExitCode == nil ||
				*got.ExitCode != 3 || !slices.Contains(got.Notes, wire.NoteShellLeft) {
				t.Fatalf("exit: %+v, error %v", got, got.Error)
			}
			if got = run("pwd", false); got.Output != "/usr\n" {
				t.Errorf("outside: %+v, error %v", got, got.Error)
			}
		})
	}
}

// An interrupt of a command that the shell behind ssh has not begun sends one ^C: a second one
// would drop the next command.
func TestRelayInterruptOnce(t *testing.T) {
	t.Parallel()
	c := agentClient(t, newSet(t, "/bin/bash"))
	run := func(text string, ms int64) *wire.Result {
		t.Helper()
		return do(t, c, wire.Request{Verb: wire.VerbRun, Text: text, TimeoutMS: ms, Adopt: true})
	}
	// With a slow prompt, ^C is due again before it is known that the command does not run.
	atPromptOf(t, c, sshCommand(t, `PS1="\$(sleep 0.15)far $ " exec dash -i`))
	for unsure, ms := 0, int64(1); unsure < 3; ms = ms%10 + 1 {
		if res := run(`printf '\033[H\033[2J'`, 60_000); res.Ended != wire.Done {
			t.Fatalf("clear: %+v, error %v", res, res.Error)
		}
		run("sleep 100", ms)
		res := do(t, c, wire.Request{Verb: wire.VerbInterrupt})
		if res.Ended != wire.Interrupted {
			t.Fatalf("interrupt: %+v, error %v", res, res.Error)
		}
		reply, err := c.Request(t.Context(), wire.Request{Verb: wire.VerbScreen})
		if err != nil {
			t.Fatal(err)
		}
		if res.ElapsedMS < 500 || res.ElapsedMS > 900 {
			continue // the command had begun, or the prompt was so slow that ^C may be lost
		}
		unsure++
		shown := strings.TrimSpace(reply.Screen.Text)
		if strings.Count(shown, "far $") != 2 || !strings.HasSuffix(shown, "far $") {
			t.Fatalf("want a prompt, the command and a prompt:\n%s", shown)
		}
	}
}

// What is no shell at its prompt is not adopted: nothing is typed to what does not look like one,
// and what only looks like one is left as it was.
func TestRelayRefused(t *testing.T) {
	for _, tt := range []struct {
		name, command string // behind ssh
		code          wire.Code
		typed         bool // whether it looks like a shell
	}{
		{"question", "read -p \"password: \" x", wire.CodeNotPrompt, false},
		{"editor", "vi", wire.CodeNotPrompt, false},
		{"cat", "echo -n \"far $ \"; cat", wire.CodeNotPrompt, true},
		{"python", "python3 -q", wire.CodeNotPrompt, false},
		{"false prompt", "python3 -q -i -c \"import sys; sys.ps1 = 1 and chr(36) + chr(32)\"",
			wire.CodeNotPrompt, true},
		{"zsh", "PS1=\"far $ \" zsh -f", wire.CodeUnavailable, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := agentClient(t, newSet(t, "/bin/bash"))
			was := atPromptOf(t, c, sshCommand(t, tt.command))
			if was.Phase != wire.PhaseOpaque || was.LooksLikeShell != tt.typed {
				t.Fatalf("ssh: %+v, error %v", was, was.Error)
			}
			got, silent := was, tt.typed
			for range 10 { // the editor may still draw: what is typed would show each time
				before := got.To
				got = do(t, c, wire.Request{Verb: wire.VerbRun, Text: "echo ran", Adopt: true,
					TimeoutMS: 20000})
				if silent = silent || got.To == before; silent {
					break
				}
			}
			if got.Ended != wire.Refused || got.Error.Code != tt.code || got.Shell != nil ||
				!silent {
				t.Errorf("run: %+v, error %v", got, got.Error)
			}
		})
	}
}

// A relay that ends when the question has arrived leaves it to the shell around it. No command of
// the far side runs there.
func TestRelayDiverted(t *testing.T) {
	fake := t.TempDir() + "/fake.py"
	if err := os.WriteFile(fake, []byte(`
import os, select, sys, termios, time, tty
modes = termios.tcgetattr(0)
tty.setraw(0)
os.write(1, b"far $ ")
while os.read(0, 1) != b"\x03":
	pass
os.write(1, b"\r\nfar $ ")
select.select([0], [], [])
time.sleep(0.05) # the rest of the line
if sys.argv[1] != "0":
	os.read(0, int(sys.argv[1]))
termios.tcsetattr(0, termios.TCSANOW, modes)
`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, outer := range []string{"/bin/bash", "/bin/dash"} {
		for _, inner := range []string{"", "bash --norc", "dash"} {
			for _, reads := range []string{"0", "300"} {
				t.Run(outer+" "+inner+" "+reads, func(t *testing.T) {
					t.Parallel()
					c := agentClient(t, newSet(t, outer))
					send := func(verb wire.Verb, text string, adopt bool) *wire.Result {
						t.Helper()
						return do(t, c, wire.Request{Verb: verb, Text: text, TimeoutMS: 10000,
							Adopt: adopt})
					}
					start := "bash -c 'exec -a ssh /usr/bin/python3 " + fake + " " + reads + "'"
					send(wire.VerbRun, "s='echo own' l=$s", false)
					if inner != "" {
						send(wire.VerbType, inner, false)
						send(wire.VerbType, "s='echo own' l=$s", false)
						send(wire.VerbType, start, false)
					} else {
						send(wire.VerbRun, start, false)
					}
					got := send(wire.VerbRun, "echo far", true)
					if got.Ended == wire.Done || strings.Contains(got.Output, "far\n") ||
						strings.Contains(got.Output, "own\n") {
						t.Errorf("adopted: %+v, error %v", got, got.Error)
					}
					// bash may still be about to read: then a ^C only takes the empty line away.
					const local = "echo local; stty -a | grep -ow -- '-\\?echo'"
					for range 5 {
						do(t, c, wire.Request{Verb: wire.VerbInterrupt})
						got = send(wire.VerbRun, local, false)
						if got.Ended == wire.Done {
							break
						}
					}
					if got.Output != "local\necho\n" {
						t.Errorf("afterwards: %+v, error %v", got, got.Error)
					}
				})
			}
		}
	}
}

// At a prompt, adopt changes nothing. Nothing is adopted in a program that is no relay.
func TestAdoptNothing(t *testing.T) {
	c := agentClient(t, newSet(t, "/bin/bash"))
	got := do(t, c, wire.Request{Verb: wire.VerbRun, Text: "echo hi", Adopt: true})
	if got.Output != "hi\n" || got.Shell != nil {
		t.Errorf("at the prompt: %+v, error %v", got, got.Error)
	}
	do(t, c, wire.Request{Verb: wire.VerbRun, Text: "cat"})
	got = do(t, c, wire.Request{Verb: wire.VerbRun, Text: "echo hi", Adopt: true})
	if got.Ended != wire.Refused || got.Error.Code != wire.CodeNotPrompt {
		t.Errorf("cat: %+v, error %v", got, got.Error)
	}
}
