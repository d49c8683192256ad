package gatewaytest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Principals of a World. Alice is its admin and the owner of its sandboxes, Robot is her agent.
var (
	Alice = gateway.Principal{Name: "alice", Kind: wire.Person}
	Bob   = gateway.Principal{Name: "bob", Kind: wire.Person}
	Robot = gateway.Principal{Name: "alice", Kind: wire.Agent}
)

// Main is the main session of sandbox demo.
var Main = wire.Target{Sandbox: "demo", Session: "main"}

// World is a state directory and a backend that outlive the daemons that a test starts on them. A
// test changes fields between daemons.
type World struct {
	T       *testing.T
	Dir     string               // of the state
	Memory  *sandboxtest.Backend // the sandboxes
	Backend sandbox.Backend      // what daemons see of Memory: it, or a wrapper with faults
	Log     *Log                 // of the daemons
	Options gateway.Options      // beside those that Start sets: store, records, backends, log
}

// NewWorld returns a world without sandboxes. It prints the log of a test that fails.
func NewWorld(t *testing.T, o sandboxtest.Options) *World {
	t.Helper()
	w := &World{T: t, Dir: filepath.Join(t.TempDir(), "state"), Memory: sandboxtest.New(t, o),
		Log: new(Log), Options: gateway.Options{Logins: []string{"localuser"}}}
	w.Backend = w.Memory
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", w.Log)
		}
	})
	return w
}

// Daemon is one run of a hub on a World.
type Daemon struct {
	*gateway.Hub
	Store *store.Store
	End   func() // ends the run and waits for it; may be called again
}

// Start runs a hub until Daemon.End, or the end of the test.
func (w *World) Start() *Daemon {
	w.T.Helper()
	records := filepath.Join(w.Dir, "records")
	s := openStore(w.T, w.Dir)
	makeDir(w.T, records)
	o := w.Options
	o.Store, o.Records, o.Backends = s, records, memory(w.Backend)
	o.Log = slog.New(slog.NewTextHandler(w.Log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	hub, stop := run(w.T, &o)
	d := &Daemon{Hub: hub, Store: s, End: sync.OnceFunc(func() {
		stop()
		closeStore(w.T, s)
	})}
	w.T.Cleanup(d.End)
	ready(w.T, hub)
	return d
}

// Discard removes a sandbox, and returns the error alone.
func (d *Daemon) Discard(ctx context.Context, p gateway.Principal, name string) error {
	_, err := d.Remove(ctx, p, name)
	return err
}

// Ctx returns a context that ends when the test has waited for Patience.
func (w *World) Ctx() context.Context {
	ctx, cancel := context.WithTimeoutCause(w.T.Context(), Patience,
		errors.New("the test has waited too long"))
	w.T.Cleanup(cancel)
	return ctx
}

// Create creates a sandbox of Alice.
func (w *World) Create(d *Daemon, name string) lifecycle.Info {
	w.T.Helper()
	info, err := d.Create(w.Ctx(), Alice, lifecycle.NewSpec{Name: name}, nil)
	if err != nil {
		w.T.Fatal(err)
	}
	return info
}

// State returns the state of a sandbox of Alice.
func (w *World) State(d *Daemon, name string) lifecycle.State {
	w.T.Helper()
	info, err := d.Get(w.Ctx(), Alice, name)
	if err != nil {
		w.T.Fatal(err)
	}
	return info.State
}

// Shared returns Robot's shared attachment to Main, which it starts if necessary.
func (w *World) Shared(d *Daemon) *attach.Attachment {
	w.T.Helper()
	a, err := d.Sessions.Shared(w.Ctx(), Robot, Main, attach.JoinOptions{Create: true})
	if err != nil {
		w.T.Fatal(err)
	}
	return a
}

// Run runs a command in Main as Robot.
func (w *World) Run(d *Daemon, command string) *wire.Result {
	w.T.Helper()
	reply, err := w.Shared(d).Request(w.Ctx(), wire.Request{Verb: wire.VerbRun, Text: command})
	if err != nil {
		w.T.Fatalf("run %q: %v", command, err)
	}
	return reply.Result
}

// Join joins a session as p, until the test ends.
func (w *World) Join(d *Daemon, p gateway.Principal, t wire.Target,
	o attach.JoinOptions) *attach.Attachment {
	w.T.Helper()
	a, err := d.Sessions.Join(w.Ctx(), p, t, o)
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { a.Close() })
	return a
}

// Recorded returns the bytes of a session's record, with a NUL for each that is missing, and its
// reader.
func (w *World) Recorded(d *Daemon, t wire.Target) (string, *record.Reader) {
	w.T.Helper()
	r, err := d.Sessions.OpenRecord(w.Ctx(), Alice, t, 0)
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { r.Close() })
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
			w.T.Fatal(err)
		}
	}
	return out.String(), r
}

// Shows waits until a session has printed text after offset from.
func (w *World) Shows(l *live.Session, from uint64, text string) {
	w.T.Helper()
	var got strings.Builder
	buf := make([]byte, 4096)
	for !strings.Contains(got.String(), text) {
		n, err := l.ReadAt(w.Ctx(), from, buf)
		if err != nil {
			w.T.Fatalf("waiting for %q: %v; got %q", text, err, got.String())
		}
		got.Write(buf[:n])
		from += uint64(n)
	}
}

// Control returns a control connection to an instance beside the daemon's, until the test ends.
func (w *World) Control(inst sandbox.Instance) *connect.Control {
	w.T.Helper()
	pool := connect.NewPool(connect.PoolOptions{Dial: w.Memory.Dial})
	w.T.Cleanup(func() { pool.Close() })
	c, err := pool.Control(w.Ctx(), inst)
	if err != nil {
		w.T.Fatal(err)
	}
	return c
}

// Eventually waits until f is true. It is for states that nothing announces.
func (w *World) Eventually(what string, f func() bool) {
	w.T.Helper()
	deadline := time.Now().Add(Patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		if time.Now().After(deadline) {
			w.T.Fatalf("after %v not true: %s", Patience, what)
		}
		<-tick.C
	}
}

// InstanceOf returns the instance of a sandbox of a World.
func InstanceOf(i lifecycle.Info) sandbox.Instance {
	return sandbox.Instance{Backend: sandboxtest.Name, ID: i.ID, Ref: i.ID}
}

// WantCode fails the test unless err has that code.
func WantCode(t *testing.T, err error, code wire.Code) {
	t.Helper()
	if !errors.Is(err, &wire.Error{Code: code}) {
		t.Fatalf("error = %v, want code %s", err, code)
	}
}

// ReadTo reads a replica from offset off to the end of the session, or to offset end.
func ReadTo(ctx context.Context, l *live.Session, off, end uint64) (string, error) {
	var out strings.Builder
	buf := make([]byte, 16<<10)
	for off < end {
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

// Log is a log that a test reads while daemons write it.
type Log struct {
	mu sync.Mutex
	b  strings.Builder // guarded by mu
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
