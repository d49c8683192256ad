//go:build !linux

package agent

import (
	"context"
	"fmt"
	"net"

	"github.com/sandboxd/sandboxd/sandbox/connect"
)

type reached struct{}

// reach connects and reads the server's identification string.
func reach(
	ctx context.Context,
	t target,
	_ func(ctx context.Context, user, host string) (string, error),
) (*server, error) {
	if err := t.resolve(ctx); err != nil {
		return nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", t.addr())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.addr(), err)
	}
	version, conn, err := connect.Identify(ctx, conn)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.addr(), err)
	}
	return &server{target: t, conn: conn, version: version}, nil
}

// host returns an error: a client of a host needs Linux.
func (d *dialer) host(context.Context) (*Client, error) {
	return nil, &Error{
		Code: CodeUnavailable,
		Message: fmt.Sprintf(
			"%s is a host: only a client on Linux can dial hosts",
			d.first.target.addr(),
		),
		Hint: "add the host to a daemon on Linux (sandboxd add NAME ssh://USER@HOST), and dial " +
			"the daemon",
	}
}

// machine is never used.
type machine struct{ tier, why string }

func (*machine) close() error                 { return nil }
func (*machine) remove(context.Context) error { return nil }
func (*machine) ready(context.Context) error  { return nil }

func (*passwords) refused(error) {}
