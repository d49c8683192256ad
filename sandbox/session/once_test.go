package session

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sandboxd/sandboxd/sandbox/session/track"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestTypeIsForItsShell checks that input for a shell that has ended does not reach the next one.
func TestTypeIsForItsShell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemorySet(t, Options{})
		alice := m.dial(wire.Attach{Session: "main", Create: true, Party: agent("alice")})
		s := m.lookup("main")
		s.writer.sem <- struct{}{} // another party writes
		answered := make(chan wire.Reply, 1)
		go func() {
			reply, _ := alice.Request(
				t.Context(),
				wire.Request{Verb: wire.VerbType, Op: wire.NewOp(), Text: "secret"},
			)
			answered <- reply
		}()
		synctest.Wait()
		m.last().die(Exit{})
		synctest.Wait()
		if restarted, err := s.restart(t.Context()); err != nil || !restarted {
			t.Fatalf("restarted %t, %v", restarted, err)
		}
		if err := alice.do(wire.VerbTake); err != nil {
			t.Fatal(err)
		}
		s.writer.unlock()
		select {
		case reply := <-answered:
			if res := reply.Result; res == nil || res.Ended != wire.Refused ||
				codeOf(res.Error) != wire.CodeUnavailable {
				t.Errorf("%+v", res)
			}
		case typed := <-m.last().in:
			t.Errorf("the next shell reads %q", typed)
		}
		alice.leave()
		m.close()
	})
}

// TestCommandTypedInPart checks that a command of which the terminal accepted a part is not
// reported as refused, because that part stays at the prompt.
func TestCommandTypedInPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemorySet(t, Options{})
		alice := m.dial(wire.Attach{Session: "main", Create: true, Party: agent("alice")})
		if err := alice.do(wire.VerbTake); err != nil {
			t.Fatal(err)
		}
		m.prompt()
		s, term := m.lookup("main"), m.last()
		for range cap(term.in) - 1 { // leave room for one more write
			term.in <- nil
		}
		var p *party
		s.mu.Lock()
		for q := range s.parties.all {
			p = q
		}
		s.mu.Unlock()
		f := s.newCall(wire.Request{})
		f.command = &track.Command{}
		err := f.typeCommand(t.Context(), &op{}, p, strings.Repeat("x", writeChunk+1))
		if codeOf(err) != wire.CodeLost {
			t.Errorf("%v", err)
		}
		alice.leave()
		m.close()
	})
}
