package sandboxtest

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

// A failed boot leaves nothing behind at any stage: no instance, no directory.
func TestBootIsAtomic(t *testing.T) {
	broken := errors.New("broken")
	for _, stage := range []sandbox.Stage{sandbox.StageValidate, sandbox.StageImage,
		sandbox.StageKeys, sandbox.StageCreate, sandbox.StageGuest} {
		t.Run(string(stage), func(t *testing.T) {
			b := New(t, Options{Fail: func(s sandbox.Stage) error {
				if s == stage {
					return broken
				}
				return nil
			}})
			_, err := b.Boot(t.Context(), sandbox.Spec{ID: "a"})
			boot := (*sandbox.BootError)(nil)
			if !errors.Is(err, broken) || !errors.As(err, &boot) || boot.Stage != stage {
				t.Errorf("Boot: got %v, want broken at stage %s", err, stage)
			}
			if list, _ := b.List(context.Background()); len(list) != 0 {
				t.Errorf("instances left: %v", list)
			}
			if left, err := os.ReadDir(b.tmp); err != nil || len(left) != 0 {
				t.Errorf("files left: %v, %v", left, err)
			}
		})
	}
}
