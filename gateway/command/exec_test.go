package command

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestSetup(t *testing.T) {
	tests := []struct {
		variables []string
		dir, want string
		ok        bool
	}{
		{nil, "", "", true},
		{[]string{"A=b", "C=d e'f=g"}, "", "export A=b\nexport C='d e'\\''f=g'\n", true},
		{[]string{"A="}, "", "export A=''\n", true},
		{nil, "/srv/my files", "cd -- '/srv/my files' || exit\n", true},
		{[]string{"A"}, "", "", false},
		{[]string{"A b=c"}, "", "", false},
		{[]string{"A;id=c"}, "", "", false},
	}
	for _, tt := range tests {
		got, err := setup(tt.variables, tt.dir)
		if got != tt.want || (err == nil) != tt.ok {
			t.Errorf("setup(%q, %q) = %q, %v; want %q", tt.variables, tt.dir, got, err, tt.want)
		}
	}
}

func TestExecOutput(t *testing.T) {
	for size, want := range map[string]int{"1m": 1 << 20, "0": 16 << 20, "16m": 16 << 20,
		"100": 100} {
		if got, err := execOutput(size); got != want || err != nil {
			t.Errorf("%s: %d, %v; want %d", size, got, err, want)
		}
	}
	for _, size := range []string{"17m", "x", "-1"} {
		if _, err := execOutput(size); err == nil {
			t.Errorf("%s: no error", size)
		}
	}
}

// exec sets variables and the directory for one command; ls -q and new -q print only names.
func TestExecSetsUp(t *testing.T) {
	w := newWorld(t)
	if _, out, _ := w.command("new", "-q", "-e", "B=from new", "demo"); out != "demo\n" {
		t.Errorf("new -q: %q", out)
	}
	if _, out, _ := w.command("ls", "-q"); out != "demo\n" {
		t.Errorf("ls -q: %q", out)
	}
	if code, out, errs := w.command("exec", "-e", "A=b c", "-w", "/", "demo",
		`echo "$A,$B"; pwd; exit 3`); code != 3 || out != "b c,from new\n/\n" {
		t.Errorf("exit %d, %q, %q", code, out, errs)
	}
	if code, out, _ := w.command("exec", "-w", "/nonexistent", "demo", "echo", "ran"); code == 0 ||
		out != "" {
		t.Errorf("no directory: exit %d, %q", code, out)
	}
	if code, _, errs := w.command("exec", "-e", "A", "demo", "true"); code != wire.ExitUsage ||
		!strings.Contains(errs, "write NAME=VALUE") {
		t.Errorf("no value: exit %d, %q", code, errs)
	}
	if code, _, errs := w.command("new", "--rm", "--delete-after", "7d"); code != wire.ExitUsage ||
		!strings.Contains(errs, "mutually exclusive") {
		t.Errorf("--rm --delete-after: exit %d, %q", code, errs)
	}
	w.must(0, "new", "--rm", "once")
	if _, out, _ := w.command("describe", "--json", "once"); !strings.Contains(out,
		`"delete_after_ms":1000`) {
		t.Errorf("new --rm: %s", out)
	}
}

// A flag after the name is a usage error, not a command.
func TestExecFlagBehindName(t *testing.T) {
	w := newWorld(t)
	w.must(0, "new", "demo")
	if code, _, errs := w.command("exec", "demo", "-w", "/", "pwd"); code != wire.ExitUsage ||
		!strings.Contains(errs, "flags come before the name") {
		t.Errorf("exit %d, %q", code, errs)
	}
	w.must(0, "exec", "demo", "--", "true")
	w.must(0, "exec", "demo", "test", "-d", "/")
}

// The guest in memory is not root: it runs commands as the user of the test, and names others in an
// error.
func TestExecUser(t *testing.T) {
	w := newWorld(t)
	w.must(0, "new", "demo")
	own := strconv.Itoa(os.Getuid()) + ":" + strconv.Itoa(os.Getgid())
	if code, out, errs := w.command("exec", "-u", own, "demo", "id -u"); code != 0 ||
		out != strconv.Itoa(os.Getuid())+"\n" {
		t.Errorf("own user: exit %d, %q, %q", code, out, errs)
	}
	for _, tt := range []struct {
		user, want string
		code       int
	}{
		{"nosuchuser", `user "nosuchuser" is not in the sandbox's /etc/passwd; name a user`,
			wire.ExitFailed},
		{"54321", `user "54321": the guest is not root`, wire.ExitFailed},
		{"", "write NAME, UID or UID:GID", wire.ExitUsage},
		{"a b", "write NAME, UID or UID:GID", wire.ExitUsage},
		{"1:", "write NAME, UID or UID:GID", wire.ExitUsage},
	} {
		if code, out, errs := w.command("exec", "-u", tt.user, "demo",
			"echo ran"); code != tt.code || out != "" || !strings.Contains(errs, tt.want) {
			t.Errorf("-u %q: exit %d, %q, %q", tt.user, code, out, errs)
		}
	}
}

func TestExecJSON(t *testing.T) {
	w := newWorld(t)
	w.must(0, "new", "demo")
	code, out, errs := w.command("exec", "--json", "demo",
		`echo out; echo err >&2; printf '\377'; exit 3`)
	var got execResult
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 3 || errs != "" {
		t.Fatalf("exit %d, %q, %q: %v", code, out, errs, err)
	}
	got.ElapsedMS = 0
	want := execResult{Sandbox: "demo", ExitCode: 3, Stdout: "out\n\uFFFD", Stderr: "err\n",
		Notes: []string{}, Denied: []wire.Denial{}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if _, out, _ := w.command("exec", "--json", "--max-output", "4", "demo",
		"echo 123456"); !strings.Contains(out, `"stdout":"1234","stderr":"","truncated":true`) {
		t.Errorf("--max-output: %s", out)
	}
	if code, _, errs := w.command("exec", "--max-output", "4", "demo",
		"true"); code != wire.ExitUsage || !strings.Contains(errs, "needs --json") {
		t.Errorf("without --json: exit %d, %q", code, errs)
	}
}
