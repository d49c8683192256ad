//go:build linux

package guest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestExec(t *testing.T) {
	s := newSandbox(t)
	client := s.dial(t)
	for _, tt := range []struct {
		name, command, stdin string
		want                 result
	}{
		{"streams apart", "echo out; echo err >&2", "", result{Out: "out\n", Err: "err\n"}},
		{"exit status", "exit 7", "", result{Status: 7}},
		{"exit 255", "exit 255", "", result{Status: 255}},
		{"exit 300", "exit 300", "", result{Status: 44}},
		{"not found", "exec /no/such/program 2>/dev/null", "", result{Status: 127}},
		{"killed", "kill -KILL $$", "", result{Status: -1, Signal: "KILL"}},
		{"terminated", "kill -TERM $$", "", result{Status: -1, Signal: "TERM"}},
		{"hung up", "kill -HUP $$", "", result{Status: -1, Signal: "HUP"}},
		{"end of input", "cat; echo done", "x\n", result{Out: "x\ndone\n"}},
		{"not a terminal", "test -t 0 || test -t 1 || test -t 2 || echo none", "", result{Out: "none\n"}},
		{"standard input by name", "cat /dev/stdin", "by name", result{Out: "by name"}},
		{"bytes", `printf 'a\r\n\000\377'`, "", result{Out: "a\r\n\x00\xff"}},
		{"empty command", "", "", result{}},
		{"starts at home", `test "$PWD" = "$HOME" && echo "$USER $LOGNAME $SHELL"`, "", result{Out: "tester tester /bin/bash\n"}},
		{"own session", `test "$(ps -o sid= -p $$ | tr -d ' ')" = $$ && echo leader`, "", result{Out: "leader\n"}},
		// Signals 32 and 33 belong to the C library: programs started by its posix_spawn, such as
		// make's, ignore them.
		{"no signal ignored", "awk '/^SigIgn/ {sub(/^0+/, \"\", $2); print ($2 == \"\" || $2 == \"80000000\" || $2 == \"100000000\" || $2 == \"180000000\") ? \"none\" : $2}' /proc/self/status", "", result{Out: "none\n"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, execute(t, client, tt.command, tt.stdin)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.command, diff)
			}
		})
	}
}

// A command has its three descriptors, and besides them only those that this test program gives to
// any child.
func TestExecInheritsNothing(t *testing.T) {
	s := newSandbox(t)
	client := s.dial(t)
	got := strings.Fields(execute(t, client,
		"for f in /proc/$$/fd/*; do if [ -L $f ]; then echo ${f##*/}; fi; done", "").Out)
	want := []string{"0", "1", "2"}
	ours, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range ours {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && fd > 2 &&
			flags&unix.FD_CLOEXEC == 0 {
			want = append(want, e.Name())
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("descriptors (-want +got):\n%s", diff)
	}
}

// All output from before the end of a command arrives, and later output of its background children
// delays nothing.
func TestExecEndsWithItsCommand(t *testing.T) {
	s := newSandbox(t)
	client := s.dial(t)
	began := time.Now()
	for range 20 {
		if got := execute(t, client, "sleep 30 & echo hi", ""); got.Out != "hi\n" ||
			got.Status != 0 {
			t.Fatalf("got %+v, want hi", got)
		}
	}
	if took := time.Since(began); took > 28*time.Second {
		t.Errorf("20 commands took %v: they waited for their background children", took)
	}
	got := execute(t, client, "seq 1 20000; sleep 30 & exit 3", "")
	if want := sequence(20000); got.Out != want || got.Status != 3 {
		t.Errorf("got %d bytes and status %d, want %d and 3", len(got.Out), got.Status, len(want))
	}
	// The flood of a background child is dropped, and the child stays alive.
	pid := strings.TrimSpace(execute(t, client, "yes >&2 & echo $!", "").Out)
	if n, err := strconv.Atoi(pid); err != nil || !alive(n) {
		t.Errorf("background child %q died of its command's end", pid)
	}
}

func sequence(n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintln(&b, i)
	}
	return b.String()
}

// Neither stream loses a byte, whatever the order in which the program and its output end.
func TestExecOutputIsExact(t *testing.T) {
	s := newSandbox(t)
	client := s.dial(t)
	want := sequence(20000)
	for i := range 100 {
		if got := execute(t, client, "seq 1 20000; exit 7", ""); got.Out != want ||
			got.Status != 7 {
			t.Fatalf("run %d: got %d bytes and status %d, want %d and 7", i, len(got.Out),
				got.Status, len(want))
		}
	}
	data := bytes.Repeat([]byte{0, 1, 2, 0xff, '\r', '\n'}, 1<<20)
	path := writeFile(t, s.home, "data", string(data))
	got := execute(t, client, "cat "+path, "")
	if sha256.Sum256([]byte(got.Out)) != sha256.Sum256(data) {
		t.Errorf("6 MiB: got %d bytes with another sum", len(got.Out))
	}
	if got := execute(t, client, "cat | cat >"+path+".copy; cmp "+path+" "+path+
		".copy && echo same", string(data)); got.Out != "same\n" {
		t.Errorf("6 MiB in: got %+v", got)
	}
}

// The status comes after the last byte and before EOF and CLOSE.
func TestExecOrderOfTheEnd(t *testing.T) {
	s := newSandbox(t)
	ch, reqs, err := s.dial(t).OpenChannel(wire.ChannelSession, nil)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := ch.SendRequest(wire.RequestExec, true,
		wire.Marshal(wire.Exec{Command: "echo out; exit 5"})); !ok || err != nil {
		t.Fatalf("exec: %v, %v", ok, err)
	}
	r := <-reqs
	var status wire.ExitStatus
	if r.Type != wire.RequestExitStatus || r.WantReply ||
		wire.Unmarshal(r.Payload, &status) != nil || status.Status != 5 {
		t.Errorf("got request %s %x, want exit-status 5 without a reply", r.Type, r.Payload)
	}
	if r, more := <-reqs; more {
		t.Errorf("a request %s after the status", r.Type)
	}
	// The channel is closed: all that can be read had arrived before.
	if out, err := io.ReadAll(ch); string(out) != "out\n" || err != nil {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestEnvironmentOfClients(t *testing.T) {
	s := newSandbox(t, func(c *wire.GuestConfig) {
		c.Env = []string{"IMAGE=yes", "PATH=/usr/bin:/bin:/image"}
	})
	client := s.dial(t)
	sess, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer sess.Close()
	for _, tt := range []struct {
		name, value string
		want        bool
	}{
		{"LANG", "de_DE.UTF-8", true}, {"LC_ALL", "C", true}, {"COLORTERM", "truecolor", true}, {"GIT_PROTOCOL", "version=2", true},
		{"LD_PRELOAD", "/x.so", false}, {"BASH_ENV", "/x", false}, {"PATH", "/x", false}, {"SSH_CONNECTION", "x", false}, {"HOME", "/x", false},
		{"LC_A=B", "x", false}, {"LC_BIG", strings.Repeat("x", maxEnvValue+1), false}, {"LC_NUL", "a\x00b", false}, {"LC_\nX", "x", false},
	} {
		if err := sess.Setenv(tt.name, tt.value); (err == nil) != tt.want {
			t.Errorf("env %.20q: got %v, want accepted %v", tt.name, err, tt.want)
		}
	}
	out, err := sess.Output("env")
	if err != nil {
		t.Fatal(err)
	}
	env := "\n" + string(out)
	for _, want := range []string{"LANG=de_DE.UTF-8", "LC_ALL=C", "IMAGE=yes",
		"PATH=/usr/bin:/bin:/image", "HOME=" + s.home, "SSH_CONNECTION=127.0.0.1 0 127.0.0.1 22"} {
		if !strings.Contains(env, "\n"+want+"\n") {
			t.Errorf("%s is missing in %s", want, env)
		}
	}
	for _, not := range []string{"LD_PRELOAD", "BASH_ENV", "GOMAXPROCS"} {
		if strings.Contains(env, "\n"+not+"=") {
			t.Errorf("%s is in %s", not, env)
		}
	}
	flood, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer flood.Close()
	accepted := 0
	for i := range 100 {
		if flood.Setenv(fmt.Sprintf("LC_%d", i), "x") == nil {
			accepted++
		}
	}
	if accepted != maxEnv {
		t.Errorf("accepted %d variables, want %d", accepted, maxEnv)
	}
}

func TestSignals(t *testing.T) {
	s := newSandbox(t)
	sess, err := s.dial(t).NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer sess.Close()
	out, err := sess.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := sess.Start(
		`trap '' USR1; sleep 30 & trap 'echo usr1' USR1; echo ready; while :; do wait; done`); err != nil {
		t.Fatal(err)
	}
	expect(t, out, "ready\n")
	if err := sess.Signal(ssh.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	expect(t, out, "usr1\n")
	if err := sess.Signal(ssh.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got := exitSignal(sess.Wait()); got != "KILL" {
		t.Errorf("got signal %q, want KILL", got)
	}
}

// expect reads until text has arrived.
func expect(t testing.TB, r io.Reader, text string) string {
	t.Helper()
	got := make([]byte, 0, 1024)
	buf := make([]byte, 512)
	for !strings.Contains(string(got), text) {
		n, err := r.Read(buf)
		if got = append(got, buf[:n]...); err != nil {
			t.Fatalf("got %q and then %v, want %q", got, err, text)
		}
	}
	return string(got)
}

// A process outside a session ends with its channel, and with its connection.
func TestLeavingEndsCommands(t *testing.T) {
	s := newSandbox(t)
	for _, tt := range []struct {
		name  string
		leave func(*ssh.Client, *ssh.Session) error
	}{
		{"channel", func(_ *ssh.Client, sess *ssh.Session) error { return sess.Close() }},
		{"connection", func(c *ssh.Client, _ *ssh.Session) error { return c.Close() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client := s.dial(t)
			sess, err := client.NewSession()
			if err != nil {
				t.Fatal(err)
			}
			out, err := sess.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := sess.Start("echo $$; exec sleep 1000"); err != nil {
				t.Fatal(err)
			}
			pid, err := strconv.Atoi(strings.TrimSpace(expect(t, out, "\n")))
			if err != nil {
				t.Fatal(err)
			}
			if err := tt.leave(client, sess); err != nil {
				t.Fatal(err)
			}
			await(t, "the command ends", func() bool { return !alive(pid) })
		})
	}
}

func TestRequestsOutOfPlace(t *testing.T) {
	s := newSandbox(t)
	client := s.dial(t)
	open := func() ssh.Channel {
		ch, reqs, err := client.OpenChannel(wire.ChannelSession, nil)
		if err != nil {
			t.Fatal(err)
		}
		go ssh.DiscardRequests(reqs)
		t.Cleanup(func() { ch.Close() })
		return ch
	}
	for _, tt := range []struct {
		name, request string
		payload       []byte
	}{
		{"unknown", "no-such-request@example.com", nil},
		{"resize without a terminal", wire.RequestWindowChange, wire.Marshal(wire.WindowChange{Cols: 1, Rows: 1})},
		{"signal without a command", wire.RequestSignal, wire.Marshal(wire.Signal{Name: "TERM"})},
		{"break without a terminal", wire.RequestBreak, make([]byte, 4)},
		{"unknown subsystem", wire.RequestSubsystem, wire.Marshal(wire.Subsystem{Name: "x"})},
		{"sessions for a client", wire.RequestSubsystem, wire.Marshal(wire.Subsystem{Name: wire.SessionSubsystem})},
		{"malformed exec", wire.RequestExec, []byte{0, 0, 0, 9, 'x'}},
		{"command with NUL", wire.RequestExec, wire.Marshal(wire.Exec{Command: "a\x00b"})},
		{"malformed pty-req", wire.RequestPty, []byte{1}},
		{"x11 cookie with spaces", wire.RequestX11, ssh.Marshal(x11Request{Protocol: "MIT-MAGIC-COOKIE-1", Cookie: "a b"})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if ok, err := open().SendRequest(tt.request, true, tt.payload); ok || err != nil {
				t.Errorf("got %v, %v; want a refusal", ok, err)
			}
		})
	}
	t.Run("two commands", func(t *testing.T) {
		ch := open()
		for i, want := range []bool{true, false} {
			if ok, err := ch.SendRequest(wire.RequestExec, true,
				wire.Marshal(wire.Exec{Command: "sleep 30"})); ok != want || err != nil {
				t.Errorf("command %d: got %v, %v", i, ok, err)
			}
		}
	})
	t.Run("channel types", func(t *testing.T) {
		for _, typ := range []string{"x", wire.ChannelAgent, wire.ChannelX11,
			wire.ChannelForwardedTCP} {
			_, _, err := client.OpenChannel(typ, nil)
			if e, ok := errors.AsType[*ssh.OpenChannelError](err); !ok ||
				e.Reason != ssh.UnknownChannelType || e.Message == "" {
				t.Errorf("%s: got %v, want a refusal with a reason", typ, err)
			}
		}
	})
}

func TestSFTP(t *testing.T) {
	s := newSandbox(t)
	client, err := sftp.NewClient(s.dial(t))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if dir, err := client.Getwd(); err != nil || dir != s.home {
		t.Errorf("begins in %q, %v; want the home %q", dir, err, s.home)
	}
	data := bytes.Repeat([]byte("0123456789abcde\n"), 1<<16)
	f, err := client.Create("up")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadFrom(bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(s.home + "/up"); err != nil || !bytes.Equal(got, data) {
		t.Errorf("upload: %d bytes, %v", len(got), err)
	}
	if f, err = client.Open("up"); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if _, err := f.WriteTo(&got); err != nil || !bytes.Equal(got.Bytes(), data) {
		t.Errorf("download: %d bytes, %v", got.Len(), err)
	}
	f.Close()
	if err := client.PosixRename("up", "down"); err != nil {
		t.Error(err)
	}
}
