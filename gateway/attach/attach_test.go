package attach

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox/signals"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestMain(m *testing.M) {
	signals.DefaultForChildren() // guests of external tests start shells
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("golang.org/x/crypto/ssh.(*mux).openChannel"))
}

var demo = wire.Target{Sandbox: "demo", Session: "main"}

// box is a running sandbox whose guest is the test. Methods that a test does not need panic.
type box struct {
	Sandbox
	sessions      *live.Sessions
	pauses, stops interrupt.Event
	paused        atomic.Bool
	asked         chan struct{} // receives a value when the guest of answering gets a request
	over          *wire.Error
}

func newBox(t *testing.T) *box {
	t.Helper()
	return &box{asked: make(chan struct{}, 16), sessions: live.NewSessions(
		live.Options{ID: "id", Name: func() string { return "demo" }, Records: t.TempDir(),
			Log:        slog.New(slog.DiscardHandler),
			Board:      attention.NewBoard(func(string) []attention.Session { return nil }),
			Principals: func() []string { return []string{"alice"} },
			Settle:     func(context.Context) {}})}
}

func (b *box) Name() string                       { return "demo" }
func (b *box) Sessions() *live.Sessions           { return b.sessions }
func (b *box) IsHost() bool                       { return false }
func (b *box) IsPaused() bool                     { return b.paused.Load() }
func (b *box) Touch()                             {}
func (b *box) Over() *wire.Error                  { return b.over }
func (b *box) Reach(err error) error              { return err }
func (b *box) Stops() *interrupt.Event            { return &b.stops }
func (b *box) Wake(context.Context, string) error { return nil }
func (b *box) Within(ctx context.Context) (context.Context, func()) {
	return b.pauses.Within(ctx)
}
func (b *box) Silence() error { return nil }
func (b *box) Silent(d time.Duration) error {
	return &interrupt.SilentError{What: "the guest", Time: d}
}
func (b *box) Answers(context.Context) *wire.Error {
	return wire.LostError(wire.LostGuest, "its guest does not answer any more")
}
func (b *box) NotRunning(string) error {
	return wire.Errorf(wire.CodeUnavailable, "sandbox demo is paused")
}

// pause has the effects of a pause of the sandbox on calls.
func (b *box) pause() {
	b.paused.Store(true)
	b.pauses.Interrupt(&interrupt.FrozenError{Lost: wire.LostError(wire.LostPaused,
		"sandbox demo was paused"),
		Refused: wire.Errorf(wire.CodeUnavailable,
			"sandbox demo was paused before the call was made")})
}

// session returns a session of b whose output comes from the test.
func (b *box) session(t *testing.T) *live.Session {
	t.Helper()
	l, err := b.sessions.Adopt(wire.SessionInfo{Name: "main",
		Created: time.Now().Add(-time.Minute).UnixMilli(), Cols: 80, Rows: 24})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.sessions.Drop(l, "the test is over") })
	return l
}

func newAttachments() *Attachments {
	return New(Options{Log: slog.New(slog.DiscardHandler),
		Bound: func(ctx context.Context) (
			context.Context, context.CancelFunc) {
			return context.WithCancel(ctx)
		},
		Public: func(err error) *wire.Error {
			if e, ok := errors.AsType[*wire.Error](err); ok {
				return e
			}
			return wire.Errorf(wire.CodeInternal, "%v", err)
		}})
}

// answering returns an attachment whose guest answers each request with reply.
func answering(t *testing.T, reply string) (*Attachment, *box) {
	t.Helper()
	b := newBox(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0") // not net.Pipe: both ends write first
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	near, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	guest := make(chan struct{})
	go func() {
		defer close(guest)
		c := wire.NewConn(far)
		defer c.Close()
		if c.Welcome() != nil {
			return
		}
		for {
			f, err := c.Read()
			if err != nil {
				return
			}
			switch f.Type {
			case wire.FrameAttach:
				_ = c.WriteJSON(wire.FrameAttached, 0,
					wire.Attached{Session: "main", Resume: "x", Shell: "bash", Incarnation: "1"})
			case wire.FrameRequest:
				_ = c.Write(wire.Frame{Type: wire.FrameReply, ID: f.ID, Data: []byte(reply)})
				b.asked <- struct{}{}
			}
		}
	}()
	client, err := wire.Open(t.Context(), near, wire.Attach{Session: "main"}, wire.Handler{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		<-guest
	})
	a := &Attachment{all: newAttachments(), sandbox: b, live: b.session(t), target: demo,
		party:   wire.Party{Name: "alice", Kind: wire.Agent},
		opening: make(chan struct{}, 1), client: client, resumes: "x", incarnation: "1"}
	a.life, a.end = context.WithCancelCause(context.Background())
	t.Cleanup(func() { a.end(interrupt.ErrLeft) })
	return a, b
}

// TestBannedSecrets checks that a disconnected party cannot resume while its guest may know it.
func TestBannedSecrets(t *testing.T) {
	all := newAttachments()
	all.ban("one")
	all.banned["old"] = time.Now().Add(-2 * bannedFor)
	if !all.isBanned("one") || all.isBanned("old") || all.isBanned("other") {
		t.Errorf("banned: one %v, old %v, other %v", all.isBanned("one"), all.isBanned("old"),
			all.isBanned("other"))
	}
	if all.ban("two"); len(all.banned) != 2 {
		t.Errorf("%d secrets are kept", len(all.banned))
	}
}
