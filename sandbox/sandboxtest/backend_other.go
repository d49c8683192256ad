//go:build !linux

package sandboxtest

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Backend has the methods of the in-memory backend, which needs Linux. There is none here.
type Backend struct{ methods }

type methods interface {
	sandbox.Backend
	sandbox.Finder
	sandbox.Lifecycle
	Rebuild()
	Cut(inst sandbox.Instance) error
	Kill(ctx context.Context, inst sandbox.Instance) error
	Resolve(ctx context.Context, image string) (string, error)
	Freeze(inst sandbox.Instance, as sandbox.Status) error
	Unfreeze(inst sandbox.Instance) error
}

// New skips the test.
func New(t testing.TB, _ Options) *Backend {
	t.Helper()
	t.Skip("the guest needs Linux")
	return nil
}

// Pipe fails with errors.ErrUnsupported.
func Pipe() (near, far net.Conn, err error) { return nil, nil, errors.ErrUnsupported }
