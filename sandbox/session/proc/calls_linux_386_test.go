package proc

import "golang.org/x/sys/unix"

// The numbers of i386 in blocking must be the system's. The compiler compares them: a negative
// constant does not fit into a uint. So vetting the package for another architecture is enough.
const (
	_ = uint(unix.SYS_RESTART_SYSCALL-0) + uint(0-unix.SYS_RESTART_SYSCALL)
	_ = uint(unix.SYS_READ-3) + uint(3-unix.SYS_READ)
	_ = uint(unix.SYS_WRITE-4) + uint(4-unix.SYS_WRITE)
	_ = uint(unix.SYS_WAITPID-7) + uint(7-unix.SYS_WAITPID)
	_ = uint(unix.SYS_PAUSE-29) + uint(29-unix.SYS_PAUSE)
	_ = uint(unix.SYS_SIGSUSPEND-72) + uint(72-unix.SYS_SIGSUSPEND)
	_ = uint(unix.SYS_WAIT4-114) + uint(114-unix.SYS_WAIT4)
	_ = uint(unix.SYS__NEWSELECT-142) + uint(142-unix.SYS__NEWSELECT)
	_ = uint(unix.SYS_READV-145) + uint(145-unix.SYS_READV)
	_ = uint(unix.SYS_NANOSLEEP-162) + uint(162-unix.SYS_NANOSLEEP)
	_ = uint(unix.SYS_POLL-168) + uint(168-unix.SYS_POLL)
	_ = uint(unix.SYS_RT_SIGTIMEDWAIT-177) + uint(177-unix.SYS_RT_SIGTIMEDWAIT)
	_ = uint(unix.SYS_RT_SIGSUSPEND-179) + uint(179-unix.SYS_RT_SIGSUSPEND)
	_ = uint(unix.SYS_SENDFILE-187) + uint(187-unix.SYS_SENDFILE)
	_ = uint(unix.SYS_SENDFILE64-239) + uint(239-unix.SYS_SENDFILE64)
	_ = uint(unix.SYS_FUTEX-240) + uint(240-unix.SYS_FUTEX)
	_ = uint(unix.SYS_EPOLL_WAIT-256) + uint(256-unix.SYS_EPOLL_WAIT)
	_ = uint(unix.SYS_CLOCK_NANOSLEEP-267) + uint(267-unix.SYS_CLOCK_NANOSLEEP)
	_ = uint(unix.SYS_WAITID-284) + uint(284-unix.SYS_WAITID)
	_ = uint(unix.SYS_PSELECT6-308) + uint(308-unix.SYS_PSELECT6)
	_ = uint(unix.SYS_PPOLL-309) + uint(309-unix.SYS_PPOLL)
	_ = uint(unix.SYS_SPLICE-313) + uint(313-unix.SYS_SPLICE)
	_ = uint(unix.SYS_EPOLL_PWAIT-319) + uint(319-unix.SYS_EPOLL_PWAIT)
	_ = uint(unix.SYS_PREADV2-378) + uint(378-unix.SYS_PREADV2)
	_ = uint(unix.SYS_CLOCK_NANOSLEEP_TIME64-407) + uint(407-unix.SYS_CLOCK_NANOSLEEP_TIME64)
	_ = uint(unix.SYS_PSELECT6_TIME64-413) + uint(413-unix.SYS_PSELECT6_TIME64)
	_ = uint(unix.SYS_PPOLL_TIME64-414) + uint(414-unix.SYS_PPOLL_TIME64)
	_ = uint(unix.SYS_RT_SIGTIMEDWAIT_TIME64-421) + uint(421-unix.SYS_RT_SIGTIMEDWAIT_TIME64)
	_ = uint(unix.SYS_FUTEX_TIME64-422) + uint(422-unix.SYS_FUTEX_TIME64)
	_ = uint(unix.SYS_EPOLL_PWAIT2-441) + uint(441-unix.SYS_EPOLL_PWAIT2)
	_ = uint(unix.SYS_FUTEX_WAITV-449) + uint(449-unix.SYS_FUTEX_WAITV)
)
