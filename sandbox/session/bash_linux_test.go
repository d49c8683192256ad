package session_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/sandbox/session"
	"github.com/sandboxd/sandboxd/sandbox/session/proc"
	"github.com/sandboxd/sandboxd/sandbox/signals"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestMain(m *testing.M) {
	signals.DefaultForChildren()
	goleak.VerifyTestMain(m)
}

func newSet(
	t testing.TB,
	shell string,
) *session.Set {
	return newProbedSet(t, shell, proc.Prober{})
}

func newProbedSet(t testing.TB, shell string, prober session.Prober) *session.Set {
	t.Helper()
	return newHomeSet(t, shell, "PS1='$ '\n", prober)
}

// newRCSet returns a Set whose bash has a .bashrc.
func newRCSet(t testing.TB, rc string) *session.Set {
	t.Helper()
	return newHomeSet(t, "/bin/bash", rc+"\n", proc.Prober{})
}

func newHomeSet(t testing.TB, shell, rc string, prober session.Prober) *session.Set {
	t.Helper()
	home := t.TempDir()
	if err := os.WriteFile(home+"/.bashrc", []byte(rc), 0o600); err != nil {
		t.Fatal(err)
	}
	set := session.NewSet(session.Options{Name: "demo", Prober: prober,
		Start: func(ctx context.Context, s session.Start) (session.Terminal, error) {
			s.Env = append([]string{"HOME=" + home, "ENV="}, s.Env...)
			if s.Dir == "" {
				s.Dir = home
			}
			return startPTY(ctx, s)
		},
		Shell: func() session.Shell { return session.Shell{Path: shell, FDDir: "/dev/fd"} },
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := set.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return set
}

func agentClient(t *testing.T, set *session.Set) *wire.Client {
	t.Helper()
	return dial(
		t,
		set,
		wire.Attach{Session: "main", Create: true, Party: agentParty("alice")},
		wire.Handler{},
	)
}

func do(t *testing.T, c *wire.Client, r wire.Request) *wire.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if r.TimeoutMS == 0 {
		r.TimeoutMS = 120_000
	}
	reply, err := c.Request(ctx, r)
	if err != nil {
		t.Fatalf("%s %q: %v", r.Verb, r.Text, err)
	}
	return reply.Result
}

// leave runs a command that goes on, and returns at a deadline: a short one at first, which a busy
// machine may not reach the command in.
func leave(t *testing.T, c *wire.Client, command string) *wire.Result {
	t.Helper()
	for ms := int64(300); ; ms *= 2 {
		res := do(t, c, wire.Request{Verb: wire.VerbRun, Text: command, TimeoutMS: ms})
		if res.Ended != wire.Refused || ms > 30_000 {
			return res
		}
	}
}

func run(t *testing.T, c *wire.Client, command string) *wire.Result {
	t.Helper()
	return do(t, c, wire.Request{Verb: wire.VerbRun, Text: command})
}

func code(r *wire.Result) int {
	if r.ExitCode == nil {
		return -1
	}
	return *r.ExitCode
}

func shells(t *testing.T) []string {
	var found []string
	for _, sh := range []string{"/bin/bash", "/bin/dash"} {
		if _, err := os.Stat(sh); err == nil {
			found = append(found, sh)
		}
	}
	if len(found) == 0 {
		t.Fatal("no shell on this machine")
	}
	return found
}

func TestRun(t *testing.T) {
	for _, shell := range shells(t) {
		t.Run(shell, func(t *testing.T) {
			c := agentClient(t, newSet(t, shell))
			for _, tt := range []struct {
				name, command, output string
				code                  int
			}{
				{"true", "true", "", 0},
				{"false", "false", "", 1},
				{"output", "echo hello", "hello\n", 0},
				{"no newline", "printf x", "x", 0},
				{"lines", "echo a\necho b", "a\nb\n", 0},
				{"heredoc", "cat <<'EOF'\none\n  two $x `y`\nEOF", "one\n  two $x `y`\n", 0},
				{"quotes", `printf '%s\n' "it's" 'a "b"' "!"`, "it's\na \"b\"\n!\n", 0},
				{"tab", "printf 'a\tb\n'", "a       b\n", 0},
				{"status", "(exit 7)", "", 7},
				{"not found", "no-such-command-here 2>/dev/null", "", 127},
				{"long", "printf '%s' '" + strings.Repeat("z", 9000) + "' | wc -c", "9000\n", 0},
				{"background", "sleep 5 & echo started", "started\n", 0},
				{"comment", "echo x # y", "x\n", 0},
				{"unicode", "printf '%s\n' 'héllo 界'", "héllo 界\n", 0},
				{"progress", `printf '10%%\r20%%\r100%%\n'`, "100%\n", 0},
			} {
				res := run(t, c, tt.command)
				got := res.Output
				if tt.name == "background" {
					// the shell prints the job's number
					got = got[strings.LastIndex(strings.TrimSuffix(got, "\n"), "\n")+1:]
				}
				if res.Ended != wire.Done || got != tt.output || code(res) != tt.code {
					t.Errorf(
						"%s: ended %s, output %q, code %d, want %q, %d; %+v",
						tt.name,
						res.Ended,
						res.Output,
						code(res),
						tt.output,
						tt.code,
						res.Error,
					)
				}
			}
		})
	}
}

func TestRunKeepsTheShell(t *testing.T) {
	c := agentClient(t, newSet(t, "/bin/bash"))
	run(t, c, "cd /; x=5")
	if res := run(t, c, "echo $x; pwd"); res.Output != "5\n/\n" || res.Cwd != "/" {
		t.Errorf("output %q, cwd %q", res.Output, res.Cwd)
	}
	if res := run(t, c, "exit 3"); res.Ended != wire.Dead || code(res) != 3 {
		t.Errorf("exit 3: %s, %d", res.Ended, code(res))
	}
	res := run(t, c, "echo again$x")
	if res.Ended != wire.Done || res.Output != "again\n" || len(res.Notes) != 1 ||
		res.Notes[0] != "shell_restarted" {
		t.Errorf("after exit: %s, %q, %v", res.Ended, res.Output, res.Notes)
	}
	if res := run(t, c, "kill -9 $$"); res.Ended != wire.Dead || res.Signal == nil ||
		*res.Signal != "KILL" {
		t.Errorf("kill -9: %s, %v", res.Ended, res.Signal)
	}
}

func TestRunWaits(t *testing.T) {
	c := agentClient(t, newSet(t, "/bin/bash"))
	res := run(t, c, `read -p "Continue? [Y/n] " a; echo "got $a"`)
	if res.Ended != wire.Waiting || res.Want != wire.WantLine || res.Prompt != "Continue? [Y/n] " {
		t.Fatalf("ended %s, want %s, prompt %q", res.Ended, res.Want, res.Prompt)
	}
	if res.Keyboard != "agent:alice" {
		t.Errorf("keyboard %q while it waits", res.Keyboard)
	}
	if res := run(t, c, "true"); res.Ended != wire.Refused || res.Error.Code != wire.CodeNotPrompt {
		t.Errorf("run while it waits: %s, %v", res.Ended, res.Error)
	}
	res = do(t, c, wire.Request{Verb: wire.VerbType, Text: "y"})
	if res.Ended != wire.Done || code(res) != 0 || res.Output != "y\ngot y\n" {
		t.Errorf("typed y: %s, %d, %q", res.Ended, code(res), res.Output)
	}
	if res.Keyboard != "" {
		t.Errorf("keyboard %q at the prompt", res.Keyboard)
	}

	res = run(t, c, "cat")
	if res.Ended != wire.Waiting || len(res.Foreground.Argv) != 1 ||
		res.Foreground.Argv[0] != "cat" {
		t.Fatalf("cat: %s, %v", res.Ended, res.Foreground)
	}
	for _, line := range []string{"one", "two", "three"} {
		res = do(t, c, wire.Request{Verb: wire.VerbType, Text: line})
		if res.Ended != wire.Waiting || res.Output != line+"\n"+line+"\n" {
			t.Errorf("typed %s to cat: %s, %q", line, res.Ended, res.Output)
		}
	}
	res = do(t, c, wire.Request{Verb: wire.VerbKeys, Keys: []string{"^D"}})
	if res.Ended != wire.Done || code(res) != 0 {
		t.Errorf("^D: %s, %d", res.Ended, code(res))
	}
}

// TestUnfinishedCommandEnds runs an incomplete command, past the check outside the sandbox. It ends
// by itself, because the shell reads it as a file.
func TestUnfinishedCommandEnds(t *testing.T) {
	c := agentClient(t, newSet(t, "/bin/bash"))
	// Callers check that a command is complete. An incomplete one does no harm.
	for _, command := range []string{"echo 'x", "if true; then", "for i in 1 2; do", "echo $(",
		"f() {"} {
		if res := run(t, c, command); res.Ended != wire.Done || code(res) == 0 {
			t.Errorf("%q: %s, %d", command, res.Ended, code(res))
		}
	}
	if res := run(t, c, "echo )"); res.Ended != wire.Done || code(res) == 0 {
		t.Errorf("a syntax error that is the shell's to report: %s, %d", res.Ended, code(res))
	}
	if res := do(t, c, wire.Request{Verb: wire.VerbType,
		Text: "echo 'unfinished"}); res.Ended != wire.Continuation {
		t.Errorf("typed: %s", res.Ended)
	}
	res := do(t, c, wire.Request{Verb: wire.VerbInterrupt})
	if res.Ended != wire.Interrupted || res.Phase != wire.PhasePrompt {
		t.Errorf("interrupt: %s, %s", res.Ended, res.Phase)
	}
	if res := run(t, c, "echo fine"); res.Output != "fine\n" {
		t.Errorf("afterwards: %s, %q", res.Ended, res.Output)
	}
}

func TestTypeAtPrompt(t *testing.T) {
	c := agentClient(t, newSet(t, "/bin/bash"))
	run(t, c, "true")
	for range 20 {
		res := do(t, c, wire.Request{Verb: wire.VerbType, Text: "(exit 9)"})
		if res.Ended != wire.Done || code(res) != 9 {
			t.Fatalf("typed: %s, %d", res.Ended, code(res))
		}
		if res := run(t, c, "true"); code(res) != 0 {
			t.Fatalf("run: %s, %d", res.Ended, code(res))
		}
	}
	res := do(t, c, wire.Request{Verb: wire.VerbKeys, Keys: []string{"e", "c", "Left"}})
	if res.Ended != wire.Done || res.Phase != wire.PhasePrompt {
		t.Errorf("keys that end no line: %s, %s", res.Ended, res.Phase)
	}
	if res.ExitCode != nil {
		t.Errorf(
			"keys that end no line have the exit code of an earlier command: %d",
			*res.ExitCode,
		)
	}
	for _, key := range []string{"x", "^C", "Enter"} { // at a prompt where nothing runs
		run(t, c, "(exit 3)")
		if res := do(t, c, wire.Request{Verb: wire.VerbKeys,
			Keys: []string{key}}); res.Ended != wire.Done ||
			res.ExitCode != nil {
			t.Errorf(
				"%s at a prompt: %s, exit code of an earlier command %v",
				key,
				res.Ended,
				res.ExitCode,
			)
		}
		do(t, c, wire.Request{Verb: wire.VerbKeys, Keys: []string{"^U"}})
	}
	if res := do(t, c, wire.Request{Verb: wire.VerbKeys,
		Keys: []string{"f", "a", "l", "s", "e", "Enter"}}); res.Ended != wire.Done ||
		code(res) != 1 {
		t.Errorf("keys that run a command: %s, %v", res.Ended, res.ExitCode)
	}
	if res := do(t, c, wire.Request{Verb: wire.VerbKeys,
		Keys: []string{"o", "Entr"}}); res.Ended != wire.Refused ||
		res.Error.Code != wire.CodeUsage {
		t.Errorf("an unknown key: %+v", res)
	}
	do(t, c, wire.Request{Verb: wire.VerbKeys, Keys: []string{"e", "c", "Left"}})
	// The next run clears the half typed line.
	if res := run(t, c, "echo clean"); res.Output != "clean\n" {
		t.Errorf("run over a half line: %s, %q", res.Ended, res.Output)
	}
}

func TestDeadlineAndInterrupt(t *testing.T) {
	t.Parallel()
	c := agentClient(t, newSet(t, "/bin/bash"))
	run(t, c, "true")
	res := do(
		t,
		c,
		wire.Request{Verb: wire.VerbRun, Text: "echo begun; sleep 100", TimeoutMS: 2000},
	)
	if res.Ended != wire.Deadline || res.Phase != wire.PhaseRunning || res.Output != "begun\n" {
		t.Fatalf("deadline: %s, %s, %q", res.Ended, res.Phase, res.Output)
	}
	res = run(t, c, "true")
	if res.Error == nil || res.Error.Code != wire.CodeNotPrompt ||
		!strings.Contains(res.Error.Message, "sleep") {
		t.Errorf("run while it runs: %v", res.Error)
	}
	res = do(t, c, wire.Request{Verb: wire.VerbInterrupt})
	if res.Ended != wire.Interrupted || res.Phase != wire.PhasePrompt || code(res) != 130 {
		t.Errorf("interrupt: %s, %s, %d", res.Ended, res.Phase, code(res))
	}
	// No step waited for its time limit.
	if got, want := strings.Join(res.Receipt.Steps, " "), "^C"; got != want {
		t.Errorf("steps %s, want %s", got, want)
	}

	res = do(t, c, wire.Request{Verb: wire.VerbRun, Text: "sleep 100", TimeoutMS: 1000, Kill: true})
	if res.Ended != wire.Deadline || res.Receipt == nil || res.Receipt.Steps[0] != "^C" {
		t.Errorf("kill at the deadline: %s, %+v", res.Ended, res.Receipt)
	}

	do(
		t,
		c,
		wire.Request{
			Verb:      wire.VerbRun,
			Text:      `bash -c 'trap "" INT TERM; while :; do sleep 0.1; done'`,
			TimeoutMS: 3000,
		},
	)
	res = do(t, c, wire.Request{Verb: wire.VerbInterrupt})
	if res.Ended != wire.Interrupted || res.Phase != wire.PhasePrompt ||
		len(res.Receipt.Died) == 0 ||
		len(res.Receipt.Left) != 0 {
		t.Errorf("a program that ignores signals: %s, %s, %+v", res.Ended, res.Phase, res.Receipt)
	}
	if got, want := strings.Join(res.Receipt.Steps, " "), "^C TERM KILL"; got != want {
		t.Errorf("steps %s, want %s", got, want)
	}
	if res := run(t, c, "echo ok"); res.Output != "ok\n" {
		t.Errorf("afterwards: %q", res.Output)
	}
}

func TestFlood(t *testing.T) {
	t.Parallel()
	c := agentClient(t, newSet(t, "/bin/bash"))
	run(t, c, "true")
	res := do(t, c, wire.Request{Verb: wire.VerbRun, Text: "yes", TimeoutMS: 1000})
	// More than a result has. How much more, a busy machine decides.
	if res.Ended != wire.Deadline || !res.Truncated || res.To-res.From <= 32<<10 {
		t.Errorf("yes: %s, %d bytes", res.Ended, res.To-res.From)
	}
	res = do(t, c, wire.Request{Verb: wire.VerbInterrupt})
	if res.Phase != wire.PhasePrompt || slices.Contains(res.Receipt.Steps, "KILL") {
		t.Errorf("interrupt of yes: %s, %+v", res.Phase, res.Receipt)
	}
	res = run(t, c, "seq 1 1300000; exit_code() { return 7; }; exit_code")
	if code(res) != 7 || !strings.HasPrefix(res.Output, "1\n2\n") ||
		!strings.HasSuffix(res.Output, "1299999\n1300000\n") {
		t.Errorf("seq: %s, %d, %q", res.Ended, code(res), res.Output[max(0, len(res.Output)-40):])
	}
}

func TestManyCommands(t *testing.T) {
	t.Parallel()
	c := agentClient(t, newSet(t, "/bin/bash"))
	run(t, c, "true")
	began := time.Now()
	const n = 300
	for i := range n {
		want := strings.Repeat("x", i) + "\n"
		res := run(
			t,
			c,
			"printf '%s\\n' "+strings.Repeat("x", i)+"; (exit "+string(rune('0'+i%8))+")",
		)
		if res.Ended != wire.Done || res.Output != want || code(res) != i%8 {
			t.Fatalf("command %d: %s, %q, %d, %v", i, res.Ended, res.Output, code(res), res.Error)
		}
	}
	t.Logf("%v a command", time.Since(began)/n)
}

func BenchmarkRunTrue(b *testing.B) {
	set := newSet(b, "/bin/bash")
	near, far := socketpair(b)
	go set.Serve(context.Background(), far, true)
	c, err := wire.Open(
		context.Background(),
		near,
		wire.Attach{Session: "main", Create: true, Party: agentParty("alice")},
		wire.Handler{},
	)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	for b.Loop() {
		reply, err := c.Request(
			context.Background(),
			wire.Request{Verb: wire.VerbRun, Text: "true"},
		)
		if err != nil || reply.Result.Ended != wire.Done {
			b.Fatal(reply.Result, err)
		}
	}
}

// TestKeyOfTheEditor presses a key that starts a program in the shell's own group, such as a
// history search.
func TestKeyOfTheEditor(t *testing.T) {
	c := fresh(t, newSet(t, "/bin/bash"))
	run(t, c, `bind -x '"\C-g": x=$(bash -c "read -n 1 y </dev/tty; echo \$y"); echo got $x'`)
	res := do(t, c, wire.Request{Verb: wire.VerbKeys, Keys: []string{"^G"}, TimeoutMS: 60_000})
	if res.Phase == wire.PhasePrompt { // the prompt was reported before the key had an effect
		res = do(
			t,
			c,
			wire.Request{
				Verb:      wire.VerbWait,
				For:       []wire.Phase{wire.PhaseWaiting},
				TimeoutMS: 60_000,
			},
		)
	}
	if res.Ended != wire.Waiting || res.Want != wire.WantRaw {
		t.Fatalf("got %s, %s, want that it asks", res.Ended, res.Want)
	}
	if res := do(t, c, wire.Request{Verb: wire.VerbRun, Text: "true"}); res.Error == nil ||
		res.Error.Code != wire.CodeNotPrompt {
		t.Errorf("a run meanwhile: %s, %+v", res.Ended, res.Error)
	}
	res = do(t, c, wire.Request{Verb: wire.VerbType, Text: "k", Raw: true, TimeoutMS: 60_000})
	if res.Ended != wire.Done || !strings.Contains(res.Output, "got k") {
		t.Errorf("the answer got %s, %q", res.Ended, res.Output)
	}
	if res := run(t, c, "echo on"); res.Output != "on\n" {
		t.Errorf("the next command prints %q", res.Output)
	}
}

// TestCommandFileIsReadOnly has a program that has dropped its privileges try to write the shell's
// next command.
func TestCommandFileIsReadOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("this test is for root, as which the guest runs")
	}
	c := fresh(t, newSet(t, "/bin/bash"))
	res := run(
		t,
		c,
		"setpriv --reuid 65534 --clear-groups sh -c 'test -r /proc/self/fd/61 && echo x "+
			">/proc/self/fd/61' 2>&1",
	)
	if code(res) == 0 || !strings.Contains(res.Output, "denied") {
		t.Errorf("got %d, %q, want that it may not", code(res), res.Output)
	}
}

// TestPromisedPrompt has a typed command print the shell's prompt with its marks. The false prompt
// is reported only briefly, and as disputed.
func TestPromisedPrompt(t *testing.T) {
	t.Parallel()
	set := newProbedSet(t, "/bin/bash", proc.Prober{})
	c := fresh(t, set)
	res := do(
		t,
		c,
		wire.Request{
			Verb:      wire.VerbType,
			Text:      `echo "${PS1@P}"; until [[ -e /tmp/promised-$$ ]]; do :; done; rm /tmp/promised-$$`,
			TimeoutMS: 5000,
		},
	)
	if res.Ended != wire.Done {
		t.Fatalf("got %+v", res)
	}
	res = do(
		t,
		c,
		wire.Request{Verb: wire.VerbWait, For: []wire.Phase{wire.PhaseDead}, TimeoutMS: 3000},
	)
	if res.Phase != wire.PhaseRunning || !slices.Equal(res.Disputed, []wire.Basis{wire.BasisMark}) {
		t.Errorf("got %+v, want it running", res)
	}
	if res = do(t, c, wire.Request{Verb: wire.VerbInterrupt}); res.Ended != wire.Interrupted ||
		res.Phase != wire.PhasePrompt {
		t.Errorf("got %+v, want it interrupted", res)
	}
	if res = run(t, c, "echo still $?"); res.Output != "still 130\n" {
		t.Errorf("got %+v", res)
	}
}
