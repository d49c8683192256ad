package guest

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// leftOut are the signals that the Go runtime leaves at their default, for the C libraries. It has 33 for itself.
var leftOut = []syscall.Signal{32, 34}

// harmless gives them a handler that does nothing. The kernel drops a deadly signal with the default action that PID 1 gets
// from its own processes, but only if the main thread does not block it, which a thread does while it handles another
// signal and while it starts a thread or a process; then the signal ends the process (sig_ignored and complete_signal in
// kernel/signal.c). Not by ignoring it, which children inherit. Call it when the runtime has taken the other signals.
func harmless() error {
	// The kernel's struct sigaction on amd64 and arm64: handler, flags, restorer, mask. Apart from the handler the runtime's
	// own is right for this one: it runs on the thread's signal stack.
	var action [4]uint64
	const maskSize = 8
	if _, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGTERM), 0, uintptr(unsafe.Pointer(&action)), maskSize, 0, 0); e != 0 {
		return fmt.Errorf("rt_sigaction: %w", e)
	}
	action[0] = uint64(nothingAt())
	for _, sig := range leftOut {
		if _, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, maskSize, 0, 0); e != 0 {
			return fmt.Errorf("rt_sigaction of signal %d: %w", int(sig), e)
		}
	}
	return nil
}

// nothingAt is the address of a signal handler that returns at once. It is not Go: the runtime's own handler ends the
// process for a signal that it did not take.
func nothingAt() uintptr
