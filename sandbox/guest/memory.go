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

// ownMemory is how much of the memory of this process no other one shares (proc_pid_smaps(5)), without end if that is not known. Not what statm says:
// on a machine of many processors that is off by megabytes.
func ownMemory() int {
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		return math.MaxInt
	}
	sum := 0
	f := strings.Fields(string(text))
	for i, name := range f[:max(len(f)-1, 0)] {
		if strings.HasPrefix(name, "Private_") {
			kib, _ := strconv.Atoi(f[i+1])
			sum += kib << 10
		}
	}
	return sum
}
