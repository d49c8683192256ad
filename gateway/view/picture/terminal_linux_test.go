package picture

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/pty"
	"github.com/sandboxd/sandboxd/sandbox/session/screen/screentest"
	"github.com/sandboxd/sandboxd/sandbox/signals"
)

// asked is the report of a program that asks its terminal: this test program, started again.
type asked struct {
	Can   Protocol
	Typed string
	Width int
	Modes bool   // are unchanged
	Left  string // pending input for the next reader
}

func TestMain(m *testing.M) {
	if to := os.Getenv("PICTURE_TEST_ASK"); to != "" {
		os.Exit(ask(to))
	}
	signals.DefaultForChildren()
	os.Exit(m.Run())
}

func ask(to string) int {
	patience, err := time.ParseDuration(os.Getenv("PICTURE_TEST_PATIENCE"))
	if err != nil {
		return 2
	}
	if os.Getenv("PICTURE_TEST_LINE") != "" { // input is pending
		for !readable(0, time.Hour) {
		}
	}
	before, _ := unix.IoctlGetTermios(0, unix.TCGETS)
	term := Terminal{In: os.Stdin, Out: os.Stdout, Env: os.Getenv, patience: patience}
	can, typed := term.Ask(os.Getenv("PICTURE_TEST_KEEP") != "")
	after, _ := unix.IoctlGetTermios(0, unix.TCGETS)
	a := asked{Can: can, Typed: string(typed), Width: term.Width(), Modes: before != nil &&
		*before == *after}
	if readable(0, 0) {
		buf := make([]byte, 1024)
		n, _ := os.Stdin.Read(buf)
		a.Left = string(buf[:n])
	}
	out, err := json.Marshal(a)
	if err == nil {
		err = os.WriteFile(to+".part", out, 0o600)
	}
	if err == nil {
		err = os.Rename(to+".part", to)
	}
	if err != nil {
		return 1
	}
	return 0
}

// program returns that program, with its own environment.
func program(t *testing.T, vars env) (cmd *exec.Cmd, result func() asked) {
	t.Helper()
	to := filepath.Join(t.TempDir(), "asked")
	cmd = exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = []string{"PICTURE_TEST_ASK=" + to, "PICTURE_TEST_PATIENCE=5m"}
	for name, value := range vars {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd, func() (a asked) {
		t.Helper()
		data, err := os.ReadFile(to)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, &a); err != nil {
			t.Fatal(err)
		}
		return a
	}
}

// answered runs the program on a terminal that answers, and returns its report. typed arrives
// before, and with the answer.
func answered(t *testing.T, vars env, before, answer string) (a asked, saw string) {
	t.Helper()
	cmd, result := program(t, vars)
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 80, X: 640, Y: 384})
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	if _, err := tty.WriteString(before); err != nil {
		t.Fatal(err)
	}
	var all []byte
	for told := false; ; {
		buf := make([]byte, 4096)
		n, err := tty.Read(buf)
		all = append(all, buf[:n]...)
		if !told && bytes.Contains(all, []byte(askDevice)) {
			told = true
			if _, err := tty.WriteString(answer); err != nil {
				t.Fatal(err)
			}
		}
		if err != nil { // EIO: the other end is closed
			break
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return result(), string(all)
}

// Every terminal of the table, on a real pseudo-terminal.
func TestAsk(t *testing.T) {
	for _, tt := range terminals {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			vars := tt.env
			if tt.name == "no fence" {
				vars = env{"TERM": "xterm", "PICTURE_TEST_PATIENCE": "300ms"}
			}
			a, saw := answered(t, vars, "", tt.answer)
			if a.Can != tt.want || a.Typed != "" || !a.Modes || a.Width != 640 || a.Left != "" {
				t.Errorf("%+v, want %s", a, tt.want)
			}
			if strings.Contains(saw, "62;") || strings.Contains(saw, "i=31;") {
				t.Errorf("the answers are shown: %q", saw)
			}
			if multiplexed(tt.env.get) && saw != askDevice {
				t.Errorf("tmux or screen was asked %q", saw)
			}
		})
	}
}

// Keys that were pressed before, or in between, are not lost.
func TestAskKeepsKeys(t *testing.T) {
	const answer = "\x1b_Gi=31;OK\x1b\\an\x1b[?62cn\n"
	t.Run("the caller takes them", func(t *testing.T) {
		t.Parallel()
		a, _ := answered(t, env{"TERM": "xterm", "PICTURE_TEST_KEEP": "1",
			"PICTURE_TEST_LINE": "1"}, "bob\n", answer)
		if all := a.Typed + a.Left; a.Can != Kitty || all != "bob\nann\n" || !a.Modes {
			t.Errorf("%+v", a)
		}
	})
	t.Run("the caller has no use for them", func(t *testing.T) {
		t.Parallel()
		a, saw := answered(t, env{"TERM": "xterm", "PICTURE_TEST_LINE": "1"}, "bob\n", answer)
		if a.Can != None || a.Left != "bob\n" || !a.Modes || strings.Contains(saw, "\x1b") {
			t.Errorf("%+v, and the terminal saw %q", a, saw)
		}
	})
}

// Terminals that are not asked, and terminals that do not answer.
func TestSilence(t *testing.T) {
	for _, vars := range []env{{"TERM": "dumb"}, {"TERM": ""}, {"TERM": "linux"},
		{"TERM": "xterm-256color", "TERM_PROGRAM": "Apple_Terminal"}} {
		if a, saw := answered(t, vars, "", ""); a.Can != None || !a.Modes || saw != "" {
			t.Errorf("%v: %+v, and the terminal saw %q", vars, a, saw)
		}
	}
	if a, saw := answered(t, env{"TERM": "vt52", "PICTURE_TEST_PATIENCE": "1ms"}, "",
		""); a.Can != None || !a.Modes || !strings.Contains(saw, askDevice) {
		t.Errorf("a terminal that does not answer: %+v, and it saw %q", a, saw)
	}
	cmd, result := program(t, env{"TERM": "xterm"})
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 || result().Can != None {
		t.Errorf("without a terminal: %v, %q, %+v", err, out, result())
	}
}

// The shell has given the terminal to another program: a program that asks it then is stopped.
func TestBackground(t *testing.T) {
	cmd, result := program(t, env{"TERM": "xterm"})
	shell := exec.CommandContext(t.Context(), "sh", "-m", "-c", `"$0" & wait`, cmd.Path)
	shell.Env = cmd.Env
	tty, err := pty.StartWithSize(shell, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	if err := shell.Wait(); err != nil {
		t.Fatal(err)
	}
	if a := result(); a.Can != None || !a.Modes {
		t.Errorf("%+v", a)
	}
}

// tmux takes kitty's question for the title of a pane, and its answer reports no sixel.
func TestAskTmux(t *testing.T) {
	cmd, result := program(t, env{"TERM": "screen-256color"})
	m := screentest.StartTmux(t, 80, 24, 100)
	m.Run("select-pane", "-T", "mine")
	words := append([]string{"respawn-pane", "-k"}, "env", "-i")
	for _, v := range cmd.Env {
		if name, _, _ := strings.Cut(v, "="); name != "TERM" {
			words = append(words, v)
		}
	}
	m.Run(append(words, "sh", "-c", `TERM=screen-256color "$0"; tmux -S "`+socketOf(m)+
		`" wait-for -S asked; exec sleep 600`, cmd.Path)...)
	m.Run("wait-for", "asked")
	if a := result(); a.Can != None || a.Typed != "" || !a.Modes {
		t.Errorf("%+v", a)
	}
	if title := strings.TrimSpace(m.Run("display", "-p", "#{pane_title}")); title != "mine" {
		t.Errorf("the pane's title is %q", title)
	}
	if shown := strings.TrimSpace(m.Run("capture-pane", "-p")); shown != "" {
		t.Errorf("the pane shows %q", shown)
	}
}

func socketOf(m *screentest.Tmux) string {
	return strings.TrimSpace(m.Run("display", "-p", "#{socket_path}"))
}
