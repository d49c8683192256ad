package gateway_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// faults are ways in which a sandbox ends while a call is under way, and the notes that its caller
// may get.
var faults = []struct {
	name  string
	cause func(*world, *daemon, lifecycle.Info) error
	notes []string
	stays bool // the sandbox is there afterwards
}{
	{"stopped", func(w *world, d *daemon, _ lifecycle.Info) error {
		return d.Stop(w.Ctx(), alice, "demo")
	}, []string{wire.LostStopped}, true},
	{"removed", func(w *world, d *daemon, _ lifecycle.Info) error {
		return d.Discard(w.Ctx(), alice, "demo")
	}, []string{wire.LostRemoved}, false},
	{"killed", func(w *world, _ *daemon, i lifecycle.Info) error {
		return w.Memory.Kill(w.Ctx(), instanceOf(i))
	}, []string{wire.LostStopped, wire.LostKilled}, true},
	{"killed and started", func(w *world, _ *daemon, i lifecycle.Info) error {
		if err := w.Memory.Kill(w.Ctx(), instanceOf(i)); err != nil {
			return err
		}
		_, err := w.Memory.Start(w.Ctx(), instanceOf(i))
		return err
	}, []string{wire.LostStopped, wire.LostGuest}, true},
	{"removed from outside", func(w *world, _ *daemon, i lifecycle.Info) error {
		return w.Memory.Destroy(w.Ctx(), instanceOf(i))
	}, []string{wire.LostRemoved}, false},
}

// wantLost fails the test unless the call was lost for one of the reasons.
func wantLost(t *testing.T, reply wire.Reply, err error, reasons []string) {
	t.Helper()
	r := reply.Result
	if r == nil || r.Ended != wire.Lost || r.ExitCode != nil || r.Error == nil ||
		r.Error.Code != wire.CodeLost {
		t.Fatalf("result %+v, error %v, want it lost", r, err)
	}
	if !slices.Contains(reasons, r.Error.Reason) || !slices.Contains(r.Notes, r.Error.Reason) {
		t.Errorf("reason %q, notes %v, want one of %v", r.Error.Reason, r.Notes, reasons)
	}
	if r.ExitStatus() != wire.ExitFailed {
		t.Errorf("exit status %d", r.ExitStatus())
	}
}

// A command that is under way when its sandbox ends is not run again, and its caller gets what it
// had printed. Starting the sandbox again is for the next call.
func TestRunReturnsLostWhenSandboxEnds(t *testing.T) {
	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			w := newWorld(t, sandboxtest.Options{})
			d := w.Start()
			info := w.Create(d, "demo")
			ran := filepath.Join(t.TempDir(), "ran")
			a := w.Shared(d)
			answered := make(chan struct{})
			var reply wire.Reply
			var failed error
			go func() {
				defer close(answered)
				reply, failed = a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun,
					Text: "echo ran >>" + ran + "; echo be''gun; sleep 1000"})
			}()
			w.Shows(a.Live(), 0, "begun\r\n")
			if err := fault.cause(w, d, info); err != nil {
				t.Fatal(err)
			}
			<-answered
			wantLost(t, reply, failed, fault.notes)
			if reply.Result.Output != "begun\n" {
				t.Errorf("output %q", reply.Result.Output)
			}
			if fault.stays {
				if res := w.Run(d, "echo again"); res.Ended != wire.Done ||
					res.Output != "again\n" {
					t.Errorf("the next call: %+v", res)
				}
			}
			wantLines(t, ran, 1)
		})
	}
}

// What was typed to a program is not typed to the shell that comes after it.
func TestTypeReturnsLostWhenSandboxEnds(t *testing.T) {
	t.Parallel()
	for _, fault := range faults {
		for _, verb := range []wire.Verb{wire.VerbType, wire.VerbKeys} {
			t.Run(fault.name+"/"+string(verb), func(t *testing.T) {
				w := newWorld(t, sandboxtest.Options{})
				d := w.Start()
				info := w.Create(d, "demo")
				ran := filepath.Join(t.TempDir(), "ran")
				a := w.Shared(d)
				asks, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun,
					Text: "bash -c 'read -s x; echo re\"\"ad; exec sleep 1000'"})
				if err != nil || asks.Result.Ended != wire.Waiting {
					t.Fatalf("%+v, %v", asks.Result, err)
				}
				r := wire.Request{Verb: verb, Text: "echo ran >>" + ran}
				if verb == wire.VerbKeys {
					r = wire.Request{Verb: verb, Keys: append(strings.Split("echo ran >>"+ran, ""),
						"Enter")}
				}
				answered := make(chan struct{})
				var reply wire.Reply
				var failed error
				go func() {
					defer close(answered)
					reply, failed = a.Request(w.Ctx(), r)
				}()
				w.Shows(a.Live(), 0, "read\r\n")
				if err := fault.cause(w, d, info); err != nil {
					t.Fatal(err)
				}
				<-answered
				wantLost(t, reply, failed, fault.notes)
				if fault.stays {
					if res := w.Run(d, "echo again"); res.Ended != wire.Done ||
						res.Output != "again\n" {
						t.Errorf("the next call: %+v", res)
					}
				}
				wantLines(t, ran, 0)
			})
		}
	}
}

// An agent's own stream answers what is under way, too, when its sandbox ends, and the party does
// not start it again.
func TestStreamReturnsLostWhenSandboxEnds(t *testing.T) {
	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			w := newWorld(t, sandboxtest.Options{})
			d := w.Start()
			info := w.Create(d, "demo")
			ran := filepath.Join(t.TempDir(), "ran")
			c, served, err := w.dial(d, robot, wire.Attach{Session: "main", Create: true},
				wire.Handler{})
			if err != nil {
				t.Fatal(err)
			}
			live := d.Registry().Find("demo").Sessions().Get("main")
			request := wire.Request{Verb: wire.VerbRun, Op: wire.NewOp(), Text: "echo ran >>" +
				ran + "; echo be''gun; sleep 1000"}
			answered := make(chan struct{})
			var reply wire.Reply
			var failed error
			go func() {
				defer close(answered)
				reply, failed = c.Request(w.Ctx(), request)
			}()
			w.Shows(live, 0, "begun\r\n")
			if err := fault.cause(w, d, info); err != nil {
				t.Fatal(err)
			}
			<-answered
			reasons := fault.notes
			// It answers again: the caller learns it from the reply.
			if fault.name == "killed and started" && reply.Result == nil {
				wantCode(t, failed, wire.CodeLost)
			} else {
				wantLost(t, reply, failed, reasons)
			}
			<-served
			_, _, err = w.dial(d, robot, wire.Attach{Session: "main", Resume: c.Attached().Resume},
				wire.Handler{})
			if lost := (*wire.Error)(nil); !errors.As(err, &lost) || lost.Code != wire.CodeLost &&
				lost.Code != wire.CodeNotFound {
				t.Errorf("resume: %v", err)
			}
			if fault.name == "stopped" {
				if state := w.State(d, "demo"); state != lifecycle.Stopped {
					t.Errorf("the sandbox is %s after an attempt to resume", state)
				}
			}
			wantLines(t, ran, 1)
		})
	}
}

// An op is for one call: with another text it is an error, also from another connection of its
// principal.
func TestOpOfAnotherCall(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	a := w.Shared(d)
	op := wire.NewOp()
	first, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun, Op: op, Text: "echo one"})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []wire.Request{
		{Verb: wire.VerbRun, Op: op, Text: "echo two"},
		{Verb: wire.VerbType, Op: op, Text: "echo one"},
		{Verb: wire.VerbKeys, Op: op, Keys: []string{"x"}},
	} {
		_, err := a.Request(w.Ctx(), r)
		wantCode(t, err, wire.CodeUsage)
	}
	_, err = a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun, Op: strings.Repeat("ab", 32<<10),
		Text: "true"})
	wantCode(t, err, wire.CodeUsage)
	again, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun, Op: op, Text: "echo one"})
	if err != nil || again.Result.From != first.Result.From {
		t.Errorf("the same call again: %+v, %v", again.Result, err)
	}
	// Far more calls later its result is forgotten, and that it was made is not.
	for i := range 70 {
		if _, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbKeys, Keys: []string{"^L"},
			TimeoutMS: 1}); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	late, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun, Op: op, Text: "echo one"})
	wantLost(t, late, err, []string{wire.LostForgotten})
}

// A call that is repeated to the shell after the one that it was for is lost.
func TestCallForAnotherShell(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	c, _, err := w.dial(d, robot, wire.Attach{Session: "main", Create: true}, wire.Handler{})
	if err != nil {
		t.Fatal(err)
	}
	was := c.Attached().Incarnation
	if reply, err := c.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun, Op: wire.NewOp(),
		Text: "exit 3"}); err != nil || reply.Result.Ended != wire.Dead {
		t.Fatalf("%+v, %v", reply.Result, err)
	}
	if reply, err := c.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun, Op: wire.NewOp(),
		Text: "true"}); err != nil || reply.Result.Ended != wire.Done {
		t.Fatalf("%+v, %v", reply.Result, err)
	}
	next, _, err := w.dial(d, robot, wire.Attach{Session: "main"}, wire.Handler{})
	if err != nil {
		t.Fatal(err)
	}
	if is := next.Attached().Incarnation; was == "" || is == was {
		t.Errorf("incarnation %q after %q", is, was)
	}
	_, err = next.Request(w.Ctx(), wire.Request{Verb: wire.VerbType, Op: wire.NewOp(),
		Incarnation: was, Text: "secret"})
	if lost := (*wire.Error)(nil); !errors.As(err, &lost) || lost.Reason != wire.LostShell {
		t.Errorf("typed for a shell that has ended: %v", err)
	}
}

// wantLines fails the test unless a file has that many lines.
func wantLines(t *testing.T, file string, want int) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if got := strings.Count(string(text), "\n"); got != want {
		t.Errorf("it ran %d times, want %d", got, want)
	}
}
