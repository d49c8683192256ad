package session_test

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// runner returns a function that runs a command.
func runner(t *testing.T, c *wire.Client) func(text string) *wire.Result {
	return func(text string) *wire.Result {
		t.Helper()
		return do(t, c, wire.Request{Verb: wire.VerbRun, Text: text, TimeoutMS: 20000})
	}
}

// A shell in the session's own is entered by the first run: commands run in it, with exit codes and
// directory, until it ends.
func TestNestedShell(t *testing.T) {
	for _, outer := range []string{"/bin/bash", "/bin/dash", "/usr/bin/zsh", "/usr/bin/fish"} {
		for _, inner := range []string{"bash", "dash", "zsh"} {
			t.Run(outer+" "+inner, func(t *testing.T) {
				t.Parallel()
				c := agentClient(t, newSet(t, outer))
				run := runner(t, c)
				run("cd /usr")
				start := inner
				if inner == "zsh" {
					start = "zsh -f" // without startup files it asks whether to make some
				}
				got := run(start)
				if got.Ended != wire.Done || got.Phase != wire.PhasePrompt || got.Shell == nil ||
					got.Shell.Depth != 1 || got.ExitCode != nil ||
					!slices.Contains(got.Notes, wire.NoteShellEntered) {
					t.Fatalf("%s: %+v, error %v", inner, got, got.Error)
				}
				got = run("cd /tmp; echo out; sh -c 'exit 7'")
				if got.Ended != wire.Done || got.ExitCode == nil || *got.ExitCode != 7 ||
					got.Output != "out\n" || got.Cwd != "/tmp" || got.Shell == nil {
					t.Fatalf("in %s: %+v, error %v", inner, got, got.Error)
				}
				for range 3 {
					if got = run("true"); got.ExitCode == nil || *got.ExitCode != 0 || got.Output != "" {
						t.Fatalf("true: %+v, error %v", got, got.Error)
					}
				}
				got = run("exit 3")
				if got.Ended != wire.Done || got.ExitCode == nil || *got.ExitCode != 3 ||
					got.Shell != nil || !slices.Equal(got.Notes, []string{wire.NoteShellLeft}) {
					t.Fatalf("exit: %+v, error %v", got, got.Error)
				}
				got = run("pwd")
				if got.ExitCode == nil || *got.ExitCode != 0 ||
					strings.TrimSpace(got.Output) != "/usr" {
					t.Fatalf("outside: %+v, error %v", got, got.Error)
				}
			})
		}
	}
}

// A shell that was entered ends, and the one around it was not: no mark reports it.
func TestNestedUnused(t *testing.T) {
	c := agentClient(t, newSet(t, "/bin/bash"))
	run := runner(t, c)
	first := run("bash --norc").Shell
	do(t, c, wire.Request{Verb: wire.VerbType, Text: "bash --norc"})
	if got := run("echo hi"); got.Output != "hi\n" || got.Shell.Pid == first.Pid {
		t.Fatalf("in the second: %+v, error %v", got, got.Error)
	}
	if got := run("exit 3"); got.Ended != wire.Done || got.Shell == nil ||
		got.Shell.Pid != first.Pid || !slices.Contains(got.Notes, wire.NoteShellLeft) ||
		slices.Contains(got.Notes, wire.NoteAdvisory) {
		t.Fatalf("exit: %+v, error %v", got, got.Error)
	}
	if got := run("echo hi"); got.Output != "hi\n" || got.Shell.Pid != first.Pid {
		t.Fatalf("in the first: %+v, error %v", got, got.Error)
	}
	if got := run("exit 4"); got.ExitCode == nil || *got.ExitCode != 4 || got.Shell != nil {
		t.Fatalf("exit: %+v, error %v", got, got.Error)
	}
}

// A nested shell that is left by typing ends with the code of the shell around it.
func TestNestedTypedExit(t *testing.T) {
	c := agentClient(t, newSet(t, "/bin/bash"))
	run := runner(t, c)
	run("bash --norc")
	run("true")
	got := do(t, c, wire.Request{Verb: wire.VerbType, Text: "exit 3"})
	if got.Ended != wire.Done || got.ExitCode == nil || *got.ExitCode != 3 || got.Shell != nil {
		t.Errorf("typed exit: %+v", got)
	}
	if got := run("echo $SHLVL; false"); got.ExitCode == nil || *got.ExitCode != 1 {
		t.Errorf("after it: %+v, error %v", got, got.Error)
	}
}

// The session's own shell is not taken for another one while its builtin reads a key, whatever name
// it has.
func TestOwnShellReads(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/bin/bash", dir+"/sh"); err != nil {
		t.Fatal(err)
	}
	for _, shell := range []string{dir + "/sh", "/bin/bash", "/usr/bin/zsh"} {
		c := agentClient(t, newSet(t, shell))
		key := "read -n1 x"
		if shell == "/usr/bin/zsh" {
			key = "read -k1 x"
		}
		got := do(t, c, wire.Request{Verb: wire.VerbRun, Text: key, TimeoutMS: 20000})
		if got.Ended != wire.Waiting || got.Shell != nil {
			t.Errorf("%s: %s: %+v, error %v", shell, key, got, got.Error)
		}
		got = do(t, c, wire.Request{Verb: wire.VerbRun, Text: "echo no", TimeoutMS: 5000})
		if got.Ended != wire.Refused {
			t.Errorf("%s: run beside it: %+v", shell, got)
		}
	}
}

// What stands at the prompt of a nested shell is not run, in any state of its line editor.
func TestNestedHalfTyped(t *testing.T) {
	for name, typed := range map[string]struct{ start, keys string }{
		"line":              {"bash --norc", "n o ;"},
		"incomplete":        {"bash --norc", "n o Space ' Enter n o"},
		"search":            {"bash --norc", "^R n o"},
		"vi":                {"bash --norc -o vi", "n o Esc"},
		"zsh line":          {"zsh -f", "n o"},
		"zsh vi":            {"zsh -f -o vi", "n o Esc"},
		"zsh incomplete":    {"zsh -f", "n o Space ' Enter"},
		"dash incomplete":   {"dash", "n o Space ' Enter"},
		"dash without PS2":  {"env PS2= dash", "n o Space ' Enter"},
		"bash with own PS2": {"env PS2=more: bash --norc", "n o Space ' Enter"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := agentClient(t, newSet(t, "/bin/bash"))
			was := do(t, c, wire.Request{Verb: wire.VerbRun, Text: typed.start})
			if was.Shell == nil {
				t.Fatalf("%s: %+v, error %v", typed.start, was, was.Error)
			}
			do(t, c, wire.Request{Verb: wire.VerbKeys, Keys: strings.Fields(typed.keys),
				TimeoutMS: 1000})
			got := do(t, c, wire.Request{Verb: wire.VerbRun, Text: "echo yes", TimeoutMS: 20000})
			if got.Output != "yes\n" || got.ExitCode == nil || *got.ExitCode != 0 {
				t.Errorf("run: %+v, error %v", got, got.Error)
			}
		})
	}
}

// An interrupt at the prompt of a nested shell without marks leaves it running.
func TestNestedInterrupt(t *testing.T) {
	c := agentClient(t, newSet(t, "/bin/bash"))
	was := do(t, c, wire.Request{Verb: wire.VerbRun, Text: "bash --norc"})
	got := do(t, c, wire.Request{Verb: wire.VerbInterrupt})
	if got.Ended != wire.Interrupted || got.Shell == nil || got.Shell.Pid != was.Shell.Pid ||
		len(got.Receipt.Signaled) != 0 || !slices.Equal(got.Receipt.Steps, []string{"^C"}) {
		t.Errorf("interrupt: %+v %+v, error %v", got, got.Receipt, got.Error)
	}
}

// Shells that have closed what they inherited, or have other process IDs, take commands. One that
// does not see the file does not, and nothing is typed to it.
func TestNestedApart(t *testing.T) {
	starts := map[string]bool{ // whether it takes commands
		"bash -c 'exec 61<&-; exec bash --norc'":                         true,
		"bash -c 'exec 61<&-; exec zsh -f'":                              true,
		"bash -c 'exec 61<&-; exec dash'":                                true,
		"unshare -Urpf --mount-proc bash --norc":                         true,
		"unshare -Urm sh -c 'mount -t tmpfs none /dev/shm && exec dash'": false,
	}
	if _, err := exec.LookPath("sudo"); err == nil && os.Geteuid() == 0 {
		starts["sudo -u nobody bash --norc"] = true
	}
	for start, takes := range starts {
		t.Run(start, func(t *testing.T) {
			t.Parallel()
			c := agentClient(t, newSet(t, "/bin/bash"))
			was := do(t, c, wire.Request{Verb: wire.VerbRun, Text: start, TimeoutMS: 20000})
			got := do(t, c, wire.Request{Verb: wire.VerbRun, Text: "echo ran; (exit 3)",
				TimeoutMS: 20000})
			switch {
			case was.Shell == nil:
				t.Fatalf("%s: %+v, error %v", start, was, was.Error)
			case takes && (got.Output != "ran\n" || got.ExitCode == nil || *got.ExitCode != 3),
				!takes && (got.Ended != wire.Refused || got.Error.Code != wire.CodeUnavailable ||
					got.To != was.To):
				t.Errorf("run: %+v, error %v", got, got.Error)
			}
		})
	}
}

// Nothing is typed behind what ^C does not clear.
func TestNestedNotCleared(t *testing.T) {
	for name, typed := range map[string]struct {
		start []string
		keys  string
	}{
		"quoted ^C":         {[]string{"bash --norc"}, "n o ; ^V"},
		"quoted ^C in dash": {[]string{"dash"}, "n o ; ^V"},
		"bash ignores ^C":   {[]string{"bash --norc", "trap '' INT"}, "n o ;"},
		"dash ignores ^C":   {[]string{"dash", "trap '' INT"}, "n o ;"},
		"another key":       {[]string{"stty intr ^A; dash"}, "n o ;"},
		"kept input":        {[]string{"stty noflsh; dash"}, "n o ;"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := agentClient(t, newSet(t, "/bin/bash"))
			for _, line := range typed.start {
				do(t, c, wire.Request{Verb: wire.VerbType, Text: line, TimeoutMS: 1000})
			}
			do(t, c, wire.Request{Verb: wire.VerbKeys, Keys: strings.Fields(typed.keys),
				TimeoutMS: 1000})
			got := do(t, c, wire.Request{Verb: wire.VerbRun, Text: "echo yes", TimeoutMS: 20000})
			if got.Ended != wire.Refused || got.Error.Code != wire.CodeNotPrompt ||
				strings.Contains(got.Output, "test") {
				t.Errorf("run: %+v, error %v", got, got.Error)
			}
		})
	}
}

// One shell is one process: exec in a nested shell puts another in its place.
func TestNestedExec(t *testing.T) {
	t.Parallel()
	c := agentClient(t, newSet(t, "/bin/bash"))
	run := runner(t, c)
	run("bash --norc")
	was := run("true").Shell
	for range 20 {
		got := run("exec zsh -f")
		if got.Ended != wire.Done || got.Shell == nil || got.Shell.Pid != was.Pid ||
			got.Shell.Depth != 1 {
			t.Fatalf("exec zsh: %+v, error %v", got, got.Error)
		}
		got = run("exec bash --norc")
		if got.Ended != wire.Done || !slices.Contains(got.Notes, wire.NoteShellEntered) {
			t.Fatalf("exec bash: %+v, error %v", got, got.Error)
		}
	}
	if got := run("exit 3"); got.ExitCode == nil || *got.ExitCode != 3 || got.Shell != nil {
		t.Errorf("exit: %+v, error %v", got, got.Error)
	}
}

// A shell whose file was removed is given another one.
func TestNestedFileRemoved(t *testing.T) {
	c := agentClient(t, newSet(t, "/bin/bash"))
	run := runner(t, c)
	run("bash --norc")
	// The name of its file is in the function that reads it.
	got := run(`f=$(declare -f __sbx_r); f=/dev/shm/${f#*/dev/shm/}; rm -f "${f%%[ ;]*}"; echo $?`)
	if got.Output != "0\n" {
		t.Fatalf("rm: %+v, error %v", got, got.Error)
	}
	if got := run("echo again"); got.Output != "again\n" || got.Shell == nil {
		t.Errorf("run: %+v, error %v", got, got.Error)
	}
	if got := run("exit 3"); got.ExitCode == nil || *got.ExitCode != 3 || got.Shell != nil {
		t.Errorf("exit: %+v, error %v", got, got.Error)
	}
}

// An interrupt of a loop of the nested shell itself ends that shell, and not the one around it.
func TestNestedInterruptLoop(t *testing.T) {
	t.Parallel()
	c := agentClient(t, newSet(t, "/bin/bash"))
	run := func(text string, ms int64) *wire.Result {
		t.Helper()
		return do(t, c, wire.Request{Verb: wire.VerbRun, Text: text, TimeoutMS: ms})
	}
	run("A=outer", 20000)
	run("bash --norc", 20000)
	begun := t.TempDir() + "/begun"
	if err := unix.Mkfifo(begun, 0o600); err != nil {
		t.Fatal(err)
	}
	looped := make(chan *wire.Result, 1)
	go func() {
		res := run("trap '' INT TERM; echo >"+begun+"; while :; do sleep 0.1; done", 60000)
		if res.Ended == wire.Refused { // nothing writes
			_ = os.WriteFile(begun, nil, 0)
		}
		looped <- res
	}()
	if _, err := os.ReadFile(begun); err != nil { // waits for the shell
		t.Fatal(err)
	}
	got := do(t, c, wire.Request{Verb: wire.VerbInterrupt})
	if got.Ended != wire.Interrupted || got.Shell != nil {
		t.Errorf("interrupt: %+v %+v, error %v", got, got.Receipt, got.Error)
	}
	if got := <-looped; got.Ended != wire.Interrupted {
		t.Errorf("run of the loop: %+v, error %v", got, got.Error)
	}
	if got := run("echo $A", 20000); got.Output != "outer\n" {
		t.Errorf("run: %+v, error %v", got, got.Error)
	}
}

// A process that takes the terminal from a command, and becomes a shell, is not taken for one that
// the command has started: it may be of another user.
func TestNestedTakenForeground(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	thief := dir + "/thief.py"
	if err := os.WriteFile(thief, []byte(`
import os, signal, sys, time
if os.fork() == 0:
	if os.fork():
		os._exit(0)
	os.setpgid(0, 0)
	while not os.path.exists(sys.argv[1]):
		time.sleep(0.01)
	signal.signal(signal.SIGTTOU, signal.SIG_IGN)
	os.tcsetpgrp(0, os.getpgrp())
	signal.signal(signal.SIGTTOU, signal.SIG_DFL)
	os.execvp("bash", ["bash", "--norc", "-i"])
os.wait()
`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, shell := range []string{"/bin/bash", "/bin/dash", "/usr/bin/zsh"} {
		t.Run(shell, func(t *testing.T) {
			now := t.TempDir() + "/now"
			c := agentClient(t, newSet(t, shell))
			run := runner(t, c)
			if got := run("python3 " + thief + " " + now); got.Ended != wire.Done {
				t.Fatalf("thief: %+v, error %v", got, got.Error)
			}
			// The command has the terminal when the thief takes it.
			got := do(t, c, wire.Request{Verb: wire.VerbRun, TimeoutMS: 60000,
				Text: "sh -c 'touch " + now + "; exec sleep 1000'"})
			if got.Ended != wire.Waiting || got.Shell != nil || got.Foreground == nil ||
				!slices.Equal(got.Foreground.Argv, []string{"bash", "--norc", "-i"}) {
				why, err := c.Request(t.Context(), wire.Request{Verb: wire.VerbList})
				t.Errorf("the command: %+v, error %v; sessions %+v, %v", got, got.Error,
					why.Sessions, err)
			}
			if got = run("echo secret"); got.Ended != wire.Refused || got.To != got.From {
				t.Errorf("the next: %+v, error %v", got, got.Error)
			}
		})
	}
}

// Without room for a command, the shell runs nothing, and works again when there is room.
func TestNestedNoRoom(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root's user namespace has files of root, such as the shell")
	}
	const inside = "SANDBOXD_TEST_NO_ROOM"
	if os.Getenv(inside) == "" {
		cmd := exec.CommandContext(t.Context(), "unshare", "-Urm", "sh", "-c",
			`mount -t tmpfs -o size=4k none /dev/shm && exec "$0" "$@"`,
			os.Args[0], "-test.run=^TestNestedNoRoom$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("--- PASS: TestNestedNoRoom")) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	c := agentClient(t, newSet(t, "/bin/bash"))
	run := runner(t, c)
	run("bash --norc")
	if got := run("echo hi"); got.Ended != wire.Refused || got.Error == nil ||
		got.Error.Code != wire.CodeUnavailable || !strings.Contains(got.Error.Message, "/dev/shm") {
		t.Errorf("no room for the marks: %+v, error %v", got, got.Error)
	}
	if out, err := exec.CommandContext(t.Context(), "mount", "-o", "remount,size=32k",
		"/dev/shm").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := run("echo hi"); got.Output != "hi\n" || got.Shell == nil {
		t.Fatalf("with room: %+v, error %v", got, got.Error)
	}
	got := run("echo no #" + strings.Repeat("x", 64<<10))
	if got.Ended != wire.Refused || got.Error == nil || got.Error.Code != wire.CodeUnavailable ||
		strings.Contains(got.Output, "no\n") {
		t.Errorf("no room for a command: %+v, error %v", got, got.Error)
	}
	if got := run("echo hi; (exit 3)"); got.Output != "hi\n" || got.ExitCode == nil ||
		*got.ExitCode != 3 {
		t.Errorf("after it: %+v, error %v", got, got.Error)
	}
}

// A session that is closed while a nested shell runs leaves no file, and ends once.
func TestNestedClose(t *testing.T) {
	set := newSet(t, "/bin/bash")
	c := agentClient(t, set)
	run := runner(t, c)
	run("bash --norc")
	got := run(`f=$(declare -f __sbx_r); f=/dev/shm/${f#*/dev/shm/}; echo "${f%%[ ;]*}"`)
	file := strings.TrimSpace(got.Output)
	if _, err := os.Stat(file); err != nil {
		t.Fatalf("%+v: %v", got, err)
	}
	if err := set.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Errorf("%s is left", file)
	}
}
