package main

import (
	"context"
	"fmt"
	"net"
	"os"
)

// notifier reports the daemon's state to the service manager that started it (sd_notify(3)). The
// zero value reports nothing.
type notifier struct {
	socket string // empty without a service manager
}

// newNotifier takes the socket out of the environment, so that programs that the daemon starts
// cannot use it.
func newNotifier() notifier {
	socket := os.Getenv("NOTIFY_SOCKET")
	_ = os.Unsetenv("NOTIFY_SOCKET") // fails only for an invalid name
	return notifier{socket}
}

// send reports one state, such as READY=1.
func (n notifier) send(ctx context.Context, state string) error {
	if n.socket == "" {
		return nil
	}
	// a leading @ means an abstract socket
	conn, err := new(net.Dialer).DialContext(ctx, "unixgram", n.socket)
	if err != nil {
		return fmt.Errorf("service manager: %w", err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("service manager: %w", err)
	}
	return nil
}
