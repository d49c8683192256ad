package track

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/marks"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const shellPID = 100

// script passes a series of observations to a tracker. It has its own clock.
type script struct {
	t    *testing.T
	tr   *Tracker
	now  time.Time
	end  uint64
	told []string // kinds of events, with the phase of states
	news News     // of the last observation
}

func newScript(t *testing.T, opt Options) *script {
	s := &script{t: t, now: time.Unix(1_000_000, 0)}
	var news News
	s.tr, news = New(s.now).Restart(opt, s.moment())
	s.take(news)
	s.told = nil
	return s
}

func (s *script) moment() Moment { return Moment{Time: s.now, End: s.end} }

func (s *script) take(n News) {
	s.news = n
	for _, ev := range n.Events {
		word := string(ev.Kind)
		if ev.Kind == wire.EventState {
			word = string(ev.State.Phase)
		}
		s.told = append(s.told, word)
	}
}

func (s *script) after(d time.Duration) { s.now = s.now.Add(d) }

func (s *script) print(n uint64) {
	s.end += n
	s.tr.Printed(s.now)
}

var (
	inFront = Front{Shell: true, Known: true}
	behind  = Front{Known: true}
)

func (s *script) mark(m marks.Mark, f Front) {
	s.print(0)
	s.take(s.tr.Mark(m, f, s.moment()))
}

// cycle prints the marks of a prompt.
func (s *script) cycle(exit int) {
	s.mark(marks.Mark{Kind: marks.PromptStart, Exit: exit, Cwd: "/home"}, inFront)
	s.print(2)
	s.mark(marks.Mark{Kind: marks.PromptEnd}, inFront)
}

func (s *script) look(l Look) (again bool) {
	l.Shell = shellPID
	again, news := s.tr.Look(l, s.moment())
	s.take(news)
	return again
}

func (s *script) give(cmd *Command) {
	cmd.Typed = true
	s.take(s.tr.Give(cmd, wire.BasisMark, s.moment()))
}

func (s *script) want(phase wire.Phase, basis ...wire.Basis) {
	s.t.Helper()
	if st := s.tr.State(s.now); st.Phase != phase || !slices.Equal(st.Basis, basis) {
		s.t.Errorf("got %s by %v, want %s by %v", st.Phase, st.Basis, phase, basis)
	}
}

func (s *script) wantTold(want string) {
	s.t.Helper()
	if got := strings.Join(s.told, " "); got != want {
		s.t.Errorf("reported %q, want %q", got, want)
	}
	s.told = nil
}

var (
	reads = Facts{Foreground: shellPID, Pid: shellPID, ShellIsForeground: true, Blocked: true}
	works = Facts{Foreground: 7, Pid: 7, Argv: []string{"make"}}
	asks  = Facts{Foreground: 7, Pid: 7, Argv: []string{"apt"}, Blocked: true,
		Want: wire.WantLine}
	listens = Facts{Foreground: 7, Pid: 7, Argv: []string{"top"}, Listens: true, Want: wire.WantRaw}
)

// TestRun follows a command from its prompt to the next.
func TestRun(t *testing.T) {
	s := newScript(t, Options{Marked: true, TypedMarks: true})
	s.cycle(0)
	s.want(wire.PhasePrompt, wire.BasisProcess, wire.BasisMark)
	s.wantTold("prompt")
	cmd := &Command{Op: "op", By: "agent:alice", Number: 1}
	s.give(cmd)
	s.print(10)
	start := marks.Mark{Kind: marks.CommandStart, Run: true, Number: 1}
	if !s.tr.Starts(start) || s.tr.Starts(
		marks.Mark{Kind: marks.CommandStart, Run: true, Number: 2}) {
		t.Error("its start is not the one with its number")
	}
	s.mark(start, Front{})
	s.want(wire.PhaseRunning, wire.BasisMark)
	s.print(5)
	s.mark(marks.Mark{Kind: marks.CommandEnd, Exit: 3}, Front{})
	s.cycle(3)
	s.want(wire.PhasePrompt, wire.BasisProcess, wire.BasisMark)
	s.wantTold("running begun over result prompt")
	if !cmd.Over || cmd.Exit == nil || *cmd.Exit != 3 || cmd.From != 12 || cmd.To != 17 {
		t.Errorf("got %+v", cmd)
	}
	if at, ok := s.tr.OverAt(); !ok || at != 17 || !s.news.Rests {
		t.Errorf("over at %d, %t; %+v", at, ok, s.news)
	}
	if st := s.tr.State(s.now); st.Cwd != "/home" || st.ExitCode == nil || *st.ExitCode != 3 {
		t.Errorf("got %+v", st)
	}
}

// TestNotTaken checks how a command ends that the shell did not run.
func TestNotTaken(t *testing.T) {
	for _, tt := range []struct {
		name string
		does func(*script)
		why  wire.Ended
		ok   func(*Command) bool
	}{
		{"it is not whole", func(s *script) { s.mark(marks.Mark{Kind: marks.Refused}, inFront) },
			wire.Refused, func(c *Command) bool { return c.Unfinished }},
		{"it cannot be read", func(s *script) {
			s.mark(marks.Mark{Kind: marks.Unread}, inFront)
			s.cycle(0)
		}, wire.Refused, func(c *Command) bool { return c.Unread }},
		{"the shell reads on", func(s *script) {
			s.cycle(0) // of a line before it
			s.after(time.Second)
			s.look(Look{Facts: reads})
		}, wire.Refused, func(c *Command) bool { return !c.Unsure }},
		{"nobody can look", func(s *script) {
			s.mark(marks.Mark{Kind: marks.PromptStart}, Front{})
			s.mark(marks.Mark{Kind: marks.PromptEnd}, Front{})
			if due := s.tr.Due(); !due.Equal(s.now.Add(takenTime)) {
				s.t.Errorf("due %v", due.Sub(s.now))
			}
			s.after(takenTime)
			s.take(s.tr.Tick(false, Front{}, s.moment()))
		}, wire.Lost, func(c *Command) bool { return c.Unsure }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newScript(t, Options{Marked: true, TypedMarks: true, Probed: true})
			s.cycle(0)
			cmd := &Command{Number: 1}
			s.give(cmd)
			tt.does(s)
			if !cmd.Over || cmd.Started || cmd.Exit != nil || !tt.ok(cmd) || !s.news.GaveUp {
				t.Errorf("got %+v, %+v", cmd, s.news)
			}
			if len(s.news.Events) < 2 || s.news.Events[0].Why != tt.why {
				t.Errorf("reported %+v", s.news.Events)
			}
			if s.tr.Phase() != wire.PhasePrompt || s.tr.Command() != nil {
				t.Errorf("%s, with %+v", s.tr.Phase(), s.tr.Command())
			}
		})
	}
}

// TestGiveUpFollowsWhatWasHeldBack checks that the prompt comes after the output that was held back
// as an echo.
func TestGiveUpFollowsWhatWasHeldBack(t *testing.T) {
	s := newScript(t, Options{Marked: true})
	s.cycle(0)
	s.give(&Command{Number: 1})
	m := s.moment()
	m.Held = 100
	s.take(s.tr.Mark(marks.Mark{Kind: marks.Refused}, inFront, m))
	if st := s.tr.Last(); st.Offset != m.End+m.Held {
		t.Errorf("prompt at %d, want %d", st.Offset, m.End+m.Held)
	}
}

// TestPromptWithoutEnd checks that a prompt without an end mark counts as complete when the shell
// reads.
func TestPromptWithoutEnd(t *testing.T) {
	s := newScript(t, Options{Marked: true})
	s.mark(marks.Mark{Kind: marks.PromptStart}, inFront)
	for range promptTries - 1 {
		if !s.tr.Expecting() || !s.tr.Due().Equal(s.now.Add(promptPatience)) {
			t.Fatalf("expecting %t, due %v", s.tr.Expecting(), s.tr.Due())
		}
		s.after(promptPatience - 1)
		s.take(s.tr.Tick(true, inFront, s.moment()))
		s.after(1)
		s.take(s.tr.Tick(true, inFront, s.moment()))
	}
	s.want(wire.PhaseRunning)
	if s.look(Look{Facts: reads}); s.tr.Phase() != wire.PhaseRunning {
		t.Error("a shell that reads before its prompt is complete is at it")
	}
	s.after(restTime)
	busy := Facts{Foreground: shellPID, Pid: shellPID, ShellIsForeground: true, Listens: true,
		Want: wire.WantRaw}
	if s.look(Look{Facts: busy}); Asks(s.tr.Last()) || s.tr.Counts().Verdicts != 0 {
		t.Errorf("a shell that listens before its prompt is complete asks: %+v", s.tr.Last())
	}
	s.after(promptPatience)
	s.take(s.tr.Tick(false, inFront, s.moment()))
	s.want(wire.PhasePrompt, wire.BasisProcess, wire.BasisMark)
	if !s.tr.Due().IsZero() || s.tr.Counts().Prompted != 1 {
		t.Errorf("due %v, %d prompts", s.tr.Due(), s.tr.Counts().Prompted)
	}
}

// TestForgedPrompt checks that a prompt's mark counts only while the shell is in the foreground.
func TestForgedPrompt(t *testing.T) {
	s := newScript(t, Options{Marked: true, Probed: true})
	s.mark(marks.Mark{Kind: marks.PromptStart}, behind)
	s.mark(marks.Mark{Kind: marks.PromptEnd}, behind)
	if st := s.tr.Last(); st.Phase != wire.PhaseRunning ||
		!slices.Equal(st.Disputed, []wire.Basis{wire.BasisMark}) {
		t.Errorf("got %+v", st)
	}
	s.after(time.Second)
	s.look(Look{Facts: asks, Before: "sure? "})
	if st := s.tr.Last(); st.Phase != wire.PhaseWaiting ||
		!slices.Equal(st.Disputed, []wire.Basis{wire.BasisMark}) {
		t.Errorf("got %+v", st)
	}
	s.mark(marks.Mark{Kind: marks.PromptAgain}, inFront)
	s.want(wire.PhasePrompt, wire.BasisProcess, wire.BasisMark)
	s.tr.Forge()
	if st := s.tr.State(s.now); !slices.Equal(st.Disputed, []wire.Basis{wire.BasisMark}) {
		t.Errorf("after contradicting marks: %+v", st)
	}
}

// TestLook checks the state that follows from one look while a command runs.
func TestLook(t *testing.T) {
	lines, secret, keys := &Modes{Lines: true, Echo: true}, &Modes{Lines: true}, &Modes{}
	blind := errors.New("not from here")
	opaque := Facts{Foreground: 7, Pid: 7, Opaque: true, Want: wire.WantRaw,
		Why: "ssh passes the keyboard on"}
	pager := Facts{Foreground: 7, Pid: 7, Argv: []string{"/bin/less", "x"}, Blocked: true,
		Want: wire.WantRaw}
	process := []wire.Basis{wire.BasisProcess}
	silence, screen := wire.BasisSilence, wire.BasisScreen
	for _, tt := range []struct {
		name    string
		quiet   time.Duration
		look    Look
		again   bool
		phase   wire.Phase
		want    wire.Want
		likely  bool
		basis   []wire.Basis
		verdict bool
	}{
		{name: "it works", look: Look{Facts: works}, phase: wire.PhaseRunning, basis: process},
		{name: "it asks", look: Look{Facts: asks}, phase: wire.PhaseWaiting, want: wire.WantLine, basis: process, verdict: true},
		{name: "input is queued", look: Look{Facts: Facts{Blocked: true, Pending: true}},
			again: true, phase: wire.PhaseRunning,
			basis: []wire.Basis{wire.BasisMark}},
		{name: "an answer is owed to keys", look: Look{Facts: asks, Answers: true, Modes: keys},
			again: true,
			phase: wire.PhaseRunning, basis: []wire.Basis{wire.BasisMark}},
		{name: "an answer is owed to lines", look: Look{Facts: asks, Answers: true, Modes: lines},
			phase: wire.PhaseWaiting,
			want:  wire.WantLine, basis: process, verdict: true},
		{name: "a pager", look: Look{Facts: pager}, phase: wire.PhaseWaiting, want: wire.WantPager, basis: process, verdict: true},
		{name: "it listens and draws", quiet: 699 * time.Millisecond, look: Look{Facts: listens, Alt: true},
			phase: wire.PhaseRunning, want: wire.WantFullscreen, basis: process},
		{name: "it listens and rests", quiet: restTime, look: Look{Facts: listens, Alt: true},
			phase: wire.PhaseRunning,
			want:  wire.WantFullscreen, likely: true,
			basis:   []wire.Basis{wire.BasisProcess, screen},
			verdict: true},
		{name: "it listens on a blank screen", quiet: doubtTime - time.Millisecond,
			look:  Look{Facts: listens, Alt: true, Blank: true},
			phase: wire.PhaseRunning, want: wire.WantFullscreen, basis: process},
		{name: "it listens on a blank screen for long", quiet: doubtTime,
			look:  Look{Facts: listens, Alt: true, Blank: true},
			phase: wire.PhaseRunning, want: wire.WantFullscreen, likely: true,
			basis: []wire.Basis{wire.BasisProcess, screen}, verdict: true},
		{name: "it says that it asks on a blank screen", quiet: restTime,
			look: Look{Facts: listens, Alt: true, Blank: true,
				Said: Statement{Status: "blocked", Count: 1, At: 100}},
			phase: wire.PhaseRunning, want: wire.WantFullscreen, likely: true,
			basis: []wire.Basis{wire.BasisProcess, screen}, verdict: true},
		{name: "it calls on a blank screen", look: Look{Facts: listens, Alt: true, Blank: true, Calls: 1},
			phase: wire.PhaseRunning, want: wire.WantFullscreen, likely: true,
			basis: []wire.Basis{wire.BasisProcess, screen}, verdict: true},
		{name: "it calls", look: Look{Facts: listens, Calls: 1}, phase: wire.PhaseRunning,
			want: wire.WantRaw, likely: true,
			basis: []wire.Basis{wire.BasisProcess, screen}, verdict: true},
		{name: "it is elsewhere", look: Look{Facts: opaque}, phase: wire.PhaseOpaque, basis: process},
		{name: "it is elsewhere, and quiet", quiet: restTime, look: Look{Facts: opaque},
			phase: wire.PhaseOpaque, likely: true,
			basis: []wire.Basis{wire.BasisProcess, silence}, verdict: true},
		{name: "unseen", quiet: time.Second, look: Look{Err: blind, Modes: lines},
			phase: wire.PhaseRunning,
			basis: []wire.Basis{wire.BasisMark}},
		{name: "unseen, it reads a secret", quiet: SecretTime, look: Look{Err: blind, Modes: secret, Before: "key: "},
			phase: wire.PhaseOpaque, want: wire.WantPassword, likely: true,
			basis: []wire.Basis{screen, silence}, verdict: true},
		{name: "unseen, it reads keys", quiet: restTime, look: Look{Err: blind, Modes: keys},
			phase: wire.PhaseOpaque,
			want:  wire.WantRaw, likely: true, basis: []wire.Basis{screen, silence}, verdict: true},
		{name: "unseen, a blank screen", quiet: silentTime - time.Millisecond,
			look:  Look{Err: blind, Modes: keys, Alt: true, Blank: true},
			phase: wire.PhaseRunning, basis: []wire.Basis{wire.BasisMark}},
		{name: "unseen, a blank screen for long", quiet: silentTime,
			look:  Look{Err: blind, Modes: keys, Alt: true, Blank: true},
			phase: wire.PhaseOpaque, likely: true, basis: []wire.Basis{silence}, verdict: true},
		{name: "unseen, behind text", quiet: blindTime, look: Look{Err: blind, Modes: lines, Before: "ok? "},
			phase: wire.PhaseOpaque, want: wire.WantLine, likely: true,
			basis: []wire.Basis{screen, silence}, verdict: true},
		{name: "unseen and silent", quiet: silentTime, look: Look{Err: blind, Modes: lines},
			phase:  wire.PhaseOpaque,
			likely: true, basis: []wire.Basis{silence}, verdict: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newScript(t, Options{Marked: true, TypedMarks: true, Probed: true})
			s.cycle(0)
			s.give(&Command{Number: 1})
			s.mark(marks.Mark{Kind: marks.CommandStart, Run: true, Number: 1}, Front{})
			// Without process facts, times count from the first look. So look twice.
			s.look(Look{Facts: Facts{Pid: tt.look.Facts.Pid}, Err: tt.look.Err,
				Modes: tt.look.Modes})
			s.after(tt.quiet)
			before := s.tr.Counts().Verdicts
			if tt.look.Err == nil {
				s.tr.state = wire.State{Phase: wire.PhaseRunning,
					Basis: []wire.Basis{wire.BasisMark}}
			}
			if again := s.look(tt.look); again != tt.again {
				t.Errorf("again %t, want %t", again, tt.again)
			}
			s.want(tt.phase, tt.basis...)
			if st := s.tr.Last(); st.Want != tt.want || (st.Attention == likely) != tt.likely {
				t.Errorf("got %+v", st)
			}
			if got := s.tr.Counts().Verdicts > before; got != tt.verdict || got && !s.news.Changed {
				t.Errorf("a verdict: %t, want %t", got, tt.verdict)
			}
		})
	}
}

// TestStaleReader checks that a reader from before the input, which has not run since, does not
// count as waiting.
func TestStaleReader(t *testing.T) {
	s := newScript(t, Options{Program: true})
	s.look(Look{Facts: asks})
	s.want(wire.PhaseWaiting, wire.BasisProcess)
	s.tr.Writes()
	s.tr.Was(asks.Reader())
	s.take(s.tr.Input([]byte("y\r"), 0, s.moment()))
	s.tr.Wrote(s.now)
	s.want(wire.PhaseRunning, wire.BasisProcess)
	s.after(staleTime - 1)
	if !s.look(Look{Facts: asks}) || s.tr.Phase() != wire.PhaseRunning {
		t.Error("the wait before the input is taken for one after it")
	}
	s.after(1)
	if s.look(Look{Facts: asks}) || s.tr.Phase() != wire.PhaseWaiting {
		t.Error("who does not read for long waits")
	}
}

// TestInput checks which input takes a shell from its prompt.
func TestInput(t *testing.T) {
	for data, leaves := range map[string]bool{"ls": false, "ls\r": true, "\n": true, "\x03": true,
		"\x04": true, "\t": false} {
		s := newScript(t, Options{Marked: true})
		s.cycle(0)
		s.take(s.tr.Input([]byte(data), 0, s.moment()))
		if got := s.tr.Phase() != wire.PhasePrompt; got != leaves {
			t.Errorf("%q: left its prompt: %t", data, got)
		}
	}
}

// TestEditedLine checks that a shell which reads after a line was edited is at its prompt, once
// several looks agree.
func TestEditedLine(t *testing.T) {
	s := newScript(t, Options{Marked: true, Probed: true})
	s.cycle(0)
	before := s.tr.Counts().Verdicts
	for i, anew := range []bool{false, false, true, false} {
		if again := s.look(Look{Facts: reads, Anew: anew}); !again {
			t.Errorf("look %d is enough", i)
		}
	}
	if s.look(Look{Facts: reads}); s.tr.Counts().Verdicts != before+1 {
		t.Error("the third look in a row is not enough")
	}
}

// TestScreenPrompt recognizes the prompt of a shell without marks by the text before the cursor.
func TestScreenPrompt(t *testing.T) {
	blind := errors.New("not from here")
	s := newScript(t, Options{Prompt: func(b string) bool { return strings.HasSuffix(b, "#") }})
	prompt := Look{Err: blind, Before: "switch#", Line: 4}
	s.look(prompt)
	s.want(wire.PhaseRunning)
	s.print(11)
	s.after(promptQuiet - 1)
	s.look(prompt)
	s.want(wire.PhaseRunning)
	s.after(1)
	s.look(prompt)
	s.want(wire.PhasePrompt, wire.BasisScreen)
	cmd := &Command{Op: "op"}
	s.told = nil
	s.take(s.tr.Give(cmd, wire.BasisScreen, s.moment()))
	if !s.look(prompt) {
		t.Error("what is being typed is looked at")
	}
	s.tr.Writes()
	s.tr.Typed()
	cmd.Typed = true
	s.take(s.tr.Input([]byte("show\r"), 0, s.moment()))
	s.tr.Wrote(s.now)
	s.take(s.tr.Start(cmd, 16))
	s.after(promptQuiet)
	s.look(prompt)
	// There was no output since, so this is the previous prompt.
	s.want(wire.PhaseRunning, wire.BasisScreen)
	s.print(20)
	s.after(promptQuiet)
	prompt.Line = 24
	s.look(prompt)
	s.want(wire.PhasePrompt, wire.BasisScreen)
	if !cmd.Over || cmd.From != 16 || cmd.To != 24 {
		t.Errorf("got %+v", cmd)
	}
}

// TestExit checks that the end of the shell ends the command that runs.
func TestExit(t *testing.T) {
	s := newScript(t, Options{Marked: true})
	s.cycle(0)
	cmd := &Command{Number: 1}
	s.give(cmd)
	s.told = nil
	s.print(9)
	s.take(s.tr.Exit(nil, "KILL", "rescued", s.moment()))
	s.want(wire.PhaseDead, wire.BasisExit)
	s.wantTold("result dead ended")
	s.take(s.tr.Exit(nil, "", "", s.moment()))
	s.cycle(0)
	s.take(s.tr.Close("closed", s.moment()))
	s.wantTold("")
	next, _ := s.tr.Restart(Options{}, s.moment())
	if st := next.State(s.now); st.Phase != wire.PhaseRunning || st.Cwd != "/home" ||
		st.ExitCode != nil {
		t.Errorf("the next: %+v", st)
	}
}

// Another shell than the session's own that reads at its prompt is a prompt, unless the terminal
// runs a program.
func TestShellInside(t *testing.T) {
	inside := Facts{Foreground: 7, Pid: 7, Argv: []string{"bash", "--norc"}, Blocked: true,
		Shell: &PromptShell{Name: "bash", PID: 7}}
	replaced := Facts{Foreground: shellPID, Pid: shellPID, ShellIsForeground: true, Blocked: true,
		ShellImage: 2, Argv: []string{"zsh"}, Shell: &PromptShell{Name: "zsh", PID: shellPID}}
	for _, c := range []struct {
		name  string
		opt   Options
		facts Facts
		want  wire.Phase
		depth int
	}{
		{"started in it", Options{Marked: true}, inside, wire.PhasePrompt, 1},
		{"in a shell that was entered", Options{Marked: true, Depth: 1}, inside,
			wire.PhasePrompt, 2},
		{"in its place", Options{Marked: true}, replaced, wire.PhasePrompt, 0},
		{"a program's", Options{Program: true}, inside, wire.PhaseWaiting, 0},
	} {
		s := newScript(t, c.opt)
		s.cycle(0)
		s.tr.Know(1)
		s.give(&Command{Number: 1})
		s.mark(marks.Mark{Kind: marks.CommandStart, Run: true, Number: 1}, inFront)
		s.after(time.Second)
		s.look(Look{Facts: c.facts})
		st := s.tr.State(s.now)
		switch {
		case st.Phase != c.want:
			t.Errorf("%s: %s, want %s", c.name, st.Phase, c.want)
		case st.Phase == wire.PhasePrompt && (st.Shell == nil || st.Shell.Depth != c.depth ||
			st.Shell.Pid != c.facts.Pid):
			t.Errorf("%s: shell %+v, want depth %d", c.name, st.Shell, c.depth)
		}
	}
}

// The command of a shell that was entered ends at the next prompt of the shell around it. One that
// the shell has not confirmed is lost.
func TestLeave(t *testing.T) {
	enter := func() (outer, inner *script) {
		outer = newScript(t, Options{Marked: true})
		outer.cycle(0)
		inner = &script{t: t, now: outer.now, end: outer.end}
		inner.tr, _ = outer.tr.Restart(Options{Marked: true, Depth: 1,
			Process: &wire.Shell{Pid: 7, Depth: 1}}, outer.moment())
		inner.cycle(0)
		inner.told = nil
		return outer, inner
	}
	three := 3

	outer, inner := enter()
	cmd := &Command{Op: "op", Number: 1}
	inner.give(cmd)
	inner.mark(marks.Mark{Kind: marks.CommandStart, Run: true, Number: 1}, inFront)
	inner.told = nil
	inner.take(inner.tr.Leave(outer.tr, &three, wire.Done, inner.moment()))
	if cmd.Over || !cmd.Ended || cmd.Exit == nil || *cmd.Exit != 3 {
		t.Errorf("before the prompt: %+v", cmd)
	}
	outer.want(wire.PhaseRunning, wire.BasisProcess)
	outer.told = nil
	outer.cycle(3)
	outer.wantTold("result prompt")
	if !cmd.Over {
		t.Errorf("at the prompt: %+v", cmd)
	}

	outer, inner = enter()
	cmd = &Command{Op: "op", Number: 1}
	inner.give(cmd)
	inner.told = nil
	inner.take(inner.tr.Leave(outer.tr, nil, wire.Done, inner.moment()))
	if !cmd.Over || !cmd.Unsure {
		t.Errorf("not confirmed: %+v", cmd)
	}

	outer, inner = enter()
	inner.take(inner.tr.Leave(outer.tr, nil, wire.Refused, inner.moment()))
	outer.want(wire.PhasePrompt, wire.BasisProcess, wire.BasisMark)
}

// An interpreter at its own prompt is named; what it or a statement asks is not its prompt.
func TestInterpreter(t *testing.T) {
	for _, c := range []struct{ argv, before, want string }{
		{"python3 -q", ">>> ", "python3"},
		{"/usr/bin/python3.11", "... ", "python3.11"},
		{"python3 -q", "name? ", ""},
		{"python3 script.py", "> ", ""},
		{"/usr/bin/python3 /usr/bin/ipython3", "In [12]: ", "ipython3"},
		{"node", "> ", "node"},
		{"node --expose-gc", "> ", "node"},
		{"node -i script.js", "> ", "node"},
		{"deno repl", "> ", "deno"},
		{"/usr/bin/node --max-old-space-size=12052 /usr/bin/gemini", " > ", ""},
		{"node script.js", "> ", ""},
		{"psql -d x", "shop=# ", "psql"},
		{"psql -d x", "shop-> ", "psql"},
		{"psql -d x", "Password: ", ""},
		{"sqlite3 a.db", "   ...> ", "sqlite3"},
		{"gdb ./a", "(gdb) ", "gdb"},
		{"gdb ./a", "Quit anyway? (y or n) ", ""},
		{"cat", "> ", ""},
		{"python3 dots.py", "...", ""},
		{"python3 -c code", "... ", ""},
		{"python3", "", ""},
		{"", ">>> ", ""},
	} {
		if got := interpreter(strings.Fields(c.argv), c.before); got != c.want {
			t.Errorf("%q at %q: %q, want %q", c.argv, c.before, got, c.want)
		}
	}
}
