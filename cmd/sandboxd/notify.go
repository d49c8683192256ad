package main

import (
	"context"
	"fmt"
	"net"
	"os"
)

// notifier reports the daemon's state to the service manager that started it, by the protocol of
// sd_notify(3). The zero value reports to nobody.
type notifier struct {
	socket string // empty where no manager asks
}

// newNotifier takes the socket from the environment, so that programs which the daemon starts
// cannot report in its name.
func newNotifier() notifier {
	socket := os.Getenv("NOTIFY_SOCKET")
	_ = os.Unsetenv("NOTIFY_SOCKET") // fails for no name that is set
	return notifier{socket}
}

// send reports one state, such as READY=1.
func (n notifier) send(ctx context.Context, state string) error {
	if n.socket == "" {
		return nil
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unixgram", n.socket) // a leading @ is an abstract one
	if err != nil {
		return fmt.Errorf("service manager: %w", err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("service manager: %w", err)
	}
	return nil
}
