package agent_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/agent"
)

// done returns the output of a call. It fails the test unless the call ended at the prompt with
// code.
func done(t testing.TB, res agent.Result, err error, code int) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if res.Ended != agent.EndedDone || res.ExitCode == nil || *res.ExitCode != code {
		t.Fatalf("got %s, want done with exit code %d", describe(res), code)
	}
	return res.Output
}

// describe formats the main fields of a Result.
func describe(res agent.Result) string {
	s := fmt.Sprintf("%s in phase %s", res.Ended, res.Phase)
	if res.ExitCode != nil {
		s += fmt.Sprintf(", exit code %d", *res.ExitCode)
	}
	if res.Signal != nil {
		s += ", signal " + *res.Signal
	}
	if res.Error != nil {
		s += fmt.Sprintf(", error %s: %s", res.Error.Code, res.Error.Message)
	}
	return s + fmt.Sprintf(", output %.300q", res.Output)
}

func TestRun(t *testing.T) {
	sh := shell(t)
	lines := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "line %d\n", i)
		}
		return b.String()
	}
	long := strings.Repeat("x", 100<<10)
	for _, test := range []struct {
		name, command, output string
		code                  int
	}{
		{"nothing", "", "", 0},
		{"one word", "true", "", 0},
		{"one", "false", "", 1},
		{"two", "(exit 2)", "", 2},
		{"255", "(exit 255)", "", 255},
		{"modulo 256", "bash -c 'exit 300'", "", 44},
		{"not executable", ">plain; ./plain", "bash: ./plain: Permission denied\n", 126},
		{"not found", "no-such-command", "bash: no-such-command: command not found\n", 127},
		{"no newline", "printf x", "x", 0},
		{"no newline and a code", "printf x; (exit 9)", "x", 9},
		{"empty lines", `printf '\n\na\n\n'`, "\n\na\n\n", 0},
		{"standard error", "echo out; echo err >&2", "out\nerr\n", 0},
		{"many lines", "for i in 1 2 3\ndo\n  echo $i\ndone", "1\n2\n3\n", 0},
		{"heredoc", "cat <<EOF\na 'b' \"c\"\n\tt\nEOF", "a 'b' \"c\"\n        t\n", 0},
		{"heredoc of 500 lines", "cat <<'EOF' | cksum\n" + lines(500) + "EOF", cksum(t, lines(500)),
			0},
		{"heredoc to a file", "cat >f <<'EOF'\n" + lines(50) + "EOF\ncksum <f", cksum(t, lines(50)),
			0},
		{"quotes", `echo 'a"b' "c'd" \$x`, `a"b c'd $x` + "\n", 0},
		{"history expansion", `echo "a!b" !! !x`, "a!b !! !x\n", 0},
		{"tabs", "echo 'a\tb' | cksum", cksum(t, "a\tb\n"), 0},
		{"leading space", "  echo  a", "a\n", 0},
		{"CRLF", "printf '%s' 'a\r\nb' | cksum", cksum(t, "a\r\nb"), 0},
		{"control characters", "printf '%s' '\x01\x03\x04\x1b\x7f' | cksum",
			cksum(t, "\x01\x03\x04\x1b\x7f"), 0},
		{"UTF-8", "echo häß 漢字 👩‍👩‍👧", "häß 漢字 👩‍👩‍👧\n", 0},
		{"backslash at the end of a line", "echo a\\\nb", "ab\n", 0},
		{"comment", "echo a # b", "a\n", 0},
		{"find", `mkdir d; touch d/a; find d -type f -exec echo {} \;`, "d/a\n", 0},
		{"command of 100 KB", ": '" + long + "'; echo '" + long + "' | cksum", cksum(t, long+"\n"),
			0},
		{"pipeline", "false | true", "", 0},
		{"pipefail", "(set -o pipefail; false | true)", "", 1},
		{"negation", "! true", "", 1},
		{"syntax that is wrong and not merely unfinished", "echo )", "", 2},
		{"terminated child", "bash -c 'kill -TERM $$'", "", 143},
		{"hung up child", "bash -c 'kill -HUP $$'", "", 129},
		{"killed child", "bash -c 'kill -KILL $$'", "", 137},
		{"broken pipe", "bash -c 'kill -PIPE $$'", "", 141},
		{"interrupted child", "bash -c 'kill -INT $$'", "\n", 130},
		{"background", "sleep 100 & kill $!; wait $! 2>/dev/null", "", 143},
		{"progress", `printf '1%%\r50%%\r100%%\n'`, "100%\n", 0},
		{"colours", `printf '\033[31mred\033[0m\n'`, "red\n", 0},
		{"standard input is the terminal", "[ -t 0 ] && [ -t 1 ] && [ -t 2 ]", "", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			res, err := sh.Run(bounded(t), test.command)
			out := done(t, res, err, test.code)
			switch test.code {
			case 143, 129, 137, 2:
				return // bash prints its own message
			}
			if out != test.output {
				t.Errorf("output %.200q, want %.200q", out, test.output)
			}
		})
	}
}

// cksum is what cksum prints for a text, computed by the one of this machine.
func cksum(t testing.TB, text string) string {
	t.Helper()
	return local(t, text, "cksum")
}

func TestRunKeepsTheShell(t *testing.T) {
	sh := shell(t)
	for _, test := range []struct{ command, output, cwd string }{
		{"cd /tmp", "", "/tmp"},
		{"pwd", "/tmp\n", "/tmp"},
		{"export A=1; B=2", "", "/tmp"},
		{"echo $A $B; sh -c 'echo $A $B'", "1 2\n1\n", "/tmp"},
		{"f() { echo in f; }", "", "/tmp"},
		{"f", "in f\n", "/tmp"},
		{"alias g='echo in g'", "", "/tmp"},
		{"g", "in g\n", "/tmp"},
		{"(exit 7)", "", "/tmp"},
	} {
		res, err := sh.Run(bounded(t), test.command)
		if err != nil || res.Output != test.output || res.Cwd != test.cwd {
			t.Errorf(
				"%q: %s in %s, %v; want output %q in %s",
				test.command,
				describe(res),
				res.Cwd,
				err,
				test.output,
				test.cwd,
			)
		}
	}
	res, err := sh.Run(bounded(t), "echo $?")
	if got := done(t, res, err, 0); got != "7\n" {
		t.Errorf("$? is %q, want that of the command before", got)
	}
}

// A Result has its offsets in the log and its context.
func TestResult(t *testing.T) {
	c := dial(t)
	sh := attach(t, c, agent.ShellOptions{})
	if got := sh.Session(); got != "main" {
		t.Errorf("session %q", got)
	}
	res, err := sh.Run(bounded(t), "echo a")
	done(t, res, err, 0)
	if res.Sandbox != c.Sandbox() || res.Session != "main" ||
		res.To-res.From != uint64(len("a\r\n")) {
		t.Errorf("%s~%s from %d to %d", res.Sandbox, res.Session, res.From, res.To)
	}
	if res.Keyboard != "" || res.Error != nil || res.Truncated ||
		!slices.Contains(res.Basis, "mark") {
		t.Errorf(
			"keyboard %q, error %v, truncated %t, basis %v",
			res.Keyboard,
			res.Error,
			res.Truncated,
			res.Basis,
		)
	}
	if st := sh.State(); st.Phase != agent.PhasePrompt || st.ExitCode == nil || *st.ExitCode != 0 {
		t.Errorf("state %+v", st)
	}
}

func TestRunUnfinished(t *testing.T) {
	sh := shell(t)
	for _, command := range []string{"cat <<EOF\nno end", "echo 'a", `echo "a`, "echo `date",
		"if true; then", "for i in 1 2; do", "f() {", "echo $(date", "true &&", "true |",
		"case x in"} {
		res, err := sh.Run(bounded(t), command)
		if err != nil || res.Ended != agent.EndedRefused || res.Error == nil ||
			res.Error.Code != "syntax" ||
			res.ExitCode != nil {
			t.Errorf("%q: %s, %v; want refused for its syntax", command, describe(res), err)
		}
	}
	res, err := sh.Run(bounded(t), "echo on")
	if got := done(t, res, err, 0); got != "on\n" {
		t.Errorf("the next command prints %q", got)
	}
}

func TestSecondRun(t *testing.T) {
	sh := shell(t)
	first := make(chan agent.Result, 1)
	go func() {
		// Without a child: dash misses a ^C that comes while it starts one.
		res, _ := sh.Run(bounded(t), `sh -c 'echo begun; while :; do :; done'`)
		first <- res
	}()
	if _, err := sh.Expect(bounded(t), agent.Text("begun\r\n")); err != nil {
		t.Fatal(err)
	}
	res, err := sh.Run(bounded(t), "echo second")
	if err != nil || res.Ended != agent.EndedRefused || res.Error.Code != "not_prompt" ||
		!strings.Contains(res.Error.Message, "sh -c echo begun") {
		t.Errorf("the second: %s, %v; want not_prompt that names the first", describe(res), err)
	}
	if res, err = sh.Interrupt(bounded(t)); err != nil || res.Ended != agent.EndedInterrupted {
		t.Errorf("interrupt: %s, %v", describe(res), err)
	}
	if res = <-first; res.Ended != agent.EndedInterrupted || res.ExitCode == nil ||
		*res.ExitCode != 130 ||
		res.Output != "begun\n^C\n" {
		t.Errorf("the first: %s", describe(res))
	}
}

// Each of 1,000 commands of all kinds returns its own output and exit code.
func TestThousandCommands(t *testing.T) {
	n := 1000
	if testing.Short() {
		n = 300
	}
	sh := shell(t)
	began := time.Now()
	for i := range n {
		code := i % 200
		var command, want string
		switch i % 8 {
		case 0:
			command, want = fmt.Sprintf("(exit %d)", code), ""
		case 1:
			command, want = fmt.Sprintf(
				"echo command %d; (exit %d)",
				i,
				code,
			), fmt.Sprintf(
				"command %d\n",
				i,
			)
		case 2:
			command, want = fmt.Sprintf("printf %d; (exit %d)", i, code), fmt.Sprint(i)
		case 3:
			command, want = fmt.Sprintf(
				"cat <<EOF\n%d\n%d\nEOF\n(exit %d)",
				i,
				i,
				code,
			), fmt.Sprintf(
				"%d\n%d\n",
				i,
				i,
			)
		case 4:
			command, want = fmt.Sprintf(
				"seq 1 %d | tail -n 1; (exit %d)",
				i,
				code,
			), fmt.Sprintf(
				"%d\n",
				i,
			)
		case 5:
			command, want = fmt.Sprintf(
				"sh -c 'echo out %d; echo err >&2; exit %d'",
				i,
				code,
			), fmt.Sprintf(
				"out %d\nerr\n",
				i,
			)
		case 6:
			command, want = fmt.Sprintf(
				"x=%d\nfor y in a b; do echo $x$y; done\n(exit %d)",
				i,
				code,
			), fmt.Sprintf(
				"%da\n%db\n",
				i,
				i,
			)
		case 7:
			command, want = fmt.Sprintf("echo %d & wait $!; (exit %d)", i, code), ""
		}
		res, err := sh.Run(bounded(t), command)
		out := done(t, res, err, code)
		if i%8 == 7 { // with the job's number, and at any time the word that it is done
			if !strings.Contains(out, fmt.Sprintf("%d\n", i)) {
				t.Fatalf("command %d, %q, prints %q", i, command, out)
			}
			continue
		}
		if out != want {
			t.Fatalf("command %d, %q, prints %q, want %q", i, command, out, want)
		}
	}
	t.Logf("%d commands in %s", n, time.Since(began))
}

// Stdout receives the exact output, without the command before it and the prompt after it.
func TestStdoutExact(t *testing.T) {
	sh := shell(t)
	// Prompts of several lines and terminal modes of line editors are not output of the command.
	res, err := sh.Run(bounded(t), `PS1='\n[\w]\n$ '`)
	done(t, res, err, 0)
	for range 50 {
		var got strings.Builder
		res, err := sh.Do(
			bounded(t),
			agent.Call{Command: `printf 'a\033[31m\r\nb'; (exit 3)`, Stdout: &got},
		)
		done(t, res, err, 3)
		if want := "a\x1b[31m\r\r\nb"; got.String() != want { // the terminal makes \r\n of \n
			t.Fatalf("got %q, want %q", got.String(), want)
		}
	}
}

// Megabytes of every byte value arrive exactly, with the terminal's output processing off. Each
// command prints less than a session buffers, so that slow readers miss nothing.
func TestMegabytes(t *testing.T) {
	if testing.Short() {
		t.Skip("19 MB through a terminal; run without -short")
	}
	sh := shell(t)
	for _, size := range []int{7 << 20, 4 << 20, 4 << 20, 4 << 20} {
		program := fmt.Sprintf(
			"import sys; sys.stdout.buffer.write(bytes(range(256))*%d)",
			size/256,
		)
		sum := sha256.New()
		count := &counter{w: sum}
		res, err := sh.Do(
			bounded(t),
			agent.Call{
				Command: "stty -opost; python3 -c '" + program +
					"'; code=$?; stty opost; (exit $code)",
				Stdout: count,
			},
		)
		done(t, res, err, 0)
		block := make([]byte, 256)
		for i := range block {
			block[i] = byte(i)
		}
		want := sha256.Sum256(bytes.Repeat(block, size/256))
		if count.n != size || !bytes.Equal(sum.Sum(nil), want[:]) {
			t.Errorf("%d bytes with SHA-256 %x, want %d with %x", count.n, sum.Sum(nil), size, want)
		}
		if !res.Truncated || len(res.Output) > 64<<10 {
			t.Errorf("Output has %d bytes, truncated %t", len(res.Output), res.Truncated)
		}
	}
}

// counter counts what it passes on.
type counter struct {
	w io.Writer
	n int
}

func (c *counter) Write(p []byte) (int, error) {
	c.n += len(p)
	return c.w.Write(p)
}

func TestMaxOutput(t *testing.T) {
	t.Parallel()
	sh := shell(t)
	const n = 400_000 // more than fits a frame
	var want strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintln(&want, i)
	}
	command := fmt.Sprintf("seq 1 %d; (exit 7)", n)

	res, err := sh.Do(bounded(t), agent.Call{Command: command, MaxOutput: -1})
	if got := done(t, res, err, 7); got != want.String() || res.Truncated ||
		slices.Contains(res.Notes, "output_truncated") {
		t.Errorf(
			"all: %d bytes, truncated %t, notes %v; want %d",
			len(got),
			res.Truncated,
			res.Notes,
			want.Len(),
		)
	}
	for _, limit := range []int{0, 1000} {
		res, err = sh.Do(bounded(t), agent.Call{Command: command, MaxOutput: limit})
		got := done(t, res, err, 7)
		most := limit
		if limit == 0 {
			most = 32 << 10
		}
		if !res.Truncated || len(got) > most+200 || !strings.HasPrefix(got, "1\n2\n") ||
			!strings.HasSuffix(got, fmt.Sprintf("%d\n", n)) {
			t.Errorf("limit %d: %d bytes, truncated %t, %.20q", limit, len(got), res.Truncated, got)
		}
	}
	res, err = sh.Do(bounded(t), agent.Call{Command: "seq 1 3", MaxOutput: -1})
	if got := done(t, res, err, 0); got != "1\n2\n3\n" {
		t.Errorf("a little: %q", got)
	}
	// Output of typed text has no begin event: it is read from the log.
	if res, err = sh.Run(bounded(t), "read x; "+command); err != nil ||
		res.Ended != agent.EndedWaiting {
		t.Fatalf("asking: %s, %v", res.Ended, err)
	}
	res, err = sh.Do(bounded(t), agent.Call{Text: "go", MaxOutput: -1})
	if got := done(t, res, err, 7); got != "go\n"+want.String() || res.Truncated ||
		len(res.Notes) > 0 {
		t.Errorf(
			"all, typed: %d bytes, truncated %t, notes %v; want %d",
			len(got),
			res.Truncated,
			res.Notes,
			want.Len(),
		)
	}
	res, err = sh.Do(bounded(t), agent.Call{Command: command, MaxOutput: 1_000_000})
	if got := done(t, res, err, 7); !res.Truncated || len(got) < 750_000 || len(got) > 1_000_100 {
		t.Errorf("a million: %d bytes, truncated %t", len(got), res.Truncated)
	}
}

func TestResultShowsTheScreen(t *testing.T) {
	sh := shell(t)
	draw := `printf '\033[?1049h\033[2J\033[3;5Hdrawn'; read -rsn1; printf '\033[?1049l'`
	for show, want := range map[agent.ShowScreen]bool{
		"": true, agent.ScreenAlways: true, agent.ScreenNever: false,
	} {
		res, err := sh.Do(bounded(t), agent.Call{Command: draw, Screen: show})
		if err != nil || res.Ended != agent.EndedWaiting || (res.Screen != nil) != want ||
			want && res.Screen.Text != "\n\n    drawn" {
			t.Errorf("%q: %s, %+v, %v", show, res.Ended, res.Screen, err)
		}
		if res, err = sh.Keys(bounded(t), "q"); err != nil || res.Ended != agent.EndedDone ||
			res.Screen != nil {
			t.Errorf("after it: %s, %+v, %v", res.Ended, res.Screen, err)
		}
	}
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	sh := ready(t)
	res, err := sh.Do(
		bounded(t),
		agent.Call{Command: "echo begun; sleep 30; echo over", Timeout: 3 * time.Second},
	)
	if err != nil || res.Ended != agent.EndedDeadline || res.Phase != agent.PhaseRunning ||
		res.ExitCode != nil ||
		res.Output != "begun\n" {
		t.Fatalf("%s, %v", describe(res), err)
	}
	for res.Foreground == nil && t.Context().Err() == nil { // on a machine that has yet to look
		soon, cancel := context.WithTimeout(bounded(t), time.Second)
		res, err = sh.Wait(soon, agent.PhasePrompt)
		cancel()
		if err != nil || res.Ended != agent.EndedDeadline {
			t.Fatalf("%s, %v", describe(res), err)
		}
	}
	if !slices.Equal(res.Foreground.Argv, []string{"sleep", "30"}) {
		t.Errorf("foreground %+v", res.Foreground)
	}
	// It goes on.
	if res, err = sh.Interrupt(bounded(t)); err != nil || res.Ended != agent.EndedInterrupted {
		t.Fatalf("%s, %v", describe(res), err)
	}

	res, err = sh.Do(
		bounded(t),
		agent.Call{
			Command: "echo begun; sleep 30; echo over",
			Timeout: 3 * time.Second,
			Kill:    true,
		},
	)
	if err != nil || res.Ended != agent.EndedDeadline || res.Receipt == nil ||
		!slices.Equal(res.Receipt.Steps, []string{"^C"}) {
		t.Fatalf("with Kill: %s, %v", describe(res), err)
	}
	if res.Phase != agent.PhasePrompt || !strings.HasPrefix(res.Output, "begun\n") {
		t.Errorf("with Kill: %s", describe(res))
	}
}

// A ctx with a deadline returns partial output, as a Timeout does. A cancelled ctx does not affect
// the program.
func TestContext(t *testing.T) {
	t.Parallel()
	sh := ready(t)
	ctx, cancel := context.WithTimeout(bounded(t), 5*time.Second)
	defer cancel()
	res, err := sh.Run(ctx, "echo begun; sleep 30")
	if err != nil || res.Ended != agent.EndedDeadline || res.Output != "begun\n" {
		t.Fatalf("%s, %v", describe(res), err)
	}
	ctx, cancel = context.WithCancel(bounded(t))
	cause := make(chan error, 1)
	go func() {
		_, err := sh.Wait(ctx)
		cause <- err
	}()
	cancel()
	if err := <-cause; !errors.Is(err, context.Canceled) {
		t.Errorf("wait ended with %v", err)
	}
	if st := sh.State(); st.Phase != agent.PhaseRunning {
		t.Errorf("state %+v, want running still", st)
	}
	if res, err := sh.Interrupt(bounded(t)); err != nil || res.Ended != agent.EndedInterrupted {
		t.Errorf("%s, %v", describe(res), err)
	}
}

func TestCallMistakes(t *testing.T) {
	sh := shell(t)
	for name, call := range map[string]agent.Call{
		"nothing":      {},
		"two":          {Command: "a", Text: "b"},
		"three":        {Command: "a", Text: "b", Keys: []string{"a"}},
		"text stdout":  {Text: "a", Stdout: io.Discard},
		"keys stdout":  {Keys: []string{"a"}, Stdout: io.Discard},
		"kill of text": {Text: "a", Kill: true},
	} {
		if res, err := sh.Do(bounded(t), call); !errors.Is(err, &agent.Error{Code: "usage"}) {
			t.Errorf("%s: %s, %v; want a mistake of usage", name, describe(res), err)
		}
	}
	for name, call := range map[string]agent.Call{
		"bad op":      {Command: "true", Op: "x"},
		"no keys":     {Keys: []string{}},
		"unknown key": {Keys: []string{"C-ä"}},
		"NUL":         {Command: "echo a\x00b"},
	} {
		if res, err := sh.Do(bounded(t), call); err != nil || res.Ended != agent.EndedRefused ||
			res.Error.Code != "usage" {
			t.Errorf("%s: %s, %v; want refused as a mistake of usage", name, describe(res), err)
		}
	}
	long := strings.Repeat("x", 5000)
	res, err := sh.Run(bounded(t), "cat")
	if err != nil || res.Ended != agent.EndedWaiting {
		t.Fatalf("cat: %s, %v", describe(res), err)
	}
	if res, err = sh.Type(bounded(t), long); err != nil || res.Ended != agent.EndedRefused ||
		res.Error.Code != "line_too_long" {
		t.Errorf("long line: %s, %v", describe(res), err)
	}
	if res, err = sh.Keys(bounded(t), "^D"); err != nil || res.Ended != agent.EndedDone {
		t.Errorf("after ^D: %s, %v", describe(res), err)
	}
}
