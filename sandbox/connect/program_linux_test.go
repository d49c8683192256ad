package connect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"github.com/sandboxd/sandboxd/sandbox/stdio"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// guestConn returns a connection to a real guest of the test's own.
func guestConn(t *testing.T) *Conn {
	t.Helper()
	b := sandboxtest.New(t, sandboxtest.Options{})
	inst, err := b.Boot(t.Context(), sandbox.Spec{ID: "s1"})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := newPool(t, b.Dial).SSH(t.Context(), inst)
	if err != nil {
		t.Fatal(err)
	}
	discard(conn)
	t.Cleanup(func() {
		conn.Close()
		conn.Wait()
		if err := b.Destroy(context.WithoutCancel(t.Context()), inst); err != nil {
			t.Error(err)
		}
	})
	return conn
}

// started is a program on descriptors of this process.
type started struct {
	*stdio.Program
	t *testing.T
}

// needsTerminals skips a test of terminals that are opened by /dev/pts/ptmx where this user may not
// open it: on most machines it is root's (ptmxmode in devpts, Linux's filesystems/devpts.rst). In a
// sandbox everybody may.
func needsTerminals(t *testing.T) {
	t.Helper()
	fd, err := unix.Open("/dev/pts/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	switch {
	case err == nil:
		unix.Close(fd)
	case os.Geteuid() == 0:
		t.Fatalf("/dev/pts/ptmx: %v", err)
	default:
		t.Skipf("/dev/pts/ptmx: %v", err)
	}
}

// openSession opens a session channel.
func openSession(t *testing.T, conn *Conn) *sshconn.Channel {
	t.Helper()
	channel, err := conn.Open(t.Context(), wire.ChannelSession, nil)
	if err != nil {
		t.Fatal(err)
	}
	return channel
}

func kindOf(terminal bool) stdio.Kind {
	if terminal {
		return stdio.Terminal
	}
	return stdio.Pipes
}

// begin starts command, on a terminal if there is one.
func begin(t *testing.T, conn *Conn, pty *wire.PtyReq, command string) *started {
	t.Helper()
	if pty != nil {
		needsTerminals(t)
	}
	channel := openSession(t, conn)
	p, err := conn.Program(t.Context(), channel, kindOf(pty != nil))
	if err != nil || p.Channel == channel {
		t.Fatalf("got the channel as it is, %v", err)
	}
	if pty != nil {
		if ok, err := p.SendRequest(wire.RequestPty, true, wire.Marshal(*pty)); err != nil || !ok {
			t.Fatalf("pty-req: %v, %v", ok, err)
		}
	}
	if ok, err := p.SendRequest(wire.RequestExec, true,
		wire.Marshal(wire.Exec{Command: command})); err != nil ||
		!ok {
		t.Fatalf("exec: %v, %v", ok, err)
	}
	return &started{p, t}
}

// finish reads everything and returns it, and how the program ended.
func (s *started) finish() (out, errs, exit string) {
	s.t.Helper()
	var outs [2]bytes.Buffer
	var reading sync.WaitGroup
	for i, r := range []io.Reader{s, s.Stderr()} {
		reading.Go(func() {
			if _, err := io.Copy(&outs[i], r); err != nil {
				s.t.Error(err)
			}
		})
	}
	late := time.AfterFunc(patience, func() {
		s.t.Error("the program's channel does not end")
		s.Release()
	})
	defer late.Stop()
	for q := range s.Requests {
		switch q.Type {
		case wire.RequestExitStatus:
			var st wire.ExitStatus
			if err := wire.Unmarshal(q.Payload, &st); err != nil {
				s.t.Error(err)
			}
			exit = fmt.Sprint(st.Status)
		case wire.RequestExitSignal:
			var st wire.ExitSignal
			if err := wire.Unmarshal(q.Payload, &st); err != nil {
				s.t.Error(err)
			}
			exit = st.Signal
		}
	}
	reading.Wait()
	s.Release()
	return outs[0].String(), outs[1].String(), exit
}

// inherited is the list of pipes that every child of this process has beside its first three
// descriptors, as Python prints it.
func inherited(t *testing.T) string {
	t.Helper()
	var list []string
	for fd := 3; fd < 300; fd++ {
		to, err := os.Readlink(fmt.Sprint("/proc/self/fd/", fd))
		flags, ferr := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && ferr == nil && flags&unix.FD_CLOEXEC == 0 &&
			strings.HasPrefix(to, "pipe:") {
			list = append(list, fmt.Sprint(fd))
		}
	}
	return "[" + strings.Join(list, ", ") + "]\n"
}

func TestProgram(t *testing.T) {
	conn := guestConn(t)
	big := strings.Repeat("0123456789abcdef", 50_000)
	for _, tt := range []struct{ name, command, stdin, out, errs, exit string }{
		{"streams apart", "echo out; echo err >&2", "", "out\n", "err\n", "0"},
		{"exit status", "exit 7", "", "", "", "7"},
		{"killed", "kill -KILL $$", "", "", "", "KILL"},
		{"end of input", "cat; echo done", "x\n", "x\ndone\n", "", "0"},
		{"not a terminal", "test -t 0 || test -t 1 || test -t 2 || echo none", "", "none\n", "",
			"0"},
		{"by name", "cat /dev/stdin >/dev/stdout; echo err >/dev/stderr", "in", "in", "err\n", "0"},
		{"blocking", `python3 -c 'import os; print([os.get_blocking(n) for n in (0, 1, 2)])'`, "", "[True, True, True]\n", "", "0"},
		{"much each way", "cat", big, big, "", "0"},
		{"more than a pipe holds, at the end",
			"head -c 800000 /dev/zero | tr '\\0' x; echo end >&2; exit 3", "",
			strings.Repeat("x", 800_000), "end\n", "3"},
		{"not read", "exit 5", big, "", "", "5"},
		{"input closed early", "exec <&-; echo still; exit 6", big, "still\n", "", "6"},
		{"output closed early", "exec >&- 2>&-; sleep 0.2; exit 4", "", "", "", "4"},
		{"no other descriptor", `python3 -c 'import os; print([n for n in range(3, 300) if os.path.islink(f"/proc/self/fd/{n}") and os.readlink(f"/proc/self/fd/{n}").startswith("pipe:")])'`, "", inherited(t), "", "0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := begin(t, conn, nil, tt.command)
			var writing sync.WaitGroup
			writing.Go(func() {
				_, _ = io.WriteString(s, tt.stdin) // some do not read it
				_ = s.CloseWrite()
			})
			out, errs, exit := s.finish()
			writing.Wait()
			if out != tt.out || errs != tt.errs || exit != tt.exit {
				t.Errorf(
					"got %d bytes %.60q, %.60q, %s; want %d bytes %.60q, %.60q, %s",
					len(out),
					out,
					errs,
					exit,
					len(tt.out),
					tt.out,
					tt.errs,
					tt.exit,
				)
			}
		})
	}
}

// A program is over when it ends; those that it leaves behind write to nobody, and live, also when
// the connection ends at once.
func TestProgramLeavesOthers(t *testing.T) {
	for name, leaves := range map[string]bool{"connection stays": false, "connection ends": true} {
		t.Run(name, func(t *testing.T) {
			for range 10 {
				leavesOthers(t, leaves)
			}
		})
	}
}

func leavesOthers(t *testing.T, leaves bool) {
	t.Helper()
	conn := guestConn(t)
	dir := t.TempDir()
	gate, survived := filepath.Join(dir, "gate"), filepath.Join(dir, "survived")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	out, _, exit := begin(
		t,
		conn,
		nil,
		fmt.Sprintf(
			"(read x <%s; for i in $(seq 300); do head -c 1000 /dev/zero; done || exit 1; echo "+
				"yes >%s) & echo hi",
			gate,
			survived,
		),
	).finish()
	if out != "hi\n" || exit != "0" {
		t.Errorf("got %q, %s", out, exit)
	}
	if leaves {
		conn.Close()
	}
	if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; {
		if b, _ := os.ReadFile(survived); string(b) == "yes\n" {
			break
		}
		if time.Now().After(end) {
			t.Fatal("what was left behind has not written all that it had")
		}
		waitABit()
	}
}

func waitABit() { <-time.After(10 * time.Millisecond) }

// Closing the channel of a program sends HUP to it.
func TestProgramHangup(t *testing.T) {
	conn := guestConn(t)
	for name, pty := range map[string]*wire.PtyReq{"pipes": nil,
		"terminal": {Term: "xterm", Cols: 80, Rows: 24}} {
		t.Run(name, func(t *testing.T) {
			note := filepath.Join(t.TempDir(), "note")
			// Without a reader of standard error, its message about the sleep would end it.
			s := begin(
				t,
				conn,
				pty,
				fmt.Sprintf(
					"trap 'echo hup >%s; exit' HUP; echo ready; exec 2>/dev/null; while :; do "+
						"sleep 0.05; done",
					note,
				),
			)
			var b [7]byte
			if _, err := io.ReadFull(s, b[:6]); err != nil || string(b[:5]) != "ready" {
				t.Fatalf("got %q, %v", b, err)
			}
			s.Close()
			s.finish()
			for end := time.Now().Add(patience); ; {
				if b, _ := os.ReadFile(note); string(b) == "hup\n" {
					break
				}
				if time.Now().After(end) {
					t.Fatal("the program was not hung up on")
				}
				waitABit()
			}
		})
	}
}

// A terminal is one of the sandbox's own: its name is right in there, as are size, modes and owner.
func TestProgramTerminal(t *testing.T) {
	conn := guestConn(t)
	modes := string([]byte{53, 0, 0, 0, 0, 0}) // no ECHO
	s := begin(
		t,
		conn,
		&wire.PtyReq{Term: "vt100", Cols: 91, Rows: 17, Modes: modes},
		`test "$(tty)" = "$SSH_TTY" && test -t 2 && echo "$TERM" && stty size && stty -a | grep -o -- '-echo ' && stat -c '%u %a' "$(tty)"; read x; stty size; echo "got $x"; exit 9`,
	)
	var seen bytes.Buffer
	for !strings.Contains(seen.String(), "620") {
		b := make([]byte, 100)
		n, err := s.Read(b)
		if err != nil {
			t.Fatalf("after %q: %v", seen.String(), err)
		}
		seen.Write(b[:n])
	}
	if ok, err := s.SendRequest(wire.RequestWindowChange, true,
		wire.Marshal(wire.WindowChange{Cols: 44, Rows: 11})); err != nil ||
		!ok {
		t.Errorf("window-change: %v, %v", ok, err)
	}
	if ok, err := s.SendRequest(wire.RequestBreak, true,
		wire.Marshal(struct{ N uint32 }{1})); err != nil ||
		!ok {
		t.Errorf("break: %v, %v", ok, err)
	}
	if ok, err := s.SendRequest(wire.RequestWindowChange, true, []byte("x")); err != nil || ok {
		t.Errorf("malformed window-change: %v, %v", ok, err)
	}
	if _, err := io.WriteString(s, "answer\n"); err != nil {
		t.Fatal(err)
	}
	if err := s.CloseWrite(); err != nil { // which is not ^D
		t.Error(err)
	}
	out, _, exit := s.finish()
	seen.WriteString(out)
	want := fmt.Sprintf(
		"vt100\r\n17 91\r\n-echo \r\n%d 620\r\n11 44\r\ngot answer\r\n",
		os.Getuid(),
	)
	if seen.String() != want || exit != "9" {
		t.Errorf("got %q, %s, want %q, 9", seen.String(), exit, want)
	}
}

// All output of a terminal before the end of its program is read.
func TestProgramTerminalOutput(t *testing.T) {
	conn := guestConn(t)
	for range 20 {
		s := begin(
			t,
			conn,
			&wire.PtyReq{Cols: 80, Rows: 24},
			"stty -opost; head -c 100000 /dev/zero | tr '\\0' x; printf end",
		)
		if out, _, exit := s.finish(); out != strings.Repeat("x", 100_000)+"end" || exit != "0" {
			t.Fatalf(
				"got %d bytes that end in %.10q, %s",
				len(out),
				out[max(0, len(out)-10):],
				exit,
			)
		}
	}
}

// If a program cannot be started, its channel reports why.
func TestProgramThatCannotStart(t *testing.T) {
	conn := guestConn(t)
	for _, pty := range []*wire.PtyReq{nil, {Cols: 80, Rows: 24}} {
		out, errs, exit := begin(t, conn, pty, "exec /no/such/program").finish()
		if exit != "127" || !strings.Contains(out+errs, "/no/such/program") {
			t.Errorf("got %q, %q, %s", out, errs, exit)
		}
	}
}

// Many programs leave no file descriptor and no goroutine, however they end.
func TestProgramsLeaveNothing(t *testing.T) {
	conn := guestConn(t)
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	begin(t, conn, nil, "true").finish()
	begin(t, conn, &wire.PtyReq{Cols: 80, Rows: 24}, "true").finish()
	before := count()
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			var pty *wire.PtyReq
			if i%3 == 0 {
				pty = &wire.PtyReq{Cols: 80, Rows: 24}
			}
			s := begin(t, conn, pty, "echo x; sleep 0.1")
			if i%2 == 0 {
				s.Close()
			}
			s.finish()
		})
	}
	all.Wait()
	// the guest is in this process
	for end := time.Now().Add(patience); count() > before; waitABit() {
		if time.Now().After(end) {
			t.Fatalf("%d descriptors are open, %d were before", count(), before)
		}
	}
}

// hostileConn is a connection to a server that answers the offer of descriptors as answer does.
func hostileConn(t *testing.T, answer func(files *stdio.Socket, q *ssh.Request)) *Conn {
	t.Helper()
	s := newServer(t, nil)
	dial := func(ctx context.Context, inst sandbox.Instance) (sandbox.Peer, error) {
		near, far, err := sandboxtest.Pipe()
		if err != nil {
			return sandbox.Peer{}, err
		}
		files := stdio.NewSocket(far.(*net.UnixConn))
		s.global = func(q *ssh.Request) { answer(files, q) }
		s.mu.Lock()
		s.conns = append(s.conns, files)
		s.mu.Unlock()
		s.wg.Go(func() { s.serve(files) })
		return sandbox.Peer{
			Conn:     near,
			User:     "sandbox",
			HostKeys: []ssh.PublicKey{s.host.PublicKey()},
			Auth:     []ssh.AuthMethod{ssh.PublicKeys(s.client)},
		}, nil
	}
	conn, err := newPool(t, dial).SSH(t.Context(), sandbox.Instance{ID: "s1"})
	if err != nil {
		t.Fatal(err)
	}
	discard(conn)
	t.Cleanup(func() { conn.Close(); conn.Wait() })
	return conn
}

// What a guest passes for /dev/pts/ptmx is that, or nothing is passed to it, and no other file is
// opened.
func TestHostileDescriptors(t *testing.T) {
	opened := func(path string, flags int) func(*testing.T) []int {
		return func(t *testing.T) []int {
			fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			return []int{fd}
		}
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		files func(*testing.T) []int
		right bool
	}{
		{"right", opened("/dev/pts/ptmx", unix.O_PATH), true},
		{"none", func(*testing.T) []int { return nil }, false},
		{"a file", opened("/etc/passwd", unix.O_RDONLY), false},
		{"a file by name", opened("/etc/passwd", unix.O_PATH), false},
		{"a directory", opened("/", unix.O_PATH), false},
		{"a FIFO", opened(fifo, unix.O_PATH), false},
		{"another device", opened("/dev/null", unix.O_PATH), false},
		{"the device on another file system", opened("/dev/ptmx", unix.O_PATH), false},
		{"a link", opened("/proc/self/exe", unix.O_PATH|unix.O_NOFOLLOW), false},
		{"two", func(t *testing.T) []int {
			return append(opened("/dev/pts/ptmx", unix.O_PATH)(t),
				opened("/dev/null", unix.O_PATH)(t)...)
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn := hostileConn(t, func(files *stdio.Socket, q *ssh.Request) {
				list := tt.files(t)
				if list == nil {
					_ = q.Reply(true, wire.Marshal(wire.Descriptors{Batch: wire.NoDescriptors}))
					return
				}
				batch, err := files.Pass(list...)
				if err == nil {
					err = q.Reply(true, wire.Marshal(wire.Descriptors{Batch: batch}))
				}
				if err != nil {
					t.Error(err)
				}
			})
			for _, terminal := range []bool{false, true} {
				if terminal && tt.right {
					needsTerminals(t)
				}
				channel := openSession(t, conn)
				p, err := conn.Program(t.Context(), channel, kindOf(terminal))
				if err != nil {
					t.Fatal(err)
				}
				if passed := p.Channel != channel; passed != tt.right {
					t.Errorf("terminal %v: its bytes go past the channel: %v", terminal, passed)
				}
				p.Release()
			}
		})
	}
}

// When descriptors could not be sent once, programs are left to the guest.
func TestProgramUnable(t *testing.T) {
	conn := guestConn(t)
	begin(t, conn, nil, "true").finish()
	if _, err := conn.net.(*stdio.Socket).Pass(1 << 20); err != nil { // which is no descriptor
		t.Fatal(err)
	}
	channel := openSession(t, conn) // sends it
	p, err := conn.Program(t.Context(), channel, stdio.Pipes)
	if err != nil || p.Channel != channel {
		t.Fatalf("got another channel, %v, want it as it is", err)
	}
	defer p.Release()
	if ok, err := channel.SendRequest(wire.RequestExec, true,
		wire.Marshal(wire.Exec{Command: "echo it works"})); err != nil ||
		!ok {
		t.Fatalf("exec: %v, %v", ok, err)
	}
	if out, err := io.ReadAll(channel); string(out) != "it works\n" || err != nil {
		t.Errorf("got %q, %v", out, err)
	}
}

// A guest that rejects, answers nonsense or never answers cannot block.
func TestOfferRefused(t *testing.T) {
	for name, answer := range map[string]func(*stdio.Socket, *ssh.Request){
		"refused":  func(_ *stdio.Socket, q *ssh.Request) { _ = q.Reply(false, nil) },
		"no words": func(_ *stdio.Socket, q *ssh.Request) { _ = q.Reply(true, nil) },
		"nonsense": func(_ *stdio.Socket, q *ssh.Request) { _ = q.Reply(true, []byte("nonsense")) },
		"a batch that never came": func(_ *stdio.Socket, q *ssh.Request) {
			_ = q.Reply(true, wire.Marshal(wire.Descriptors{Batch: 1 << 60}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn := hostileConn(t, answer)
			channel := openSession(t, conn)
			p, err := conn.Program(t.Context(), channel, stdio.Terminal)
			if err != nil || p.Channel != channel {
				t.Fatalf("got another channel, %v, want it as it is", err)
			}
			p.Release()
		})
	}
	conn := hostileConn(t, func(*stdio.Socket, *ssh.Request) {}) // silence
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	cancel(enough)
	if _, err := conn.Program(ctx, openSession(t, conn), stdio.Pipes); !errors.Is(err, enough) {
		t.Errorf("got %v, want what ended the wait", err)
	}
	channel := openSession(t, conn)
	conn.Close()
	p, err := conn.Program(t.Context(), channel, stdio.Pipes)
	if err != nil || p.Channel != channel {
		t.Fatalf("on a closed connection: got another channel, %v", err)
	}
	p.Release()
}
