package main

import "golang.org/x/sys/unix"

// vsockOpens reports whether this process may open an AF_VSOCK socket (vsock(7)).
func vsockOpens() bool {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false // EPERM from the filter, or EAFNOSUPPORT from a kernel without it
	}
	unix.Close(fd)
	return true
}

// ringOpens reports whether this process may call io_uring_setup(2). It passes no memory for the
// result, so the call fails with EFAULT if it is allowed and the kernel has it.
func ringOpens() bool {
	_, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, 0, 0)
	return errno == unix.EFAULT
}
