package command

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// --max-output 0 returns the whole output, even if it does not fit into a frame.
func TestWholeOutput(t *testing.T) {
	w := newWorld(t)
	var all strings.Builder
	for n := range 200_000 {
		fmt.Fprintln(&all, n+1)
	}
	want := all.String()
	if code, _, stderr := w.command("run", "-n", "demo", "--", "true"); code != 0 {
		t.Fatal(code, stderr)
	}
	result := func(wantCode int, args ...string) (r wire.Result) {
		t.Helper()
		code, stdout, stderr := w.command(args...)
		if code != wantCode {
			t.Fatalf("%q: %d, %s", args, code, stderr)
		}
		if err := json.Unmarshal([]byte(stdout), &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	whole := func(r wire.Result, want string) {
		t.Helper()
		if r.Output != want || r.Truncated || len(r.Notes) > 0 {
			t.Errorf("%d of %d bytes, truncated %v, notes %q", len(r.Output), len(want),
				r.Truncated, r.Notes)
		}
	}
	whole(result(0, "run", "--json", "-n", "demo", "--max-output", "0", "--", "seq 200000"), want)
	result(wire.ExitWaiting, "run", "--json", "-n", "demo", "--", "read x; seq 200000")
	whole(result(0, "type", "--json", "-n", "demo", "--max-output", "0", "go"), "go\n"+want)

	// a limit larger than a frame holds, and so does the default
	if r := result(0, "run", "--json", "-n", "demo", "--max-output", "1m", "--",
		"seq 200000"); !r.Truncated ||
		len(r.Output) < 3<<18 || len(r.Output) > 1<<20+100 || len(r.Notes) != 1 {
		t.Errorf("of 1m came %d bytes, truncated %v, notes %q", len(r.Output), r.Truncated, r.Notes)
	}
	if r := result(0, "run", "--json", "-n", "demo", "--", "seq 200000"); !r.Truncated ||
		len(r.Output) > 33<<10 {
		t.Errorf("of 32 KiB came %d bytes, truncated %v", len(r.Output), r.Truncated)
	}
}

// The screen is printed to stdout, its size and cursor to stderr.
func TestScreenIsPrinted(t *testing.T) {
	w := newWorld(t)
	const draw = `printf '\033[?1049h\033[2J\033[3;5Hdrawn\033[4;2H'; read -rsn1; printf '\033[?1049l'`
	code, stdout, stderr := w.command("run", "-n", "demo", "--", draw)
	if code != wire.ExitWaiting || !strings.HasSuffix(stdout, "\n\n    drawn\n") ||
		!strings.Contains(stderr, "screen: 120 columns, 40 rows, cursor in column 2 of row 4\n") {
		t.Errorf("run: %d, %q, %q", code, stdout, stderr)
	}
	if code, stdout, _ = w.command("wait", "--json", "demo"); code != wire.ExitWaiting ||
		!strings.Contains(stdout, `"screen":{"text":"\n\n    drawn"`) {
		t.Errorf("wait: %d, %q", code, stdout)
	}
	if code, stdout, stderr = w.command("wait", "--screen", "never",
		"demo"); code != wire.ExitWaiting || stdout != "" || strings.Contains(stderr, "screen: 2") {
		t.Errorf("wait --screen never: %d, %q, %q", code, stdout, stderr)
	}
	if code, stdout, _ = w.command("keys", "--screen=always", "-n", "demo", "q"); code != 0 ||
		!strings.Contains(stdout, draw) {
		t.Errorf("keys --screen always: %d, %q", code, stdout)
	}
	if code, _, stderr = w.command("type", "-n", "demo", "--screen", "often",
		"x"); code != wire.ExitUsage || !strings.Contains(stderr, "must be never, auto or always") {
		t.Errorf("--screen often: %d, %q", code, stderr)
	}
}
