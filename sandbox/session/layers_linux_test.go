package session_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/session"
	"github.com/sandboxd/sandboxd/sandbox/session/proc"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// without starts a session whose states do not use some layers.
func without(t *testing.T, set *session.Set, layers ...wire.Basis) *wire.Client {
	t.Helper()
	return dial(
		t,
		set,
		wire.Attach{
			Session: "new",
			Fresh:   true,
			Party:   agentParty("alice"),
			Start:   &wire.Start{Without: layers},
		},
		wire.Handler{},
	)
}

// TestWithout disables layers: the state of the others is reported, and only they are in the basis.
func TestWithout(t *testing.T) {
	t.Parallel()
	set := newSet(t, "/bin/bash")
	t.Run("process", func(t *testing.T) {
		c := without(t, set, wire.BasisProcess)
		res := do(t, c, wire.Request{Verb: wire.VerbRun, Text: "echo hi; (exit 3)"})
		if res.Ended != wire.Done || res.ExitCode == nil || *res.ExitCode != 3 ||
			res.Output != "hi\n" ||
			!slices.Equal(res.Basis, []wire.Basis{wire.BasisMark}) {
			t.Errorf("got %+v, want a prompt by its mark alone", res)
		}
	})
	t.Run("mark", func(t *testing.T) {
		c := without(t, set, wire.BasisMark)
		res := do(t, c, wire.Request{Verb: wire.VerbWait})
		if res.Ended != wire.Waiting || res.Want != wire.WantRaw ||
			!slices.Equal(res.Basis, []wire.Basis{wire.BasisProcess}) {
			t.Errorf("got %+v, want a shell that waits, by process facts alone", res)
		}
		res = do(t, c, wire.Request{Verb: wire.VerbType, Text: "read x"})
		if res.Ended != wire.Waiting || res.Want != wire.WantLine ||
			!slices.Equal(res.Basis, []wire.Basis{wire.BasisProcess}) {
			t.Errorf("got %+v, want a question", res)
		}
		res = do(t, c, wire.Request{Verb: wire.VerbRun, Text: "true"})
		if res.Ended != wire.Refused || res.Error == nil || res.Error.Code != wire.CodeUnavailable {
			t.Errorf("got %+v, want a refusal: nobody would know when the command ends", res)
		}
	})
	t.Run("process and mark", func(t *testing.T) {
		c := without(t, set, wire.BasisProcess, wire.BasisMark)
		res := do(t, c, wire.Request{Verb: wire.VerbWait})
		if res.Ended != wire.Attention || res.Phase != wire.PhaseOpaque ||
			res.Want != wire.WantRaw ||
			!slices.Equal(res.Basis, []wire.Basis{wire.BasisScreen, wire.BasisSilence}) {
			t.Errorf("got %+v, want a line editor, by the terminal's modes", res)
		}
		res = do(t, c, wire.Request{Verb: wire.VerbType, Text: "read -sp 'secret? ' x"})
		if res.Ended != wire.Attention || res.Want != wire.WantPassword ||
			res.Prompt != "secret? " {
			t.Errorf("got %+v, want a password", res)
		}
	})
	t.Run("modes that change", func(t *testing.T) {
		c := without(t, set, wire.BasisProcess)
		res := do(
			t,
			c,
			wire.Request{
				Verb: wire.VerbRun,
				Text: "sh -c 'sleep 1; stty raw; sleep 0.2; printf \"who? \"; exec cat'",
			},
		)
		if res.Ended != wire.Attention || res.Want != wire.WantRaw || res.Prompt != "who? " {
			t.Errorf("got %+v, want the question that came after the change", res)
		}
		res = do(t, c, wire.Request{Verb: wire.VerbWait, For: []wire.Phase{wire.PhaseWaiting}})
		if res.Ended != wire.Attention || res.Prompt != "who? " {
			t.Errorf("got %+v, want that a wait for a question returns a possible one", res)
		}
	})
	t.Run("unknown", func(t *testing.T) {
		_, err := tryDial(
			t,
			set,
			wire.Attach{
				Session: "new",
				Fresh:   true,
				Party:   agentParty("alice"),
				Start:   &wire.Start{Without: []wire.Basis{"exit"}},
			},
			wire.Handler{},
		)
		if e := refusal(err); e == nil || e.Code != wire.CodeUsage {
			t.Errorf("got %v, want a usage error", err)
		}
	})
}

// denied is a Prober whose kernel does not allow it to inspect programs.
type denied struct{ proc.Prober }

var errDenied = errors.New("may not look into pid 1")

func (d denied) Probe(ctx context.Context, tty session.TTY) (session.Facts, error) {
	f, err := d.Prober.Probe(ctx, tty)
	if err != nil {
		return f, err
	}
	return session.Facts{
		Foreground: f.Foreground,
		Pid:        f.Pid,
		Argv:       f.Argv,
		ShellCwd:   f.ShellCwd,
		Runs:       f.Runs,
	}, errDenied
}

// TestDenied runs programs that cannot be traced: a possible question is reported as likely.
func TestDenied(t *testing.T) {
	set := newProbedSet(t, "/bin/bash", denied{})
	for _, test := range []struct {
		command string
		ended   wire.Ended
		want    wire.Want
		prompt  string
	}{
		{"read -sp 'secret? ' x", wire.Attention, wire.WantPassword, "secret? "},
		{"read -p 'name? ' x", wire.Attention, wire.WantLine, "name? "},
		{"PS1='nested> ' bash --norc", wire.Attention, wire.WantRaw, "nested> "},
		{"less /etc/services", wire.Attention, wire.WantPager, ""},
		{"vim -u NONE -N", wire.Attention, wire.WantFullscreen, ""},
		{"sleep 60", wire.Deadline, "", ""},
		{"printf 'building '; while :; do /bin/true; done", wire.Deadline, "", ""},
	} {
		t.Run(test.command, func(t *testing.T) {
			t.Parallel()
			c := without(t, set)
			timeout := int64(60_000)
			if test.ended == wire.Deadline {
				timeout = 4000
			}
			res := do(
				t,
				c,
				wire.Request{Verb: wire.VerbRun, Text: test.command, TimeoutMS: timeout},
			)
			if res.Ended != test.ended || res.Want != test.want ||
				!strings.HasPrefix(res.Prompt, test.prompt) {
				t.Fatalf("got %+v, want %s, %s", res, test.ended, test.want)
			}
			phase, basis := wire.PhaseOpaque, []wire.Basis{wire.BasisScreen, wire.BasisSilence}
			if test.ended == wire.Deadline {
				phase, basis = wire.PhaseRunning, []wire.Basis{wire.BasisMark}
			}
			if res.Phase != phase || !slices.Equal(res.Basis, basis) {
				t.Errorf("got %s by %v, want %s by %v", res.Phase, res.Basis, phase, basis)
			}
			if res.Foreground == nil {
				t.Error("got no process, which is known all the same")
			}
		})
	}
}

func refusal(err error) *wire.Error {
	var e *wire.Error
	if errors.As(err, &e) {
		return e
	}
	return nil
}

// rivals is a denied Prober that finds another program in the foreground at each probe. Each has
// been given a processor once.
type rivals struct {
	denied
	pid *atomic.Int64
}

func (r rivals) Probe(ctx context.Context, tty session.TTY) (session.Facts, error) {
	f, err := r.denied.Probe(ctx, tty)
	f.Pid, f.Runs = int(r.pid.Add(1)), 1
	return f, err
}

// TestDeniedWork runs short programs after each other, after text without an end of line. That is
// work, not a question.
func TestDeniedWork(t *testing.T) {
	t.Parallel()
	c := without(t, newProbedSet(t, "/bin/bash", rivals{denied{}, new(atomic.Int64)}))
	res := do(
		t,
		c,
		wire.Request{Verb: wire.VerbRun, Text: "printf 'building '; sleep 60", TimeoutMS: 4000},
	)
	if res.Ended != wire.Deadline || res.Attention == "likely" {
		t.Errorf("got %+v, want a deadline", res)
	}
}
