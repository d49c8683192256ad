//go:build linux

package guest

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// abi is one calling convention of the kernel, with the numbers of the calls that the filter
// checks.
type abi struct {
	arch             uint32 // AUDIT_ARCH_* (seccomp(2), struct seccomp_data)
	fallocate, ioctl uint32
}

var abis = map[string][]abi{
	"amd64": {
		{unix.AUDIT_ARCH_X86_64, 285, 16},
		{unix.AUDIT_ARCH_I386, 324, 54},
	},
	"arm64": {
		{unix.AUDIT_ARCH_AARCH64, 47, 29},
		{unix.AUDIT_ARCH_ARM, 352, 54},
	},
}

const (
	ioUringSetup = 425 // in all of them
	x32          = 0x40000000

	// With these flags fallocate frees blocks, or moves them (linux/falloc.h).
	freeing = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_COLLAPSE_RANGE |
		unix.FALLOC_FL_INSERT_RANGE
)

// reserving are the ioctls that every file system implements as fallocate (FS_IOC_RESVSP,
// FS_IOC_RESVSP64, FS_IOC_ZERO_RANGE), also as 32-bit programs on amd64 use them.
var reserving = []uint32{0x40305828, 0x4030582a, 0x40305839, 0x402c5828, 0x402c582a, 0x402c5839}

// blockReserving blocks, for this process and all its children, the calls that reserve a whole disk
// at once without writing. If the storage has no quotas, the disk limit is enforced by measurement,
// which notices writes in time but not such calls. The filter answers as a file system without
// support does, and programs then write instead (posix_fallocate(3)). It answers io_uring, which
// could do the same unseen, as a kernel without it does.
//
// If setuid programs work (no_new_privs is off) the kernel allows a filter only with CAP_SYS_ADMIN,
// and blockReserving does nothing.
func blockReserving() error {
	if on, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err != nil || on == 0 {
		return err
	}
	filter := reservingFilter(abis[runtime.GOARCH])
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// For all threads at once, and later ones inherit it.
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program))); e != 0 {
		return fmt.Errorf("seccomp: %w", e)
	}
	return nil
}

// reservingFilter returns the filter as a program of classic BPF over struct seccomp_data
// (seccomp(2)). It allows calls of an unknown ABI: the engine's own filter has a list of allowed
// calls.
func reservingFilter(abis []abi) (f []unix.SockFilter) {
	const (
		// Offsets; for the second argument only the lower half, which is all that the kernel uses.
		nr, arch, second = 0, 4, 16 + 8
		allow            = unix.SECCOMP_RET_ALLOW
		unsupported      = unix.SECCOMP_RET_ERRNO | uint32(unix.EOPNOTSUPP)
		missing          = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	)
	add := func(code uint16, k uint32, yes, no int) {
		f = append(f, unix.SockFilter{Code: code, Jt: uint8(yes), Jf: uint8(no), K: k})
	}
	load := func(offset uint32) { add(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, offset, 0, 0) }
	ret := func(what uint32) { add(unix.BPF_RET|unix.BPF_K, what, 0, 0) }
	for _, a := range abis {
		load(arch)
		from := len(f)
		add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, a.arch, 0, 0) // the jump is filled in below
		load(nr)
		if a.arch == unix.AUDIT_ARCH_X86_64 {
			add(unix.BPF_JMP|unix.BPF_JGE|unix.BPF_K, x32, 0, 1)
			ret(missing)
		}
		add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, ioUringSetup, 0, 1)
		ret(missing)
		add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, a.fallocate, 0, 4)
		load(second)
		add(unix.BPF_JMP|unix.BPF_JSET|unix.BPF_K, freeing, 1, 0)
		ret(unsupported)
		ret(allow)
		add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, a.ioctl, 1, 0)
		ret(allow)
		load(second)
		for i, cmd := range reserving {
			add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, cmd, len(reserving)-i, 0)
		}
		ret(allow)
		ret(unsupported)
		f[from].Jf = uint8(len(f) - from - 1)
	}
	ret(allow)
	return f
}
