package proc

import "golang.org/x/sys/unix"

// The numbers of amd64 in blocking must be the system's. The compiler compares them: a negative
// constant does not fit into a uint. So vetting the package for another architecture is enough.
const (
	_ = uint(unix.SYS_READ-0) + uint(0-unix.SYS_READ)
	_ = uint(unix.SYS_WRITE-1) + uint(1-unix.SYS_WRITE)
	_ = uint(unix.SYS_POLL-7) + uint(7-unix.SYS_POLL)
	_ = uint(unix.SYS_READV-19) + uint(19-unix.SYS_READV)
	_ = uint(unix.SYS_SELECT-23) + uint(23-unix.SYS_SELECT)
	_ = uint(unix.SYS_PAUSE-34) + uint(34-unix.SYS_PAUSE)
	_ = uint(unix.SYS_NANOSLEEP-35) + uint(35-unix.SYS_NANOSLEEP)
	_ = uint(unix.SYS_SENDFILE-40) + uint(40-unix.SYS_SENDFILE)
	_ = uint(unix.SYS_CONNECT-42) + uint(42-unix.SYS_CONNECT)
	_ = uint(unix.SYS_ACCEPT-43) + uint(43-unix.SYS_ACCEPT)
	_ = uint(unix.SYS_RECVFROM-45) + uint(45-unix.SYS_RECVFROM)
	_ = uint(unix.SYS_RECVMSG-47) + uint(47-unix.SYS_RECVMSG)
	_ = uint(unix.SYS_WAIT4-61) + uint(61-unix.SYS_WAIT4)
	_ = uint(unix.SYS_RT_SIGTIMEDWAIT-128) + uint(128-unix.SYS_RT_SIGTIMEDWAIT)
	_ = uint(unix.SYS_RT_SIGSUSPEND-130) + uint(130-unix.SYS_RT_SIGSUSPEND)
	_ = uint(unix.SYS_FUTEX-202) + uint(202-unix.SYS_FUTEX)
	_ = uint(unix.SYS_RESTART_SYSCALL-219) + uint(219-unix.SYS_RESTART_SYSCALL)
	_ = uint(unix.SYS_CLOCK_NANOSLEEP-230) + uint(230-unix.SYS_CLOCK_NANOSLEEP)
	_ = uint(unix.SYS_EPOLL_WAIT-232) + uint(232-unix.SYS_EPOLL_WAIT)
	_ = uint(unix.SYS_WAITID-247) + uint(247-unix.SYS_WAITID)
	_ = uint(unix.SYS_PSELECT6-270) + uint(270-unix.SYS_PSELECT6)
	_ = uint(unix.SYS_PPOLL-271) + uint(271-unix.SYS_PPOLL)
	_ = uint(unix.SYS_SPLICE-275) + uint(275-unix.SYS_SPLICE)
	_ = uint(unix.SYS_EPOLL_PWAIT-281) + uint(281-unix.SYS_EPOLL_PWAIT)
	_ = uint(unix.SYS_ACCEPT4-288) + uint(288-unix.SYS_ACCEPT4)
	_ = uint(unix.SYS_PREADV2-327) + uint(327-unix.SYS_PREADV2)
	_ = uint(unix.SYS_EPOLL_PWAIT2-441) + uint(441-unix.SYS_EPOLL_PWAIT2)
	_ = uint(unix.SYS_FUTEX_WAITV-449) + uint(449-unix.SYS_FUTEX_WAITV)
)
