package session

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// inheritedFile makes the file of the session's own shell, which has no name.
func inheritedFile() (*commandFile, error) {
	fd, err := unix.MemfdCreate("command", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := &commandFile{w: os.NewFile(uintptr(fd), "command")}
	// A program that inherits the descriptor can reopen it.
	if err = f.w.Chmod(0o444); err == nil {
		f.r, err = os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	}
	if err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// readableBy lets another user read a file that only its owner can read, by an access control list:
// see acl(5) for the entries, and the kernel's posix_acl_xattr.h for their form.
func readableBy(file *os.File, uid int) error {
	const version, owner, user, group, mask, other = 2, 0x01, 0x02, 0x04, 0x10, 0x20
	const read, none = 4, ^uint32(0)
	list := binary.LittleEndian.AppendUint32(nil, version)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{owner, read, none}, {user, read, uint32(uid)}, {group, 0, none}, {mask, read, none},
		{other, 0, none}} {
		list = binary.LittleEndian.AppendUint16(list, e.tag)
		list = binary.LittleEndian.AppendUint16(list, e.perm)
		list = binary.LittleEndian.AppendUint32(list, e.id)
	}
	err := unix.Fsetxattr(int(file.Fd()), "system.posix_acl_access", list, 0)
	return os.NewSyscallError("acl", err)
}
