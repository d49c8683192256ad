package sshd

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/pty"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// resize changes the size of the person's window.
func (s *seat) resize(cols, rows int) {
	s.t.Helper()
	s.mu.Lock()
	s.show.Resize(cols, rows)
	s.mu.Unlock()
	if err := pty.Setsize(s.tty, &pty.Winsize{Cols: uint16(cols), Rows: uint16(rows)}); err != nil {
		s.t.Fatal(err)
	}
}

// line returns the terminal's line that contains text, or "".
func (s *seat) line(text string) string {
	for line := range strings.Lines(s.text()) {
		if strings.Contains(line, text) {
			return strings.TrimRight(line, "\n ")
		}
	}
	return ""
}

// The list shows what needs attention. A session is joined by keys and left, and the list returns.
func TestControlHostPick(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.sandbox("one")
	w.sandbox("two")
	s := w.sit("alice", "sandboxd@127.0.0.1")
	s.sees("Enter join   j k or a number select   n new   q quit")
	s.until("lists both", func() bool { return s.line("1  one") != "" && s.line("2  two") != "" })

	// An agent's question appears without a key press.
	agent, err := w.hub.Sessions.Shared(t.Context(), aliceAgent,
		wire.Target{Sandbox: "two", Session: "main"}, attach.JoinOptions{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := agent.Request(t.Context(), wire.Request{Verb: wire.VerbRun,
		Text: `printf 'a\033]0;b\007c\n'; read -p 'Which of them? ' x`}); err != nil {
		t.Fatal(err)
	}
	s.until("asks", func() bool {
		line := s.line("2  two")
		return strings.Contains(line, "asks") && strings.Contains(line, "agent:alice") &&
			strings.Contains(line, "Which of them?")
	})
	s.types("9")
	s.sees("no row 9")
	s.types("2\r")
	s.until("is in two", func() bool { return strings.Contains(s.status(), "two~main") })
	s.types("\x1dt")
	s.until("drives", func() bool { return strings.Contains(s.status(), "you: typing") })
	s.types("this one\r")
	s.until("answered", func() bool { return agent.Live().State().Phase == wire.PhasePrompt })
	s.resize(80, 12)
	s.types("\x1dd")
	s.sees("detached from two~main")
	s.until("lists two at its prompt", func() bool {
		return strings.Contains(s.line("2  two"), "prompt")
	})
	if got := s.status(); got != " detached from two~main" {
		t.Errorf("status %q: the window's new size is not known", got)
	}

	// Keys go to the list again. Row two was chosen, and stays chosen.
	s.types("\x1b[A") // an arrow key
	s.types("\r")
	s.until("is in one", func() bool { return strings.Contains(s.status(), "one~main") })
	s.types("exit 4\r")
	s.sees("one~main ended with exit status 4")
	s.until("dead", func() bool { return strings.Contains(s.line("1  one"), "dead:4") })
	s.types("q")
	if got := s.leaves(); got != 0 {
		t.Errorf("exit status %d", got)
	}
	if all := s.bytes(); strings.LastIndex(all, "\x1b[?1049l") < strings.LastIndex(
		all, "\x1b[?1049h") || strings.Contains(all, "\x1b]") {
		t.Error("the terminal was not restored")
	}
}

// Without sandboxes the list says how to create one, and n does.
func TestControlHostPickNew(t *testing.T) {
	w := newWorld(t, worldOptions{})
	s := w.sit("alice", "sandboxd@127.0.0.1")
	s.sees("You have no sandboxes.")
	s.types("n")
	s.sees("name of the new sandbox:")
	s.types("No Name\r")
	s.sees("is not a name")
	s.types(strings.Repeat("\x7f", 10) + "fresh\r")
	s.until("is in fresh", func() bool { return strings.Contains(s.status(), "fresh~main") })
	s.types("\x1dd")
	s.until("listed", func() bool { return s.line("1  fresh") != "" })
	s.types("nother\x1b")
	s.until("left the name", func() bool { return strings.Contains(s.status(), "Enter join") })
	s.types("\x03")
	if got := s.leaves(); got != 0 {
		t.Errorf("exit status %d", got)
	}
	// A watch key creates nothing, and joins all the same.
	s = w.sit("watch", "sandboxd@127.0.0.1")
	s.sees("1  fresh")
	s.types("n\r")
	s.sees("your key may only watch")
	s.types("\r")
	s.until("watches", func() bool { return strings.Contains(s.status(), "you: watching") })
	s.types("\x1dd")
	s.sees("detached from fresh~main")
	s.types("q")
	if got := s.leaves(); got != 0 {
		t.Errorf("exit status %d", got)
	}
}

// stuckBackend boots nothing until its caller gives up.
type stuckBackend struct {
	*scripted
	booting chan struct{}
}

func (b stuckBackend) Boot(ctx context.Context, _ sandbox.Spec) (sandbox.Instance, error) {
	close(b.booting)
	<-ctx.Done()
	return sandbox.Instance{}, context.Cause(ctx)
}

// A person can leave during the creation of a sandbox: nothing is left of it.
func TestControlHostPickNewLeave(t *testing.T) {
	booting := make(chan struct{})
	w := newWorld(t, worldOptions{hub: func(o *gateway.Options) {
		o.Backends[sandboxtest.Name] = stuckBackend{o.Backends[sandboxtest.Name].(*scripted),
			booting}
	}})
	s := w.sit("alice", "sandboxd@127.0.0.1")
	s.sees("You have no sandboxes.")
	s.types("n")
	s.sees("name of the new sandbox:")
	s.types("slow\r")
	<-booting
	s.types("\x03")
	if got := s.leaves(); got != 0 {
		t.Errorf("exit status %d", got)
	}
	if all, err := w.hub.List(t.Context(), aliceAgent); err != nil || len(all) != 0 {
		t.Errorf("there is %v, %v", all, err)
	}
}

// In a small window the list is short and includes the chosen row.
func TestControlHostPickSmall(t *testing.T) {
	w := newWorld(t, worldOptions{})
	names := []string{"box-a", "box-b", "box-c", "box-d", "box-e", "box-f"}
	for _, name := range names {
		w.sandbox(name)
	}
	s := w.sit("alice", "sandboxd@127.0.0.1")
	s.sees("6  box-f")
	s.resize(20, 5)
	s.until("cut", func() bool {
		return s.status() == " q quit" && s.line("1  box-a") != "" && s.line("box-f") == ""
	})
	s.types("G")
	s.until("at the end", func() bool { return s.line("6  box-f") != "" && s.line("box-a") == "" })
	s.types("kk")
	s.types("\r")
	s.until("joined", func() bool { return w.members("box-d") == 1 })
	s.types("\x1dd")
	s.until("left", func() bool { return w.members("box-d") == 0 })
	s.resize(1, 1)
	s.resize(100, 20)
	s.sees("1  box-a")
	// When the client disappears, so does the list.
	s.cmd.Process.Kill()
	s.leaves()
}

// members returns the number of parties on a sandbox's main session.
func (w *world) members(name string) int {
	w.t.Helper()
	info, err := w.hub.Get(w.t.Context(), alicePerson, name)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, s := range info.Sessions {
		if s.Name == wire.DefaultSession {
			return len(s.Parties)
		}
	}
	return 0
}

// An agent's key gets the list, too, and then the raw session.
func TestControlHostPickAgent(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("one")
	s := w.sit("agent", "sandboxd@127.0.0.1")
	s.sees("1  one")
	s.types("\r")
	s.until("left the list", func() bool { return strings.Contains(s.bytes(), "\x1b[?1049l") })
	s.types("echo $((6*7)); exit 6\r")
	if got := s.leaves(); got != 6 {
		t.Errorf("exit status %d, want 6", got)
	}
	if !strings.Contains(s.text(), "42") {
		t.Errorf("it shows:\n%s", s.text())
	}
}

func TestListKeys(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want []listKey
	}{
		{"jk12\r", []listKey{'j', 'k', '1', '2', keyEnter}},
		{"\x1b[A\x1b[B\x1bOA\x1bOB", []listKey{keyUp, keyDown, keyUp, keyDown}},
		{"\x1b[5~\x1b[6~\x1b[H\x1b[F\x1b[1~\x1b[4~", []listKey{keyPageUp, keyPageDown, keyHome, keyEnd, keyHome, keyEnd}},
		{"\x1b[1;5A\x1b[200~q\x1b[?1;2cx", []listKey{'q', 'x'}},
		{"\x1bq\x7f\x08\x03\x04", []listKey{keyBackspace, keyBackspace, keyInterrupt, keyInterrupt}},
		{"\xc3\xa9a\x00", []listKey{'a'}},
	} {
		var k listKeys
		if got := k.feed([]byte(tt.in)); !slices.Equal(got, tt.want) {
			t.Errorf("%q: %v, want %v", tt.in, got, tt.want)
		}
		var one listKeys
		var got []listKey
		for i := range len(tt.in) { // split anywhere, the result is the same
			got = append(got, one.feed([]byte{tt.in[i]})...)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%q by bytes: %v, want %v", tt.in, got, tt.want)
		}
	}
	var k listKeys
	if got := k.feed([]byte{0x1b}); len(got) != 0 || !k.pending() {
		t.Errorf("a lone ESC: %v", got)
	}
	if got := k.flush(); !slices.Equal(got, []listKey{keyEscape}) || k.pending() {
		t.Errorf("after a while: %v", got)
	}
}

func FuzzListKeys(f *testing.F) {
	f.Add([]byte("\x1b[Aj\r\x1b"), 2)
	f.Fuzz(func(t *testing.T, in []byte, at int) {
		at = min(max(at, 0), len(in))
		var whole, halves listKeys
		want := whole.feed(in)
		got := append(halves.feed(in[:at]), halves.feed(in[at:])...)
		if !slices.Equal(got, want) || whole.pending() != halves.pending() {
			t.Fatalf("%q cut at %d: %v, want %v", in, at, got, want)
		}
		if len(whole.held) > maxSequence {
			t.Fatalf("%d bytes are held", len(whole.held))
		}
	})
}

// The list fits every size, and includes the chosen row.
func TestPickerLines(t *testing.T) {
	p := &picker{}
	for _, items := range []int{0, 1, 50} {
		p.items = nil
		for i := range items {
			p.items = append(p.items, pick{target: wire.Target{Sandbox: "box-" +
				string(rune('a'+i%26)), Session: "main"}, state: lifecycle.Running,
				need: attention.Need{Session: "main", Needs: attention.Answer,
					LastLine: "äöü 界面 what?", Since: time.Now()}})
		}
		for _, size := range [][2]int{{1, 1}, {20, 4}, {20, 1}, {80, 24}, {300, 100}} {
			for p.chosen = range max(items, 1) {
				lines := p.lines(size[0], size[1])
				if len(lines) > size[1] {
					t.Fatalf("%d lines in %v", len(lines), size)
				}
				if items > 0 && !strings.Contains(strings.Join(lines, "\n"), "\x1b[7m") {
					t.Fatalf("item %d of %d is not in %v", p.chosen, items, size)
				}
			}
		}
	}
}
