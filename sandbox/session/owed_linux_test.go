package session_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// queries are all queries that a terminal answers.
const queries = "\x1b[c\x1b[>c\x1b[=c\x1b[>q\x1b[5n\x1b[6n\x1b[?6n" +
	"\x1b]10;?\x1b\\\x1b]11;?\a\x1b]12;?\a\x1bP$qm\x1b\\\x1bP$qr\x1b\\\x1bP$q " +
	"q\x1b\\\x1bP+q544e\x1b\\\x1b[?2026$p\x1b[4$p\x1b[18t\n"

// TestAnswersNobodyWaitsFor shows files of raw bytes with all queries that a terminal answers. No
// program waits for the answers. They must not be echoed into the output or typed to the shell,
// with or without a person attached.
func TestAnswersNobodyWaitsFor(t *testing.T) {
	paths := allShells(t)
	if busybox, err := exec.LookPath("busybox"); err == nil {
		dir := t.TempDir()
		paths["ash"] = filepath.Join(dir, "ash")
		if err := os.Symlink(busybox, paths["ash"]); err != nil {
			t.Fatal(err)
		}
	} else {
		t.Fatalf("%v; scripts/setup test installs it", err)
	}
	file := filepath.Join(t.TempDir(), "queries")
	if err := os.WriteFile(file, []byte(queries), 0o600); err != nil {
		t.Fatal(err)
	}
	// It uses raw mode, sends queries and ends, as a program does that ignores the answers.
	careless := `python3 -c 'import os, termios, time, tty
old = termios.tcgetattr(0); tty.setraw(0, termios.TCSANOW)
os.write(1, open("` + file + `", "rb").read())
time.sleep(.05)
termios.tcsetattr(0, termios.TCSANOW, old)'`
	for name, path := range paths {
		for _, joined := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s joined=%v", name, joined), func(t *testing.T) {
				t.Parallel()
				set := newSet(t, path)
				w := newWatch()
				c := dial(
					t,
					set,
					wire.Attach{Session: "main", Create: true, Party: agentParty("alice")},
					w.handler(),
				)
				if joined {
					dial(
						t,
						set,
						wire.Attach{Session: "main", Party: person("bob")},
						newWatch().handler(),
					)
				}
				for i := range 20 {
					show := "cat " + file
					if i%5 == 4 {
						show = careless
					}
					if res := run(t, c, show); res.Ended != wire.Done ||
						strings.TrimSpace(res.Output) != "" ||
						code(res) != 0 {
						_, trace := traceOf(t, c)
						t.Fatalf("%.20s (%d): %+v, foreground %+v, error %v; the log ends in %q; "+
							"trace: %s", show, i, res, res.Foreground, res.Error,
							w.output[max(0, len(w.output)-1000):], trace)
					}
					res := run(t, c, fmt.Sprintf("echo hi %d; sh -c 'exit %d'", i, i))
					if res.Ended != wire.Done || res.Output != fmt.Sprintf("hi %d\n", i) ||
						code(res) != i {
						t.Fatalf("run %d: %+v, error %v; the log ends in %q", i, res, res.Error,
							w.output[max(0, len(w.output)-1000):])
					}
				}
			})
		}
	}
}

// TestAnswersOfJobs has a background job send queries while the shell is at its prompt.
func TestAnswersOfJobs(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "queries")
	if err := os.WriteFile(file, []byte(queries), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bash", "dash"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWatch()
			c := dial(
				t,
				newSet(t, allShells(t)[name]),
				wire.Attach{Session: "main", Create: true, Party: agentParty("alice")},
				w.handler(),
			)
			for i := range 5 {
				gate := filepath.Join(dir, fmt.Sprint(name, i))
				run(t, c, "mkfifo "+gate)
				run(
					t,
					c,
					fmt.Sprintf("{ cat %s >/dev/null; cat %s; echo asked %d; } &", gate, file, i),
				)
				if err := os.WriteFile(gate, []byte("go"), 0o600); err != nil {
					t.Fatal(err)
				}
				w.text(t, fmt.Sprintf("asked %d\r\n", i))
				res := run(t, c, fmt.Sprintf("echo hi %d; sh -c 'exit %d'", i, i))
				if res.Ended != wire.Done ||
					!strings.Contains(res.Output, fmt.Sprintf("hi %d\n", i)) ||
					code(res) != i {
					t.Fatalf(
						"run %d: %s, %q, %d; %+v",
						i,
						res.Ended,
						res.Output,
						code(res),
						res.Error,
					)
				}
			}
		})
	}
}

// TestAnswersThatAreWaitedFor has programs send queries in the ways that real ones do. Each
// receives its answer.
func TestAnswersThatAreWaitedFor(t *testing.T) {
	c := agentClient(t, newSet(t, "/bin/bash"))
	script := filepath.Join(t.TempDir(), "ask")
	if err := os.WriteFile(script, []byte("printf '\\033[6n'\nIFS= read -rs -d R a "+
		"</dev/tty\nprintf '<%q>\\n' \"$a\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, command, want string }{
		{"keys first", `stty -echo raw; printf '\033[6n'; IFS= read -r -d R -t 20 a; stty sane; printf '<%q>\n' "$a"`, `;1'>`},
		{"the question as a prompt", `IFS= read -rs -d R -t 20 -p $'\e[6n' a; printf '<%q>\n' "$a"`, `;1'>`},
		{"the question first", `printf '\033[6n'; IFS= read -rs -d R -t 20 a; printf '<%q>\n' "$a"`, `;1'>`},
		{"a script", "bash " + script, `;1'>`},
		{"after raw bytes", `printf '\033[c\033[6n\n' | cat; IFS= read -rs -d R -t 20 -p $'\e[6n' a; printf '<%q>\n' "$a"`, `;1'>`},
		{"python", `python3 -c 'import os, termios, tty
old = termios.tcgetattr(0); tty.setraw(0)
os.write(1, b"\x1b]11;?\x1b\\\x1b[c"); got = b""
while not got.endswith(b"c"): got += os.read(0, 100)
termios.tcsetattr(0, termios.TCSANOW, old)
print(got)'`, `b'\x1b]11;rgb:0000/0000/0000\x1b\\\x1b[?62;22c'`},
	} {
		t.Run(test.name, func(t *testing.T) {
			res := run(t, c, test.command)
			if res.Ended != wire.Done || code(res) != 0 ||
				!strings.Contains(res.Output, test.want) {
				t.Errorf(
					"%s, %d, %q, want %q; %+v",
					res.Ended,
					code(res),
					res.Output,
					test.want,
					res.Error,
				)
			}
		})
	}
}
