package command

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var alice = gateway.Principal{Name: "alice", Kind: wire.Person, Rights: wire.RightDrive}

// world is a hub whose sandboxes live in memory, with the real guest, and the command table in front of it.
type world struct {
	t       *testing.T
	hub     *gateway.Hub
	records string
}

func newWorld(t *testing.T, change ...func(*gateway.Options)) *world {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	s, err := store.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, records: filepath.Join(dir, "records")}
	if err := os.MkdirAll(w.records, 0o700); err != nil {
		t.Fatal(err)
	}
	o := gateway.Options{Store: s, Records: w.records, Owner: "alice", StopGrace: time.Second, Log: slog.New(slog.DiscardHandler),
		Backends: map[string]sandbox.Backend{sandboxtest.Name: sandboxtest.New(t, sandboxtest.Options{})}}
	for _, f := range change {
		f(&o)
	}
	w.hub, err = gateway.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.hub.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("close store: %v", err)
		}
	})
	if err := w.hub.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

// command runs one as alice.
func (w *world) command(args ...string) (code int, stdout, stderr string) {
	w.t.Helper()
	return w.typed("", args...)
}

// typed is command with standard input.
func (w *world) typed(input string, args ...string) (code int, stdout, stderr string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	code = Run(ctx, &Env{Hub: w.hub, Principal: alice, Stdin: strings.NewReader(input), Stdout: &out, Stderr: &errs}, args)
	return code, out.String(), errs.String()
}
