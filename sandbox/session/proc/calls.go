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
	arg     int // index of the argument that is the timeout, or see callMove
}

type callKind int

const (
	callUnknown callKind = iota
	callRead             // argument 0 is the descriptor
	// Moves data from one descriptor to another; arg is the index of the source among the
	// arguments.
	callMove
	callPoll   // arguments 0 and 1 are the set and its length
	callSelect // arguments 0 and 1 are the length and the set
	callEpoll  // argument 0 is the epoll descriptor
	callFutex
	callWait    // waits for a child or a signal
	callRestart // resumes a call that a stop interrupted
	callOther   // continues by itself, or through a process outside
)

type timeoutKind int

const (
	timeoutNone    timeoutKind = iota
	timeoutMillis              // an int of milliseconds, negative for none
	timeoutPointer             // a struct timespec or timeval, NULL for none
)

// arguments are the arguments of a system call.
type arguments [6]uint64

// decode parses a line of /proc/PID/task/TID/syscall (proc_pid_syscall(5)). It has the number of
// the call, six arguments, stack pointer and program counter. Or it is "running", or -1 for a
// thread that is blocked outside a call. table is the architecture's. For a call that table does
// not list, kind is callUnknown, and name says what is known.
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

// timed reports whether the call has a timeout.
func (c call) timed(a arguments) bool {
	switch c.timeout {
	case timeoutMillis:
		return int32(a[c.arg]) >= 0
	case timeoutPointer:
		return a[c.arg] != 0
	}
	return false
}

// An arch is a set of system call numbers: a column of blocking.
type arch int

const (
	amd64 arch = iota // arch/x86/entry/syscalls/syscall_64.tbl in the kernel
	i386              // 32-bit programs on amd64: arch/x86/entry/syscalls/syscall_32.tbl
	arm64             // include/uapi/asm-generic/unistd.h
)

// callHere returns the blocking call with number nr on our own architecture.
func callHere(nr int) call {
	if runtime.GOARCH == "arm64" {
		return arm64.call(nr)
	}
	return amd64.call(nr)
}

// call returns the blocking call with number nr. For other calls, kind is callUnknown.
func (a arch) call(nr int) call {
	for _, b := range blocking {
		if b.numbers[a] == nr && nr != none {
			return b.call
		}
	}
	return call{}
}

// The instructions of a system call, on our own architecture and in 32-bit code on amd64.
var (
	// Syscall, svc 0.
	trapHere = map[string]string{"amd64": "\x0f\x05", "arm64": "\x01\x00\x00\xd4"}[runtime.GOARCH]
	trapSize = len(trapHere)
)

const trapI386 = "\xcd\x80" // int 0x80; the vDSO has one right after sysenter

// foreign is the table for calls of an unknown architecture, whose numbers mean nothing.
func foreign(int) call { return call{} }

// none marks a call that an architecture does not have.
const none = -1

// blocking lists the calls that block, by their numbers on amd64, i386 and arm64. Any other call
// counts as one that continues by itself. The old select of i386, whose arguments are in memory,
// and socketcall are not listed.
var blocking = []struct {
	numbers [3]int
	call    call
}{
	{[3]int{none, 142, none}, call{"_newselect", callSelect, timeoutPointer, 4}},
	{[3]int{43, none, 202}, call{name: "accept", kind: callRead}},
	{[3]int{288, none, 242}, call{name: "accept4", kind: callRead}},
	{[3]int{230, 267, 115}, call{name: "clock_nanosleep", kind: callOther}},
	{[3]int{none, 407, none}, call{name: "clock_nanosleep_time64", kind: callOther}},
	{[3]int{42, none, 203}, call{name: "connect", kind: callOther}},
	{[3]int{281, 319, 22}, call{"epoll_pwait", callEpoll, timeoutMillis, 3}},
	{[3]int{441, 441, 441}, call{"epoll_pwait2", callEpoll, timeoutPointer, 3}},
	{[3]int{232, 256, none}, call{"epoll_wait", callEpoll, timeoutMillis, 3}},
	{[3]int{202, 240, 98}, call{"futex", callFutex, timeoutPointer, 3}},
	{[3]int{none, 422, none}, call{"futex_time64", callFutex, timeoutPointer, 3}},
	{[3]int{449, 449, 449}, call{"futex_waitv", callFutex, timeoutPointer, 3}},
	{[3]int{35, 162, 101}, call{name: "nanosleep", kind: callOther}},
	{[3]int{34, 29, none}, call{name: "pause", kind: callWait}},
	{[3]int{7, 168, none}, call{"poll", callPoll, timeoutMillis, 2}},
	{[3]int{271, 309, 73}, call{"ppoll", callPoll, timeoutPointer, 2}},
	{[3]int{none, 414, none}, call{"ppoll_time64", callPoll, timeoutPointer, 2}},
	{[3]int{327, 378, 286}, call{name: "preadv2", kind: callRead}},
	{[3]int{270, 308, 72}, call{"pselect6", callSelect, timeoutPointer, 4}},
	{[3]int{none, 413, none}, call{"pselect6_time64", callSelect, timeoutPointer, 4}},
	{[3]int{0, 3, 63}, call{name: "read", kind: callRead}},
	{[3]int{19, 145, 65}, call{name: "readv", kind: callRead}},
	{[3]int{45, none, 207}, call{name: "recvfrom", kind: callRead}},
	{[3]int{47, none, 212}, call{name: "recvmsg", kind: callRead}},
	{[3]int{219, 0, 128}, call{name: "restart_syscall", kind: callRestart}},
	{[3]int{130, 179, 133}, call{name: "rt_sigsuspend", kind: callWait}},
	{[3]int{128, 177, 137}, call{"rt_sigtimedwait", callWait, timeoutPointer, 2}},
	{[3]int{none, 421, none}, call{"rt_sigtimedwait_time64", callWait, timeoutPointer, 2}},
	{[3]int{23, none, none}, call{"select", callSelect, timeoutPointer, 4}},
	{[3]int{40, 187, 71}, call{name: "sendfile", kind: callMove, arg: 1}},
	{[3]int{none, 239, none}, call{name: "sendfile64", kind: callMove, arg: 1}},
	{[3]int{none, 72, none}, call{name: "sigsuspend", kind: callWait}},
	{[3]int{275, 313, 76}, call{name: "splice", kind: callMove}},
	{[3]int{61, 114, 260}, call{name: "wait4", kind: callWait}},
	{[3]int{247, 284, 95}, call{name: "waitid", kind: callWait}},
	{[3]int{none, 7, none}, call{name: "waitpid", kind: callWait}},
	{[3]int{1, 4, 64}, call{name: "write", kind: callOther}},
}
