//go:build linux

package guest

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dropCapabilities removes capabilities of PID 1 from every process that it will start.
// CAP_SYS_PTRACE stays with PID 1, which uses it to inspect programs that changed their user (apt,
// sudo, passwd). PID 1 loses CAP_NET_ADMIN and CAP_SETPCAP, too: the network device exists, and
// this function runs once. No executed program, setuid or not, has a capability that is missing
// from the bounding set (capabilities(7)). It does nothing if PID 1 has none of them. It returns an
// error if it cannot remove one that PID 1 has.
//
// It changes all threads together, and later threads inherit the result: call it before any start
// of a process.
func dropCapabilities() error {
	head, sets, err := ownCapabilities()
	if err != nil {
		return err
	}
	var lost bool
	for _, c := range []uint{unix.CAP_SYS_PTRACE, unix.CAP_NET_ADMIN, unix.CAP_SETPCAP} {
		if sets[c/32].Permitted&(1<<(c%32)) == 0 {
			continue
		}
		// Older engines fill it, and programs that root executes would inherit it.
		sets[c/32].Inheritable &^= 1 << (c % 32)
		if _, _, e := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c),
			0); e != 0 {
			return fmt.Errorf("drop capability %d: %w", c, e)
		}
		if c != unix.CAP_SYS_PTRACE {
			sets[c/32].Permitted &^= 1 << (c % 32)
			sets[c/32].Effective &^= 1 << (c % 32)
			lost = true
		}
	}
	if !lost {
		return nil
	}
	if _, _, e := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)),
		uintptr(unsafe.Pointer(&sets[0])), 0); e != 0 {
		return fmt.Errorf("capset: %w", e)
	}
	return nil
}

// protectLimits prevents changes of this process's resource limits: with one file or one second of
// processor time root in the sandbox could end it. prlimit(2) requires equal real, effective and
// saved IDs of the target, or CAP_SYS_RESOURCE, which no process in a sandbox has. So this process
// gets another saved group. An executed program gets its effective group as saved group.
func protectLimits() error {
	const other = 1
	if err := syscall.Setresgid(-1, -1, other); err != nil {
		return fmt.Errorf("setresgid: %w", err)
	}
	return nil
}

// ownCapabilities reads the sets of this process (capget(2), version 3: two words a set).
func ownCapabilities() (head unix.CapUserHeader, sets [2]unix.CapUserData, err error) {
	head.Version = unix.LINUX_CAPABILITY_VERSION_3
	if err := unix.Capget(&head, &sets[0]); err != nil {
		return head, sets, fmt.Errorf("capget: %w", err)
	}
	return head, sets, nil
}
