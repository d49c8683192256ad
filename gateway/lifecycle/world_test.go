package lifecycle_test

import (
	"bytes"
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

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/gateway/record"
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
	alice = gateway.Principal{Name: "alice", Kind: wire.Person}
	bob   = gateway.Principal{Name: "bob", Kind: wire.Person}
	robot = gateway.Principal{Name: "alice", Kind: wire.Agent}
)

// patience is how long a test waits for what must happen.
const patience = 90 * time.Second

var main = wire.Target{Sandbox: "demo", Session: "main"}

// instanceOf is the instance of a sandbox in memory.
func instanceOf(i lifecycle.Info) sandbox.Instance {
	return sandbox.Instance{Backend: sandboxtest.Name, ID: i.ID, Ref: i.ID}
}

// world is a state directory and a backend that outlive the hubs that a test runs on them.
type world struct {
	t       *testing.T
	dir     string
	backend sandbox.Backend
	memory  *sandboxtest.Backend
	log     *syncBuffer
	options gateway.Options // what a test wants different
	// 0 is a millisecond for the first, else the real value
	lateBoot, diskEvery, diskWithin, packagesWithin time.Duration
	// Called between the steps of a claim.
	at func(step string)
	// Inside; empty is the real one.
	proxyAddress string
	// Of the daemon; empty is alice.
	owner string
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
	*gateway.Hub
	registry *lifecycle.Registry
	store    *store.Store
	stop     func()
}

// remove is Remove, of which the error is what counts.
func (d *daemon) remove(ctx context.Context, p gateway.Principal, name string) error {
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
	o.SetDiskEvery(w.diskEvery)
	o.SetDiskWithin(w.diskWithin)
	o.SetPackagesWithin(w.packagesWithin)
	o.SetProxyAddress(w.proxyAddress)
	o.At(w.at)
	o.SetLateBoot(cmp.Or(w.lateBoot, time.Millisecond))
	var registry *lifecycle.Registry
	o.Made(func(reg *lifecycle.Registry) { registry = reg })
	o.Store, o.Records, o.Backends = s, records,
		map[string]sandbox.Backend{sandboxtest.Name: w.backend}
	o.Owner, o.Logins, o.StopGrace = cmp.Or(w.owner, "alice"), []string{"localuser"}, time.Second
	o.Log = slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	h, err := gateway.New(o)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	d := &daemon{Hub: h, registry: registry, store: s}
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

// recorded is what the record of a session has, with a NUL for each missing byte, and its reader.
func (w *world) recorded(d *daemon, t wire.Target) (string, *record.Reader) {
	w.t.Helper()
	r, err := d.Sessions.OpenRecord(w.ctx(), alice, t, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { r.Close() })
	var out bytes.Buffer
	buf := make([]byte, 64<<10)
	for off := uint64(0); off < r.End(); {
		n, err := r.ReadAt(buf, off)
		out.Write(buf[:n])
		off += uint64(n)
		var gap *record.GapError
		if errors.As(err, &gap) {
			out.WriteString(strings.Repeat("\x00", int(gap.To-off)))
			off = gap.To
		} else if err != nil {
			w.t.Fatal(err)
		}
	}
	return out.String(), r
}

func (w *world) join(d *daemon, p gateway.Principal, t wire.Target,
	o attach.JoinOptions) *attach.Attachment {
	w.t.Helper()
	a, err := d.Sessions.Join(w.ctx(), p, t, o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { a.Close() })
	return a
}

// wantLines fails the test unless a file has that many lines.
func wantLines(t *testing.T, file string, want int) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if got := strings.Count(string(text), "\n"); got != want {
		t.Errorf("it ran %d times, want %d", got, want)
	}
}
