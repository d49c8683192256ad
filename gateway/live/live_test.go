package live

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newSessions returns the empty set of a sandbox called demo, whose guest the test plays.
func newSessions(t testing.TB, change func(*Options)) *Sessions {
	t.Helper()
	o := Options{ID: "id", Name: func() string { return "demo" }, Records: t.TempDir(),
		Log:        slog.New(slog.DiscardHandler),
		Board:      attention.NewBoard(func(string) []attention.Session { return nil }),
		Principals: func() []string { return []string{"alice"} }, Settle: func(context.Context) {}}
	if change != nil {
		change(&o)
	}
	return NewSessions(o)
}

// adopt returns a session of ss that ends with the test.
func adopt(t *testing.T, ss *Sessions, name string) *Session {
	t.Helper()
	s, err := ss.Adopt(wire.SessionInfo{Name: name,
		Created: time.Now().Add(-time.Minute).UnixMilli(), Cols: 80, Rows: 24})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ss.Drop(s, "the test is over") })
	return s
}

func wantCode(t *testing.T, err error, code wire.Code) {
	t.Helper()
	if !errors.Is(err, &wire.Error{Code: code}) {
		t.Fatalf("error = %v, want code %s", err, code)
	}
}

// everything reads a session from offset off to its end, or to length want.
func everything(ctx context.Context, s *Session, off, want uint64) (string, error) {
	var out strings.Builder
	buf := make([]byte, 16<<10)
	for off < want {
		n, err := s.ReadAt(ctx, off, buf)
		out.Write(buf[:n])
		off += uint64(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return out.String(), err
		}
	}
	return out.String(), nil
}

// member is a party that a test attaches.
type member struct {
	party  wire.Party
	calls  int
	shared bool
	cause  atomic.Pointer[error]
}

func (m *member) Party() wire.Party                        { return m.party }
func (m *member) Changed()                                 {}
func (m *member) Disconnect(cause error)                   { m.cause.Store(&cause) }
func (m *member) Resume(context.Context, *connect.Control) {}
func (m *member) Secret() string                           { return "" }
func (m *member) Calls() int                               { return m.calls }
func (m *member) Shared() bool                             { return m.shared }

// A shared attachment is shown as attached only while a call of it is under way or it holds the
// keyboard.
func TestSharedAttachmentRests(t *testing.T) {
	s := adopt(t, newSessions(t, nil), "main")
	m := &member{party: wire.Party{Name: "alice", Kind: wire.Agent, ID: "a"}, shared: true}
	leave := s.Join(m)
	if p := s.Parties(); len(p) != 0 {
		t.Errorf("at rest %v are attached", p)
	}
	m.calls = 1
	if p := s.Parties(); len(p) != 1 {
		t.Errorf("during a call %v are attached", p)
	}
	m.calls = 0
	s.Feed().Event(wire.Event{Seq: 1, Kind: wire.EventKeyboard, Keyboard: m.party.String()})
	if p := s.Parties(); len(p) != 1 {
		t.Errorf("with the keyboard %v are attached", p)
	}
	leave()
	if p := s.Parties(); len(p) != 0 {
		t.Errorf("after it left %v are attached", p)
	}
}

// The call that is lost has its output so far; of a run that never began it has none.
func TestLostCallHasItsOutput(t *testing.T) {
	s := adopt(t, newSessions(t, nil), "main")
	f := s.Feed()
	f.Output(0, []byte("before\r\n"))
	run := s.Begin(wire.Request{Verb: wire.VerbRun, Op: "op"})
	defer run.End()
	run.Sent()
	wait := s.Begin(wire.Request{Verb: wire.VerbWait})
	defer wait.End()
	var r wire.Result
	f.Output(8, []byte("echo\r\n"))
	if run.Lost(&r, 1<<20); r.Output != "" || r.From != 14 {
		t.Errorf("a run that did not begin: %+v", r)
	}
	f.Event(wire.Event{Seq: 1, Kind: wire.EventBegun, Op: "op", Offset: 14})
	f.Output(14, []byte("its output\r\n"))
	if run.Lost(&r, 1<<20); r.Output != "its output\n" || r.From != 14 || r.To != 26 {
		t.Errorf("a run that began: %+v", r)
	}
	r = wire.Result{}
	if wait.Lost(&r, 1<<20); r.Output != "echo\nits output\n" {
		t.Errorf("a wait: %+v", r)
	}
	r = wire.Result{}
	if read := wait.Lost(&r, 4); read != 4 || r.Output != "echo" || !r.Truncated {
		t.Errorf("with a bound it read %d: %+v", read, r)
	}
}
