package agent_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/agent"
)

func TestExec(t *testing.T) {
	c := dial(t)
	for _, test := range []struct {
		name string
		cmd  agent.Cmd
		in   string
		out  string
		errs string
		exit agent.Exit
	}{
		{name: "nothing", cmd: agent.Cmd{Command: "true"}},
		{name: "separate output", cmd: agent.Cmd{Command: "echo out; echo err >&2; exit 3"},
			out: "out\n", errs: "err\n", exit: agent.Exit{Code: 3}},
		{name: "255", cmd: agent.Cmd{Command: "exit 255"}, exit: agent.Exit{Code: 255}},
		{name: "input", cmd: agent.Cmd{Command: "cat; echo done"}, in: "a\x00\xff",
			out: "a\x00\xffdone\n"},
		{name: "no input is the end of input", cmd: agent.Cmd{Command: "cat; echo done"},
			out: "done\n"},
		{name: "input that nobody reads", cmd: agent.Cmd{Command: "exec 0<&-; echo over"},
			in: strings.Repeat("x", 3<<20), out: "over\n"},
		{name: "signal", cmd: agent.Cmd{Command: "kill -TERM $$"},
			exit: agent.Exit{Code: 143, Signal: "TERM"}},
		{name: "environment", cmd: agent.Cmd{Command: "echo $LC_TEST",
			Env: map[string]string{"LC_TEST": "x y"}}, out: "x y\n"},
		{name: "no terminal", cmd: agent.Cmd{Command: "test -t 0 || echo none"}, out: "none\n"},
		{name: "a terminal", cmd: agent.Cmd{Command: "stty size; tty >/dev/null && echo $TERM",
			Pty: &agent.Pty{Term: "vt100", Cols: 90, Rows: 20}}, out: "20 90\r\nvt100\r\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			test.cmd.Stdout, test.cmd.Stderr = &out, &errs
			if test.in != "" {
				test.cmd.Stdin = strings.NewReader(test.in)
			}
			exit, err := c.Exec(bounded(t), test.cmd)
			if err != nil || exit != test.exit || out.String() != test.out ||
				errs.String() != test.errs {
				t.Errorf(
					"%+v, %v, %q, %q; want %+v, %q, %q",
					exit,
					err,
					out.String(),
					errs.String(),
					test.exit,
					test.out,
					test.errs,
				)
			}
		})
	}
}

func TestExecBytes(t *testing.T) {
	c := dial(t)
	data := make([]byte, 4<<20)
	rand.Read(data)
	sum := sha256.New()
	exit, err := c.Exec(
		bounded(t),
		agent.Cmd{Command: "cat", Stdin: bytes.NewReader(data), Stdout: sum},
	)
	if want := sha256.Sum256(data); err != nil || exit.Code != 0 ||
		!bytes.Equal(sum.Sum(nil), want[:]) {
		t.Errorf("%+v, %v; the bytes are others", exit, err)
	}
}

func TestExecRefusesEnvironment(t *testing.T) {
	_, err := dial(
		t,
	).Exec(bounded(t), agent.Cmd{Command: "true", Env: map[string]string{"LD_PRELOAD": "x"}})
	if err == nil || !strings.Contains(err.Error(), "LD_PRELOAD") {
		t.Errorf("got %v, want an error that names the variable", err)
	}
}

func TestExecSignalsAndSizes(t *testing.T) {
	c := dial(t)
	signals, sizes := make(chan string, 1), make(chan agent.Size, 1)
	out := &watcher{changed: make(chan struct{})}
	type answer struct {
		exit agent.Exit
		err  error
	}
	ended := make(chan answer, 1)
	go func() {
		exit, err := c.Exec(
			bounded(t),
			agent.Cmd{
				Command: `trap 'stty size; exit 4' USR1; trap 'echo sized' WINCH; echo begun; while :; do sleep 0.02; done`,
				Pty: &agent.Pty{
					Term: "vt100",
					Cols: 80,
					Rows: 24,
				},
				Stdout:  out,
				Signals: signals,
				Resized: sizes,
			},
		)
		ended <- answer{exit, err}
	}()
	out.wait(bounded(t), t, "begun")
	sizes <- agent.Size{Cols: 100, Rows: 30}
	close(sizes)
	out.wait(bounded(t), t, "sized")
	signals <- "USR1"
	a := <-ended
	if a.err != nil || a.exit.Code != 4 {
		t.Errorf("%+v, %v", a.exit, a.err)
	}
	out.wait(bounded(t), t, "30 100")
}

// When ctx ends, the command is stopped, and nothing is written to Stdout afterwards.
func TestExecContext(t *testing.T) {
	c := dial(t)
	out := &watcher{changed: make(chan struct{})}
	ctx, cancel := context.WithCancel(bounded(t))
	ended := make(chan error, 1)
	go func() {
		_, err := c.Exec(
			ctx,
			agent.Cmd{
				Command: `trap '' PIPE; trap 'touch hup; exit' HUP; echo begun; while :; do sleep 0.02; echo more; done 2>/dev/null`,
				Stdout:  out,
			},
		)
		ended <- err
	}()
	out.wait(bounded(t), t, "begun")
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	out.mu.Lock()
	then := out.text.Len()
	out.mu.Unlock()
	exit, err := c.Exec(bounded(t), agent.Cmd{Command: "while [ ! -e hup ]; do sleep 0.02; done"})
	if err != nil || exit.Code != 0 {
		t.Errorf("%+v, %v", exit, err)
	}
	if out.text.Len() != then {
		t.Error("output was written after the call had returned")
	}
}

// A rejected channel is an error of its call only; the connection stays.
func TestManyChannels(t *testing.T) {
	c, network := proxied(t)
	sh := attach(t, c, agent.ShellOptions{})
	ctx, cancel := context.WithCancel(bounded(t))
	var wg sync.WaitGroup
	refused := make(chan error, 64)
	started := make(chan struct{}, 64)
	for range 40 { // the gateway allows 32 at the same time
		wg.Go(func() {
			_, err := c.Exec(
				ctx,
				agent.Cmd{
					Command: "echo begun; cat",
					Stdin:   blocked(ctx.Done()),
					Stdout:  signal(started),
				},
			)
			var open *ssh.OpenChannelError
			if errors.As(err, &open) {
				refused <- err
			}
		})
	}
	for range 31 {
		<-started
	}
	if err := <-refused; err == nil {
		t.Error("no channel was refused")
	}
	res, err := sh.Run(bounded(t), "echo still")
	if got := done(t, res, err, 0); got != "still\n" {
		t.Errorf("output %q", got)
	}
	cancel()
	wg.Wait()
	if n := network.connections(); n != 2 { // one to the control host
		t.Errorf("%d connections", n)
	}
}

// blocked is input that never arrives.
type blocked <-chan struct{}

func (b blocked) Read([]byte) (int, error) {
	<-b
	return 0, io.EOF
}

// signal receives a value for every write.
type signal chan struct{}

func (s signal) Write(p []byte) (int, error) {
	s <- struct{}{}
	return len(p), nil
}

// A command whose outcome is unknown may have run.
func TestExecLost(t *testing.T) {
	c, network := proxied(t)
	out := &watcher{changed: make(chan struct{})}
	ended := make(chan error, 1)
	go func() {
		_, err := c.Exec(bounded(t), agent.Cmd{Command: "echo begun; sleep 100", Stdout: out})
		ended <- err
	}()
	out.wait(bounded(t), t, "begun")
	network.cut()
	var e *agent.Error
	if err := <-ended; !errors.As(err, &e) || e.Code != agent.CodeLost ||
		e.Reason != agent.LostGateway {
		t.Errorf("got %v, want lost", err)
	}
}

func TestExecReconnects(t *testing.T) {
	c, network := proxied(t)
	for range 5 {
		network.cut()
		if exit, err := c.Exec(bounded(t), agent.Cmd{Command: "exit 6"}); err != nil ||
			exit.Code != 6 {
			t.Fatalf("%+v, %v", exit, err)
		}
	}
}

func TestFiles(t *testing.T) {
	c := dial(t)
	files, err := c.Files(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	data := make([]byte, 3<<20+7)
	rand.Read(data)
	up, err := files.Create("up")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := up.ReadFrom(bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	if err := up.Close(); err != nil {
		t.Fatal(err)
	}
	var sum strings.Builder
	if _, err := c.Exec(bounded(t), agent.Cmd{Command: "cksum <up; cp up down",
		Stdout: &sum}); err != nil {
		t.Fatal(err)
	}
	if want := cksum(t, string(data)); sum.String() != want {
		t.Errorf("in the sandbox %q, want %q", sum.String(), want)
	}
	down, err := files.Open("down")
	if err != nil {
		t.Fatal(err)
	}
	defer down.Close()
	got, err := io.ReadAll(down)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes came back, %v", len(got), err)
	}
	if _, err := files.Open("missing"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	ctx, cancel := context.WithCancel(bounded(t))
	cancel()
	if _, err := c.Files(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("with a ctx that has ended: %v", err)
	}
	// The connection still works.
	if _, err := files.Stat("up"); err != nil {
		t.Error(err)
	}
}
