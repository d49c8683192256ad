package gateway_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// watched reads a watch until its last state of a session fulfils a condition.
func (w *world) watched(watch *attention.Watch, what string,
	cond func(attention.Need) bool) attention.Need {
	w.T.Helper()
	for {
		changed, err := watch.Next(w.Ctx())
		if err != nil {
			w.T.Fatalf("never reported: %s: %v", what, err)
		}
		for _, n := range changed {
			if cond(n) {
				return n
			}
		}
	}
}

// person joins demo's main session as alice.
func (w *world) person(d *daemon) *attach.Attachment {
	w.T.Helper()
	a, err := d.Sessions.Join(w.Ctx(), alice, wire.Target{Sandbox: "demo"},
		attach.JoinOptions{Create: true, Cols: 80, Rows: 24})
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { a.Close() })
	return a
}

func (w *world) types(a *attach.Attachment, text string) {
	w.T.Helper()
	if err := a.Input(w.Ctx(), []byte(text)); err != nil {
		w.T.Fatalf("type %q: %v", text, err)
	}
}

// Nobody waits for the session; the watch alone makes its question known, and its answer, and the
// end of its shell.
func TestAttentionWatch(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	before := time.Now().Add(-time.Second)
	a := w.person(d)
	watch := d.Sessions.WatchAttention(alice)
	defer watch.Close()
	w.watched(watch, "the prompt", func(n attention.Need) bool {
		return n.Phase == wire.PhasePrompt && n.Needs == attention.None
	})

	w.types(a, "read -p 'Your na''me? ' x\n")
	n := w.watched(watch, "a question", func(n attention.Need) bool {
		return n.Needs == attention.Answer
	})
	if n.Sandbox != "demo" || n.Session != "main" || n.Want != wire.WantLine ||
		n.LastLine != "Your name?" || n.Keyboard != "person:alice" ||
		n.Since.Before(before) || n.Since.After(time.Now()) || n.Gone {
		t.Errorf("got %+v", n)
	}
	w.types(a, "me\n")
	w.watched(watch, "the answer", func(n attention.Need) bool { return n.Needs == attention.None })

	w.types(a, "read -s -p 'Pass''word: ' x\n")
	if n = w.watched(watch, "a secret asked for", func(n attention.Need) bool {
		return n.Needs == attention.Answer && n.Want == wire.WantPassword
	}); n.LastLine != "Password:" {
		t.Errorf("got %+v", n)
	}
	w.types(a, "x\n")
	w.watched(watch, "the prompt again", func(n attention.Need) bool {
		return n.Phase == wire.PhasePrompt
	})
	w.types(a, "echo 'half\n")
	w.watched(watch, "a continuation", func(n attention.Need) bool {
		return n.Needs == attention.Answer && n.Phase == wire.PhaseContinuation
	})
	w.types(a, "'\n")
	w.watched(watch, "the prompt once more", func(n attention.Need) bool {
		return n.Needs == attention.None
	})

	w.types(a, "exit 3\n")
	n = w.watched(watch, "the end of the shell", func(n attention.Need) bool {
		return n.Phase == wire.PhaseDead
	})
	if n.Needs != attention.Shell || n.ExitCode == nil || *n.ExitCode != 3 || n.Gone {
		t.Errorf("got %+v", n)
	}
	all, err := d.Sessions.Attention(w.Ctx(), alice, "demo")
	if err != nil || len(all) != 1 || all[0].Needs != attention.Shell || all[0].Since != n.Since {
		t.Errorf("needs %+v, %v", all, err)
	}
	if err := d.Discard(w.Ctx(), alice, "demo"); err != nil {
		t.Fatal(err)
	}
	w.watched(watch, "that it is gone", func(n attention.Need) bool {
		return n.Gone && n.Session == "main" && n.Needs == attention.None
	})
}

// Only the owner learns of a session's attention state, until the sandbox is shared. Without a
// watch the guest is not asked.
func TestAttentionWatchOwner(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	others := d.Sessions.WatchAttention(bob)
	w.person(d)
	if watched, _ := d.Registry().Board().Watched([]string{"alice"}); watched {
		t.Error("alice's sessions are watched for bob")
	}
	ctx, cancel := context.WithTimeout(w.Ctx(), 500*time.Millisecond)
	defer cancel()
	if changed, err := others.Next(ctx); err == nil {
		t.Errorf("bob got %+v", changed)
	}
	others.Close()
	if watched, _ := d.Registry().Board().Watched([]string{"bob"}); watched {
		t.Error("a watch that was closed counts")
	}
	if _, err := d.Sessions.Attention(w.Ctx(), bob, "demo"); err == nil {
		t.Error("bob learned of demo")
	}
	if all, err := d.Sessions.Attention(w.Ctx(), bob, ""); err != nil || len(all) != 0 {
		t.Errorf("bob got %+v, %v", all, err)
	}
}

// A principal with a share watches the attention state while the share lasts, also of a session
// that nobody else watches.
func TestAttentionWatchShared(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	watch := d.Sessions.WatchAttention(bob)
	defer watch.Close()
	a := w.person(d)
	if err := d.Share(w.Ctx(), alice, "demo", "bob", wire.RightWatch); err != nil {
		t.Fatal(err)
	}
	w.watched(watch, "the prompt", func(n attention.Need) bool {
		return n.Phase == wire.PhasePrompt
	})
	w.types(a, "read -p 'Your na''me? ' x\n")
	if n := w.watched(watch, "a question", func(n attention.Need) bool {
		return n.Needs == attention.Answer
	}); n.LastLine != "Your name?" {
		t.Errorf("got %+v", n)
	}
	if _, err := d.Unshare(w.Ctx(), alice, "demo", "bob"); err != nil {
		t.Fatal(err)
	}
	w.watched(watch, "that it is no longer shared", func(n attention.Need) bool {
		return n.Gone && n.LastLine == ""
	})
}

// A watch goes on over a connection to the guest that broke, and over a sandbox that was stopped
// and started.
func TestAttentionWatchGoesOn(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	info := w.Create(d, "demo")
	a := w.person(d)
	watch := d.Sessions.WatchAttention(alice)
	defer watch.Close()
	w.watched(watch, "the prompt", func(n attention.Need) bool {
		return n.Phase == wire.PhasePrompt
	})
	w.cut(info) // its connections end
	w.types(a, "read x\n")
	w.watched(watch, "a question after that", func(n attention.Need) bool {
		return n.Needs == attention.Answer
	})
	if err := d.Stop(w.Ctx(), alice, "demo"); err != nil {
		t.Fatal(err)
	}
	w.watched(watch, "that the session is gone", func(n attention.Need) bool { return n.Gone })
	if _, err := d.Start(w.Ctx(), alice, "demo", nil); err != nil {
		t.Fatal(err)
	}
	w.types(w.person(d), "read x\n")
	w.watched(watch, "a question of another run", func(n attention.Need) bool {
		return n.Needs == attention.Answer
	})
}

// What a session prints is data: it reaches nobody's terminal or log as anything else.
func TestAttentionHostileLine(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	watch := d.Sessions.WatchAttention(alice)
	defer watch.Close()
	w.types(w.person(d),
		`printf 'x\n\033]0;title\007"a'"'"'b" \302\233 \342\200\256 $(id) \\ {}'; read x`+"\n")
	n := w.watched(watch, "a question", func(n attention.Need) bool {
		return n.Needs == attention.Answer
	})
	if n.LastLine != `"a'b"       $(id) \ {}` && n.LastLine != `"a'b"   $(id) \ {}` {
		t.Errorf("last line %q", n.LastLine)
	}
}

// The last line is in the record, where a daemon finds it that has seen none of it being printed.
func TestAttentionLastLineAfterARestart(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	w.Run(d, "seq 5000; PS1='the last line> '")
	last := func() string {
		all, err := d.Sessions.Attention(w.Ctx(), alice, "demo")
		if err != nil {
			t.Fatal(err)
		}
		if len(all) != 1 {
			return "" // the session is not found again yet
		}
		return all[0].LastLine
	}
	w.Eventually("the prompt is the last line", func() bool { return last() == "the last line>" })
	d.End()
	d = w.Start()
	w.Eventually("the session is there again", func() bool {
		sessions, err := d.Sessions.List(w.Ctx(), alice, "demo")
		return err == nil && len(sessions) == 1
	})
	if got := last(); got != "the last line>" {
		t.Errorf("after the restart the last line is %q", got)
	}
}

// The last line does not reveal what a person types in private mode.
func TestAttentionPrivate(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	watch := d.Sessions.WatchAttention(alice)
	defer watch.Close()
	a := w.person(d)
	w.watched(watch, "the prompt", func(n attention.Need) bool {
		return n.Phase == wire.PhasePrompt
	})
	if err := a.Take(w.Ctx()); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbPrivate, On: true}); err != nil {
		t.Fatal(err)
	}
	w.Eventually("it is private", func() bool { return a.Live().Private() != "" })
	w.types(a, "read -p 'tok''en 4711? ' x\n")
	if n := w.watched(watch, "a question", func(n attention.Need) bool {
		return n.Needs == attention.Answer
	}); n.LastLine != "" {
		t.Errorf("got %+v", n)
	}
	w.types(a, "\n")
	w.watched(watch, "the prompt again", func(n attention.Need) bool {
		return n.Phase == wire.PhasePrompt
	})
	if _, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbPrivate}); err != nil {
		t.Fatal(err)
	}
	w.Eventually("it is over", func() bool { return a.Live().Private() == "" })
	all, err := d.Sessions.Attention(w.Ctx(), alice, "demo")
	if err != nil || len(all) != 1 || strings.Contains(all[0].LastLine, "4711") {
		t.Errorf("needs %+v, %v", all, err)
	}
}
