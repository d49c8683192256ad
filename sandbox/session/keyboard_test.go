package session

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/keyboard"
	"github.com/sandboxd/sandboxd/sandbox/session/marks"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// prompt makes the session believe that its shell is at a prompt, as a mark would.
func (m *memorySet) prompt() {
	s := m.lookup("main")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.console.markedLocked(marks.Mark{Kind: marks.PromptEnd})
}

func (m *memorySet) holder() string {
	s := m.lookup("main")
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keyboard.String()
}

func (s *side) do(v wire.Verb) error {
	_, err := s.Request(s.t.Context(), wire.Request{Verb: v})
	return err
}

// TestKeyboard tests who may do what while a party holds the keyboard.
func TestKeyboard(t *testing.T) {
	const input = "input"
	tests := []struct {
		name   string
		holder *wire.Party // nil: free
		taken  bool        // held by take, else by typing
		asks   *wire.Party
		does   wire.Verb
		code   wire.Code // empty: allowed
		after  string    // holder
	}{
		{"a person types on a free one", nil, false, human("bob"), input, "", "person:bob"},
		{"an agent types on a free one", nil, false, agent("alice"), input, "", "agent:alice"},
		{"a watcher types", nil, false, watcher("eve"), input, wire.CodeDenied, ""},
		{"a watcher takes", nil, false, watcher("eve"), wire.VerbTake, wire.CodeDenied, ""},
		{"a person takes a free one", nil, false, human("bob"), wire.VerbTake, "", "person:bob"},
		{"an agent takes a free one", nil, false, agent("alice"), wire.VerbTake, "", "agent:alice"},
		{
			"a person types while an agent has it",
			agent("alice"),
			false,
			human("bob"),
			input,
			wire.CodeKeyboardHeld,
			"agent:alice",
		},
		{
			"a person takes it from an agent that typed",
			agent("alice"),
			false,
			human("bob"),
			wire.VerbTake,
			"",
			"person:bob",
		},
		{
			"a person takes it from an agent that took it",
			agent("alice"),
			true,
			human("bob"),
			wire.VerbTake,
			"",
			"person:bob",
		},
		{
			"an agent types while a person has it",
			human("bob"),
			false,
			agent("alice"),
			input,
			wire.CodeKeyboardHeld,
			"person:bob",
		},
		{
			"an agent takes it from a person",
			human("bob"),
			false,
			agent("alice"),
			wire.VerbTake,
			wire.CodeKeyboardHeld,
			"person:bob",
		},
		{
			"a person takes it from a person",
			human("bob"),
			true,
			human("carl"),
			wire.VerbTake,
			wire.CodeKeyboardHeld,
			"person:bob",
		},
		{
			"a person takes it from a person who typed",
			human("bob"),
			false,
			human("carl"),
			wire.VerbTake,
			wire.CodeKeyboardHeld,
			"person:bob",
		},
		{
			"the same name twice is two people",
			human("bob"),
			false,
			human("bob"),
			input,
			wire.CodeKeyboardHeld,
			"person:bob",
		},
		{
			"an agent takes it from an agent",
			agent("alice"),
			false,
			agent("dora"),
			wire.VerbTake,
			wire.CodeKeyboardHeld,
			"agent:alice",
		},
		{
			"the same agent on another stream types",
			agent("alice"),
			true,
			agent("alice"),
			input,
			"",
			"agent:alice",
		},
		{
			"a watcher of the agent's name gives",
			agent("alice"),
			true,
			&wire.Party{Name: "alice", Kind: wire.Agent, Rights: wire.RightWatch},
			wire.VerbGive,
			"",
			"agent:alice",
		},
		{
			"another party gives",
			human("bob"),
			true,
			agent("alice"),
			wire.VerbGive,
			"",
			"person:bob",
		},
		{
			"another party interrupts",
			human("bob"),
			true,
			agent("alice"),
			wire.VerbInterrupt,
			wire.CodeKeyboardHeld,
			"person:bob",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMemorySet(t, Options{})
			defer m.close()
			first := m.dial(wire.Attach{Session: "main", Create: true, Party: agent("setup")})
			defer first.leave()
			if tt.holder != nil {
				h := m.dial(wire.Attach{Session: "main", Party: tt.holder})
				defer h.leave()
				if tt.taken {
					if err := h.do(wire.VerbTake); err != nil {
						t.Fatal(err)
					}
				} else if err := h.Input(t.Context(), []byte("x")); err != nil {
					t.Fatal(err)
				}
			}
			asks := m.dial(wire.Attach{Session: "main", Party: tt.asks})
			defer asks.leave()
			var err error
			if tt.does == input {
				err = asks.Input(t.Context(), []byte("y"))
			} else {
				var r wire.Reply
				if r, err = asks.Request(t.Context(),
					wire.Request{Verb: tt.does}); r.Result != nil && r.Result.Error != nil {
					err = r.Result.Error
				}
			}
			if got := codeOf(err); got != tt.code || err != nil && tt.code == "" {
				t.Errorf("error %v, want code %q", err, tt.code)
			}
			if tt.code == wire.CodeKeyboardHeld {
				contains(t, err.Error(), tt.holder.String())
			}
			if got := m.holder(); got != tt.after {
				t.Errorf("keyboard %q, want %q", got, tt.after)
			}
		})
	}
}

// TestTailOfARefusedLine frees the keyboard while a person types whose first keys were rejected.
// The rest of the line is rejected, too, until the person pauses or takes the keyboard.
func TestTailOfARefusedLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemorySet(t, Options{})
		alice := m.dial(wire.Attach{Session: "main", Create: true, Party: agent("alice")})
		bob := m.dial(wire.Attach{Session: "main", Party: human("bob")})
		carl := m.dial(wire.Attach{Session: "main", Party: human("carl")})
		begin := func() {
			t.Helper()
			if err := alice.do(wire.VerbTake); err != nil {
				t.Fatal(err)
			}
			if err := bob.Input(t.Context(), []byte("e")); codeOf(err) != wire.CodeKeyboardHeld {
				t.Fatalf("while the agent has it: %v", err)
			}
			if err := alice.do(wire.VerbGive); err != nil {
				t.Fatal(err)
			}
		}
		begin()
		for _, key := range "cho SAFE rm -rf x" {
			time.Sleep(70 * time.Millisecond)
			err := bob.Input(t.Context(), []byte(string(key)))
			if codeOf(err) != wire.CodeKeyboardHeld || m.holder() != "" {
				t.Fatalf("%q: %v, and %q has the keyboard", key, err, m.holder())
			}
			contains(t, err.Error(), "pause")
		}
		if err := carl.Input(t.Context(), []byte("x")); err != nil {
			t.Errorf("another party: %v", err)
		}
		if err := carl.do(wire.VerbGive); err != nil {
			t.Fatal(err)
		}
		time.Sleep(keyboard.TypingPause)
		if err := bob.Input(t.Context(), []byte("echo")); err != nil || m.holder() != "person:bob" {
			t.Errorf("after a pause: %v, and %q has the keyboard", err, m.holder())
		}
		if err := bob.do(wire.VerbGive); err != nil {
			t.Fatal(err)
		}
		begin()
		if err := bob.do(wire.VerbTake); err != nil {
			t.Fatal(err)
		}
		if err := bob.Input(t.Context(), []byte("echo")); err != nil {
			t.Errorf("after taking it: %v", err)
		}
		for _, s := range []*side{carl, bob, alice} {
			s.leave()
		}
		m.close()
	})
}

func TestKeyboardIsFreeWhenThePromptIsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemorySet(t, Options{})
		bob := m.dial(wire.Attach{Session: "main", Create: true, Party: human("bob")})
		if err := bob.Input(t.Context(), []byte("ls")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if got := m.holder(); got != "person:bob" {
			t.Errorf("while something runs: %q", got)
		}
		m.prompt()
		time.Sleep(4 * time.Second)
		if err := bob.Input(t.Context(), []byte("x")); err != nil {
			t.Fatal(err)
		}
		m.prompt()
		time.Sleep(4900 * time.Millisecond)
		if got := m.holder(); got != "person:bob" {
			t.Errorf("4.9 s after a key: %q", got)
		}
		time.Sleep(200 * time.Millisecond)
		if got := m.holder(); got != "" {
			t.Errorf("5.1 s after a key: %q", got)
		}
		// A keyboard that was taken by request is held until it is given back.
		if err := bob.do(wire.VerbTake); err != nil {
			t.Fatal(err)
		}
		m.prompt()
		time.Sleep(time.Hour)
		if got := m.holder(); got != "person:bob" {
			t.Errorf("an hour after take: %q", got)
		}
		if err := bob.do(wire.VerbGive); err != nil {
			t.Fatal(err)
		}
		if got := m.holder(); got != "" {
			t.Errorf("after give: %q", got)
		}
		var holders []string
		synctest.Wait()
		for _, e := range bob.events(wire.EventKeyboard) {
			holders = append(holders, e.Keyboard)
		}
		if got, want := strings.Join(holders, " "), "person:bob  person:bob "; got != want {
			t.Errorf("got holders %q, want %q", got, want)
		}
		bob.leave()
		m.close()
	})
}

func TestPartyThatIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemorySet(t, Options{})
		bob := m.dial(wire.Attach{Session: "main", Create: true, Party: human("bob")})
		if err := bob.do(wire.VerbTake); err != nil {
			t.Fatal(err)
		}
		if err := bob.Input(t.Context(), []byte("abc")); err != nil {
			t.Fatal(err)
		}
		bob.leave()
		time.Sleep(29 * time.Second)
		if got := m.holder(); got != "person:bob" {
			t.Errorf("29 s after the cut: %q", got)
		}
		secret := bob.Attached().Resume
		for _, wrong := range []wire.Attach{
			{Resume: secret, Party: human("eve")},
			{Resume: secret, Party: agent("bob")},
			{Resume: strings.Repeat("0", 32), Party: human("bob")},
			{Resume: secret, Session: "other", Party: human("bob")},
		} {
			if _, err := m.try(wrong, true); codeOf(err) != wire.CodeNotFound {
				t.Errorf("resume as %v: %v", wrong.Party, err)
			}
		}
		again := m.dial(wire.Attach{Resume: secret, Party: human("bob")})
		if a := again.Attached(); !a.Resumed || a.Accepted != 3 || a.Keyboard != "person:bob" {
			t.Errorf("resumed: %+v", a)
		}
		time.Sleep(time.Minute)
		if got := m.holder(); got != "person:bob" {
			t.Errorf("a minute after the return: %q", got)
		}
		// A stream that still seems to be connected is replaced.
		third := m.dial(wire.Attach{Resume: secret, Party: human("bob")})
		if !third.Attached().Resumed {
			t.Error("not resumed over a live stream")
		}
		<-again.Done()
		<-again.served
		third.leave()
		time.Sleep(31 * time.Second)
		if got := m.holder(); got != "" {
			t.Errorf("31 s after the cut: %q", got)
		}
		if _, err := m.try(wire.Attach{Resume: secret, Party: human("bob")}, true); codeOf(
			err,
		) != wire.CodeNotFound {
			t.Errorf("resume after the grace: %v", err)
		}
		m.close()
	})
}

func TestTakeEndsTheWriteUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemorySet(t, Options{})
		alice := m.dial(wire.Attach{Session: "main", Create: true, Party: agent("alice")})
		bob := m.dial(wire.Attach{Session: "main", Party: human("bob")})
		term := m.last()
		for range cap(term.in) { // a program that does not read
			term.in <- nil
		}
		refused := make(chan error, 1)
		go func() { refused <- alice.Input(t.Context(), []byte("rm -rf")) }()
		synctest.Wait()
		began := time.Now()
		if err := bob.do(wire.VerbTake); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("take waited %v", d)
		}
		if err := <-refused; codeOf(err) != wire.CodeKeyboardHeld {
			t.Errorf("the interrupted write: %v", err)
		}
		for range cap(term.in) {
			<-term.in
		}
		if err := bob.Input(t.Context(), []byte("ls")); err != nil {
			t.Fatal(err)
		}
		if got := string(<-term.in); got != "ls" {
			t.Errorf("the program reads %q", got)
		}
		alice.leave()
		bob.leave()
		m.close()
	})
}

func TestWriteDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemorySet(t, Options{})
		alice := m.dial(wire.Attach{Session: "main", Create: true, Party: agent("alice")})
		term := m.last()
		for range cap(term.in) {
			term.in <- nil
		}
		began := time.Now()
		if err := alice.Input(t.Context(), []byte("x")); codeOf(err) != wire.CodeUnavailable {
			t.Errorf("input that nobody reads: %v", err)
		}
		if d := time.Since(began); d != writeTime {
			t.Errorf("refused after %v, want %v", d, writeTime)
		}
		alice.leave()
		m.close()
	})
}

func TestSizeBelongsToTheDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemorySet(t, Options{})
		alice := m.dial(wire.Attach{Session: "main", Create: true, Party: agent("alice")})
		bob := m.dial(wire.Attach{Session: "main", Party: human("bob")})
		resize := func(s *side, cols, rows int) {
			t.Helper()
			if _, err := s.Request(t.Context(),
				wire.Request{Verb: wire.VerbResize, Cols: cols, Rows: rows}); err != nil {
				t.Fatal(err)
			}
		}
		resize(bob, 80, 24)
		if got := len(m.last().sizes); got != 0 {
			t.Errorf("a watcher resized %d times", got)
		}
		if err := bob.do(wire.VerbTake); err != nil {
			t.Fatal(err)
		}
		resize(bob, 100, 30)
		resize(alice, 132, 43)
		if err := bob.do(wire.VerbGive); err != nil {
			t.Fatal(err)
		}
		want := [][2]int{{80, 24}, {100, 30}, {wire.DefaultCols, wire.DefaultRows}}
		if err := alice.do(wire.VerbTake); err != nil {
			t.Fatal(err)
		}
		want = append(want, [2]int{132, 43})
		got := m.last().sizes
		if len(got) != len(want) {
			t.Fatalf("sizes %v, want %v", got, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("sizes %v, want %v", got, want)
			}
		}
		if _, err := bob.Request(t.Context(),
			wire.Request{Verb: wire.VerbResize, Cols: -1, Rows: 5}); codeOf(
			err,
		) != wire.CodeUsage {
			t.Errorf("a size that is none: %v", err)
		}
		alice.leave()
		bob.leave()
		m.close()
	})
}
