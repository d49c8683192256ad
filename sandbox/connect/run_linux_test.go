package connect

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestRun(t *testing.T) {
	conn := guestConn(t)
	big := strings.Repeat("0123456789abcdef", 50_000)
	for _, tt := range []struct {
		name, line, stdin, out, errs string
		want                         error // nil, or an *ExitError
	}{
		{"streams apart", "echo out; echo err >&2", "", "out\n", "err\n", nil},
		{"exit status", "exit 7", "", "", "", &ExitError{Status: 7}},
		{"signal", "kill -KILL $$", "", "", "", &ExitError{Status: 137, Signal: "KILL"}},
		{"input", "cat; echo done", "x\n", "x\ndone\n", "", nil},
		{"no terminal", "test -t 0 || echo none", "", "none\n", "", nil},
		{"much each way", "cat", big, big, "", nil},
		{"input that nobody reads", "exit 5", big, "", "", &ExitError{Status: 5}},
		{"environment", "echo $LC_TEST", "", "a=b\n", "", nil},
		{"a child that keeps the output open", "sleep 600 & echo $!", "", "", "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			err := Run(
				t.Context(),
				conn,
				Command{
					Line:   tt.line,
					Env:    []string{"LC_TEST=a=b"},
					Stdin:  strings.NewReader(tt.stdin),
					Stdout: &out,
					Stderr: &errs,
				},
			)
			got, exited := errors.AsType[*ExitError](err)
			if want, _ := errors.AsType[*ExitError](tt.want); exited != (want != nil) ||
				exited && *got != *want ||
				!exited && err != nil {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if strings.HasPrefix(tt.line, "sleep") {
				if err := Run(t.Context(), conn,
					Command{Line: "kill " + out.String()}); err != nil {
					t.Error(err)
				}
				return
			}
			if out.String() != tt.out || errs.String() != tt.errs {
				t.Errorf(
					"got %.60q, %.60q; want %.60q, %.60q",
					out.String(),
					errs.String(),
					tt.out,
					tt.errs,
				)
			}
		})
	}
}

// Output and input are optional. Input that never arrives cannot block.
func TestRunWithoutStreams(t *testing.T) {
	conn := guestConn(t)
	if err := Run(t.Context(), conn, Command{Line: "cat; echo out; echo err >&2"}); err != nil {
		t.Error(err)
	}
	never, end := io.Pipe()
	defer end.Close()
	if err := Run(t.Context(), conn, Command{Line: "exit 0", Stdin: never}); err != nil {
		t.Error(err)
	}
}

func TestRunOnTerminal(t *testing.T) {
	conn := guestConn(t)
	var out syncedBuffer
	in, typed := io.Pipe()
	defer typed.Close()
	ready := false
	r, err := Start(
		t.Context(),
		conn,
		Command{
			Line:   `stty size; read x; until [ "$(stty size)" = "11 44" ]; do sleep 0.01; done; echo $x; exit 3`,
			Pty:    &wire.PtyReq{Term: "xterm", Cols: 91, Rows: 17},
			Stdin:  in,
			Stdout: &out,
			Ready:  func() error { ready = true; return nil },
		},
	)
	if err != nil || !ready {
		t.Fatal(err, ready)
	}
	out.await(t, "17 91")
	if err := r.Resize(wire.WindowChange{Cols: 44, Rows: 11}); err != nil {
		t.Error(err)
	}
	if _, err := io.WriteString(typed, "an answer\n"); err != nil {
		t.Error(err)
	}
	if err, ok := errors.AsType[*ExitError](r.Wait()); !ok || err.Status != 3 {
		t.Errorf("got %v, want status 3", err)
	}
	if !strings.HasSuffix(out.String(), "an answer\r\nan answer\r\n") {
		t.Errorf("got %q", out.String())
	}

	refused := errors.New("not recorded")
	if _, err := Start(t.Context(), conn, Command{Line: "exit 0",
		Ready: func() error { return refused }}); !errors.Is(
		err,
		refused,
	) {
		t.Errorf("got %v, want the error of Ready", err)
	}
}

// syncedBuffer is a buffer that is read while it is written to.
type syncedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (s *syncedBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncedBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func (s *syncedBuffer) await(t *testing.T, text string) {
	t.Helper()
	within(t, patience, "the output of "+text, func() {
		for !strings.Contains(s.String(), text) {
			waitABit()
		}
	})
}

func TestRunSignal(t *testing.T) {
	conn := guestConn(t)
	var out syncedBuffer
	r, err := Start(
		t.Context(),
		conn,
		Command{
			Line:   "trap 'echo got; exit 4' INT; echo ready; while :; do sleep 0.01; done",
			Stdout: &out,
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	out.await(t, "ready")
	if err := r.Signal("INT"); err != nil {
		t.Error(err)
	}
	if err, ok := errors.AsType[*ExitError](r.Wait()); !ok || err.Status != 4 ||
		out.String() != "ready\ngot\n" {
		t.Errorf("got %v, %q, want status 4", err, out.String())
	}
}

// The end of ctx sends HUP to the command, and nothing is written after that.
func TestRunEndsWithContext(t *testing.T) {
	conn := guestConn(t)
	dir := t.TempDir()
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	over := false
	// Without a reader of standard error, the shell's message about the sleep would end it.
	err := Run(
		ctx,
		conn,
		Command{
			Line: "exec 2>/dev/null; trap 'touch " + dir +
				"/hup; exit' HUP; while :; do echo x; sleep 0.01; done",
			Stdout: writerFunc(func(p []byte) (int, error) {
				if over {
					t.Error("output after the end")
				}
				cancel(enough)
				return len(p), nil
			}),
		},
	)
	over = true
	if !errors.Is(err, enough) {
		t.Errorf("got %v, want the cause of ctx", err)
	}
	within(t, patience, "the command's end", func() {
		for Run(t.Context(), conn, Command{Line: "test -e " + dir + "/hup"}) != nil {
			waitABit()
		}
	})
	if err := Run(ctx, conn, Command{Line: "true"}); !errors.Is(err, enough) {
		t.Errorf("after the end of ctx: got %v, want its cause", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestOutput(t *testing.T) {
	conn := guestConn(t)
	for _, tt := range []struct {
		line, out string
		want      error
	}{
		{"echo hello", "hello\n", nil},
		{"echo hello; exit 2", "hello\n", &ExitError{Status: 2}},
		{"printf 12345678", "12345678", nil},
		{"printf 123456789", "12345678", ErrTooMuch},
		{"yes >&2", "", ErrTooMuch},
		{"yes x | tr -d '\\n'", "xxxxxxxx", ErrTooMuch},
	} {
		out, err := Output(t.Context(), conn, tt.line, 8)
		_, exited := errors.AsType[*ExitError](tt.want)
		if string(out) != tt.out || !errors.Is(err, tt.want) && !exited ||
			exited && !errors.As(err, new(*ExitError)) {
			t.Errorf("%s: got %q, %v; want %q, %v", tt.line, out, err, tt.out, tt.want)
		}
	}
}

// A server that rejects, is silent or disconnects cannot block.
func TestRunOnHostileServer(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	answer := func(ok bool) func(ssh.Channel, *ssh.Request) {
		return func(_ ssh.Channel, q *ssh.Request) { _ = q.Reply(ok, nil) }
	}
	for name, tt := range map[string]struct {
		open    func(ssh.NewChannel) bool // reports whether it was answered
		request func(ssh.Channel, *ssh.Request)
		want    error
	}{
		"no channel": {open: func(nc ssh.NewChannel) bool {
			_ = nc.Reject(ssh.Prohibited,
				"no")
			return true
		}, want: new(ssh.OpenChannelError)},
		"no answer to opening": {open: func(ssh.NewChannel) bool { cancel(enough); return true },
			want: enough},
		"no terminal": {request: answer(false), want: ErrNoTerminal},
		"no command": {request: func(ch ssh.Channel,
			q *ssh.Request) {
			_ = q.Reply(q.Type != "exec", nil)
		}, want: ErrNotStarted},
		"no answer": {request: func(ssh.Channel, *ssh.Request) { cancel(enough) },
			want: enough},
		"no end": {request: func(_ ssh.Channel, q *ssh.Request) {
			_ = q.Reply(true, nil)
			if q.Type == "exec" {
				cancel(enough)
			}
		}, want: enough},
		"close at once": {request: func(ch ssh.Channel, _ *ssh.Request) { _ = ch.Close() },
			want: ErrLost},
		"nonsense": {request: func(ch ssh.Channel, q *ssh.Request) {
			_ = q.Reply(true, nil)
			if q.Type == "exec" {
				_, _ = ch.SendRequest("exit-status", false, []byte("x"))
				_ = ch.Close()
			}
		}, want: ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel = context.WithCancelCause(t.Context())
			s := newServer(t, func(s *testServer) {
				s.channel = func(nc ssh.NewChannel) {
					if tt.open != nil && tt.open(nc) {
						return
					}
					ch, requests, err := nc.Accept()
					if err != nil {
						return
					}
					s.wg.Go(func() {
						for q := range requests {
							tt.request(ch, q)
						}
					})
				}
			})
			conn, err := SSH(t.Context(), s.peer(t))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			client := conn.Client()
			within(t, patience, "the command", func() {
				err = Run(ctx, client, Command{Line: "x", Pty: &wire.PtyReq{}})
			})
			refused := errors.As(tt.want, new(*ssh.OpenChannelError)) &&
				errors.As(err, new(*ssh.OpenChannelError))
			if !errors.Is(err, tt.want) && !refused {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

func TestRunWhenConnectionEnds(t *testing.T) {
	conn := guestConn(t)
	err := Run(
		t.Context(),
		conn,
		Command{Line: "echo ready; sleep 600", Stdout: writerFunc(func(p []byte) (int, error) {
			conn.Close()
			return len(p), nil
		})},
	)
	if !errors.Is(err, ErrLost) {
		t.Errorf("got %v, want ErrLost", err)
	}
	if err := Run(t.Context(), conn, Command{Line: "true"}); !errors.Is(err, ErrLost) {
		t.Errorf("on a connection that has ended: got %v, want ErrLost", err)
	}
}
