package session

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/keyboard"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestCalls types to a program in memory that cannot be inspected. The calls end by their timeouts.
func TestCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemorySet(t, Options{})
		alice := m.dial(
			wire.Attach{
				Session: "main",
				Create:  true,
				Party:   agent("alice"),
				Start:   &wire.Start{Argv: []string{"x"}},
			},
		)
		typed := func(n int) wire.Request {
			return wire.Request{
				Verb:      wire.VerbType,
				Text:      fmt.Sprint(n),
				Op:        fmt.Sprintf("%032x", n),
				TimeoutMS: 1000,
			}
		}
		began := time.Now()
		for range 2 {
			r, err := alice.Request(t.Context(), typed(1))
			if err != nil || r.Result.Ended != wire.Deadline {
				t.Fatalf("%+v, %v", r.Result, err)
			}
		}
		if d := time.Since(began); d != time.Second {
			t.Errorf("twice the same op takes %v", d)
		}
		if got := string(<-m.last().in); got != "1\r" || len(m.last().in) != 0 {
			t.Errorf("the program reads %q and %d more", got, len(m.last().in))
		}
		// Without evidence, a program that is quiet for long may want input.
		r, err := alice.Request(
			t.Context(),
			wire.Request{Verb: wire.VerbType, Text: "x", TimeoutMS: 60_000},
		)
		if err != nil || r.Result.Ended != wire.Attention || r.Result.Phase != wire.PhaseOpaque ||
			len(r.Result.Basis) != 1 ||
			r.Result.Basis[0] != wire.BasisSilence {
			t.Errorf("%+v, %v", r.Result, err)
		}
		// The last 64 are stored.
		for i := range keptOps + 5 {
			if _, err := alice.Request(t.Context(),
				wire.Request{Verb: wire.VerbType, Text: "y", Op: fmt.Sprintf("%032x", 100+i),
					TimeoutMS: 1}); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(m.lookup("main").ops.all); n != keptOps {
			t.Errorf("%d ops are kept", n)
		}
		// At most 64 run at the same time.
		replies := make(chan error, maxRequests+10)
		for i := range maxRequests + 10 {
			go func() {
				_, err := alice.Request(
					t.Context(),
					wire.Request{
						Verb:      wire.VerbType,
						Text:      "z",
						Op:        fmt.Sprintf("%032x", 1000+i),
						TimeoutMS: 1000,
					},
				)
				replies <- err
			}()
		}
		full := 0
		for range maxRequests + 10 {
			if err := <-replies; codeOf(err) == wire.CodeLimitOps {
				full++
			} else if err != nil {
				t.Error(err)
			}
		}
		if full == 0 {
			t.Error("no limit")
		}
		alice.leave()
		m.close()
	})
}

// TestCancelledCall checks that a request that is cancelled after its text was typed is lost, not
// refused. Its op has the result.
func TestCancelledCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemorySet(t, Options{})
		alice := m.dial(
			wire.Attach{
				Session: "main",
				Create:  true,
				Party:   agent("alice"),
				Start:   &wire.Start{Argv: []string{"x"}},
			},
		)
		s := m.lookup("main")
		p := &party{Party: keyboard.Party{Party: *agent("alice"), Key: "alice"}}
		for _, tt := range []struct {
			name  string
			typed bool
			want  wire.Code
		}{
			{"typed", true, wire.CodeLost},
			{"not typed", false, wire.CodeUnavailable},
		} {
			ctx, cancel := context.WithCancelCause(t.Context())
			release := make(chan struct{})
			do := func(ctx context.Context, o *op) *wire.Result {
				s.mu.Lock()
				o.typed = tt.typed
				s.mu.Unlock()
				cancel(errCancelled)
				select {
				case <-release:
					return &wire.Result{Ended: wire.Done}
				case <-ctx.Done():
					return &wire.Result{Ended: wire.Refused}
				}
			}
			r := wire.Request{Verb: wire.VerbType, Text: tt.name, Op: wire.NewOp()}
			if _, err := s.ops.perform(ctx, p, r, do); codeOf(err) != tt.want {
				t.Errorf("%s: got %v, want code %s", tt.name, err, tt.want)
			}
			close(release)
			if tt.typed {
				if again, err := s.ops.perform(t.Context(), p, r, do); err != nil ||
					again.Ended != wire.Done {
					t.Errorf("%s: the op has %+v, %v", tt.name, again, err)
				}
			}
		}
		alice.leave()
		m.close()
	})
}
