package guest

import (
	"math"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// emptySignalStack gives back the memory of the calling thread's signal stack, which is in use during a signal alone: the runtime writes a
// zero to its lowest page when it makes the thread, and each signal leaves its frame at the top. Read again, it is zeros. The caller is locked to the
// thread.
func emptySignalStack() {
	var stack struct { // stack_t of sigaltstack(2)
		base  uintptr
		flags int32
		size  uintptr
	}
	if _, _, err := unix.RawSyscall(unix.SYS_SIGALTSTACK, 0, uintptr(unsafe.Pointer(&stack)), 0); err != 0 {
		return // it costs a page more
	}
	page := uintptr(os.Getpagesize())
	from, to := (stack.base+page-1)&^(page-1), (stack.base+stack.size)&^(page-1)
	if from < to {
		_, _, _ = unix.RawSyscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED) // refused, it costs a page more
	}
}

// ownMemory is how much of the memory of this process is in no file (proc_pid_statm(5)), without end if that is not known.
func ownMemory() int {
	text, _ := os.ReadFile("/proc/self/statm")
	f := strings.Fields(string(text)) // size, resident, shared …, in pages
	if len(f) < 3 {
		return math.MaxInt
	}
	resident, err := strconv.Atoi(f[1])
	shared, err2 := strconv.Atoi(f[2])
	if err != nil || err2 != nil {
		return math.MaxInt
	}
	return (resident - shared) * os.Getpagesize()
}
