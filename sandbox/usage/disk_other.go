//go:build !linux

package usage

import (
	"context"
	"errors"

	"github.com/sandboxd/sandboxd/sandbox"
)

// ErrLimit ends a Walk that has found more than its limit.
var ErrLimit = errors.New("more than the limit")

// Walk measures nothing: the files of containers are on another machine.
type Walk struct {
	sandbox.DiskUsage
	Limit sandbox.DiskUsage
}

// File does nothing.
func (*Walk) File(string) {}

// Tree returns ErrUnsupported.
func (*Walk) Tree(context.Context, string) error { return sandbox.ErrUnsupported }

// Removed does nothing.
func (*Walk) Removed([]int) {}
