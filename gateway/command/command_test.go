package command

import (
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// The prompt after a command's output is read before the end of the output is known: it must not be
// printed.
func TestWholeLines(t *testing.T) {
	var out strings.Builder
	w := &wholeLines{to: &out}
	for _, part := range []string{"one\r\ntw", "o\r\nthree", "root@demo:~# "} {
		w.at += uint64(len(part))
		if _, err := w.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := out.String(), "one\r\ntwo\r\n"; got != want {
		t.Errorf("before the end is known: %q, want %q", got, want)
	}
	w.end(uint64(len("one\r\ntwo\r\nthree")))
	if got, want := out.String(), "one\r\ntwo\r\nthree"; got != want {
		t.Errorf("at the end: %q, want %q", got, want)
	}
}

func TestExitStatus(t *testing.T) {
	seven, none := 7, 0
	killed := "KILL"
	tests := []struct {
		name   string
		result wire.Result
		want   int
	}{
		{"done", wire.Result{Ended: wire.Done, ExitCode: &none}, 0},
		{"done with a status", wire.Result{Ended: wire.Done, ExitCode: &seven}, 7},
		{"shell killed", wire.Result{Ended: wire.Dead, Signal: &killed}, 137},
		{"asks", wire.Result{Ended: wire.Waiting}, wire.ExitWaiting},
		{"listens", wire.Result{Ended: wire.Attention}, wire.ExitWaiting},
		{"late", wire.Result{Ended: wire.Deadline}, wire.ExitDeadline},
		{"taken over", wire.Result{Ended: wire.TakenOver}, wire.ExitFailed},
		{"interrupted", wire.Result{Ended: wire.Interrupted}, wire.ExitInterrupt},
	}
	for _, tt := range tests {
		got := 0
		if exit, ok := exitStatus(&tt.result).(exitError); ok { //nolint:errorlint // not wrapped
			got = int(exit)
		}
		if got != tt.want {
			t.Errorf("%s: exit %d, want %d", tt.name, got, tt.want)
		}
	}
}

// Watches parses the command line with the command table.
func TestWatches(t *testing.T) {
	tests := []struct {
		args string
		want string // empty: no watch, or a wrong one
	}{
		{"watch demo", "demo"},
		{"watch -n demo~build", "demo~build"},
		{"watch", ""},
		{"watch Demo", ""},
		{"watch demo --nonsense", ""},
		{"watch --help", ""},
		{"ls", ""},
		{"", ""},
	}
	for _, tt := range tests {
		target, ok := Watches(strings.Fields(tt.args))
		if got := target.String(); ok != (tt.want != "") || ok && got != tt.want {
			t.Errorf("Watches(%q) = %s, %v, want %q", tt.args, got, ok, tt.want)
		}
	}
}

// Every command has a usage line, a short help text and an example.
func TestTree(t *testing.T) {
	for _, c := range Tree(&Env{}).Commands() {
		if !c.Hidden && (c.Short == "" || len(c.Short) > 66 ||
			!strings.HasPrefix(c.Use, c.Name()) || !strings.HasPrefix(c.Example, "  sandboxd ")) {
			t.Errorf("%s: use %q, short %q, example %q", c.Name(), c.Use, c.Short, c.Example)
		}
	}
}

// Common mistakes return an error with a useful hint.
func TestMistakes(t *testing.T) {
	for line, want := range map[string]string{
		"run -n demo --timeout 5 true": "write a duration such as 5s",
		"replay demo --idle 2":         "write a duration such as 5s",
		"ls demo":                      "sandboxd describe demo",
		"sessions a~b~c":               "is not a name",
		"run -- true":                  "run --dir DIR",
		"run -n demo --dir /x -- true": "run --dir DIR",
		"run -n demo":                  "see: sandboxd help run",
		"token new a b":                `token new: unexpected argument "b"; usage: sandboxd token new`,
		"token rm":                     "token rm: missing argument; usage: sandboxd token rm ID…",
		"token frob":                   `unknown command "frob"; use token new, token ls or token rm`,
		"token new --expires never":    "see: sandboxd help token new",
		"page web":                     `unexpected argument "web"; usage: sandboxd page`,
		"add gpu":                      "add: missing argument; usage: sandboxd add NAME ssh://",
		"add a b c":                    `add: unexpected argument "c"`,
		"allow":                        "allow: missing argument",
		"replay demo --speed fast":     `invalid argument "fast" for "--speed" flag; write a number`,
		"new -n demo demo":             `new: unexpected argument "demo"`,
		"describe --name demo demo":    `describe: unexpected argument "demo"`,
		"exec -n demo":                 "exec: no command",
		"python -c 1 a b":              `python: unexpected argument "b"`,
	} {
		var out, said strings.Builder
		if code := Run(t.Context(), &Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &said},
			strings.Fields(line)); code != wire.ExitUsage ||
			!strings.Contains(said.String(), want) {
			t.Errorf("%s: exit %d, %q; want %q", line, code, said.String(), want)
		}
	}
}
