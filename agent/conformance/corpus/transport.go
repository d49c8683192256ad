package corpus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
)

// transport has cases about connections: order, limits and failures.
func transport() []conformance.Case {
	return []conformance.Case{
		{Name: "exit-last", About: "the exit status never comes before the last byte", Steps: steps(
			conformance.Step{Do: conformance.Exec,
				Text: "head -c 100000 /dev/zero | tr '\\0' z; exit 3", Times: 100,
				Want: conformance.Want{
					ExitCode: code(3), Output: &conformance.Text{SHA256: sum(
						repeat(100_000, "z"))}}})},
		{Name: "stderr-whole", About: "standard error is whole, too", Steps: steps(
			conformance.Step{Do: conformance.Exec,
				Text: "head -c 100000 /dev/zero | tr '\\0' z >&2; echo out", Times: 20,
				Want: conformance.Want{
					ExitCode: code(0), Output: text("out\n"),
					Stderr: &conformance.Text{SHA256: sum(repeat(100_000, "z"))}}})},
		{Name: "channels", About: "four hundred commands on one connection, thirty-two at once, " +
			"as many as may be", Func: "channels", Do: channels},
		{Name: "sessions", About: "32 sessions at once, and a typed refusal of the one too many",
			Func: "sessions", Do: sessions},
		{Name: "stalled-reader", About: "a client that does not read output does not block others",
			Func: "stalledReader", Do: stalledReader},
		{Name: "cut-run", About: "a connection that ends during a command: the command " +
			"continues, and its result is available after a reconnect", Func: "cutRun", Do: cutRun},
		{Name: "cut-waiting", About: "a connection that ends at a question: the question remains " +
			"after a reconnect, and is answered once", Func: "cutWaiting", Do: cutWaiting},
		{Name: "resume-offset", About: "after a reconnect, reading continues at the same offset",
			Func: "resumeOffset", Do: resumeOffset},
	}
}

// channels runs commands concurrently and checks each output.
func channels(ctx context.Context, w conformance.World) error {
	const n, atOnce = 400, 32
	errs := make([]error, n)
	room := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			var out strings.Builder
			exit, err := w.Client.Exec(ctx, agent.Cmd{Command: fmt.Sprintf("echo %d; exit %d", i,
				i%100), Stdout: &out})
			if err == nil && (exit.Code != i%100 || out.String() != fmt.Sprintf("%d\n", i)) {
				err = fmt.Errorf("command %d ended with %d and printed %q", i, exit.Code,
					out.String())
			}
			errs[i] = err
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// sessions starts sessions until one is rejected.
func sessions(ctx context.Context, w conformance.World) (err error) {
	const most = 32
	if w.Dial == nil {
		return errors.New("there is no second connection to be had")
	}
	second, err := w.Dial(ctx) // a connection has its own limit, of channels
	if err != nil {
		return err
	}
	defer second.Close()
	clients := []*agent.Client{w.Client, second}
	var open []*agent.Shell
	defer func() {
		for _, sh := range open {
			err = errors.Join(err, sh.End(ctx))
			sh.Close()
		}
	}()
	for range most + 1 {
		sh, err := w.Attach(ctx, clients[len(open)%len(clients)])
		if err != nil {
			if !errors.Is(err, &agent.Error{Code: agent.CodeLimitSessions}) {
				return fmt.Errorf("session %d: %w", len(open)+1, err)
			}
			if len(open) < most-1 { // the sandbox may have one already
				return fmt.Errorf("only %d sessions: %w", len(open), err)
			}
			return nil
		}
		open = append(open, sh)
		res, err := sh.Run(ctx, fmt.Sprintf("echo session $((%d+0))", len(open)))
		if err != nil {
			return err
		}
		if want := fmt.Sprintf("session %d\n", len(open)); res.Ended != agent.EndedDone ||
			res.Output != want {
			return fmt.Errorf("session %d: %s, output %q", len(open), res.Ended, res.Output)
		}
	}
	return fmt.Errorf("%d sessions and no end", len(open))
}

// stalledReader prints to a client that does not read, while another client works.
func stalledReader(ctx context.Context, w conformance.World) error {
	flood, stop := context.WithCancel(ctx)
	stalled := &stall{begun: make(chan struct{}), over: flood.Done()}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = w.Client.Exec(flood, agent.Cmd{Command: "yes", Stdout: stalled}) // ended by stop
	}()
	defer func() {
		stop()
		<-ended
	}()
	select {
	case <-stalled.begun:
	case <-ended:
		return errors.New("yes ended by itself")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	sh, err := w.Attach(ctx, w.Client)
	if err != nil {
		return err
	}
	defer sh.Close()
	began := time.Now()
	for range 20 {
		if err := expectRun(ctx, sh, "seq 1 1000; (exit 4)", 4); err != nil {
			return errors.Join(err, sh.End(ctx))
		}
	}
	if took := time.Since(began); took > 10*time.Second {
		return errors.Join(fmt.Errorf("twenty commands took %s", took), sh.End(ctx))
	}
	return sh.End(ctx)
}

// stall is a writer that blocks until over is closed.
type stall struct {
	once  sync.Once
	begun chan struct{}
	over  <-chan struct{}
}

func (s *stall) Write(p []byte) (int, error) {
	s.once.Do(func() { close(s.begun) })
	<-s.over
	return len(p), nil
}

// expectRun runs a command and checks its exit code.
func expectRun(ctx context.Context, sh *agent.Shell, command string, status int) error {
	res, err := sh.Run(ctx, command)
	if err != nil {
		return err
	}
	return ended(res, status)
}

// ended checks that a call returned at the prompt with an exit code.
func ended(res agent.Result, status int) error {
	if res.Ended != agent.EndedDone || res.ExitCode == nil || *res.ExitCode != status {
		return fmt.Errorf("the call ended %s and not with status %d; output %q", res.Ended, status,
			res.Output)
	}
	return nil
}

// cut starts a session on a separate connection and calls first. It breaks the connection, resumes
// the attachment on a new one, and calls then.
func cut(ctx context.Context, w conformance.World, first func(sh *agent.Shell) error,
	then func(sh *agent.Shell) error) error {
	if w.Dial == nil {
		return errors.New("there is no second connection to be had")
	}
	c, err := w.Dial(ctx)
	if err != nil {
		return err
	}
	sh, err := w.Attach(ctx, c)
	if err != nil {
		c.Close()
		return err
	}
	err = first(sh)
	secret, name := sh.Resume(), sh.Session()
	c.Close()
	sh.Close()
	if err == nil {
		var again *agent.Shell
		if again, err = w.Client.Attach(ctx, agent.ShellOptions{Resume: secret}); err == nil {
			err = then(again)
			again.Close()
		}
	}
	last, attachErr := w.Client.Attach(ctx, agent.ShellOptions{Session: name, NoNew: true})
	if attachErr != nil {
		return errors.Join(err, attachErr)
	}
	defer last.Close()
	return errors.Join(err, last.End(ctx))
}

func cutRun(ctx context.Context, w conformance.World) error {
	call := agent.Call{Command: "echo be''gun; sleep 1; echo once >>/tmp/conformance-once; wc -l " +
		"</tmp/conformance-once; rm /tmp/conformance-once; (exit 6)", Op: agent.NewOp()}
	return cut(ctx, w, func(sh *agent.Shell) error {
		go func() { _, _ = sh.Do(ctx, call) }() // cut off with its connection
		_, err := sh.Expect(ctx, agent.Text("begun\r\n"))
		return err
	}, func(sh *agent.Shell) error {
		res, err := sh.Do(ctx, call)
		if err != nil {
			return err
		}
		if err := ended(res, 6); err != nil {
			return err
		}
		if res.Output != "begun\n1\n" {
			return fmt.Errorf("the command printed %q: it ran twice, or not at all", res.Output)
		}
		return nil
	})
}

func cutWaiting(ctx context.Context, w conformance.World) error {
	return cut(ctx, w, func(sh *agent.Shell) error {
		res, err := sh.Run(ctx, `read -p 'who? ' x; echo "hello $x"; (exit 2)`)
		if err == nil && res.Ended != agent.EndedWaiting &&
			(w.Tier != conformance.NoProcess || res.Ended != agent.EndedAttention) {
			err = fmt.Errorf("the question ended %s", res.Ended)
		}
		return err
	}, func(sh *agent.Shell) error {
		res, err := sh.Wait(ctx, agent.PhaseWaiting)
		if err != nil {
			return err
		}
		if res.Phase != agent.PhaseWaiting &&
			(w.Tier != conformance.NoProcess || res.Phase != agent.PhaseOpaque) ||
			!strings.Contains(res.Prompt, "who? ") {
			return fmt.Errorf("the question is %s at %q", res.Phase, res.Prompt)
		}
		if res, err = sh.Type(ctx, "Ada"); err != nil {
			return err
		}
		if !strings.Contains(res.Output, "hello Ada") {
			return fmt.Errorf("the answer got %q", res.Output)
		}
		return ended(res, 2)
	})
}

func resumeOffset(ctx context.Context, w conformance.World) error {
	if w.Dial == nil {
		return errors.New("there is no second connection to be had")
	}
	c, err := w.Dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	sh, err := w.Attach(ctx, c)
	if err != nil {
		return err
	}
	res, err := sh.Run(ctx, "echo first; echo second; echo third")
	name := sh.Session()
	sh.Close()
	c.Close()
	if err != nil {
		return err
	}
	again, err := w.Client.Attach(ctx, agent.ShellOptions{Session: name, NoNew: true,
		From: agent.At(res.From + uint64(len("first\r\n")))})
	if err != nil {
		return err
	}
	defer again.Close()
	m, err := again.Expect(ctx, agent.Text("third"))
	if err == nil && m.Text != "second\r\nthird" {
		err = fmt.Errorf("from the offset of the second line came %q", m.Text)
	}
	return errors.Join(err, again.End(ctx))
}
