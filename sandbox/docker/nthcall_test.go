package docker

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/machine"
)

// nth makes the engine fail at one of the calls of an operation, and counts them.
type nth struct {
	calls atomic.Int32
	at    int32 // 0: never
	fail  func(w http.ResponseWriter, r *http.Request) bool
}

func (n *nth) fault(w http.ResponseWriter, r *http.Request) bool {
	if i := n.calls.Add(1); n.at == 0 || i != n.at {
		return false
	}
	return n.fail(w, r)
}

// R5: each call of the engine fails in each way: denied, cut off before or after it took effect, or
// abandoned by the caller. The failed operation can be repeated, and after the removal of the
// sandbox nothing is left.
func TestR5NthCallFails(t *testing.T) {
	acts := []struct {
		name   string
		do     func(ctx context.Context, b *Backend, inst sandbox.Instance) error
		before func(t *testing.T, b *Backend, inst sandbox.Instance)
	}{
		{"destroy", func(ctx context.Context, b *Backend, inst sandbox.Instance) error { return b.Destroy(ctx, inst) },
			func(t *testing.T, b *Backend, inst sandbox.Instance) {
				if _, err := b.Fork(t.Context(), inst, inst.ID); err != nil { // as if it were one
					t.Fatal(err)
				}
			}},
		{"stop", func(ctx context.Context, b *Backend, inst sandbox.Instance) error {
			return b.Stop(ctx, inst, time.Second)
		}, nil},
		{"start", func(ctx context.Context, b *Backend, inst sandbox.Instance) error {
			_, err := b.Start(ctx, inst)
			return err
		}, func(t *testing.T, b *Backend, inst sandbox.Instance) {
			if err := b.Stop(t.Context(), inst, time.Second); err != nil {
				t.Fatal(err)
			}
		}},
		{"pause", func(ctx context.Context, b *Backend, inst sandbox.Instance) error { return b.Pause(ctx, inst) }, nil},
		{"fork", func(ctx context.Context, b *Backend, inst sandbox.Instance) error {
			_, err := b.Fork(ctx, inst, "f"+inst.ID[1:])
			return err
		}, nil},
	}
	for _, act := range acts {
		for _, how := range []string{"refused", "cut off", "cut off afterwards", "given up"} {
			t.Run(act.name+" "+how, func(t *testing.T) {
				f := newFlaky(t)
				b := testBackend(t, f.use)
				for at := int32(1); ; at++ {
					inst := boot(t, b, sandbox.Spec{})
					if act.before != nil {
						act.before(t, b, inst)
					}
					ctx, cancel := context.WithCancel(t.Context())
					n := &nth{at: at, fail: func(w http.ResponseWriter, r *http.Request) bool {
						switch how {
						case "refused":
							refuse(w)
						case "cut off":
							hangUp(w)
						case "cut off afterwards":
							forward(t, r)
							hangUp(w)
						case "given up":
							cancel()
							return false
						}
						return true
					}}
					f.set(n.fault)
					err := act.do(ctx, b, inst)
					f.set(nil)
					cancel()
					calls := n.calls.Load()
					// Later ones may be optional, or repeated.
					if err == nil && how == "refused" && at == 1 {
						t.Error("the first call was refused, and there is no error")
					}
					if act.name == "destroy" && err == nil {
						nothingLeft(t, b, inst.ID)
					}
					// The operation can be repeated, and succeeds.
					for range 2 {
						if act.name == "fork" {
							removeImage(t, b, machine.ForkImage("f"+inst.ID[1:]))
						}
						if again := act.do(t.Context(), b, inst); again != nil {
							t.Errorf("it failed with %v; again: %v", err, again)
						}
					}
					switch act.name {
					case "start":
						mustSh(t, login(t, b, inst), "true")
					case "stop":
						if _, err := b.Dial(t.Context(), inst); !errors.Is(
							err, sandbox.ErrStopped) {
							t.Errorf("after call %d failed: dial of a stopped sandbox: %v", at, err)
						}
					case "fork":
						removeImage(t, b, machine.ForkImage("f"+inst.ID[1:]))
					}
					if err := b.Destroy(t.Context(), inst); err != nil {
						t.Errorf("destroy: %v", err)
					}
					nothingLeft(t, b, inst.ID)
					if t.Failed() {
						t.Fatalf("at call %d", at)
					}
					if calls < at {
						return // no further calls
					}
				}
			})
		}
	}
}
