package guest

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// keepFromChildren takes from every process that will be started what PID 1 alone is to have: CAP_SYS_PTRACE, with which
// the prober looks at programs that changed their user (apt, sudo, passwd), and CAP_NET_ADMIN and CAP_SETPCAP, which PID 1
// loses as well: the network device has been made, and this needs no second time. A capability that is not in the bounding
// set is in no program that is executed, setuid or not (capabilities(7)). It does nothing where PID 1 has none of them;
// having them and not getting rid of them is an error.
//
// All threads are changed at once, and those to come inherit it: call it before anything is started.
func keepFromChildren() error {
	head, sets, err := ownCapabilities()
	if err != nil {
		return err
	}
	var lost bool
	for _, c := range []uint{unix.CAP_SYS_PTRACE, unix.CAP_NET_ADMIN, unix.CAP_SETPCAP} {
		if sets[c/32].Permitted&(1<<(c%32)) == 0 {
			continue
		}
		sets[c/32].Inheritable &^= 1 << (c % 32) // filled by older engines, and then in what root executes
		if _, _, e := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c), 0); e != 0 {
			return fmt.Errorf("capability %d cannot be kept from the sandbox's programs: %w", c, e)
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
	if _, _, e := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&sets[0])), 0); e != 0 {
		return fmt.Errorf("capset: %w", e)
	}
	return nil
}

// keepOwnLimits lets nobody change the resource limits of this process: with one file or one second of processor time root
// in the sandbox would end it. prlimit(2) asks for equal real, effective and saved IDs of the target, or for CAP_SYS_RESOURCE,
// which nobody in a sandbox has; so the saved group is made another one. What is executed gets its effective group for it.
func keepOwnLimits() error {
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
