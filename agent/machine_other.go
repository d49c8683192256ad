//go:build !linux

package agent

import (
	"context"
	"fmt"
	"net"

	"github.com/sandboxd/sandboxd/sandbox/connect"
)

type reached struct{}

// reach connects to a gateway, or finds out that there is none.
func reach(ctx context.Context, t target, _ func(ctx context.Context, user, host string) (string, error)) (*server, error) {
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

// host says that sessions take Linux on this side, too.
func (d *dialer) host(context.Context) (*Client, error) {
	return nil, &Error{Code: CodeUnavailable, Message: fmt.Sprintf("%s is a host and no gateway; hosts are dialled from Linux only", d.first.target.addr()),
		Hint: "add it to a daemon on Linux: sandboxd add NAME ssh://USER@HOST, and dial that"}
}

// machine is of no use here.
type machine struct{ tier, why string }

func (*machine) close() error                 { return nil }
func (*machine) remove(context.Context) error { return nil }
func (*machine) ready(context.Context) error  { return nil }

func (*passwords) refused(error) {}
