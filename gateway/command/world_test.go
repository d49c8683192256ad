package command

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/gatewaytest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var alice = gateway.Principal{Name: "alice", Kind: wire.Person, Rights: wire.RightDrive}

// world is a hub with in-memory sandboxes, the real guest, and the command table.
type world struct {
	t       *testing.T
	hub     *gateway.Hub
	records string
}

func newWorld(t *testing.T, change ...func(*gateway.Options)) *world {
	t.Helper()
	o := gateway.Options{Options: lifecycle.Options{Log: slog.New(slog.DiscardHandler)}}
	for _, f := range change {
		f(&o)
	}
	w := &world{t: t, hub: gatewaytest.Hub(t, &o)}
	w.records = o.Records
	return w
}

// command runs a command as alice.
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
	code = Run(ctx, &Env{Hub: w.hub, Principal: alice, Stdin: strings.NewReader(input),
		Stdout: &out, Stderr: &errs}, args)
	return code, out.String(), errs.String()
}
