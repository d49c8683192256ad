package agent_test

import (
	"context"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	gatewayattach "github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/sandbox/pty"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// person joins the main session of the test's sandbox, next to its agent.
func person(t testing.TB) *gatewayattach.Attachment {
	t.Helper()
	a, err := world.hub.Sessions.Join(
		bounded(t),
		alice,
		wire.Target{Sandbox: sandboxName(t), Session: "main"},
		gatewayattach.JoinOptions{Create: true, Cols: 80, Rows: 24},
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

// A person takes the keyboard during a run: the call returns, the program continues, and the agent
// cannot type until the person gives the keyboard back.
func TestPersonTakesAndGives(t *testing.T) {
	sh := shell(t)
	p := person(t)
	ran := make(chan agent.Result, 1)
	go func() {
		res, _ := sh.Run(
			bounded(t),
			`sh -c 'echo begun; while [ ! -e go ]; do sleep 0.05; done; exit 3'`,
		)
		ran <- res
	}()
	if _, err := sh.Expect(bounded(t), agent.Text("begun\r\n")); err != nil {
		t.Fatal(err)
	}
	if err := p.Take(bounded(t)); err != nil {
		t.Fatal(err)
	}
	res := <-ran
	if res.TakenOver == nil || res.TakenOver.By != "person:alice" ||
		res.TakenOver.Offset < res.From {
		t.Fatalf("who took it, and where: %+v", res.TakenOver)
	}
	if res.Ended != agent.EndedTakenOver || res.Phase != agent.PhaseRunning ||
		res.Keyboard != "person:alice" ||
		res.Output != "begun\n" ||
		res.ExitCode != nil {
		t.Errorf("%s, keyboard %s", describe(res), res.Keyboard)
	}
	for name, call := range map[string]agent.Call{"text": {Text: "x"},
		"keys": {Keys: []string{"Enter"}}} {
		if res, err := sh.Do(bounded(t), call); err != nil || res.Ended != agent.EndedRefused ||
			res.Error.Code != "keyboard_held" ||
			!strings.Contains(res.Error.Message, "person:alice") {
			t.Errorf("%s: %s, %v; want keyboard_held by alice", name, describe(res), err)
		}
	}
	if res, err := sh.Interrupt(bounded(t)); err != nil || res.Ended != agent.EndedRefused ||
		res.Error.Code != "keyboard_held" {
		t.Errorf("interrupt: %s, %v", describe(res), err)
	}
	if err := sh.Take(bounded(t)); !isCode(err, "keyboard_held") {
		t.Errorf("take: %v", err)
	}
	// With a timeout, Hold returns who holds the keyboard.
	if res, err := sh.Do(bounded(t), agent.Call{Text: "x", Hold: true,
		Timeout: 50 * time.Millisecond}); err != nil ||
		res.Ended != agent.EndedRefused ||
		res.Error.Code != "keyboard_held" {
		t.Errorf("hold: %s, %v", describe(res), err)
	}

	if err := p.Input(bounded(t), []byte("from the person")); err != nil {
		t.Errorf("the person's input: %v", err)
	}
	if err := p.Input(bounded(t), []byte{0x15}); err != nil { // delete the line again (^U)
		t.Errorf("the person's input: %v", err)
	}
	held, free := make(chan agent.Result, 1), make(chan error, 1)
	var meanwhile agent.Result
	go func() {
		res, err := sh.WaitKeyboard(bounded(t))
		meanwhile = res
		free <- err
	}()
	go func() {
		res, err := sh.Do(
			bounded(t),
			agent.Call{Text: "touch", Hold: true, Timeout: patience, Raw: true},
		)
		if err != nil {
			t.Errorf("hold: %v", err)
		}
		held <- res
	}()
	select {
	case err := <-free:
		t.Fatalf("the keyboard is not free: %v", err)
	case res := <-held:
		t.Fatalf("the keyboard is not free: %s", describe(res))
	case <-time.After(100 * time.Millisecond): // to see that nothing happens
	}
	if err := p.Give(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if err := <-free; err != nil {
		t.Errorf("wait for the keyboard: %v", err)
	}
	if h := meanwhile.TakenOver; meanwhile.Ended != agent.EndedReturned || h == nil ||
		h.By != "person:alice" ||
		h.Offset != res.TakenOver.Offset ||
		h.Until != meanwhile.To ||
		meanwhile.From >= meanwhile.To {
		t.Errorf("what the person did: %s, %+v, %q", meanwhile.Ended, h, meanwhile.Output)
	}
	c := dial(t)
	if exit, err := c.Exec(bounded(t), agent.Cmd{Command: "touch go"}); err != nil ||
		exit.Code != 0 {
		t.Fatalf("%+v, %v", exit, err)
	}
	if res = <-held; res.Ended != agent.EndedDone || *res.ExitCode != 3 {
		t.Errorf("after the person: %s", describe(res))
	}
}

// An agent cannot type at the prompt while a person holds the keyboard, and Run with Hold waits.
func TestRunHolds(t *testing.T) {
	sh := shell(t)
	p := person(t)
	if err := p.Take(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if res, err := sh.Run(bounded(t), "true"); err != nil || res.Ended != agent.EndedRefused ||
		res.Error.Code != "keyboard_held" {
		t.Errorf("%s, %v", describe(res), err)
	}
	ran := make(chan agent.Result, 1)
	go func() {
		res, err := sh.Do(bounded(t), agent.Call{Command: "echo after", Hold: true})
		if err != nil {
			t.Error(err)
		}
		ran <- res
	}()
	if err := p.Input(bounded(t), []byte("echo person\r")); err != nil {
		t.Fatal(err)
	}
	if _, err := sh.Expect(bounded(t), agent.Text("\rperson\r\n")); err != nil {
		t.Fatal(err)
	}
	select {
	case res := <-ran:
		t.Fatalf("ran beside a person: %s", describe(res))
	default:
	}
	if res, err := sh.Wait(bounded(t), agent.PhasePrompt); err != nil ||
		res.Ended != agent.EndedDone {
		t.Fatalf("%s, %v", describe(res), err)
	}
	p.Close() // leaving gives it back
	if res := <-ran; res.Ended != agent.EndedDone || res.Output != "after\n" {
		t.Errorf("%s", describe(res))
	}
}

// An agent's Take keeps the keyboard between calls, from another principal's agents too; a person
// may take it.
func TestTake(t *testing.T) {
	t.Parallel()
	sh := shell(t)
	if err := sh.Take(bounded(t)); err != nil {
		t.Fatal(err)
	}
	res, err := sh.Run(bounded(t), "true")
	done(t, res, err, 0)
	if res.Keyboard != "agent:alice" {
		t.Errorf("keyboard %q after a run", res.Keyboard)
	}
	if err := sh.Resize(bounded(t), 100, 30); err != nil {
		t.Fatal(err)
	}
	res, err = sh.Run(bounded(t), "stty size")
	if got := done(t, res, err, 0); got != "30 100\n" {
		t.Errorf("size %q", got)
	}
	if err := sh.Give(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if err := sh.Give(bounded(t)); err != nil {
		t.Errorf("a second give: %v", err)
	}
	if err := sh.Take(bounded(t)); err != nil {
		t.Fatal(err)
	}
	p := person(t)
	if err := p.Input(bounded(t), []byte("x")); !isCode(err, "keyboard_held") {
		t.Errorf("a person types beside an agent that has taken the keyboard: %v", err)
	}
	sh.Close() // gives it back
	<-time.After(
		1500 * time.Millisecond,
	) // keys right after a rejected key count as the rest of the same line
	if err := p.Input(bounded(t), []byte("x")); err != nil {
		t.Errorf("a person types when the agent has gone: %v", err)
	}
}

// A person at a terminal of OpenSSH takes the keyboard by the prefix key, types, and gives it back.
func TestPersonBySSH(t *testing.T) {
	ssh, err := exec.LookPath("ssh")
	if err != nil {
		t.Fatalf("%v; scripts/setup test installs it", err)
	}
	sh := shell(t)
	host, port, _ := strings.Cut(world.addr, ":")
	ctx := bounded(t)
	cmd := exec.CommandContext(
		ctx,
		ssh,
		"-F",
		"none",
		"-tt",
		"-p",
		port,
		"-i",
		world.key("alice"),
		"-o",
		"IdentitiesOnly=yes",
		"-o",
		"IdentityAgent=none",
		"-o",
		"UserKnownHostsFile="+world.file("known_hosts"),
		"-o",
		"StrictHostKeyChecking=yes",
		"-o",
		"LogLevel=ERROR",
		sandboxName(t)+"@"+host,
	)
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: 80, Rows: 24})
	if err != nil {
		t.Fatal(err)
	}
	screen := &watcher{changed: make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(screen, terminal) })
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // says that
		wg.Wait()
		terminal.Close()
	}()

	ran := make(chan agent.Result, 1)
	go func() {
		res, _ := sh.Run(ctx, `sh -c 'echo begun; read x; echo "got=$x"; read y; echo "and=$y"'`)
		ran <- res
	}()
	screen.wait(ctx, t, "begun")
	first := <-ran
	if first.Ended != agent.EndedWaiting {
		t.Fatalf("%s", describe(first))
	}
	ran2 := make(chan agent.Result, 1)
	waiting := make(chan struct{})
	go func() {
		close(waiting)
		res, err := sh.Wait(ctx, agent.PhasePrompt)
		if err != nil {
			t.Error(err)
		}
		ran2 <- res
	}()
	<-waiting
	if _, err := terminal.Write([]byte("\x1dt")); err != nil { // C-] t
		t.Fatal(err)
	}
	eventually(ctx, t, "the person has the keyboard", func() bool {
		res, err := sh.Do(ctx, agent.Call{Keys: []string{"^U"}})
		return err == nil && res.Ended == agent.EndedRefused && res.Error.Code == "keyboard_held"
	})
	if _, err := terminal.Write([]byte("hand\r")); err != nil {
		t.Fatal(err)
	}
	screen.wait(ctx, t, "got=hand")
	if _, err := terminal.Write([]byte("\x1dg")); err != nil { // C-] g
		t.Fatal(err)
	}
	back, err := sh.WaitKeyboard(ctx)
	if err != nil || back.TakenOver == nil || !strings.Contains(back.Output, "hand") {
		t.Fatalf("what the person did: %+v, %q, %v", back.TakenOver, back.Output, err)
	}
	res, err := sh.Type(ctx, "program")
	if got := done(t, res, err, 0); !strings.HasSuffix(got, "and=program\n") {
		t.Errorf("output %q", got)
	}
	if res := <-ran2; res.Ended != agent.EndedDone {
		t.Errorf("wait: %s", describe(res))
	}
	screen.wait(ctx, t, "and=program")
}

// watcher collects what a terminal shows.
type watcher struct {
	mu      sync.Mutex
	text    strings.Builder // guarded by mu
	changed chan struct{}   // guarded by mu; closed and replaced
}

func (w *watcher) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.changed)
	w.changed = make(chan struct{})
	return w.text.Write(p)
}

func (w *watcher) wait(ctx context.Context, t testing.TB, text string) {
	t.Helper()
	for {
		w.mu.Lock()
		there, changed := strings.Contains(w.text.String(), text), w.changed
		w.mu.Unlock()
		if there {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("the terminal never shows %q: %q", text, w.text.String())
		}
	}
}

// eventually polls cond, for conditions without an event.
func eventually(ctx context.Context, t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		}
	}
}
