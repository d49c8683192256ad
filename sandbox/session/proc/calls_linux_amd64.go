package proc

import "golang.org/x/sys/unix"

// The older calls, which arm64 does not have.
func init() {
	calls[unix.SYS_POLL] = call{"poll", callPoll, timeoutMillis, 2}
	calls[unix.SYS_SELECT] = call{"select", callSelect, timeoutPointer, 4}
	calls[unix.SYS_EPOLL_WAIT] = call{"epoll_wait", callEpoll, timeoutMillis, 3}
	calls[unix.SYS_PAUSE] = call{name: "pause", kind: callWait}
}
