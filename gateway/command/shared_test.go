package command

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// share reports whether the principal can log in.
func TestShareSaysWhoCanLogIn(t *testing.T) {
	w := newWorld(t, func(o *gateway.Options) {
		o.LogsIn = func(principal string) (bool, bool) {
			return principal == "bob", principal == "carl"
		}
	})
	w.must(0, "new", "demo")
	for name, want := range map[string]string{
		"bob": "",
		"carl": "sandboxd: warning: carl has no key: only a certificate with that name can " +
			"log in\n",
	} {
		if code, out, errs := w.command("share", "demo", name); code != 0 ||
			out != name+" may watch demo\n" || errs != want {
			t.Errorf("%s: %d, %q, %q", name, code, out, errs)
		}
	}
	if code, out, errs := w.command("share", "demo", "bbo"); code != 2 || out != "" ||
		!strings.Contains(errs, "nobody can log in as bbo") ||
		!strings.Contains(errs, `principal="bbo"`) {
		t.Errorf("a slip: %d, %q, %q", code, out, errs)
	}
}

// The end of a share also ends watch --json, which has no attachment.
func TestWatchJSONEndsWithTheShare(t *testing.T) {
	w := newWorld(t)
	w.must(0, "new", "demo")
	w.must(0, "run", "-n", "demo", "--", "true")
	w.must(0, "share", "demo", "bob")
	r, out := io.Pipe()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	done := make(chan int, 1)
	var errs bytes.Buffer
	go func() {
		defer out.Close()
		env := &Env{Hub: w.hub, Principal: gateway.Principal{Name: "bob", Kind: wire.Person,
			Rights: wire.RightDrive}, Stdin: strings.NewReader(""), Stdout: out, Stderr: &errs}
		done <- Run(ctx, env, []string{"watch", "demo", "--json"})
	}()
	lines := bufio.NewScanner(r)
	if !lines.Scan() {
		t.Fatalf("no output: %s", &errs)
	}
	w.must(0, "unshare", "demo", "bob")
	w.must(123, "run", "-n", "demo", "--", "read -p 'Code''word? ' x")
	for lines.Scan() {
		if strings.Contains(lines.Text(), "Codeword") {
			t.Errorf("printed after the end: %s", lines.Text())
			r.Close()
		}
	}
	if code := <-done; code != 125 {
		t.Errorf("ended with %d: %s", code, &errs)
	}
}

// A user with a read-only share gets denied for every command that drives the sandbox, and its
// program is not affected.
func TestWatcherIsDenied(t *testing.T) {
	w := newWorld(t)
	w.must(0, "new", "demo")
	w.must(123, "run", "-n", "demo", "--", "cat")
	w.must(0, "share", "demo", "bob")
	for _, line := range []string{"run -n demo -- true", "type -n demo x",
		"type -n demo --answer x", "keys -n demo ^C", "interrupt demo", "take demo",
		"take demo --ask"} {
		for _, flag := range []string{"", " --json"} {
			var out, errs bytes.Buffer
			env := Env{Hub: w.hub, Principal: gateway.Principal{Name: "bob", Kind: wire.Person,
				Rights: wire.RightDrive}, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs}
			words := strings.Fields(line)
			code := Run(t.Context(), &env, append([]string{words[0]},
				append(strings.Fields(flag), words[1:]...)...))
			says := errs.String()
			if flag != "" {
				says = out.String()
			}
			if code != 125 || !strings.Contains(says, "may only watch") || flag != "" &&
				!strings.Contains(says, `"code":"denied"`) {
				t.Errorf("%s%s: exit %d, %q, %q; want denied", line, flag, code, out.String(),
					errs.String())
			}
		}
	}
	if _, out, _ := w.command("screen", "demo"); strings.Contains(out, "^C") {
		t.Errorf("a watcher's ^C reached the terminal: %q", out)
	}
	// A call that is rejected for another reason is not reported as done, either.
	carl := gateway.Principal{Name: "carl", Kind: wire.Person, Rights: wire.RightDrive}
	w.must(0, "share", "demo", "carl", "--drive")
	held, err := w.hub.Sessions.Join(t.Context(), carl, wire.Target{Sandbox: "demo"},
		attach.JoinOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := held.Take(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := w.command("interrupt", "demo"); code != 125 ||
		!strings.Contains(errs, "holds the keyboard") {
		t.Errorf("interrupt while another person holds the keyboard: exit %d, %q, %q", code, out,
			errs)
	}
}
