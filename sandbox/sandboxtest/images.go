package sandboxtest

import (
	"context"
	"runtime"

	"github.com/sandboxd/sandboxd/sandbox"
)

// NoImages is a sandbox.Imager without images, to embed in a test's backend that implements only a
// part of one. Methods that make an image return ErrUnsupported.
type NoImages struct{}

var _ sandbox.Imager = NoImages{}

// Snapshot fails.
func (NoImages) Snapshot(context.Context, sandbox.Instance, string, string, string) (string,
	error) {
	return "", sandbox.ErrUnsupported
}

// Fork fails.
func (NoImages) Fork(context.Context, sandbox.Instance, string) (string, error) {
	return "", sandbox.ErrUnsupported
}

// Weight returns 0.
func (NoImages) Weight(context.Context, sandbox.Instance) (int64, error) { return 0, nil }

// Kept returns 0.
func (NoImages) Kept(context.Context, string, []string) (int64, error) { return 0, nil }

// Arch returns the architecture of this program.
func (NoImages) Arch(context.Context) (string, error) { return runtime.GOARCH, nil }

// Image returns an image of any name.
func (NoImages) Image(_ context.Context, spec sandbox.Spec) (sandbox.Image, error) {
	return sandbox.Image{ID: spec.Image}, nil
}

// Prepared finds nothing.
func (NoImages) Prepared(context.Context, sandbox.Spec, sandbox.Layer) (string, error) {
	return "", nil
}

// Prepare fails.
func (NoImages) Prepare(context.Context, sandbox.Instance, string, sandbox.Layer) (string,
	error) {
	return "", sandbox.ErrUnsupported
}

// Forget removes nothing.
func (NoImages) Forget(context.Context, string, func(string) bool) (int, error) {
	return 0, nil
}
