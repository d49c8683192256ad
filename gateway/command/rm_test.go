package command

import (
	"bytes"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A running sandbox is removed with -f, or after the user confirms it.
func TestRemoveRunning(t *testing.T) {
	w := newWorld(t)
	onTerminal := func(typed string, args ...string) (code int, stdout, stderr string) {
		var out, errs bytes.Buffer
		env := Env{Hub: w.hub, Principal: alice, Stdin: strings.NewReader(typed), Stdout: &out,
			Stderr: &errs, Pty: &wire.PtyReq{}}
		return Run(t.Context(), &env, args), out.String(), errs.String()
	}
	for _, name := range []string{"one", "two", "three", "four", "idle"} {
		w.must(0, "new", name)
	}
	w.must(0, "stop", "idle")
	for _, args := range [][]string{{"rm", "one"}, {"rm", "--json", "one"}} {
		if code, out, errs := w.command(args...); code != wire.ExitUsage ||
			!strings.Contains(out+errs, "sandbox one is running") ||
			!strings.Contains(out+errs, "add -f") {
			t.Errorf("%s: exit %d, %q, %q", strings.Join(args, " "), code, out, errs)
		}
	}
	if code, out, errs := w.command("rm", "one", "idle"); code != wire.ExitUsage ||
		out != "idle removed\n" {
		t.Errorf("with one that is stopped: exit %d, %q, %q", code, out, errs)
	}
	w.must(0, "rm", "-f", "one")
	if code, out, errs := onTerminal("\r", "rm", "two"); code != wire.ExitFailed || out != "" ||
		!strings.Contains(errs, "two is running. Remove it") {
		t.Errorf("not confirmed: exit %d, %q, %q", code, out, errs)
	}
	w.must(0, "describe", "two")
	if code, out, errs := onTerminal("y\r", "rm", "two", "three"); code != 0 ||
		out != "two removed\nthree removed\n" || !strings.Contains(errs, "two, three are running") {
		t.Errorf("confirmed: exit %d, %q, %q", code, out, errs)
	}
	if code, out, errs := onTerminal("y\r", "rm", "two"); code != wire.ExitFailed ||
		strings.Contains(errs, "[y/N]") {
		t.Errorf("one that is not there: exit %d, %q, %q", code, out, errs)
	}
	if code, out, errs := onTerminal("", "rm", "-f", "--all"); code != 0 ||
		out != "four removed\n" {
		t.Errorf("-f --all: exit %d, %q, %q", code, out, errs)
	}
}
