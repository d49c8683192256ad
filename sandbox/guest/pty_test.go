//go:build linux

package guest

import (
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// onTerminal runs a command on a terminal and returns its output and exit status.
func onTerminal(t testing.TB, client *ssh.Client, modes ssh.TerminalModes, cols, rows int, command,
	input string) (string, int) {
	t.Helper()
	sess, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer sess.Close()
	if err := sess.RequestPty("xterm-test", rows, cols, modes); err != nil {
		t.Fatal(err)
	}
	if input != "" {
		sess.Stdin = strings.NewReader(input)
	}
	out, err := sess.CombinedOutput(command)
	return string(out), exitStatus(t, err)
}

func TestPty(t *testing.T) {
	s := newSandbox(t)
	client := s.dial(t)
	for _, tt := range []struct {
		name, command, input string
		modes                ssh.TerminalModes
		cols, rows           int
		want                 string
		status               int
	}{
		{name: "exit status", command: "exit 7", status: 7},
		{name: "terminal", command: "test -t 0 && test -t 1 && test -t 2 && echo $TERM", want: "xterm-test\r\n"},
		{name: "controlling", command: "echo x >/dev/tty", want: "x\r\n"},
		{name: "named", command: `test "$(tty)" = "$SSH_TTY" && echo same`, want: "same\r\n"},
		{name: "size", command: "stty size", cols: 132, rows: 43, want: "43 132\r\n"},
		{name: "no size", command: "stty size", cols: 0, rows: 0, want: "24 80\r\n"},
		{name: "huge size", command: "stty size", cols: 1 << 30, rows: 1 << 30, want: "500 1000\r\n"},
		{name: "output as it is", modes: ssh.TerminalModes{70: 0}, command: `printf 'a\nb\n'`, want: "a\nb\n"},
		{name: "no echo", modes: ssh.TerminalModes{ssh.ECHO: 0}, command: "read x; echo got $x", input: "word\n", want: "got word\r\n"},
		{name: "echo", command: "read x; echo got $x", input: "word\n", want: "word\r\ngot word\r\n"},
		{name: "interrupt character", modes: ssh.TerminalModes{ssh.ECHO: 0, ssh.VINTR: 24}, command: "sleep 30", input: "\x18", status: -1},
		{name: "owner", command: `test "$(stat -c '%u %a' $(tty))" = "$(id -u) 620" && echo own`, want: "own\r\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, status := onTerminal(t, client, tt.modes, tt.cols, tt.rows, tt.command, tt.input)
			if got != tt.want || status != tt.status {
				t.Errorf("%s: got %q, status %d; want %q, %d", tt.command, got, status, tt.want,
					tt.status)
			}
		})
	}
}

// The last bytes of a terminal always come before the status, also when a background child keeps it
// open.
func TestPtyOutputIsExact(t *testing.T) {
	s := newSandbox(t)
	client := s.dial(t)
	want := strings.ReplaceAll(sequence(3000), "\n", "\r\n")
	for i, command := range []string{"seq 1 3000; exit 7",
		"trap '' HUP; sleep 30 & seq 1 3000; exit 7"} {
		for range 50 {
			if got, status := onTerminal(t, client, nil, 80, 24, command, ""); got != want ||
				status != 7 {
				t.Fatalf("command %d: got %d bytes and status %d, want %d and 7", i, len(got),
					status, len(want))
			}
		}
	}
}

func TestPtyShell(t *testing.T) {
	s := newSandbox(t)
	sess, err := s.dial(t).NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer sess.Close()
	in, err := sess.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := sess.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := sess.RequestPty("xterm", 24, 80, nil); err != nil {
		t.Fatal(err)
	}
	if err := sess.WindowChange(30, 100); err != nil { // before the shell, as some clients do
		t.Fatal(err)
	}
	if err := sess.Shell(); err != nil {
		t.Fatal(err)
	}
	say := func(line, want string) {
		t.Helper()
		if _, err := io.WriteString(in, line+"\n"); err != nil {
			t.Fatal(err)
		}
		expect(t, out, want)
	}
	say("stty size", "30 100\r\n")
	if err := sess.WindowChange(31, 101); err != nil {
		t.Fatal(err)
	}
	// Requests and input are not ordered.
	say("until stty size | grep '31 101'; do :; done", "31 101\r\n")
	say("sh -c 'echo ready; exec cat'", "ready\r\n")
	say("\x03", "^C")
	say("echo code $?", "code 130\r\n")
	if _, err := io.WriteString(in, "exit 9\n"); err != nil {
		t.Fatal(err)
	}
	if got := exitStatus(t, sess.Wait()); got != 9 {
		t.Errorf("got status %d, want 9", got)
	}
	await(t, "the terminal is released", func() bool { return s.ptys.Load() == 0 })
}

func TestPtyLimit(t *testing.T) {
	var count atomic.Int32
	count.Store(maxPtys)
	if _, _, err := openPty(&count, Account{}); !errors.Is(
		err, &wire.Error{Code: wire.CodeLimitPtys}) {
		t.Errorf("got %v, want limit_ptys", err)
	}
	if count.Load() != maxPtys {
		t.Errorf("a refusal counts: %d", count.Load())
	}
}

func TestApplyModes(t *testing.T) {
	var m unix.Termios
	applyModes(&m, string([]byte{53, 0, 0, 0, 1, 3, 0, 0, 0, 8, 1, 0, 0, 0, 255, 36, 0, 0, 0, 1, 36,
		0, 0, 0, 0, 72, 0, 0, 0, 1,
		92, 0, 0, 0, 1, 91, 0, 0, 0, 1, 129, 0, 0, 0x96, 0, 0, 50, 0, 0, 0, 1}))
	if m.Lflag != unix.ECHO || m.Iflag != 0 || m.Oflag != unix.ONLCR ||
		m.Cflag != unix.CS8|unix.PARENB || m.Cc[unix.VERASE] != 8 || m.Cc[unix.VINTR] != 0 {
		t.Errorf("got %+v", m) // ISIG after the end does not count
	}
}

func FuzzApplyModes(f *testing.F) {
	f.Add("")
	f.Add("\x35\x00\x00\x00\x01\x00")
	f.Add("\xa0\x00\x00\x00\x01")
	f.Fuzz(func(t *testing.T, modes string) {
		var a, b unix.Termios
		applyModes(&a, modes)
		// Data after the end or a truncated argument changes nothing.
		applyModes(&b, modes[:len(modes)/5*5])
		if a != b {
			t.Errorf("a part of an entry counts: %+v, %+v", a, b)
		}
	})
}
