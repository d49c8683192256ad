//go:build !linux

package egress

import (
	"context"
	"errors"
	"os"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/buffer"
)

// device stands for a TUN device, which this system does not have: sandboxes use the proxy.
type device struct{ dropped atomic.Int64 }

func openDevice(*os.File) (*device, error) { return nil, errors.ErrUnsupported }

func (*device) read(func(buffer.Buffer)) error { return errors.ErrUnsupported }

func (*device) write(vnetHeader, [][]byte) {}

func (*device) settle(context.Context) {}

func (*device) close() {}
