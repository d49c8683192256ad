//go:build linux

package proc

import (
	"runtime"
	"strconv"
	"strings"
)

// call says how to read the arguments of a blocking system call.
type call struct {
	name    string
	kind    callKind
	timeout timeoutKind
	arg     int // index among the arguments: of the timeout, or as kind says
}

type callKind int

const (
	callUnknown callKind = iota
	callRead             // argument 0 is the descriptor
	callMove             // from one descriptor to another; arg is the index of the first among the arguments
	callPoll             // arguments 0 and 1 are the set and its length
	callSelect           // arguments 0 and 1 are the length and the set
	callEpoll            // argument 0 is the epoll descriptor
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

// arguments of a system call.
type arguments [6]uint64

// decode reads a line of /proc/PID/task/TID/syscall (proc_pid_syscall(5)): the number of the call, six arguments, stack and
// program counter; "running"; or -1 for a thread that is blocked outside a call. table is the architecture's. Of what is no
// call in it, kind is callUnknown and name says what is known.
func decode(line string, table func(nr int) call) (call, arguments) {
	var a arguments
	f := strings.Fields(line)
	switch {
	case line == "running":
		return call{name: "running"}, a
	case len(f) < 7:
		return call{name: "blocked in the kernel"}, a
	}
	nr, err := strconv.Atoi(f[0])
	for i := range a {
		v, e := strconv.ParseUint(f[i+1], 0, 64)
		if e != nil {
			err = e
		}
		a[i] = v
	}
	if err != nil {
		return call{name: "in an unreadable call"}, a
	}
	c := table(nr)
	if c.kind == callUnknown {
		c.name = "in system call " + f[0]
	}
	return c, a
}

// timed reports whether the call was given a timeout.
func (c call) timed(a arguments) bool {
	switch c.timeout {
	case timeoutMillis:
		return int32(a[c.arg]) >= 0
	case timeoutPointer:
		return a[c.arg] != 0
	}
	return false
}

// callHere returns the blocking call that has this number for programs of our own architecture.
func callHere(nr int) call {
	if runtime.GOARCH == "arm64" {
		return callARM64(nr)
	}
	return callAMD64(nr)
}

// The instructions by which programs call the system: of our own architecture, and of 32-bit programs and parts of programs on amd64.
var (
	trapHere = map[string]string{"amd64": "\x0f\x05", "arm64": "\x01\x00\x00\xd4"}[runtime.GOARCH] // syscall, svc 0
	trapSize = len(trapHere)
)

const trapI386 = "\xcd\x80" // int 0x80; what enters by sysenter leaves behind one, in the vDSO

// foreign is the table of a call whose number says nothing.
func foreign(int) call { return call{} }

// callAMD64 returns the blocking call of that number (arch/x86/entry/syscalls/syscall_64.tbl in the kernel). Every call that is
// not here counts as one that goes on by itself.
func callAMD64(nr int) call {
	switch nr {
	case 0:
		return call{name: "read", kind: callRead}
	case 1:
		return call{name: "write", kind: callOther}
	case 7:
		return call{"poll", callPoll, timeoutMillis, 2}
	case 19:
		return call{name: "readv", kind: callRead}
	case 23:
		return call{"select", callSelect, timeoutPointer, 4}
	case 34:
		return call{name: "pause", kind: callWait}
	case 35:
		return call{name: "nanosleep", kind: callOther}
	case 40:
		return call{name: "sendfile", kind: callMove, arg: 1}
	case 42:
		return call{name: "connect", kind: callOther}
	case 43:
		return call{name: "accept", kind: callRead}
	case 45:
		return call{name: "recvfrom", kind: callRead}
	case 47:
		return call{name: "recvmsg", kind: callRead}
	case 61:
		return call{name: "wait4", kind: callWait}
	case 128:
		return call{"rt_sigtimedwait", callWait, timeoutPointer, 2}
	case 130:
		return call{name: "rt_sigsuspend", kind: callWait}
	case 202:
		return call{"futex", callFutex, timeoutPointer, 3}
	case 219:
		return call{name: "restart_syscall", kind: callRestart}
	case 230:
		return call{name: "clock_nanosleep", kind: callOther}
	case 232:
		return call{"epoll_wait", callEpoll, timeoutMillis, 3}
	case 247:
		return call{name: "waitid", kind: callWait}
	case 270:
		return call{"pselect6", callSelect, timeoutPointer, 4}
	case 271:
		return call{"ppoll", callPoll, timeoutPointer, 2}
	case 275:
		return call{name: "splice", kind: callMove}
	case 281:
		return call{"epoll_pwait", callEpoll, timeoutMillis, 3}
	case 288:
		return call{name: "accept4", kind: callRead}
	case 327:
		return call{name: "preadv2", kind: callRead}
	}
	return callCommon(nr)
}

// callARM64 is the same for arm64 (include/uapi/asm-generic/unistd.h), which has neither poll nor select, epoll_wait or pause.
func callARM64(nr int) call {
	switch nr {
	case 22:
		return call{"epoll_pwait", callEpoll, timeoutMillis, 3}
	case 63:
		return call{name: "read", kind: callRead}
	case 64:
		return call{name: "write", kind: callOther}
	case 65:
		return call{name: "readv", kind: callRead}
	case 71:
		return call{name: "sendfile", kind: callMove, arg: 1}
	case 72:
		return call{"pselect6", callSelect, timeoutPointer, 4}
	case 73:
		return call{"ppoll", callPoll, timeoutPointer, 2}
	case 76:
		return call{name: "splice", kind: callMove}
	case 95:
		return call{name: "waitid", kind: callWait}
	case 98:
		return call{"futex", callFutex, timeoutPointer, 3}
	case 101:
		return call{name: "nanosleep", kind: callOther}
	case 115:
		return call{name: "clock_nanosleep", kind: callOther}
	case 128:
		return call{name: "restart_syscall", kind: callRestart}
	case 133:
		return call{name: "rt_sigsuspend", kind: callWait}
	case 137:
		return call{"rt_sigtimedwait", callWait, timeoutPointer, 2}
	case 202:
		return call{name: "accept", kind: callRead}
	case 203:
		return call{name: "connect", kind: callOther}
	case 207:
		return call{name: "recvfrom", kind: callRead}
	case 212:
		return call{name: "recvmsg", kind: callRead}
	case 242:
		return call{name: "accept4", kind: callRead}
	case 260:
		return call{name: "wait4", kind: callWait}
	case 286:
		return call{name: "preadv2", kind: callRead}
	}
	return callCommon(nr)
}

// callI386 is the same for the calls of 32-bit programs on amd64 (arch/x86/entry/syscalls/syscall_32.tbl). The old select, whose
// arguments are in memory, and socketcall are not here.
func callI386(nr int) call {
	switch nr {
	case 0:
		return call{name: "restart_syscall", kind: callRestart}
	case 3:
		return call{name: "read", kind: callRead}
	case 4:
		return call{name: "write", kind: callOther}
	case 7:
		return call{name: "waitpid", kind: callWait}
	case 29:
		return call{name: "pause", kind: callWait}
	case 72:
		return call{name: "sigsuspend", kind: callWait}
	case 114:
		return call{name: "wait4", kind: callWait}
	case 142:
		return call{"_newselect", callSelect, timeoutPointer, 4}
	case 145:
		return call{name: "readv", kind: callRead}
	case 162:
		return call{name: "nanosleep", kind: callOther}
	case 168:
		return call{"poll", callPoll, timeoutMillis, 2}
	case 177:
		return call{"rt_sigtimedwait", callWait, timeoutPointer, 2}
	case 179:
		return call{name: "rt_sigsuspend", kind: callWait}
	case 187:
		return call{name: "sendfile", kind: callMove, arg: 1}
	case 239:
		return call{name: "sendfile64", kind: callMove, arg: 1}
	case 240:
		return call{"futex", callFutex, timeoutPointer, 3}
	case 256:
		return call{"epoll_wait", callEpoll, timeoutMillis, 3}
	case 267:
		return call{name: "clock_nanosleep", kind: callOther}
	case 284:
		return call{name: "waitid", kind: callWait}
	case 308:
		return call{"pselect6", callSelect, timeoutPointer, 4}
	case 309:
		return call{"ppoll", callPoll, timeoutPointer, 2}
	case 313:
		return call{name: "splice", kind: callMove}
	case 319:
		return call{"epoll_pwait", callEpoll, timeoutMillis, 3}
	case 378:
		return call{name: "preadv2", kind: callRead}
	case 407:
		return call{name: "clock_nanosleep_time64", kind: callOther}
	case 413:
		return call{"pselect6_time64", callSelect, timeoutPointer, 4}
	case 414:
		return call{"ppoll_time64", callPoll, timeoutPointer, 2}
	case 421:
		return call{"rt_sigtimedwait_time64", callWait, timeoutPointer, 2}
	case 422:
		return call{"futex_time64", callFutex, timeoutPointer, 3}
	}
	return callCommon(nr)
}

// callCommon is the calls that were added after 423, from where on all architectures have the same numbers.
func callCommon(nr int) call {
	switch nr {
	case 441:
		return call{"epoll_pwait2", callEpoll, timeoutPointer, 3}
	case 449:
		return call{"futex_waitv", callFutex, timeoutPointer, 3}
	}
	return call{}
}
