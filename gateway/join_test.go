package gateway_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A caller that waits for Changed learns of output, of other parties and of the end, and Over says
// why it ended.
func TestChanged(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	driver := w.Join(d, alice, main, attach.JoinOptions{Create: true, Cols: 80, Rows: 24})
	wake := make(chan struct{}, 1)
	a := w.Join(d, alice, main, attach.JoinOptions{Watch: true, Changed: func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}})
	until := func(what string, cond func() bool) {
		t.Helper()
		for !cond() {
			select {
			case <-wake:
			case <-w.Ctx().Done():
				t.Fatalf("never %s: %+v", what, a.Situation())
			}
		}
	}
	from := a.Live().Len()
	if err := driver.Input(w.Ctx(), []byte("echo a\r")); err != nil {
		t.Fatal(err)
	}
	until("output is reported", func() bool {
		return a.Live().Len() >= from+uint64(len("echo a\r\na\r\n"))
	})
	until("the driver is reported", func() bool { return a.Situation().Keyboard == "person:alice" })
	w.Join(d, alice, main, attach.JoinOptions{Watch: true})
	until("the parties are reported", func() bool { return len(a.Live().Parties()) == 3 })
	if err := a.Over(); err != nil {
		t.Errorf("over: %v", err)
	}
	a.Disconnect(interrupt.ErrDisconnected)
	until("the disconnect is reported", func() bool {
		return errors.Is(a.Over(), interrupt.ErrDisconnected)
	})
	if err := driver.Input(w.Ctx(), []byte("exit\r")); err != nil {
		t.Fatal(err)
	}
	if err := driver.Wait(w.Ctx()); !errors.Is(err, io.EOF) || !errors.Is(driver.Over(), io.EOF) {
		t.Errorf("the session ended: Wait %v, Over %v", err, driver.Over())
	}
}

func TestPersonJoinsTypesAndLeaves(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	a := w.Join(d, alice, main, attach.JoinOptions{Create: true, Cols: 90, Rows: 25})
	l := a.Live()
	if cols, rows := l.Size(); cols != 90 || rows != 25 {
		t.Errorf("size = %d×%d, want that of who started it", cols, rows)
	}
	if a.Holds() || l.Keyboard() != "" {
		t.Errorf("joining took the keyboard: %q", l.Keyboard())
	}
	if err := a.Input(w.Ctx(), []byte("echo ty''ped\r")); err != nil {
		t.Fatal(err)
	}
	w.Shows(l, 0, "typed\r\n")
	if !a.Holds() {
		t.Error("who types a free keyboard does not hold it")
	}
	w.Eventually("the keyboard is theirs", func() bool { return l.Keyboard() == "person:alice" })
	if diff := cmp.Diff([]string{"person:alice"}, names(l.Parties())); diff != "" {
		t.Errorf("parties (-want +got):\n%s", diff)
	}
	if err := a.Give(w.Ctx()); err != nil || a.Holds() {
		t.Errorf("Give: %v, holds %v", err, a.Holds())
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if len(l.Parties()) != 0 {
		t.Errorf("parties after leaving = %v", l.Parties())
	}
	if err := a.Input(w.Ctx(), []byte("x")); err == nil {
		t.Error("input after Close was taken")
	}
}

func TestPersonTakesFromAnAgentAndNotTheOtherWay(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	agent := w.Shared(d)
	if err := agent.Take(w.Ctx()); err != nil {
		t.Fatal(err)
	}
	person := w.Join(d, alice, main, attach.JoinOptions{Cols: 80, Rows: 24})
	wantCode(t, person.Input(w.Ctx(), []byte("x")), wire.CodeKeyboardHeld)
	if err := person.Take(w.Ctx()); err != nil {
		t.Fatal(err)
	}
	if !person.Holds() {
		t.Error("the person took it and does not hold it")
	}
	w.Eventually("the agent knows", func() bool { return !agent.Holds() })
	wantCode(t, agent.Input(w.Ctx(), []byte("x")), wire.CodeKeyboardHeld)
	wantCode(t, agent.Take(w.Ctx()), wire.CodeKeyboardHeld)
	second := w.Join(d, alice, main, attach.JoinOptions{})
	wantCode(t, second.Take(w.Ctx()), wire.CodeKeyboardHeld)
	if second.Holds() {
		t.Error("two persons hold it")
	}
	if cols, rows := person.Live().Size(); cols != 80 || rows != 24 {
		t.Errorf("size = %d×%d, want the driver's", cols, rows)
	}
	person.Close()
	w.Eventually("leaving gives it back", func() bool { return agent.Take(w.Ctx()) == nil })
}

// Commands act on the caller's attached person, if there is one.
func TestTakeByCommand(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	w.Run(d, "true")
	if got, err := take(w.Ctx(), d, alice, main); err != nil || got != "agent:alice" {
		t.Errorf("Take without a person = %q, %v", got, err)
	}
	person := w.Join(d, alice, main, attach.JoinOptions{})
	if got, err := take(w.Ctx(), d, alice, main); err != nil || got != "person:alice" ||
		!person.Holds() {
		t.Errorf("Take with a person = %q, %v, holds %v", got, err, person.Holds())
	}
	if got, err := give(w.Ctx(), d, alice, main); err != nil || got != "" || person.Holds() {
		t.Errorf("Give = %q, %v, holds %v", got, err, person.Holds())
	}
}

func TestWatcherNeverDrives(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	w.Run(d, "true")
	for name, p := range map[string]gateway.Principal{"by key": {Name: "alice", Kind: wire.Person,
		Rights: wire.RightWatch}, "by wish": alice} {
		a := w.Join(d, p, main, attach.JoinOptions{Watch: name == "by wish"})
		wantCode(t, a.Input(w.Ctx(), []byte("x")), wire.CodeDenied)
		wantCode(t, a.Take(w.Ctx()), wire.CodeDenied)
		_, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun, Text: "id"})
		wantCode(t, err, wire.CodeDenied)
		a.Close()
	}
	if _, err := d.Sessions.Join(w.Ctx(), alice, wire.Target{Sandbox: "demo", Session: "none"},
		attach.JoinOptions{Watch: true, Create: true}); err == nil {
		t.Error("a watcher started a session")
	}
}

func TestFreshTerminalsAreApartAndEndWithTheirAttachment(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	o := attach.JoinOptions{Fresh: true, Close: true, Bare: true, Cols: 80, Rows: 24, Term: "dumb"}
	one, two := w.Join(d, robot, main, o), w.Join(d, robot, main, o)
	if one.Target() == two.Target() || one.Target().Session == "main" {
		t.Fatalf("targets %v and %v", one.Target(), two.Target())
	}
	if cols, rows := one.Live().Size(); cols != 80 || rows != 24 {
		t.Errorf("size = %d×%d, want 80×24", cols, rows)
	}
	if err := one.Input(w.Ctx(), []byte("echo $TERM o''ne\r")); err != nil {
		t.Fatal(err)
	}
	w.Shows(one.Live(), 0, "dumb one\r\n")
	if err := two.Input(w.Ctx(), []byte("echo t''wo\r")); err != nil {
		t.Fatal(err)
	}
	w.Shows(two.Live(), 0, "two\r\n")
	if text, _ := readTo(w.Ctx(), two.Live(), 0, two.Live().Len()); strings.Contains(text,
		"one") {
		t.Error("one terminal shows the other's output")
	}
	if err := one.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	w.Eventually("its session is gone", func() bool {
		infos, err := d.Sessions.List(w.Ctx(), alice, "demo")
		return err == nil && len(infos) == 1 && infos[0].Name == two.Target().Session
	})
	if text, r := w.Recorded(d, one.Target()); !strings.Contains(text, "dumb one") ||
		!r.Finished() {
		t.Errorf("its record has %q, finished %v", text, r.Finished())
	}
}

func TestShellThatEndsIsTheEndAndStartsAgain(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	a := w.Join(d, alice, main, attach.JoinOptions{Create: true, Cols: 80, Rows: 24})
	if err := a.Input(w.Ctx(), []byte("exit 4\r")); err != nil {
		t.Fatal(err)
	}
	if err := a.Wait(w.Ctx()); !errors.Is(err, io.EOF) {
		t.Fatalf("Wait = %v, want EOF", err)
	}
	st := a.Live().State()
	if st.Phase != wire.PhaseDead || st.ExitCode == nil || *st.ExitCode != 4 || !a.Live().Ended() {
		t.Errorf("state = %+v", st)
	}
	a.Close()
	w.Eventually("the record tells the end", func() bool {
		records, err := d.Sessions.Records(w.Ctx(), alice, "demo")
		return err == nil && len(records) == 1 && records[0].Ended != nil &&
			*records[0].State.ExitCode == 4
	})
	again := w.Join(d, alice, main, attach.JoinOptions{Create: true, Cols: 111, Rows: 33})
	if again.Live().Ended() {
		t.Fatal("who joins again finds the end of the last shell")
	}
	// As when it was new: the size is that of who starts it.
	if cols, rows := again.Live().Size(); cols != 111 || rows != 33 {
		t.Errorf("size = %d×%d, want 111×33", cols, rows)
	}
	from := again.Live().Len()
	if err := again.Input(w.Ctx(), []byte("stty size; echo ag''ain\r")); err != nil {
		t.Fatal(err)
	}
	w.Shows(again.Live(), from, "33 111\r\nagain\r\n")
	// What it printed last is on the screen before it has ended.
	if _, err := again.Request(w.Ctx(), wire.Request{Verb: wire.VerbWait,
		For: []wire.Phase{wire.PhasePrompt}}); err != nil {
		t.Fatal(err)
	}
	if err := again.Give(w.Ctx()); err != nil {
		t.Fatal(err)
	}
	if res := w.Run(d, "stty size"); res.Output != "33 111\n" {
		t.Errorf("an agent without a size of its own has %q: %+v", res.Output, res)
	}
}

func TestKick(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	w.Run(d, "true")
	a, b := w.Join(d, alice, main, attach.JoinOptions{}), w.Join(d, alice, main,
		attach.JoinOptions{})
	var seen transcript
	c, served, err := w.dial(d, robot, wire.Attach{Session: "main"}, seen.handler())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := d.Sessions.Disconnect(w.Ctx(), alice, main, a.Party().ID); n != 1 || err != nil {
		t.Errorf("Kick by id = %d, %v", n, err)
	}
	if err := a.Wait(w.Ctx()); !errors.Is(err, interrupt.ErrDisconnected) || b.Err() != nil {
		t.Errorf("who was kicked: %v, who was not: %v", err, b.Err())
	}
	// The shared attachment, too.
	if n, err := d.Sessions.Disconnect(w.Ctx(), alice, main, "agent:alice"); n != 2 || err != nil {
		t.Errorf("Kick of the agents = %d, %v", n, err)
	}
	if err := <-served; !errors.Is(err, interrupt.ErrDisconnected) {
		t.Errorf("Stream = %v, want interrupt.ErrDisconnected", err)
	}
	<-c.Done()
	_, err = d.Sessions.Disconnect(w.Ctx(), alice, main, "person:mallory")
	wantCode(t, err, wire.CodeNotFound)
}

// All calls of one principal are one party: what one call left waiting, the next one answers.
func TestSharedAttachmentIsOneParty(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	one := w.Shared(d)
	reply, err := one.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun,
		Text: "read -p 'name? ' n; echo hi $n"})
	if err != nil || reply.Result.Ended == wire.Done || reply.Result.Keyboard != "agent:alice" {
		t.Fatalf("run = %+v, %v", reply.Result, err)
	}
	two, err := d.Sessions.Shared(w.Ctx(), alice, wire.Target{Sandbox: "demo"},
		attach.JoinOptions{Create: true})
	if err != nil || two != one {
		t.Fatalf("the second call is another party: %v", err)
	}
	reply, err = two.Request(w.Ctx(), wire.Request{Verb: wire.VerbType, Text: "bob"})
	if err != nil || reply.Result.Ended != wire.Done || !strings.Contains(reply.Result.Output,
		"hi bob") {
		t.Errorf("type = %+v, %v", reply.Result, err)
	}
	if err := d.Sessions.Close(w.Ctx(), alice, main); err != nil {
		t.Fatal(err)
	}
	w.Eventually("the session is gone", func() bool { return one.Live().Final() })
	three, err := d.Sessions.Shared(w.Ctx(), robot, main, attach.JoinOptions{Create: true})
	if err != nil || three == one {
		t.Errorf("after the session's end: %v, the same party %v", err, three == one)
	}
}
