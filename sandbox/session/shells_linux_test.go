package session_test

import (
	"crypto/sha256"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/session/marks"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// allShells are the shells that can run commands, by name. A missing one fails its tests.
func allShells(t *testing.T) map[string]string {
	t.Helper()
	found := make(map[string]string)
	for _, name := range []string{"bash", "dash", "zsh", "fish"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatalf("%v; scripts/setup test installs it", err)
		}
		found[name] = path
	}
	return found
}

// TestShells runs the same commands in every shell, in a language that all understand.
func TestShells(t *testing.T) {
	for name, path := range allShells(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWatch()
			c := dial(
				t,
				newSet(t, path),
				wire.Attach{Session: "main", Create: true, Party: agentParty("alice")},
				w.handler(),
			)
			for _, tt := range []struct {
				command, output string
				code            int
			}{
				{"true", "", 0},
				{"false", "", 1},
				{"echo hello", "hello\n", 0},
				{"printf x", "x", 0},
				{"echo a\necho b", "a\nb\n", 0},
				{`printf '%s\n' 'a "b"' "!" "a!b" '!!'`, "a \"b\"\n!\na!b\n!!\n", 0},
				{"echo x # y", "x\n", 0},
				{"sh -c 'exit 7'", "", 7},
				{"sh -c 'exit 300'", "", 44},
				{"sh -c 'exit 255'", "", 255},
				{"no-such-command-here 2>/dev/null", "*", 127},
				{"echo '" + strings.Repeat("z", 100_000) + "' | wc -c", "100001\n", 0},
				{"sh -c 'kill -TERM $$' 2>/dev/null", "*", 143},
				{"! true", "", 1},
				{"false | true", "", 0},
				{"printf '%s\n' 'héllo 界'", "héllo 界\n", 0},
				{"cd /", "", 0},
				{"pwd", "/\n", 0},
				{"clear; echo after", "*after\n", 0},
				{"sh -c 'stty raw -echo; kill -9 $$' 2>/dev/null", "*", 137},
				{"stty -a | grep -c -e -icanon -e ' -echo ' -e -opost", "0\n", 1},
				{"sh -c 'stty raw -echo; exit 1'", "", 1},
				{"stty -a | grep -c -e -icanon -e ' -echo ' -e -opost", "0\n", 1},
			} {
				res := run(t, c, tt.command)
				if res.Ended != wire.Done ||
					tt.output != res.Output && !strings.HasPrefix(tt.output, "*") ||
					!strings.HasSuffix(res.Output, strings.TrimPrefix(tt.output, "*")) ||
					code(res) != tt.code {
					t.Errorf(
						"%.60s: %s, %.200q, %d, want %.200q, %d; %+v",
						tt.command,
						res.Ended,
						res.Output,
						code(res),
						tt.output,
						tt.code,
						res.Error,
					)
				}
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			shown := regexp.MustCompile(`\x1b\]0;[^\a]*\a`).
				ReplaceAll(w.output, nil)
				// fish also uses it as the title.
			if n := strings.Count(string(shown), "printf x"); n != 1 {
				t.Errorf("a command is shown %d times: %.2000q", n, w.output)
			}
			if strings.Contains(string(w.output), "__sbx") ||
				strings.Contains(string(w.output), "\x1b]7337;") {
				t.Errorf("the integration is in the log: %.2000q", w.output)
			}
		})
	}
}

// TestHereDocuments compares checksums of here-documents of many lengths, in the shells that
// support them.
func TestHereDocuments(t *testing.T) {
	for name, path := range allShells(t) {
		if name == "fish" {
			continue // its language has none
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := agentClient(t, newSet(t, path))
			check := func(what, body string) {
				res := run(t, c, "sha256sum <<'EOF'\n"+body+"EOF")
				if want := fmt.Sprintf("%x  -\n", sha256.Sum256([]byte(body))); res.Output != want {
					t.Errorf("%s: %s, %.200q, want %q", what, res.Ended, res.Output, want)
				}
			}
			for _, n := range []int{1, 19, 20, 50, 500, 5000} {
				var b strings.Builder
				for i := range n {
					fmt.Fprintf(&b, "line %d $x `y` \"z\\ !a\t'\n", i)
				}
				check(fmt.Sprint(n, " lines"), b.String())
			}
			for _, n := range []int{511, 512, 4095, 4096, 65535, 65536} {
				check(fmt.Sprint(n, " bytes"), strings.Repeat("x", n-1)+"\n")
			}
		})
	}
}

// TestUnfinished runs incomplete commands in zsh and fish, which check them themselves.
func TestUnfinished(t *testing.T) {
	for name, commands := range map[string][]string{
		"zsh":  {"echo 'x", "cat <<EOF\nx", "if true; then", "echo $(", "echo x |", "echo x &&"},
		"fish": {"echo 'x", "if true", "echo (", "echo x |", "echo x &&"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := agentClient(t, newSet(t, allShells(t)[name]))
			run(t, c, "false")
			for _, command := range commands {
				res := run(t, c, command)
				if res.Ended != wire.Refused || res.Error.Code != wire.CodeSyntax ||
					res.Phase != wire.PhasePrompt {
					t.Errorf("%q: %s, %s, %v", command, res.Ended, res.Phase, res.Error)
				}
			}
			if res := run(t, c, "echo fine"); res.Output != "fine\n" || code(res) != 0 {
				t.Errorf("afterwards: %s, %q", res.Ended, res.Output)
			}
			if res := do(t, c, wire.Request{Verb: wire.VerbType,
				Text: "echo 'unfinished"}); res.Ended != wire.Continuation {
				t.Errorf("typed: %s", res.Ended)
			}
			if res := do(t, c,
				wire.Request{Verb: wire.VerbInterrupt}); res.Phase != wire.PhasePrompt {
				t.Errorf("interrupt: %s, %s", res.Ended, res.Phase)
			}
			if res := run(t, c, "echo fine"); res.Output != "fine\n" {
				t.Errorf("at the end: %s, %q", res.Ended, res.Output)
			}
		})
	}
}

// TestShellsEnd ends shells in several ways. The next command runs in a new shell, with a note.
func TestShellsEnd(t *testing.T) {
	for name, path := range allShells(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := agentClient(t, newSet(t, path))
			pid := map[bool]string{true: "$fish_pid", false: "$$"}[name == "fish"]
			ends := []struct {
				command, signal string
				code            int
			}{{"exit", "", 0}, {"exit 3", "", 3}, {"kill -9 " + pid, "KILL", -1},
				{"exec ls", "", 0}, {"exec sh -c 'exit 9'", "", 9}}
			if name != "fish" {
				ends = append(ends, []struct {
					command, signal string
					code            int
				}{{"set -e; false", "", 1}, {"trap 'exit 6' EXIT; exit 5", "", 6},
					{"exit 300", "", 44}}...)
			}
			for _, end := range ends {
				res := run(t, c, end.command)
				signal := ""
				if res.Signal != nil {
					signal = *res.Signal
				}
				if res.Ended != wire.Dead || code(res) != end.code || signal != end.signal {
					t.Errorf("%s: %s, %d, %q, %+v", end.command, res.Ended, code(res), signal,
						res.Error)
				}
				res = run(t, c, "echo again")
				if res.Ended != wire.Done || res.Output != "again\n" || len(res.Notes) != 1 ||
					res.Notes[0] != "shell_restarted" {
					t.Errorf("after %s: %s, %q, %v, %+v", end.command, res.Ended, res.Output,
						res.Notes, res.Error)
				}
			}
		})
	}
}

// TestShellsNest starts one shell in another, or replaces one by another.
func TestShellsNest(t *testing.T) {
	all := allShells(t)
	for name, path := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := agentClient(t, newSet(t, path))
			run(t, c, "true")
			for _, inner := range []string{"bash --norc", "zsh -f", "dash"} {
				res := run(t, c, inner)
				if res.Ended != wire.Done || res.ExitCode != nil {
					t.Errorf("%s: %s, %q", inner, res.Ended, res.Output)
				}
				if res := run(t, c, "echo yes"); res.Ended != wire.Done || res.Output != "yes\n" {
					t.Errorf("run in %s: %s, %q, %v", inner, res.Ended, res.Output, res.Error)
				}
				if res := do(t, c, wire.Request{Verb: wire.VerbType,
					Text: "exit 5"}); res.Ended != wire.Done ||
					code(res) != 5 {
					t.Errorf("exit of %s: %s, %d, %q", inner, res.Ended, code(res), res.Output)
				}
			}
			res := run(t, c, "exec bash --norc")
			if res.Ended == wire.Done {
				res = run(t, c, "echo yes")
			}
			// After fish, bash counts as a program that listens.
			if res.Ended != wire.Done && name != "fish" || name != "fish" && res.Output != "yes\n" {
				t.Errorf("run after exec bash: %s, %q, %v", res.Ended, res.Output, res.Error)
			}
			if res := do(t, c, wire.Request{Verb: wire.VerbType,
				Text: "exit 4"}); res.Ended != wire.Dead ||
				code(res) != 4 {
				t.Errorf("exit of what took its place: %s, %d", res.Ended, code(res))
			}
		})
	}
}

// TestSharedDescriptor has a program read continuously from the descriptor that it inherits.
// Commands must not lose a byte to it.
func TestSharedDescriptor(t *testing.T) {
	for _, name := range []string{"bash", "dash", "zsh"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := fresh(t, newSet(t, "/bin/"+name))
			// With -u and not with <&, because dash accepts no two-digit number there.
			run(
				t,
				c,
				fmt.Sprintf(
					"bash -c 'while :; do read -u %d -N 7 -t 0.001 x; done' >/dev/null 2>&1 & "+
						"reader=$!",
					marks.CommandFD,
				),
			)
			for i := range 30 {
				want := strings.Repeat("x", i*100)
				if res := run(t, c, "echo "+want); res.Ended != wire.Done ||
					res.Output != want+"\n" {
					t.Fatalf("%s, %v, %q, want %q", res.Ended, res.Error, res.Output, want)
				}
			}
			if res := run(t, c, "readlink /proc/$reader/fd/"+fmt.Sprint(
				marks.CommandFD)); res.Ended != wire.Done ||
				code(res) != 0 {
				t.Errorf("the program that reads: %s, %d, %q", res.Ended, code(res), res.Output)
			}
		})
	}
}
