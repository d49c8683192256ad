package guest

import (
	"math"
	"os"
	"os/signal"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A thread's signal stack costs nothing once it is given back, and works.
func TestEmptySignalStack(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	got := make(chan os.Signal, 1)
	signal.Notify(got, unix.SIGUSR1)
	defer signal.Stop(got)
	take := func() {
		t.Helper()
		if err := unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		<-got
	}
	empty := false
	for range 100 { // the runtime may send the thread a signal of its own in between
		take()
		if resident(t) == 0 {
			t.Fatal("a signal used no memory of its stack")
		}
		emptySignalStack()
		if empty = resident(t) == 0; empty {
			break
		}
	}
	if !empty {
		t.Errorf("%d pages are still there", resident(t))
	}
	take()
}

// resident is how many pages of the calling thread's signal stack are in memory.
func resident(t *testing.T) int {
	t.Helper()
	var stack struct {
		base  uintptr
		flags int32
		size  uintptr
	}
	if _, _, err := unix.RawSyscall(unix.SYS_SIGALTSTACK, 0, uintptr(unsafe.Pointer(&stack)), 0); err != 0 {
		t.Fatal(err)
	}
	page := uintptr(os.Getpagesize())
	from, to := (stack.base+page-1)&^(page-1), (stack.base+stack.size)&^(page-1)
	in := make([]byte, (to-from)/page)
	if _, _, err := unix.RawSyscall(unix.SYS_MINCORE, from, to-from, uintptr(unsafe.Pointer(&in[0]))); err != 0 {
		t.Fatal(err)
	}
	n := 0
	for _, b := range in {
		n += int(b & 1)
	}
	return n
}

func TestOwnMemory(t *testing.T) {
	const more = 64 << 20
	before := ownMemory()
	big := make([]byte, more)
	for i := 0; i < more; i += os.Getpagesize() {
		big[i] = 1
	}
	if after := ownMemory(); before <= 0 || after < before+more/2 || after == math.MaxInt {
		t.Errorf("%d bytes, with %d more %d", before, more, after)
	}
	runtime.KeepAlive(big)
}
