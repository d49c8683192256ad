package agent_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
)

// proxied is a client of the test's sandbox behind a network that can be cut.
func proxied(t testing.TB) (*agent.Client, *proxy) {
	t.Helper()
	p := newProxy(t, world.addr)
	o := world.options()
	o.KnownHosts = []string{knownAs(t, p.listener.Addr().String())}
	return dialAt(t, p.listener.Addr().String(), sandboxName(t), o), p
}

const onceCommand = `echo once >>count; sh -c 'echo begun; while [ ! -e go ]; do sleep 0.02; done'; printf 'over\n%s\n' "$(wc -l <count)"; (exit 5)`

// The connection breaks during Run: the library resumes the attachment and returns the one result.
func TestReconnectDuringRun(t *testing.T) {
	c, network := proxied(t)
	sh := attach(t, c, agent.ShellOptions{})
	other := dial(t)
	var stdout strings.Builder
	ran := make(chan agent.Result, 1)
	go func() {
		res, err := sh.Do(bounded(t), agent.Call{Command: onceCommand, Stdout: &stdout})
		if err != nil {
			t.Error(err)
		}
		ran <- res
	}()
	if _, err := sh.Expect(bounded(t), agent.Text("begun\r\n")); err != nil {
		t.Fatal(err)
	}
	secret := sh.Resume()
	for range 3 {
		before := network.connections()
		network.cut()
		eventually(
			bounded(t),
			t,
			"the agent comes back",
			func() bool { return network.connections() > before },
		)
	}
	network.cut()
	if exit, err := other.Exec(bounded(t), agent.Cmd{Command: "touch go"}); err != nil ||
		exit.Code != 0 {
		t.Fatalf("%+v, %v", exit, err)
	}
	res := <-ran
	if out := done(t, res, nil, 5); out != "begun\nover\n1\n" {
		t.Errorf("output %q", out)
	}
	if got := stdout.String(); got != "begun\r\nover\r\n1\r\n" {
		t.Errorf("Stdout got %q", got)
	}
	if sh.Resume() != secret {
		t.Error("the shell is another party")
	}
	res, err := sh.Run(bounded(t), "echo on; wc -l <count")
	if got := done(t, res, err, 0); got != "on\n1\n" {
		t.Errorf("the next prints %q", got)
	}
}

// The agent is killed in the middle of Run. Another one resumes with its secret and repeats the
// call: it gets the result, and nothing is typed twice.
func TestResume(t *testing.T) {
	first, network := proxied(t)
	sh := attach(t, first, agent.ShellOptions{})
	op := agent.NewOp()
	broken := make(chan error, 1)
	go func() {
		_, err := sh.Do(bounded(t), agent.Call{Command: onceCommand, Op: op})
		broken <- err
	}()
	if _, err := sh.Expect(bounded(t), agent.Text("begun\r\n")); err != nil {
		t.Fatal(err)
	}
	secret := sh.Resume()
	network.setDown(true)
	network.cut()
	first.Close()
	if err := <-broken; err == nil {
		t.Error("a call of a closed client succeeds")
	}

	second := dial(t)
	// The secret of another principal does not work.
	if _, err := second.Attach(bounded(t), agent.ShellOptions{Resume: strings.Repeat("0",
		len(secret))}); !isCode(
		err,
		"not_found",
	) {
		t.Errorf("resume with another secret: %v", err)
	}
	again := attach(t, second, agent.ShellOptions{Resume: secret, From: agent.At(0)})
	if again.Session() != "main" || again.Resume() != secret {
		t.Errorf("session %s", again.Session())
	}
	answers := make(chan agent.Result, 3)
	for range 3 { // asked three times over
		go func() {
			res, err := again.Do(bounded(t), agent.Call{Command: onceCommand, Op: op})
			if err != nil {
				t.Error(err)
			}
			answers <- res
		}()
	}
	if exit, err := second.Exec(bounded(t), agent.Cmd{Command: "touch go"}); err != nil ||
		exit.Code != 0 {
		t.Fatalf("%+v, %v", exit, err)
	}
	for range 3 {
		if out := done(t, <-answers, nil, 5); out != "begun\nover\n1\n" {
			t.Errorf("output %q", out)
		}
	}
	// The result of an old call is still stored.
	res, err := again.Do(bounded(t), agent.Call{Command: onceCommand, Op: op})
	if out := done(t, res, err, 5); out != "begun\nover\n1\n" {
		t.Errorf("output %q", out)
	}
	if m, err := again.Expect(bounded(t), agent.Text("over\r\n1\r\n")); err != nil ||
		strings.Count(m.Text, "begun\r\n") != 1 {
		t.Errorf("the log has %q, %v", m.Text, err)
	}
}

// Text is typed once, wherever the connection breaks.
func TestReconnectTyping(t *testing.T) {
	c, network := proxied(t)
	sh := attach(t, c, agent.ShellOptions{})
	res, err := sh.Run(bounded(t), "cat >typed")
	waits(t, res, err, "")
	stop := make(chan struct{})
	var typed atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		// At no particular moment. On a machine on which coming back takes longer than the time
		// between two cuts, that time grows until something gets through, and shrinks again then.
		slower, before := 1, int64(0)
		for pause := 2 * time.Millisecond; ; pause += 3 * time.Millisecond {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(slower) * (pause % (40 * time.Millisecond))):
				network.cut()
			}
			if now := typed.Load(); now > before {
				slower, before = max(slower/2, 1), now
			} else {
				slower *= 2
			}
		}
	})
	var want strings.Builder
	for i := 0; i < 60 || network.connections() < 5; i++ {
		fmt.Fprintf(&want, "line %d\n", i)
		res, err := sh.Type(bounded(t), fmt.Sprintf("line %d", i))
		if err != nil || res.Ended != agent.EndedWaiting {
			t.Fatalf("line %d: %s, %v", i, describe(res), err)
		}
		typed.Add(1)
	}
	close(stop)
	wg.Wait()
	res, err = sh.Keys(bounded(t), "^D")
	done(t, res, err, 0)
	res, err = sh.Run(bounded(t), "cat typed")
	if got := done(t, res, err, 0); got != want.String() {
		t.Errorf("typed %q", got)
	}
}

// Expect and WaitKeyboard survive a broken connection.
func TestExpectReconnects(t *testing.T) {
	t.Parallel()
	c, network := proxied(t)
	sh := attach(t, c, agent.ShellOptions{})
	// the time of the call is not for the shell to start
	if _, err := sh.Wait(bounded(t), agent.PhasePrompt); err != nil {
		t.Fatal(err)
	}
	res, err := sh.Do(
		bounded(t),
		agent.Call{
			Command: `sh -c 'echo begun; while [ ! -e go ]; do sleep 0.02; done; echo found'`,
			Timeout: 3 * time.Second,
		},
	)
	if err != nil || res.Ended != agent.EndedDeadline {
		t.Fatalf("%s, %v", describe(res), err)
	}
	p := person(t)
	if err := p.Take(bounded(t)); err != nil {
		t.Fatal(err)
	}
	found, free := make(chan error, 1), make(chan error, 1)
	go func() {
		m, err := sh.Expect(bounded(t), agent.Text("found\r\n"))
		if err == nil && m.Missed > 0 {
			err = fmt.Errorf("%d bytes missed", m.Missed)
		}
		found <- err
	}()
	go func() {
		_, err := sh.WaitKeyboard(bounded(t))
		free <- err
	}()
	network.cut()
	if exit, err := dial(t).Exec(bounded(t), agent.Cmd{Command: "touch go"}); err != nil ||
		exit.Code != 0 {
		t.Fatalf("%+v, %v", exit, err)
	}
	if err := <-found; err != nil {
		t.Errorf("expect: %v", err)
	}
	network.cut()
	if err := p.Give(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if err := <-free; err != nil {
		t.Errorf("wait for the keyboard: %v", err)
	}
}

// A permanently broken connection is an error, within ctx.
func TestOutOfReach(t *testing.T) {
	c, network := proxied(t)
	sh := attach(t, c, agent.ShellOptions{})
	network.setDown(true)
	network.cut()
	ctx, cancel := context.WithTimeout(bounded(t), 300*time.Millisecond)
	defer cancel()
	if res, err := sh.Run(ctx, "echo not this"); err == nil {
		t.Errorf("%s without a network", describe(res))
	}
	network.setDown(false)
	res, err := sh.Run(bounded(t), "echo again")
	if got := done(t, res, err, 0); got != "again\n" {
		t.Errorf("output %q", got)
	}
}

// Close ends running calls and rejects later ones.
func TestClose(t *testing.T) {
	c := dial(t)
	sh := attach(t, c, agent.ShellOptions{})
	errs := make(chan error, 3)
	go func() { _, err := sh.Run(bounded(t), "sleep 31"); errs <- err }()
	go func() { _, err := sh.Expect(bounded(t), agent.Text("never")); errs <- err }()
	if _, err := sh.Expect(bounded(t), agent.Text("sleep 31\r\n")); err != nil {
		t.Fatal(err)
	}
	if err := sh.Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-errs; err == nil {
			t.Error("a call on a closed shell succeeds")
		}
	}
	if _, err := sh.Run(bounded(t), "true"); err == nil ||
		!strings.Contains(err.Error(), "closed") {
		t.Errorf("run on a closed shell: %v", err)
	}
	if err := sh.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	// The command continues.
	again := attach(t, c, agent.ShellOptions{})
	if st := again.State(); st.Phase != agent.PhaseRunning {
		t.Errorf("state %+v", st)
	}
	if res, err := again.Interrupt(bounded(t)); err != nil || res.Ended != agent.EndedInterrupted {
		t.Errorf("%s, %v", describe(res), err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := again.Run(bounded(t), "true"); err == nil {
		t.Error("a shell of a closed client runs")
	}
	if _, err := c.Shell(bounded(t), ""); err == nil {
		t.Error("a closed client attaches")
	}
	if _, err := c.Exec(bounded(t), agent.Cmd{Command: "true"}); err == nil {
		t.Error("a closed client executes")
	}
}

// In the gateway's own process there is no SSH between an agent and the hub.
func TestNewClient(t *testing.T) {
	name := sandboxName(t)
	if _, err := world.hub.Create(bounded(t), alice, lifecycle.NewSpec{Name: name},
		nil); err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	defer served.Wait()
	c := agent.NewClient(name, func(context.Context) (io.ReadWriteCloser, error) {
		near, far, err := sandboxtest.Pipe()
		if err != nil {
			return nil, err
		}
		served.Go(
			func() { _ = world.hub.Sessions.Stream(context.Background(), alice, name, far) },
		) // ends with near
		return near, nil
	}, nil)
	defer c.Close()
	sh, err := c.Shell(bounded(t), "")
	if err != nil {
		t.Fatal(err)
	}
	defer sh.Close()
	res, err := sh.Run(bounded(t), "echo inside; (exit 2)")
	if got := done(t, res, err, 2); got != "inside\n" {
		t.Errorf("output %q", got)
	}
	if _, err := c.Exec(bounded(t), agent.Cmd{Command: "true"}); !isCode(err, "unavailable") {
		t.Errorf("exec: %v", err)
	}
	if _, err := c.Files(bounded(t)); !isCode(err, "unavailable") {
		t.Errorf("files: %v", err)
	}
}
