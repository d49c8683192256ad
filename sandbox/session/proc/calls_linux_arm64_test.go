package proc

import "golang.org/x/sys/unix"

// The numbers of arm64 in blocking must be the system's. The compiler compares them: a negative
// constant does not fit into a uint. So vetting the package for another architecture is enough.
const (
	_ = uint(unix.SYS_EPOLL_PWAIT-22) + uint(22-unix.SYS_EPOLL_PWAIT)
	_ = uint(unix.SYS_READ-63) + uint(63-unix.SYS_READ)
	_ = uint(unix.SYS_WRITE-64) + uint(64-unix.SYS_WRITE)
	_ = uint(unix.SYS_READV-65) + uint(65-unix.SYS_READV)
	_ = uint(unix.SYS_SENDFILE-71) + uint(71-unix.SYS_SENDFILE)
	_ = uint(unix.SYS_PSELECT6-72) + uint(72-unix.SYS_PSELECT6)
	_ = uint(unix.SYS_PPOLL-73) + uint(73-unix.SYS_PPOLL)
	_ = uint(unix.SYS_SPLICE-76) + uint(76-unix.SYS_SPLICE)
	_ = uint(unix.SYS_WAITID-95) + uint(95-unix.SYS_WAITID)
	_ = uint(unix.SYS_FUTEX-98) + uint(98-unix.SYS_FUTEX)
	_ = uint(unix.SYS_NANOSLEEP-101) + uint(101-unix.SYS_NANOSLEEP)
	_ = uint(unix.SYS_CLOCK_NANOSLEEP-115) + uint(115-unix.SYS_CLOCK_NANOSLEEP)
	_ = uint(unix.SYS_RESTART_SYSCALL-128) + uint(128-unix.SYS_RESTART_SYSCALL)
	_ = uint(unix.SYS_RT_SIGSUSPEND-133) + uint(133-unix.SYS_RT_SIGSUSPEND)
	_ = uint(unix.SYS_RT_SIGTIMEDWAIT-137) + uint(137-unix.SYS_RT_SIGTIMEDWAIT)
	_ = uint(unix.SYS_ACCEPT-202) + uint(202-unix.SYS_ACCEPT)
	_ = uint(unix.SYS_CONNECT-203) + uint(203-unix.SYS_CONNECT)
	_ = uint(unix.SYS_RECVFROM-207) + uint(207-unix.SYS_RECVFROM)
	_ = uint(unix.SYS_RECVMSG-212) + uint(212-unix.SYS_RECVMSG)
	_ = uint(unix.SYS_ACCEPT4-242) + uint(242-unix.SYS_ACCEPT4)
	_ = uint(unix.SYS_WAIT4-260) + uint(260-unix.SYS_WAIT4)
	_ = uint(unix.SYS_PREADV2-286) + uint(286-unix.SYS_PREADV2)
	_ = uint(unix.SYS_EPOLL_PWAIT2-441) + uint(441-unix.SYS_EPOLL_PWAIT2)
	_ = uint(unix.SYS_FUTEX_WAITV-449) + uint(449-unix.SYS_FUTEX_WAITV)
)
