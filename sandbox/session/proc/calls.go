//go:build linux

package proc

import "golang.org/x/sys/unix"

// call says how to read the arguments of a blocking system call.
type call struct {
	name    string
	kind    callKind
	timeout timeoutKind
	arg     int // index of the timeout among the arguments
}

type callKind int

const (
	callRead   callKind = iota + 1 // argument 0 is the descriptor
	callPoll                       // arguments 0 and 1 are the set and its length
	callSelect                     // arguments 0 and 1 are the length and the set
	callEpoll                      // argument 0 is the epoll descriptor
	callFutex
	callWait    // for a child or a signal
	callRestart // of a call that was interrupted by a stop
	callOther   // goes on by itself, or by somebody outside
)

type timeoutKind int

const (
	timeoutNone    timeoutKind = iota
	timeoutMillis              // an int, negative for none
	timeoutPointer             // to a struct timespec or timeval, NULL for none
)

// calls are the blocking calls of every architecture, by number; init adds those that only some have. Every call that
// is not here counts as one that goes on by itself.
var calls = map[int]call{
	unix.SYS_READ:            {name: "read", kind: callRead},
	unix.SYS_READV:           {name: "readv", kind: callRead},
	unix.SYS_PPOLL:           {"ppoll", callPoll, timeoutPointer, 2},
	unix.SYS_PSELECT6:        {"pselect6", callSelect, timeoutPointer, 4},
	unix.SYS_EPOLL_PWAIT:     {"epoll_pwait", callEpoll, timeoutMillis, 3},
	unix.SYS_EPOLL_PWAIT2:    {"epoll_pwait2", callEpoll, timeoutPointer, 3},
	unix.SYS_FUTEX:           {"futex", callFutex, timeoutPointer, 3},
	unix.SYS_FUTEX_WAITV:     {"futex_waitv", callFutex, timeoutPointer, 3},
	unix.SYS_WAIT4:           {name: "wait4", kind: callWait},
	unix.SYS_WAITID:          {name: "waitid", kind: callWait},
	unix.SYS_RT_SIGSUSPEND:   {name: "rt_sigsuspend", kind: callWait},
	unix.SYS_RT_SIGTIMEDWAIT: {"rt_sigtimedwait", callWait, timeoutPointer, 2},
	unix.SYS_RESTART_SYSCALL: {name: "restart_syscall", kind: callRestart},
	unix.SYS_NANOSLEEP:       {name: "nanosleep", kind: callOther},
	unix.SYS_CLOCK_NANOSLEEP: {name: "clock_nanosleep", kind: callOther},
	unix.SYS_WRITE:           {name: "write", kind: callOther},
	unix.SYS_RECVFROM:        {name: "recvfrom", kind: callRead},
	unix.SYS_RECVMSG:         {name: "recvmsg", kind: callRead},
	unix.SYS_CONNECT:         {name: "connect", kind: callOther},
	unix.SYS_ACCEPT:          {name: "accept", kind: callRead},
	unix.SYS_ACCEPT4:         {name: "accept4", kind: callRead},
}
