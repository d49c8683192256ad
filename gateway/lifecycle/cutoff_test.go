package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// unsteady is a backend whose sandboxes answer, but not always at the first try.
type unsteady struct {
	*sandboxtest.Backend
	fails atomic.Int64 // how many of the next connections break at once
}

func (u *unsteady) Dial(ctx context.Context, inst sandbox.Instance) (sandbox.Peer, error) {
	peer, err := u.Backend.Dial(ctx, inst)
	if err == nil && u.fails.Add(-1) >= 0 {
		peer.Conn.Close()
	}
	return peer, err
}

// A connection to the sandbox that breaks may take more than one try to come again. Who was
// attached is the same party then, holds the keyboard still, and what it asked for is done once.
func TestCutOffWhileTheSandboxIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sandboxtest.Options{})
	u := &unsteady{Backend: w.Memory}
	w.Backend = u
	d := w.Start()
	w.Create(d, "demo")
	person := w.Join(d, alice, main, attach.JoinOptions{Create: true, Cols: 80, Rows: 24})
	if err := person.Input(w.Ctx(),
		[]byte("stty -echo; echo be''gun; cat >typed; stty echo; echo e''nd\r")); err != nil {
		t.Fatal(err)
	}
	w.Shows(person.Live(), 0, "begun\r\n")
	other := wire.Target{Sandbox: "demo", Session: "other"}
	agent, err := d.Sessions.Shared(w.Ctx(), robot, other, attach.JoinOptions{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	if reply, err := agent.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun,
		Text: "cat >read"}); err != nil || reply.Result.Ended != wire.Waiting {
		t.Fatalf("run = %+v, %v", reply.Result, err)
	}
	var want strings.Builder
	for i := range 3 {
		fmt.Fprintf(&want, "line %d\n", i)
		u.fails.Store(3)
		w.forget("demo")
		if err := person.Input(w.Ctx(), fmt.Appendf(nil, "line %d\r", i)); err != nil {
			t.Fatalf("line %d: %v", i, err)
		}
		if n := u.fails.Load(); n > 0 {
			t.Fatalf("line %d: %d connections that were to fail were not made", i, n)
		}
		reply, err := agent.Request(w.Ctx(), wire.Request{Verb: wire.VerbType,
			Text: fmt.Sprintf("line %d", i)})
		if err != nil || reply.Result.Ended != wire.Waiting {
			t.Fatalf("line %d of the agent: %+v, %v", i, reply.Result, err)
		}
	}
	if err := person.Input(w.Ctx(), []byte("\x04")); err != nil {
		t.Fatal(err)
	}
	w.Shows(person.Live(), 0, "end\r\n")
	if reply, err := agent.Request(w.Ctx(), wire.Request{Verb: wire.VerbKeys,
		Keys: []string{"^D"}}); err != nil || reply.Result.Ended != wire.Done {
		t.Fatalf("^D = %+v, %v", reply.Result, err)
	}
	for _, file := range []string{"typed", "read"} {
		reply, err := agent.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun, Text: "cat " + file})
		if err != nil || reply.Result.Output != want.String() {
			t.Errorf("%s has %q, %v; want %q", file, reply.Result.Output, err, want.String())
		}
	}
}

// A connection that breaks again while a party comes back on it costs the party nothing. The second
// break comes later and later, so that it finds every step of that.
func TestCutOffWhileComingBack(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	a := w.Join(d, alice, main, attach.JoinOptions{Create: true, Cols: 80, Rows: 24})
	if err := a.Input(w.Ctx(),
		[]byte("stty -echo; echo be''gun; cat >typed; stty echo; echo e''nd\r")); err != nil {
		t.Fatal(err)
	}
	// What comes while the line editor still has the terminal is not lines to cat.
	w.Shows(a.Live(), 0, "begun\r\n")
	began := time.Now()
	w.forget("demo")
	if err := a.Input(w.Ctx(), []byte("line 0\r")); err != nil {
		t.Fatal(err)
	}
	const steps = 40
	// What coming back took on this machine, and as much again.
	step := 2 * time.Since(began) / steps
	want := "line 0\n"
	for i := 1; i <= steps; i++ {
		w.forget("demo")
		again := time.AfterFunc(time.Duration(i)*step, func() {
			w.forget("demo")
		})
		if err := a.Input(w.Ctx(), fmt.Appendf(nil, "line %d\r", i)); err != nil {
			t.Fatalf("line %d: %v", i, err)
		}
		again.Stop()
		want += fmt.Sprintf("line %d\n", i)
	}
	if err := a.Input(w.Ctx(), []byte("\x04")); err != nil {
		t.Fatal(err)
	}
	w.Shows(a.Live(), 0, "end\r\n")
	if _, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbWait,
		For: []wire.Phase{wire.PhasePrompt}}); err != nil {
		t.Fatal(err)
	}
	reply, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun, Text: "cat typed"})
	if err != nil || reply.Result.Output != want {
		t.Errorf("typed %q, %v", reply.Result.Output, err)
	}
	if state := w.State(d, "demo"); state != lifecycle.Running {
		t.Errorf("state = %s, want running", state)
	}
}

// What is known to be wrong is said at once: nobody waits for it to pass.
func TestCutOffForGood(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	info := w.Create(d, "demo")
	a := w.Join(d, alice, main, attach.JoinOptions{Create: true, Cols: 80, Rows: 24})
	if err := a.Input(w.Ctx(), []byte("echo be''gun\r")); err != nil {
		t.Fatal(err)
	}
	w.Shows(a.Live(), 0, "begun\r\n")
	if err := w.Memory.Destroy(w.Ctx(), instanceOf(info)); err != nil {
		t.Fatal(err)
	}
	if err := a.Input(w.Ctx(), []byte("x")); !errors.Is(err, lifecycle.ErrBroken) {
		t.Errorf("input to a sandbox that is gone: %v, want ErrBroken", err)
	}
}

// Input that was on its way when the connection broke arrives, and once.
func TestInputAcrossABrokenConnection(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	a := w.Join(d, alice, main, attach.JoinOptions{Create: true, Cols: 200, Rows: 50})
	if err := a.Input(w.Ctx(),
		[]byte("stty -echo; cat >typed; stty echo; echo e''nd\r")); err != nil {
		t.Fatal(err)
	}
	want := new(strings.Builder)
	for i := range 400 {
		line := strings.Repeat(string(rune('a'+i%26)), 60) + "\n"
		want.WriteString(line)
		if i%40 == 20 {
			go w.forget("demo")
		}
		if err := a.Input(w.Ctx(), []byte(line)); err != nil {
			t.Fatalf("line %d: %v", i, err)
		}
	}
	if err := a.Input(w.Ctx(), []byte("\x04")); err != nil {
		t.Fatal(err)
	}
	w.Shows(a.Live(), 0, "end\r\n")
	if _, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbWait,
		For: []wire.Phase{wire.PhasePrompt}}); err != nil {
		t.Fatal(err)
	}
	reply, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun, Text: "cat typed",
		MaxOutput: -1})
	if err != nil {
		t.Fatal(err)
	}
	if reply.Result.Output != want.String() {
		t.Errorf("%d bytes arrived of %d: %+v", len(reply.Result.Output), want.Len(), reply.Result)
	}
}

// Control connections that break all the time lose no byte and double none.
func TestOutputIsExactAcrossBrokenConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	w.Run(d, "true")
	l, err := d.Sessions.Live(w.Ctx(), alice, main)
	if err != nil {
		t.Fatal(err)
	}
	from := l.Len()
	done := make(chan *wire.Result, 1)
	go func() {
		a, err := d.Sessions.Shared(w.Ctx(), robot, main, attach.JoinOptions{})
		if err != nil {
			t.Error(err)
		}
		reply, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun,
			Text: "for i in $(seq 1 300); do seq $i 3000 | head -100; done; echo e''nd"})
		if err != nil {
			t.Errorf("run: %v", err)
		}
		done <- reply.Result
	}()
	ctx := w.Ctx()
	var got strings.Builder
	buf := make([]byte, 4096)
	for off, broken := from, 0; !strings.Contains(got.String(), "end\r\n"); {
		n, err := l.ReadAt(ctx, off, buf)
		if err != nil {
			t.Fatalf("ReadAt(%d): %v", off, err)
		}
		got.Write(buf[:n])
		off += uint64(n)
		if want := got.Len() / 10_000; broken < want && broken < 8 {
			broken++
			w.forget("demo")
		}
	}
	if res := <-done; res == nil || res.Ended != wire.Done {
		t.Fatalf("result = %+v", res)
	}
	var want strings.Builder
	for i := 1; i <= 300; i++ {
		for n := i; n < i+100; n++ {
			fmt.Fprintf(&want, "%d\r\n", n)
		}
	}
	want.WriteString("end\r\n")
	if !strings.Contains(got.String(), want.String()) {
		t.Errorf("the output of %d bytes is not in the %d that were read", want.Len(), got.Len())
	}
	if text, _ := w.Recorded(d, main); !strings.Contains(text, want.String()) {
		t.Error("the output is not in the record")
	}
}
