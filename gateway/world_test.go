package gateway

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/signals"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// x/crypto can lose an opening at the moment at which a connection ends by a message that it does
// not expect; see connect.Control.OpenStream, which waits for no such.
func TestMain(m *testing.M) {
	signals.DefaultForChildren()
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("golang.org/x/crypto/ssh.(*mux).openChannel"))
}

var (
	alice = Principal{Name: "alice", Kind: wire.Person}
	bob   = Principal{Name: "bob", Kind: wire.Person}
	robot = Principal{Name: "alice", Kind: wire.Agent}
)

// patience is how long a test waits for what must happen.
const patience = 90 * time.Second

// world is a state directory and a backend that outlive the hubs that a test runs on them.
type world struct {
	t       *testing.T
	dir     string
	backend sandbox.Backend
	memory  *sandboxtest.Backend
	log     *syncBuffer
	options Options // what a test wants different
	owner   string  // of the daemon; empty is alice
}

func newWorld(t *testing.T, o sandboxtest.Options) *world {
	t.Helper()
	w := &world{t: t, dir: filepath.Join(t.TempDir(), "state"), memory: sandboxtest.New(t, o),
		log: new(syncBuffer)}
	w.backend = w.memory
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", w.log)
		}
	})
	return w
}

// daemon is one run of a hub.
type daemon struct {
	*Hub
	store *store.Store
	stop  func()
}

// remove is Remove, of which the error is what counts.
func (d *daemon) remove(ctx context.Context, p Principal, name string) error {
	_, err := d.Remove(ctx, p, name)
	return err
}

// start runs a hub on w until stop, or the end of the test.
func (w *world) start() *daemon {
	w.t.Helper()
	s, err := store.Open(w.t.Context(), w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	records := filepath.Join(w.dir, "records")
	if err := os.MkdirAll(records, 0o700); err != nil {
		w.t.Fatal(err)
	}
	o := w.options
	o.Store, o.Records, o.Backends = s, records,
		map[string]sandbox.Backend{sandboxtest.Name: w.backend}
	o.Owner, o.Logins, o.StopGrace = cmp.Or(w.owner, "alice"), []string{"localuser"}, time.Second
	o.Log = slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	h, err := New(o)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	d := &daemon{Hub: h, store: s}
	d.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				w.t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			stacks := make([]byte, 4<<20)
			w.t.Errorf("Run does not return:\n%s", stacks[:runtime.Stack(stacks, true)])
		}
		if err := s.Close(); err != nil {
			w.t.Errorf("close store: %v", err)
		}
	})
	w.t.Cleanup(d.stop)
	if err := h.Ready(w.ctx()); err != nil {
		w.t.Fatal(err)
	}
	return d
}

// ctx ends when a test has taken too long.
func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeoutCause(w.t.Context(), patience,
		errors.New("the test has waited too long"))
	w.t.Cleanup(cancel)
	return ctx
}

func (w *world) create(d *daemon, name string) lifecycle.Info {
	w.t.Helper()
	info, err := d.Create(w.ctx(), alice, lifecycle.NewSpec{Name: name}, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return info
}

// run runs a command in demo's main session as alice's agent.
func (w *world) run(d *daemon, command string) *wire.Result {
	w.t.Helper()
	a, err := d.Sessions.Shared(w.ctx(), robot, wire.Target{Sandbox: "demo"},
		attach.JoinOptions{Create: true})
	if err != nil {
		w.t.Fatal(err)
	}
	reply, err := a.Request(w.ctx(), wire.Request{Verb: wire.VerbRun, Text: command})
	if err != nil {
		w.t.Fatalf("run %q: %v", command, err)
	}
	return reply.Result
}

// wantCode fails the test unless err carries that code.
func wantCode(t *testing.T, err error, code wire.Code) {
	t.Helper()
	if !errors.Is(err, &wire.Error{Code: code}) {
		t.Fatalf("error = %v, want code %s", err, code)
	}
}

// eventually waits until f is true. It is for states that nobody announces.
func (w *world) eventually(what string, f func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		if time.Now().After(deadline) {
			w.t.Fatalf("it never came to this: %s", what)
		}
		<-tick.C
	}
}

func (w *world) state(d *daemon, name string) lifecycle.State {
	w.t.Helper()
	info, err := d.Get(w.ctx(), alice, name)
	if err != nil {
		w.t.Fatal(err)
	}
	return info.State
}

// everything reads a replica from offset off to the end of a session, or to length want.
func everything(ctx context.Context, l *live.Session, off, want uint64) (string, error) {
	var out strings.Builder
	buf := make([]byte, 16<<10)
	for off < want {
		n, err := l.ReadAt(ctx, off, buf)
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

// syncBuffer is a log that tests and goroutines share.
type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// shared returns robot's shared attachment to demo's main session, which it starts if needed.
func (w *world) shared(d *daemon) *attach.Attachment {
	w.t.Helper()
	a, err := d.Sessions.Shared(w.ctx(), robot, main, attach.JoinOptions{Create: true})
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

// Take takes the keyboard as p's own party, and returns who holds it then.
func (d *daemon) Take(ctx context.Context, p Principal, t wire.Target) (string, error) {
	a, err := d.Sessions.Own(ctx, p, t)
	if err != nil {
		return "", err
	}
	return a.Party().String(), a.Take(ctx)
}

// Give gives it back, and returns who holds it then.
func (d *daemon) Give(ctx context.Context, p Principal, t wire.Target) (string, error) {
	a, err := d.Sessions.Own(ctx, p, t)
	if err != nil {
		return "", err
	}
	err = a.Give(ctx)
	return a.Live().Keyboard(), err
}
